"""This version beside the one before it, on the tables of both: a deploy replaces neither all at once."""

import signal

import pytest

from django_dhara.worker import presence
from tests.upgrades import versions
from tests.upgrades.versions import NAMES
from tests.workers.harness import until


def test_workers_wait_for_what_the_version_before_had_and_for_no_more(folders):
    assert versions.newest_migration(folders["previous"]) == presence.NEEDED


@pytest.mark.parametrize("tables", NAMES)
def test_both_versions_enqueue_and_run_on_the_tables_of_either(both, crews, database, tables, make_tables):  # C15
    make_tables(tables)
    asked = {
        (enqueuer.name, name): enqueuer.enqueue(f"{enqueuer.name} to {name}") for enqueuer in both for name in NAMES
    }
    assert len({answer["shared"] for answer in asked.values()}) == 1, "one key is one task, whoever enqueues"
    for name in NAMES:
        queues = ",".join(f"{enqueuer} to {name}" for enqueuer in NAMES)
        crews[name].start("--queues", queues, "--name", name, DHARA_BACKOFF_BASE_SECONDS=0.1)
    for (enqueuer, name), answer in asked.items():
        assert ends(database, answer["COMPLETED"]) == {("COMPLETED", name)}
        assert ends(database, answer["DEAD"]) == {("DEAD", name)}
        assert ends(database, answer["CANCELED"]) == {("CANCELED", None)}
        assert database.rows("SELECT 1 FROM dhara_task WHERE id = %s", answer["lost"]) == []
        assert database.value("SELECT count(*) FROM app_note WHERE text = %s", f"{enqueuer} to {name} note") == 1


def ends(database, ids):
    """How these tasks ended and which worker ran them, once all have."""
    statement = """
        SELECT state, worker.name FROM dhara_task AS task LEFT JOIN dhara_worker AS worker ON worker.id = worker_id
        WHERE task.id::text = ANY(%s) AND finished_at IS NOT NULL
    """
    rows = until(lambda: len(found := database.rows(statement, ids)) == len(ids) and found, 30)
    return set(rows)


@pytest.mark.parametrize(
    ("killed", "tables"),
    [
        ("previous", "present"),
        ("present", "previous"),
        pytest.param("previous", "previous", marks=pytest.mark.slow),
        pytest.param("present", "present", marks=pytest.mark.slow),
    ],
)
def test_either_version_takes_over_from_the_other(both, crews, database, killed, tables, make_tables, tmp_path):
    """What a killed worker had is rescued by the other version, and what a stopped one had is handed over."""
    make_tables(tables)
    [heir] = [name for name in NAMES if name != killed]
    first = crews[killed].start("--drain-timeout", "0.1")
    go = tmp_path / "go"
    lost = database.add("hold", "lost", str(go))
    until(lambda: database.effects("lost"))
    first.kill()
    second = crews[heir].start("--drain-timeout", "0.1")
    until(lambda: database.effects("lost") == 2, 20)
    assert (database.task(lost)["lost"], database.history(lost)) == (1, ["LOST"])
    second.signal(signal.SIGTERM)
    assert second.ends(20) == 0
    assert (database.task(lost)["state"], database.task(lost)["interrupted"]) == ("PENDING", 1)
    go.touch()
    third = crews[killed].start()
    until(lambda: database.states(lost) == ["COMPLETED"], 20)
    assert third.stop() == 0


def test_a_deploy_with_traffic(both, crews, database, make_tables):
    """Tables first, then workers one by one; enqueuers of both go on all the time."""
    previous, present = both
    make_tables("previous")
    old = crews["previous"].start()
    asked = previous.enqueue("one")
    migrate = crews["present"].run("dhara_migrate")
    asked_meanwhile = previous.enqueue("two")
    assert migrate.ends(30) == 0
    newest = database.value("SELECT max(name) FROM django_migrations WHERE app = 'dhara'")
    assert newest == versions.newest_migration(present.folder)
    new = crews["present"].start()
    answers = [asked, asked_meanwhile, present.enqueue("three"), previous.enqueue("four")]
    assert old.stop(30) == 0
    answers.append(present.enqueue("five"))
    for answer in answers:
        assert {state for state, _ in ends(database, answer["COMPLETED"])} == {"COMPLETED"}
    assert database.value("SELECT count(*) FROM dhara_task WHERE lost + interrupted > 0") == 0
    # And back, with the new tables.
    old = crews["previous"].start()
    assert new.stop(30) == 0
    back = previous.enqueue("six")
    assert {state for state, _ in ends(database, back["COMPLETED"])} == {"COMPLETED"}
    assert old.stop(30) == 0
