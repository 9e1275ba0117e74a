"""System checks: each mistake has an id, the path of the setting and a remedy, and is told once."""

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace

import django
import pytest
from django.core.checks import Error, Warning, run_checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from django_dhara import checks, project, registry
from django_dhara.compat import task_backends
from django_dhara.tasks import task

pytestmark = pytest.mark.fast

ROOT = Path(__file__).resolve().parent.parent
BACKEND = "django_dhara.backend.DharaBackend"


@pytest.fixture
def tasks(settings):
    """Set TASKS to one alias with these entries."""

    def set_tasks(alias="default", **entries):
        settings.TASKS = {alias: {"BACKEND": BACKEND, "QUEUES": [], **entries}}

    set_tasks()
    return set_tasks


@pytest.fixture(autouse=True)
def connections_stay_open(monkeypatch):
    """Silence the warning that tests.settings brings about."""
    monkeypatch.setitem(connections["default"].settings_dict, "CONN_MAX_AGE", 60)


@pytest.fixture
def add_database(monkeypatch):
    """Add an alias to DATABASES."""
    added = []

    def add(alias, **entries):
        monkeypatch.setitem(connections.settings, alias, {**connections.settings["default"], **entries})
        added.append(alias)

    yield add
    for alias in added:
        if hasattr(connections._connections, alias):
            del connections[alias]


def messages():
    return [message for message in run_checks() if str(message.id).startswith("dhara.")]


def only_message():
    [message] = messages()
    assert message.hint
    return message


def test_sound_settings_have_nothing_to_tell(tasks):
    assert messages() == []


def test_an_unknown_option_is_refused_with_the_one_that_was_meant(tasks):
    tasks(OPTIONS={"CONCURENCY": 5})
    message = only_message()
    assert (message.id, message.hint) == ("dhara.E003", "Did you mean 'CONCURRENCY'?")
    assert message.msg == "TASKS['default']['OPTIONS']['CONCURENCY'] is not an option of django_dhara."


def test_an_option_in_lower_case_is_told_how_to_write_it(tasks):
    tasks(OPTIONS={"lease_seconds": 5})
    assert only_message().hint == "Did you mean 'LEASE_SECONDS'?"


def test_an_option_like_no_other_is_sent_to_the_documentation(tasks):
    tasks(OPTIONS={"BROKER": "redis"})
    assert "docs/reference/settings.md" in only_message().hint


@pytest.mark.parametrize(
    "value", [0, "ten", None, True, float("nan"), 10**5000], ids=lambda value: type(value).__name__
)
def test_a_value_that_cannot_work_is_an_error(tasks, value):
    tasks("mail", OPTIONS={"LEASE_SECONDS": value})
    message = only_message()
    assert (message.id, message.level) == ("dhara.E004", Error("").level)
    assert message.msg.startswith("TASKS['mail']['OPTIONS']['LEASE_SECONDS'] must be ")
    assert message.hint.startswith("A number of seconds.")


def test_a_value_from_the_environment_is_checked_too(tasks, monkeypatch):
    monkeypatch.setenv("DHARA_CONCURRENCY", "many")
    message = only_message()
    assert message.id == "dhara.E004"
    assert message.msg == "environment variable DHARA_CONCURRENCY must be a whole number, not 'many'."


@pytest.mark.parametrize("options", [None, [], "x"])
def test_options_that_are_no_dict_are_an_error(tasks, options):
    tasks(OPTIONS=options)
    assert only_message().id == "dhara.E004"


def test_options_that_contradict_each_other_are_an_error(tasks):
    tasks(OPTIONS={"BACKOFF_BASE_SECONDS": 60, "BACKOFF_CAP_SECONDS": 10})
    assert only_message().id == "dhara.E005"


@pytest.mark.parametrize(
    ("queues", "reason"),
    [
        ("email", "must be a list of strings, not str."),
        (None, "must be a list of strings, not NoneType."),
        ({"email": 1}, "must be a list of strings, not dict."),
        ([5], "a queue name must be a str, not int"),
        ([["email"]], "a queue name must be a str, not list"),
        ([""], "must have 1 to 255 characters"),
        (["e" * 256], "must have 1 to 255 characters"),
        (["e\0mail"], "control character"),
        (["email,sms"], "has a comma or an outer space in it"),
        (["email "], "has a comma or an outer space in it"),
    ],
)
def test_queues_are_a_list_of_names(tasks, queues, reason):
    tasks(QUEUES=queues)
    message = only_message()
    assert message.id == "dhara.E006"
    assert message.msg.startswith("TASKS['default']['QUEUES']")
    assert reason in message.msg


def test_functions_can_be_decorated_while_queues_are_wrong(tasks):
    tasks(QUEUES="email")
    task(test_sound_settings_have_nothing_to_tell)


@pytest.mark.parametrize("queues", [[], ["default", "email"], ("default",), {"default"}])
def test_queues_may_be_any_collection_of_names(tasks, queues):
    tasks(QUEUES=queues)
    assert messages() == []


def test_the_database_is_one_of_databases(tasks):
    tasks(OPTIONS={"DATABASE": "defualt"})
    message = only_message()
    assert (message.id, message.hint) == ("dhara.E007", "Did you mean 'default'?")
    tasks(OPTIONS={"DATABASE": "zebra"})
    assert only_message().hint == "DATABASES has 'default'."


def test_the_database_is_checked_beside_another_mistake(tasks):
    tasks(OPTIONS={"DATABASE": "zebra", "CONCURRENCY": 0})
    assert sorted(message.id for message in messages()) == ["dhara.E004", "dhara.E007"]


def test_the_database_is_postgresql(tasks, add_database):
    add_database("lite", ENGINE="django.db.backends.sqlite3", NAME=":memory:")
    tasks(OPTIONS={"DATABASE": "lite"})
    [message] = task_backends["default"].check()
    assert message.id == "dhara.E008"
    assert "'django.db.backends.sqlite3'" in message.msg


@pytest.fixture
def atomic_function(monkeypatch):
    """A registered function with atomic=True."""
    monkeypatch.setattr(registry, "_tasks", {})
    return task(atomic=True)(test_the_database_is_postgresql)


def test_atomic_functions_need_read_committed(tasks, atomic_function, monkeypatch):
    from psycopg import IsolationLevel

    options = connections["default"].settings_dict["OPTIONS"]
    monkeypatch.setitem(options, "isolation_level", IsolationLevel.SERIALIZABLE)
    message = only_message()
    assert message.id == "dhara.E009"
    assert "DATABASES['default']['OPTIONS']['isolation_level']" in message.msg
    assert atomic_function.module_path in message.msg
    monkeypatch.setitem(options, "isolation_level", IsolationLevel.READ_COMMITTED)
    assert messages() == []


def test_other_functions_run_at_any_isolation_level(tasks, monkeypatch):
    monkeypatch.setattr(registry, "_tasks", {})
    monkeypatch.setitem(connections["default"].settings_dict["OPTIONS"], "isolation_level", 4)
    assert messages() == []


def test_another_backend_is_a_choice_that_nobody_comments(settings):
    module = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
    settings.TASKS = {"default": {"BACKEND": f"{module}.backends.dummy.DummyBackend"}}
    assert messages() == []


@pytest.mark.parametrize("key", ["ENQUEUE_ON_COMMIT", "CONCURRENCY"])
def test_a_key_of_tasks_that_django_ignores_is_told(tasks, key):
    tasks(**{key: True})
    message = only_message()
    assert (message.id, message.level) == ("dhara.W002", Warning("").level)
    assert message.msg == f"TASKS['default'][{key!r}] is ignored."


def test_a_misspelt_environment_variable_is_told(tasks, monkeypatch):
    monkeypatch.setenv("DHARA_CONCURENCY", "5")
    monkeypatch.setenv("DHARA_IMAGE_TAG", "v1")
    message = only_message()
    assert (message.id, message.hint) == ("dhara.W003", "Did you mean DHARA_CONCURRENCY?")


def test_the_backport_beside_djangos_own_tasks_is_told_and_says_nothing_twice(settings, tasks):
    pytest.importorskip("django_tasks")
    if django.VERSION < (6, 0):
        pytest.skip("this Django needs the backport")
    tasks(OPTIONS={"CONCURRENCY": 0})
    settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "django_tasks"]
    assert sorted(message.id for message in messages()) == ["dhara.E004", "dhara.W004"]


def test_times_without_zones_are_told(settings, tasks):
    settings.USE_TZ = False
    assert only_message().id == "dhara.W005"


def test_a_connection_for_each_task_is_told_once_for_each_database(settings, monkeypatch):
    settings.TASKS = {"default": {"BACKEND": BACKEND}, "mail": {"BACKEND": BACKEND}}
    monkeypatch.setitem(connections["default"].settings_dict, "CONN_MAX_AGE", 0)
    message = only_message()
    assert message.id == "dhara.W006"
    assert "DATABASES['default']['CONN_MAX_AGE']" in message.msg
    monkeypatch.setitem(connections["default"].settings_dict["OPTIONS"], "pool", {"max_size": 20})
    assert messages() == []


@pytest.mark.parametrize(
    ("pool", "size"), [(True, 4), ({"max_size": 9}, 9), ({"min_size": 5}, 5), ({"min_size": 5, "max_size": None}, 5)]
)
def test_a_pool_smaller_than_the_threads_of_a_worker_is_told(tasks, monkeypatch, pool, size):
    monkeypatch.setitem(connections["default"].settings_dict["OPTIONS"], "pool", pool)
    message = only_message()
    assert message.id == "dhara.W007"
    assert f"has {size} connections for CONCURRENCY = 10" in message.msg
    tasks(OPTIONS={"CONCURRENCY": 4})
    assert messages() == []


class Elsewhere:
    """Sends the app to another database."""

    def db_for_write(self, model, **hints):
        return "replica" if model._meta.app_label == "dhara" else None


class NoTables:
    """Keeps the tables from being made."""

    def allow_migrate(self, db, app_label, **hints):
        return False if app_label == "dhara" else None


@pytest.mark.parametrize(("name", "id"), [("Elsewhere", "dhara.W008"), ("NoTables", "dhara.W009")])
def test_a_router_that_disagrees_is_told(settings, tasks, name, id):
    settings.DATABASE_ROUTERS = [f"{__name__}.{name}"]
    message = only_message()
    assert message.id == id
    assert message.msg.startswith("TASKS['default']['OPTIONS']['DATABASE'] is 'default', but ")


def test_a_queue_database_that_no_router_knows_is_told(tasks, add_database):
    add_database("queue")
    tasks(OPTIONS={"DATABASE": "queue"})
    assert only_message().id == "dhara.W008"


SOUND = checks.Server(18, False, "read committed", True, True, True, "")


@pytest.mark.parametrize(
    ("facts", "id"),
    [
        ({"version": 14}, "dhara.E010"),
        ({"recovering": True}, "dhara.E011"),
        ({"logged": False}, "dhara.W010"),
        ({"autovacuum": False}, "dhara.W011"),
        ({"table_autovacuum": False}, "dhara.W011"),
        ({"not_durable": "fsync"}, "dhara.W012"),
    ],
)
def test_a_server_that_does_not_suit_is_told(tasks, monkeypatch, facts, id):
    monkeypatch.setattr(checks, "_ask", lambda database: SOUND._replace(**facts))
    [message] = checks.check_databases(databases=["default"])
    assert message.id == id
    assert message.hint
    assert "DATABASES['default']" in message.msg


def test_a_sound_server_before_the_first_migration_has_nothing_to_tell(tasks, monkeypatch):
    monkeypatch.setattr(checks, "_ask", lambda database: SOUND._replace(logged=None))
    assert list(checks.check_databases(databases=["default"])) == []


def test_the_servers_own_isolation_level_is_asked(tasks, atomic_function, monkeypatch):
    monkeypatch.setattr(checks, "_ask", lambda database: SOUND._replace(isolation="repeatable read"))
    [message] = checks.check_databases(databases=["default"])
    assert message.id == "dhara.E009"
    assert message.msg.startswith("default_transaction_isolation of the server of DATABASES['default']")


def test_a_server_is_asked_only_on_request(tasks, monkeypatch):
    asked = []
    monkeypatch.setattr(checks, "_ask", lambda database: asked.append(database) or SOUND)
    run_checks()
    run_checks(databases=[])
    assert asked == []
    run_checks(databases=["default"])
    assert asked == ["default"]


@pytest.mark.django_db
def test_the_server_of_the_tests_answers(tasks):
    server = checks._ask("default")
    assert server.version >= checks.MIN_POSTGRESQL
    assert server[1:6] == (False, "read committed", True, True, True)
    with connections["default"].cursor() as cursor:
        cursor.execute("ALTER TABLE dhara_task SET (autovacuum_enabled = off)")
        cursor.execute("ALTER TABLE dhara_task SET UNLOGGED")
    server = checks._ask("default")
    assert (server.table_autovacuum, server.logged) == (False, False)


def test_a_backend_of_another_make_is_not_asked(settings):
    module = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
    settings.TASKS = {"default": {"BACKEND": f"{module}.backends.immediate.ImmediateBackend"}}
    assert list(checks.check_databases(databases=["default"])) == []


def test_without_the_backport_an_old_django_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr(checks, "_has_tasks_api", lambda: False)
    [message] = checks.check_project()
    assert message.id == "dhara.E002"
    assert "django-dhara[django52]" in message.hint
    assert list(checks.check_databases(databases=["default"])) == []


def test_a_backend_made_by_the_backports_handler_is_left_to_djangos(tasks, monkeypatch):
    tasks(OPTIONS={"CONCURRENCY": 0})
    backend = task_backends["default"]
    handler = SimpleNamespace(all=lambda initialized_only: [backend])
    with monkeypatch.context() as patch:
        patch.setattr(django, "VERSION", (6, 1, 0, "final", 0))
        patch.setitem(sys.modules, "django_tasks", SimpleNamespace(task_backends=handler))
        assert list(checks.check_backend(backend)) == []


# A small project of its own, in a process of its own: who registers the checks is a matter of what was imported.


@pytest.fixture
def manage_check(tmp_path):
    """Run `manage.py check` on a project with these settings."""

    def run(settings):
        (tmp_path / "project.py").write_text(dedent(settings), encoding="utf-8")
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("DHARA_", "DJANGO_"))}
        environ["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(ROOT)])
        command = [sys.executable, "-m", "django", "check", "--settings=project"]
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60)

    return run


PROJECT = """
    import django
    SECRET_KEY = "x"
    USE_TZ = True
    DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "nowhere", "CONN_MAX_AGE": 60}}
    TASKS = {"default": {"BACKEND": "django_dhara.backend.DharaBackend", "OPTIONS": {"CONCURRENCY": 0}}}
"""


def test_a_project_without_the_admin_is_checked(manage_check):
    done = manage_check(PROJECT + '    INSTALLED_APPS = ["django_dhara"]')
    assert done.returncode == 1
    assert done.stderr.count("(dhara.E004)") == 1


def test_a_project_with_everything_is_told_once(manage_check):
    apps = '["django.contrib.auth", "django.contrib.contenttypes", "django_dhara"]'
    done = manage_check(PROJECT + f'    INSTALLED_APPS = {apps} + ["django_tasks"] * (django.VERSION < (6, 0))')
    assert done.returncode == 1
    assert done.stderr.count("(dhara.") == 1


def test_a_project_without_tasks_is_told_that_they_run_at_once(manage_check):
    done = manage_check(PROJECT.replace("TASKS", "JOBS") + '    INSTALLED_APPS = ["django_dhara"]')
    assert done.returncode == 0
    assert done.stderr.count("(dhara.W001)") == done.stderr.count("(dhara.") == 1


def test_a_project_without_the_app_is_told_to_install_it(manage_check, tmp_path):
    app = tmp_path / "shop"
    app.mkdir()
    (app / "__init__.py").touch()
    module = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks.checks"
    (app / "models.py").write_text(f"import {module}\nfrom django_dhara.tasks import task\n", encoding="utf-8")
    done = manage_check(PROJECT.replace('"CONCURRENCY": 0', "") + '    INSTALLED_APPS = ["shop"]')
    assert done.returncode == 1
    assert "dhara.E001" in done.stderr
    assert "Traceback" not in done.stderr


# The ids are promises: people silence them by name.


def ids(text):
    return sorted(set(re.findall(r"dhara\.[EW]\d{3}", text)))


SOURCE = Path(checks.__file__).read_text(encoding="utf-8")


def test_every_id_has_a_test():
    assert ids(Path(__file__).read_text(encoding="utf-8")) == ids(SOURCE)


# DHARA, the settings of the whole project


def no_function(function, payload):
    return payload


@pytest.mark.parametrize(
    ("given", "said", "hint"),
    [
        ([], "DHARA must be a dict, not list.", ""),
        ({"REDAKT": "a.b"}, "DHARA['REDAKT'] is not a setting of django_dhara.", "Did you mean 'REDACT'?"),
        ({"redact": "a.b"}, "DHARA['redact'] is not a setting of django_dhara.", "Did you mean 'REDACT'?"),
        ({1: "a.b"}, "DHARA[1] is not a setting of django_dhara.", ""),
        ({"REDACT": 7}, "DHARA['REDACT'] must be a string, not 7.", ""),
        ({"REDACT": "nowhere.redact"}, "DHARA['REDACT'] is 'nowhere.redact', which cannot be imported", None),
        ({"REDACT": "tests.test_checks.ROOT"}, "which is PosixPath and no function", None),
    ],
)
def test_each_mistake_in_the_settings_of_the_project_is_told_once(tasks, settings, given, said, hint):
    settings.DHARA = given
    [message] = [message for message in messages() if message.id == "dhara.E012"]
    assert said in message.msg
    assert hint is None or hint in message.hint


def test_a_setting_of_the_project_is_read_and_a_mistake_stops_who_needs_it(settings):
    assert project.read().redact == ""
    settings.DHARA = {"REDACT": "tests.test_checks.no_function"}
    assert project.read().redact == "tests.test_checks.no_function"
    settings.DHARA = {"REDACT": 7}
    assert project.usable().redact == ""
    with pytest.raises(ImproperlyConfigured, match=r"DHARA\['REDACT'\] must be a string, not 7"):
        project.read()
