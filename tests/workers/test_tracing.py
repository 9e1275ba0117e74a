"""Spans and events of real workers: on threads, on the event loop, and in child processes."""

import pytest

from tests.observers import lines
from tests.workers.harness import until


@pytest.mark.fast
@pytest.mark.parametrize("flags", [(), ("--processes", "1")], ids=["threads", "children"])
def test_runs_are_linked_to_what_enqueued_them(crew, database, tmp_path, flags):
    file = tmp_path / "spans"
    worker = crew.start(*flags, DHARA_TEST_SPANS=file)
    database.add("enqueue_another", "def")
    database.add("aenqueue_another", "async def")
    database.add("fail", max_attempts=1)
    until(lambda: database.effects("def") and database.effects("async def"))
    until(lambda: database.states() == {"COMPLETED", "DEAD"})
    assert worker.stop() == 0
    spans = lines(file)
    runs = {span["context"]["span_id"]: span for span in spans if span["kind"] == "SpanKind.CONSUMER"}
    enqueues = {span["context"]["span_id"]: span for span in spans if span["kind"] == "SpanKind.PRODUCER"}
    assert (len(runs), len(enqueues)) == (5, 2)
    for enqueue in enqueues.values():
        assert runs[enqueue["parent_id"]]["attributes"]["messaging.django_dhara.function"].endswith("enqueue_another")
    linked = [run for run in runs.values() if run["links"]]
    assert {run["links"][0]["context"]["span_id"] for run in linked} == set(enqueues)
    assert all(run["parent_id"] is None for run in runs.values())
    [failed] = [run for run in runs.values() if run["status"]["status_code"] == "ERROR"]
    assert failed["attributes"]["error.type"] == "builtins.ValueError"
    assert failed["events"][0]["attributes"]["exception.message"] == "the reason"


@pytest.mark.fast
@pytest.mark.parametrize("flags", [(), ("--processes", "1")], ids=["threads", "children"])
def test_a_dead_task_is_one_event_before_the_worker_ends(crew, database, tmp_path, flags):
    file = tmp_path / "events"
    worker = crew.start(*flags, DHARA_TEST_EVENTS=file)
    task = database.add("fail_with", "the-secret", max_attempts=2)
    until(lambda: database.states(task) == ["DEAD"])
    assert worker.stop() == 0
    events = lines(file)
    assert [event["level"] for event in events] == ["warning", "error"]
    assert {event["contexts"]["dhara"]["task id"] for event in events} == {str(task)}
    assert "the-secret" not in file.read_text()
    told = events[-1]["contexts"]["dhara"]["traceback"]
    assert "LookupError: 16" in told
