"""The statistics: what workers write, and what is read."""

from uuid import uuid4

import pytest

from django_dhara import services, stats
from django_dhara.models import Command, Minute, Worker
from django_dhara.stats import Event, Recorder, bucket, percentile, totals, upper_bound
from tests.rows import a_task, ago

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("seconds", [0, 0.0005, 0.001, 0.0011, 0.5, 1, 59.9, 3600, 86_400])
def test_a_time_is_in_the_bucket_that_just_holds_it(seconds):
    number = bucket(seconds)
    assert seconds <= upper_bound(number) * 1.0000001
    assert number == 0 or seconds > upper_bound(number - 1)


def test_a_time_beyond_the_last_bucket_is_in_the_last():
    assert bucket(10**9) == stats.BUCKETS


def test_percentiles_are_upper_bounds_of_what_was_seen():
    histogram = {"0": 50, "10": 45, "20": 5}
    assert [percentile(histogram, share) for share in (0.5, 0.95, 0.99)] == [
        upper_bound(0),
        upper_bound(10),
        upper_bound(20),
    ]
    assert percentile({}, 0.5) is None


def an_event(what="completed", run=0.1, wait=0.2, queue="mail", function="shop.send"):
    return Event("default", queue, function, what, run, wait)


def test_flushes_of_one_minute_add_up_in_one_row(execute):
    recorder = Recorder(uuid4())
    for events in ([an_event(), an_event("failed", run=4.0)], [an_event(), an_event("dead", run=None, wait=None)]):
        for event in events:
            recorder.add(event)
        recorder.flush(execute)
    rows = Minute.objects.all()
    assert sum(row.completed for row in rows) == 2
    assert sum(row.failed for row in rows) == sum(row.dead for row in rows) == 1
    assert sum(row.run_seconds for row in rows) == pytest.approx(4.2)
    assert sum(sum(row.run_histogram.values()) for row in rows) == 3
    assert len(rows) == len({row.minute for row in rows})


def test_nothing_recorded_writes_nothing(execute):
    Recorder(uuid4()).flush(execute)
    assert not Minute.objects.exists()


def test_what_could_not_be_written_is_written_later(execute):
    recorder = Recorder(uuid4())
    recorder.add(an_event())

    def refuse(statement, parameters):
        raise ConnectionError

    with pytest.raises(ConnectionError):
        recorder.flush(refuse)
    recorder.flush(execute)
    assert Minute.objects.get().completed == 1


def test_totals_add_up_workers_and_minutes_by_queue_and_function(execute):
    for _ in range(3):
        recorder = Recorder(uuid4())
        recorder.add(an_event())
        recorder.add(an_event(function="shop.charge"))
        recorder.flush(execute)
    old = Minute.objects.first()
    old.pk, old.minute, old.completed = None, ago(3600 * 24), 500
    old.save()
    assert [
        (t.queue, t.function, t.counts["completed"], sum(t.run.values()))
        for t in totals("default", "default", minutes=60)
    ] == [
        ("mail", "shop.charge", 3, 3),
        ("mail", "shop.send", 3, 3),
    ]


def test_the_standing_counts_tasks_by_what_they_wait_for(db):
    for made in (
        {},
        {},
        {"run_at": ago(-500)},
        {"lost": 1},
        {"state": "RUNNING"},
        {"state": "DEAD"},
        {"state": "COMPLETED"},
    ):
        a_task(**made)
    assert stats.standing("default", "default") == stats.Standing(ready=2, scheduled=1, running=1, suspects=1, dead=1)


def test_old_statistics_workers_and_commands_are_pruned_and_new_ones_stay(execute):
    for age in (0, 30):
        when = ago(age * 86_400)
        key = {"backend": "default", "queue": "mail", "function": "shop.send", "worker_id": uuid4()}
        Minute.objects.create(minute=when, **key)
        worker = {"backend": "default", "name": "w", "host": "h", "pid": 1, "version": "0", "concurrency": 1}
        Worker.objects.create(heartbeat_at=when, lease_seconds=30, **worker)
        Command.objects.create(worker_id=uuid4(), verb="DRAIN", created_at=when)
    assert services.prune_records(execute) == 1
    assert [model.objects.count() for model in (Minute, Worker, Command)] == [1, 1, 1]
    assert services.prune_records(execute) == 0
