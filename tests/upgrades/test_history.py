"""`dhara_migrate` applies nothing when an applied migration was renamed, deleted or changed since, and says which."""

import ast

import pytest

from tests.upgrades.garden import Garden

REFUSED = "Nothing was done."


@pytest.fixture
def planted(garden):
    """Two migrations that are applied and kept, and a third one that is new."""
    garden.write("0001_initial", "CREATE TABLE bed (id int)")
    garden.write("0002_size", "ALTER TABLE bed ADD size int")
    garden.run()
    garden.write("0003_name", "ALTER TABLE bed ADD name text")
    return garden


def columns(database):
    return {name for (name,) in database.rows("SELECT attname FROM pg_attribute WHERE attrelid = 'bed'::regclass")}


def kept(database):
    rows = database.rows("SELECT name, digest FROM dhara_migration WHERE app = 'garden' ORDER BY name")
    return dict(rows)


def only_line(log):
    """A refusal is one line."""
    [line] = log.splitlines()
    return line


@pytest.mark.fast
def test_it_applies_what_is_new_and_keeps_a_digest_of_all_that_is_applied(garden, database):
    garden.write("0001_initial", "CREATE TABLE bed (id int)")
    assert "Applying garden.0001_initial... OK" in garden.run()
    assert "No migrations to apply." in garden.run()
    applied = database.rows("SELECT app, name FROM django_migrations ORDER BY 1, 2")
    assert applied == database.rows("SELECT app, name FROM dhara_migration WHERE digest LIKE '1:%' ORDER BY 1, 2")
    assert ("dhara", "0001_initial") in applied
    assert ("contenttypes", "0001_initial") in applied


@pytest.mark.fast
def test_a_changed_migration_is_refused_until_a_person_accepts_it(planted, database):
    planted.change("0002_size", "size int", "size bigint")
    line = only_line(planted.run(code=1))
    assert line.startswith("CommandError: garden.0002_size was changed since it was applied. ")
    assert REFUSED in line
    assert "name" not in columns(database)
    assert "garden.0002_size was changed" in planted.run("--plan", code=1)
    assert "Applying garden.0003_name... OK" in planted.run("--accept", "garden.0002_size")
    assert "No migrations to apply." in planted.run()
    assert database.rows("SELECT name FROM dhara_migration WHERE accepted_at IS NOT NULL") == [("0002_size",)]
    planted.change("0002_size", "size bigint", "size int")  # what was accepted is the new text, not any text
    planted.run(code=1)


def test_another_form_changes_nothing(planted):
    source = planted.path("0002_size").read_text()
    planted.path("0002_size").write_text('"""Of another hand."""\n\n' + ast.unparse(ast.parse(source)) + "\n# end")
    assert planted.path("0002_size").read_text() != source
    assert "Applying garden.0003_name... OK" in planted.run()


def test_a_deleted_migration_is_refused_by_its_name(planted, database):
    planted.path("0001_initial").unlink()
    line = only_line(planted.run(code=1))
    assert line.startswith("CommandError: garden.0001_initial was applied and is now gone. ")
    assert REFUSED in line
    assert "name" not in columns(database)


def test_a_renamed_migration_is_refused_by_both_names(planted, database):
    planted.path("0002_size").rename(planted.path("0002_extent"))
    planted.change("0003_name", "0002_size", "0002_extent")
    line = only_line(planted.run(code=1))
    assert "garden.0002_size was applied and is now called 0002_extent. " in line
    planted.path("0002_extent").rename(planted.path("0002_size"))
    planted.change("0003_name", "0002_extent", "0002_size")
    planted.run()
    assert "name" in columns(database)


def test_a_deleted_migration_can_be_accepted_once_and_for_all(planted, database):
    planted.path("0002_size").unlink()
    planted.change("0003_name", "0002_size", "0001_initial")
    assert "garden.0002_size" in planted.run("--accept", "garden.0001_initial", code=1)
    planted.run("--accept", "garden.0002_size")
    assert "No migrations to apply." in planted.run()
    planted.run("--check")


def test_several_troubles_are_told_at_once(planted):
    planted.change("0001_initial", "id int", "id bigint")
    planted.path("0002_size").unlink()
    line = only_line(planted.run(code=1))
    assert "garden.0001_initial was changed since it was applied; garden.0002_size was applied and is now gone." in line
    assert "garden.0001_initial" in planted.run("--accept", "garden.0002_size", code=1)
    planted.change("0003_name", "0002_size", "0001_initial")
    planted.run("--accept", "garden.0002_size", "--accept", "garden.0001_initial")


def test_what_plain_migrate_has_applied_is_the_baseline(garden, database):
    garden.write("0001_initial", "CREATE TABLE bed (id int)")
    garden.run("migrate")
    garden.change("0001_initial", "id int", "id bigint")  # nobody has looked at it yet
    assert kept(database) == {}
    garden.run()
    assert set(kept(database)) == {"0001_initial"}
    garden.change("0001_initial", "id bigint", "id int")
    garden.run(code=1)


def test_what_was_unapplied_is_forgotten(planted, database):
    planted.run("garden", "0001")
    assert set(kept(database)) == {"0001_initial"}
    planted.change("0002_size", "ADD size int", "ADD IF NOT EXISTS size bigint")
    planted.run()
    assert set(kept(database)) == {"0001_initial", "0002_size", "0003_name"}


def test_a_squash_is_understood_at_each_of_its_steps(planted, database):
    planted.run()
    before = kept(database)
    # 1. The squashed migration stands beside those that it replaces.
    planted.write("0001_squashed_0002", "CREATE TABLE bed (id int, size int)", after=[])
    replaced = [("garden", "0001_initial"), ("garden", "0002_size")]
    planted.change("0001_squashed_0002", "replaces = []", f"replaces = {replaced}")
    planted.run()
    assert set(kept(database)) == {*before, "0001_squashed_0002"}
    # 2. These go, and what depended on them depends on the squashed one.
    planted.path("0001_initial").unlink()
    planted.path("0002_size").unlink()
    planted.change("0003_name", "0002_size", "0001_squashed_0002")
    planted.run("--check")
    assert "No migrations to apply." in planted.run()
    # 3. And so does the list of what it replaces; Django still remembers their names.
    source = planted.path("0001_squashed_0002").read_text()
    planted.path("0001_squashed_0002").write_text(
        "\n".join(line for line in source.splitlines() if "replaces" not in line)
    )
    planted.run("--check")
    assert "No migrations to apply." in planted.run()
    # What it does is looked after like what any other does.
    planted.change("0001_squashed_0002", "size int", "size bigint")
    assert "garden.0001_squashed_0002 was changed" in planted.run(code=1)


def test_a_squash_on_an_empty_database_is_understood(garden, database):
    garden.write("0001_squashed_0002", "CREATE TABLE bed (id int)", replaces=["0001_initial", "0002_size"])
    garden.run()
    garden.run("--check")
    garden.change("0001_squashed_0002", "('garden', '0001_initial'), ('garden', '0002_size')", "")
    garden.run("--check")


def test_migrations_of_an_app_that_left_the_project_are_not_missing(planted, database):
    database.rows("INSERT INTO django_migrations (app, name, applied) VALUES ('pond', '0001_initial', now())")
    planted.run("--check", code=1)  # of the new one
    planted.run()
    planted.run("--check")


@pytest.mark.fast
def test_code_that_is_older_than_the_tables_may_be_let_pass(planted, database):
    planted.run()
    files = {name: planted.path(name).read_text() for name in ("0002_size", "0003_name")}
    for name in files:
        planted.path(name).unlink()
    assert "garden.0002_size was applied and is now gone" in only_line(planted.run(code=1))
    planted.run("--check", code=1)
    assert "Applied by newer code than this: garden.0002_size, garden.0003_name." in planted.run("--allow-newer")
    planted.run("--check", DHARA_MIGRATE_ALLOW_NEWER="1")
    assert set(kept(database)) == {"0001_initial", "0002_size", "0003_name"}
    # Not if it has something to apply, nor if something older is missing.
    planted.write("0002_other", "SELECT 1", after=["0001_initial"])
    assert "garden.0002_size was applied and is now gone" in only_line(planted.run("--allow-newer", code=1))
    planted.path("0002_other").unlink()
    planted.path("0003_name").write_text(files["0003_name"].replace("0002_size", "0001_initial"))
    assert "garden.0002_size was applied and is now gone" in only_line(planted.run("--allow-newer", code=1))


def test_accept_of_what_is_as_it_was_says_so(planted):
    assert "nothing to accept" in planted.run("--accept", "garden.0001_initial")
    line = only_line(planted.run("--accept", "garden.0009_typo", code=1))
    assert "--accept garden.0009_typo: no such migration is applied." in line


@pytest.mark.fast
def test_check_changes_nothing_and_says_what_is_amiss(garden, database):
    garden.write("0001_initial", "CREATE TABLE bed (id int)")
    assert "garden.0001_initial is not applied" in only_line(garden.run("--check", code=1))
    assert database.value("SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace") == 0
    garden.run()
    assert garden.run("--check") == "All migrations are applied, and as they were.\n"
    garden.write("0002_size", "ALTER TABLE bed ADD size int")
    garden.change("0001_initial", "id int", "id bigint")
    line = only_line(garden.run(DHARA_MIGRATE_CHECK="true", code=1))
    assert line.endswith("garden.0002_size is not applied; garden.0001_initial was changed since it was applied.")
    garden.path("0001_initial").unlink()
    assert "garden.0001_initial was applied and is now gone" in only_line(garden.run("--check", code=1))
    assert set(kept(database)) == {"0001_initial"}


@pytest.mark.parametrize(
    ("flags", "code", "word"),
    [
        (["--check", "--accept", "garden.0001_initial"], 1, "accept"),
        (["--check", "nobody"], 1, "nobody"),
        (["--accept", "0001_initial"], 2, "APP.NAME"),
        (["--database", "nobody"], 2, "nobody"),
        (["--wait", "nan"], 2, "--wait"),
        (["--dsn", "port"], 1, "--dsn"),
        (["--dsn", "port=1 host=127.0.0.1"], 1, "cannot be reached"),
        (["garden", "0009"], 1, "0009"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_mistake_is_one_line(garden, flags, code, word):
    garden.write("0001_initial", "CREATE TABLE bed (id int)")
    assert word in only_line(garden.run(*flags, code=code))


def test_two_newest_migrations_are_one_line(garden):
    garden.write("0001_initial", "CREATE TABLE bed (id int)")
    garden.write("0002_one", "SELECT 1")
    garden.write("0002_other", "SELECT 1", after=["0001_initial"])
    assert "0002_one, 0002_other" in only_line(garden.run("--check", code=1))
    log = garden.run(code=1)
    assert "0002_one, 0002_other" in log
    assert "Traceback" not in log


def test_a_migration_that_fails_is_shown_as_django_shows_it_and_what_came_before_is_kept(garden, database):
    garden.write("0001_initial", "CREATE TABLE bed (id int)")
    garden.write("0002_size", "ALTER TABLE bed ADD size nonsense")
    log = garden.run(code=1)
    assert "Traceback" in log
    assert 'type "nonsense" does not exist' in log
    assert set(kept(database)) == {"0001_initial"}


def test_flags_of_migrate_are_handed_on(garden, database):
    garden.write("0001_initial", "CREATE TABLE bed (id int)")
    assert "Planned operations:\ngarden.0001_initial" in garden.run("garden", "--plan")
    assert only_line(garden.run("garden", "-v0")).startswith("DATABASES['default'] has no table dhara_migration")
    garden.write("0002_size", "ALTER TABLE bed ADD size int")
    assert "FAKED" in garden.run("--fake", "garden")
    assert columns(database) & {"id", "size"} == {"id"}
    garden.run("garden", "zero", "--fake")
    assert database.value("SELECT count(*) FROM django_migrations WHERE app = 'garden'") == 0


def test_without_our_tables_the_names_are_compared_all_the_same(databases, tmp_path):
    garden = Garden(tmp_path, {"default": databases.make().parameters})
    env = {"GARDEN_ROUTERS": "garden_settings.Apart"}
    garden.write("0001_initial", "CREATE TABLE bed (id int)")
    garden.write("0002_size", "ALTER TABLE bed ADD size int")
    assert "has no table dhara_migration" in garden.run(**env)
    garden.run("--check", **env)
    garden.change("0001_initial", "id int", "id bigint")
    garden.run("--check", **env)
    garden.path("0001_initial").unlink()
    garden.change("0002_size", "('garden', '0001_initial')", "")
    assert "garden.0001_initial was applied and is now gone" in only_line(garden.run(code=1, **env))
    garden.end()


def test_a_test_of_the_django_kind_is_refused(db):
    from django.core.management import CommandError, call_command

    with pytest.raises(CommandError, match="transaction"):
        call_command("dhara_migrate")


def test_python_callers_get_the_output(transactional_db):
    from io import StringIO

    from django.core.management import call_command

    out = StringIO()
    call_command("dhara_migrate", stdout=out)
    call_command("dhara_migrate", check=True, stdout=out)
    assert "No migrations to apply." in out.getvalue()
    assert "as they were" in out.getvalue()
