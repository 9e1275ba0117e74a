"""The statistics: what workers write, and what is read."""

import random
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import psycopg
import pytest
from django.db import connection, transaction
from django.db.models import F
from django.utils import timezone

from django_dhara import services, sql, stats
from django_dhara.models import Command, Minute, Quarter, Queue, Task, Worker
from django_dhara.stats import COUNTED, Event, Recorder, bucket, past, percentile, present, rollup, upper_bound
from django_dhara.words import plain
from tests.minutes import a_crew, a_minute, an_afternoon, server_minute
from tests.rows import a_task, ago, ahead
from tests.sessions import wait

pytestmark = pytest.mark.fast


@pytest.mark.parametrize("seconds", [0, 0.0005, 0.001, 0.0011, 0.5, 1, 59.9, 3600, 86_400])
def test_a_time_is_in_the_bucket_that_just_holds_it(seconds):
    number = bucket(seconds)
    assert seconds <= upper_bound(number) * 1.0000001
    assert number == 0 or seconds > upper_bound(number - 1)


def test_a_time_beyond_the_last_bucket_is_in_the_last():
    assert bucket(10**9) == stats.BUCKETS


def test_a_percentile_is_interpolated_inside_its_bucket():
    histogram = {0: 50, 10: 45, 20: 5}
    assert [percentile(histogram, share) for share in (0.25, 0.5, 0.95)] == [
        upper_bound(0) / 2,
        upper_bound(0),
        pytest.approx(upper_bound(10)),
    ]
    assert upper_bound(19) < percentile(histogram, 0.99) < upper_bound(20)
    assert percentile({stats.BUCKETS: 1}, 0.5) == upper_bound(stats.BUCKETS - 1)
    assert percentile({}, 0.5) is None


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
def test_a_percentile_is_off_by_less_than_the_width_of_a_bucket(share):
    times = sorted(map(random.Random(7).lognormvariate, [-2.0] * 5000, [1.5] * 5000))
    exact = times[int(share * len(times))]
    assert 0.95 < percentile(Counter(map(bucket, times)), share) / exact < 1.05


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


# ------------------------------------------------------------------------------------------------------ rolling up


def sums():
    """What the aggregates hold together, and how many rows they are."""
    found, rows = Counter(), 0
    for row in [*Minute.objects.all(), *Quarter.objects.all()]:
        rows += 1
        for name in COUNTED:
            found[name] += getattr(row, name)
        for name in ("run_seconds", "wait_seconds"):
            found[name] += round(getattr(row, name))
        for name in ("run_histogram", "wait_histogram"):
            for key, count in getattr(row, name).items():
                found[f"{name} {key}"] += count
    return +found, rows


def a_day_of_minutes(workers=3, functions=4):
    """Every fifth minute of the day before, by several workers."""
    ids = [uuid4() for _ in range(workers)]
    start = server_minute()
    Minute.objects.bulk_create(
        Minute(
            minute=start - timedelta(minutes=5 * number), worker_id=worker, backend="default",
            queue=f"queue {one % 2}", function=f"shop.tasks.f{one}", completed=number % 7 + 1, failed=one, lost=1,
            run_seconds=2.0, wait_seconds=3.0,
            run_histogram={"3": 1, str(one): 2}, wait_histogram={"9": 1},
        )
        for number in range(288) for worker in ids for one in range(functions)
    )  # fmt: skip


def rolled_up(execute):
    while stats.roll_up(execute):
        pass


def test_old_minutes_become_quarters_and_hours_and_no_count_changes(execute):
    a_day_of_minutes()
    before, _ = sums()
    rolled_up(execute)
    after, rows = sums()
    assert after == before
    assert rows < 288 * 12 / 3
    oldest = server_minute(90)
    assert not Minute.objects.filter(minute__lt=oldest).exists()
    assert all(row.start.minute % 15 == 0 for row in Quarter.objects.all())
    Quarter.objects.update(start=F("start") - timedelta(hours=30))
    rolled_up(execute)
    assert sums()[0] == before
    assert all(row.start.minute == 0 and row.start.hour % 2 == 0 for row in Quarter.objects.all())


def test_quarters_are_pruned_after_35_days_and_not_before(execute):
    key = {"backend": "default", "queue": "mail", "function": "shop.send"}
    for days in (34, 36):
        Quarter.objects.create(start=server_minute().replace(hour=0, minute=0) - timedelta(days=days), **key)
    assert stats.roll_up(execute) == 1
    assert Quarter.objects.count() == 1


def test_the_histograms_of_a_minute_that_is_over_are_gathered_in_one_row(execute):
    for ago_, number in ((5, 4), (0, 4)):
        for _ in range(number):
            a_minute(ago_, completed=2, run_histogram={"3": 2}, wait_histogram={"1": 1, "2": 1})
    before, _ = sums()
    stats.roll_up(execute)
    stats.roll_up(execute)
    assert sums()[0] == before
    full = Minute.objects.exclude(run_histogram={})
    assert full.filter(minute=server_minute(5)).count() == 1
    assert full.filter(minute__gte=server_minute(1)).count() == 4, "a minute that still changes was touched"


def test_without_the_table_of_quarters_nothing_is_rolled_up(execute):
    a_day_of_minutes(1, 1)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE dhara_quarter RENAME TO not_there_yet")
    try:
        assert stats.roll_up(execute) == 0
        assert stats.history("default", None, stats.RANGES["24h"]).total.completed > 0
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE not_there_yet RENAME TO dhara_quarter")
    assert Minute.objects.count() == 288


def copied_and_then_deleted(statement):
    """Roll-up as somebody would write it who reads first: what another one takes meanwhile is counted twice."""
    found = re.search(
        r"DELETE FROM dhara_minute WHERE id = ANY \(ARRAY\((.*?) FOR UPDATE SKIP LOCKED\)\)\s+RETURNING (.*?)\n\)",
        statement,
        re.DOTALL,
    )
    ids, columns = found.groups()
    copied = f"SELECT {columns} FROM dhara_minute WHERE id = ANY (ARRAY({ids})))"
    deleted = f"away AS (DELETE FROM dhara_minute WHERE id = ANY (ARRAY({ids}))), moved AS ("
    return statement.replace(found.group(), copied).replace("moved AS (", deleted)


def without_adding(statement):
    return re.sub(r"(\w+) = quarter\.\1 \+ excluded\.\1", r"\1 = excluded.\1", statement)


def move_minutes(execute):
    """This statement alone: a session that holds would wait in the first of `roll_up`, and race in this one by luck."""
    return execute(rollup._MINUTES, {"limit": rollup.BATCH})


PLANTED = {"copied_and_then_deleted": copied_and_then_deleted, "without_adding": without_adding}


@pytest.mark.parametrize("bug", ["", *PLANTED])
def test_two_who_roll_up_at_once_move_each_minute_once(sessions, monkeypatch, bug):
    if bug:  # the test notices
        monkeypatch.setattr(rollup, "_MINUTES", PLANTED[bug](rollup._MINUTES))
    monkeypatch.setattr(rollup, "BATCH", 100)
    a_day_of_minutes()
    before, _ = sums()
    *rollers, watcher = sessions(3)
    with watcher.gate():
        for session in rollers:
            session.holds = True
        both = [session.start(move_minutes) for session in rollers]
        assert not any(wait(future, session, watcher) for future, session in zip(both, rollers, strict=True))
    assert [future.result(30) for future in both] == [[(100,)], [(100,)]] or bug
    for session in rollers:
        session.holds = False
    for future in [session.start(rolled_up) for session in rollers]:
        future.result(60)
    assert (sums()[0] == before) is not bool(bug)


def test_a_roll_up_that_is_killed_in_between_has_moved_nothing(sessions, execute):
    a_day_of_minutes()
    before, _ = sums()
    killed, other, watcher = sessions(3)
    stats.roll_up(execute)
    moved = Minute.objects.count()
    other.begin()
    other.connection.execute("SELECT 1 FROM dhara_quarter FOR UPDATE")
    future = killed.start(stats.roll_up)
    assert not wait(future, killed, watcher), "it is not between the deletion and the insertion"
    watcher.connection.execute("SELECT pg_terminate_backend(%s)", [killed.pid])
    with pytest.raises(psycopg.OperationalError):
        future.result(20)
    other.end()
    assert Minute.objects.count() == moved
    rolled_up(execute)
    assert sums()[0] == before


# --------------------------------------------------------------------------------------------------------- reading


def test_a_range_is_read_by_point_queue_function_and_worker(execute):
    worker = uuid4()
    for minutes, function, completed in ((0, "f", 1), (3, "f", 2), (3, "g", 4), (59, "g", 8), (61, "g", 1000)):
        counts = {"completed": completed, "failed": 1, "run_histogram": {"20": completed}, "wait_histogram": {"4": 1}}
        a_minute(minutes, function=function, queue=f"queue of {function}", worker_id=worker, **counts)
    found = stats.history("default", None, stats.RANGES["1h"])
    assert found.total.completed == 15
    assert {name: tally.completed for name, tally in found.functions.items()} == {"f": 3, "g": 12}
    assert {name: tally.failed for name, tally in found.queues.items()} == {"queue of f": 2, "queue of g": 2}
    assert {id_: tally.completed for id_, tally in found.workers.items()} == {worker: 15}
    assert [point.tally.completed for point in found.points if point.tally.completed] == [8, 6, 1]
    assert len(found.points) == 61
    assert 3600 <= found.seconds < 3660
    assert upper_bound(19) < found.total.run_time(0.5) <= upper_bound(20)
    assert sum(found.total.wait.values()) == 4
    assert found.functions["g"].failing_since == server_minute(59)
    assert stats.history("default", "other", stats.RANGES["1h"]).total.runs == 0


def since(tally):
    return tally.failing_since or datetime.min.replace(tzinfo=UTC)


@pytest.mark.parametrize("name", stats.RANGES)
def test_a_range_has_the_same_sum_before_and_after_the_roll_up(execute, name):
    a_day_of_minutes()
    range_ = stats.RANGES[name]
    before = stats.history("default", None, range_)
    assert before.total.completed
    rolled_up(execute)
    after = stats.history("default", None, range_)
    if after.now.minute == before.now.minute:
        tallies = [(tally, before.pairs[pair]) for pair, tally in after.pairs.items()]
        tallies += [(one.tally, other.tally) for one, other in zip(after.points, before.points, strict=True)]
        for tally, exact in tallies:
            assert since(tally) >= since(exact), "more is said than is known"
            tally.failing_since = exact.failing_since
        assert after.pairs == before.pairs
        assert [point.tally for point in after.points] == [point.tally for point in before.points]


def test_a_series_is_of_one_queue_function_or_worker_or_of_each(execute):
    workers = [uuid4(), uuid4()]
    for worker in workers:
        for function in ("f", "g"):
            a_minute(
                2,
                function=function,
                queue=f"queue of {function}",
                completed=3,
                run_histogram={"20": 3},
                worker_id=worker,
            )
    hour, when = stats.RANGES["1h"], server_minute(2)

    def counts(*by, **only):
        found = stats.series("default", None, hour, *by, **only)
        assert all(len(points) == 61 for points in found.values())
        return {name: next(p.tally.completed for p in points if p.start == when) for name, points in found.items()}

    assert counts() == {"": 12}
    assert counts("queue") == {"queue of f": 6, "queue of g": 6}
    assert counts("function", queue="queue of f") == {"f": 6}
    assert counts("worker") == dict.fromkeys(sorted(map(str, workers)), 6)
    assert counts(worker=workers[0]) == {"": 6}
    assert stats.totals("default", None, hour, "function")["f"].run_time(0.5)
    assert stats.totals("default", None, hour, "worker", queue="queue of g").keys() == set(map(str, workers))
    assert stats.series("default", None, stats.RANGES["24h"], "queue", function="none of them") == {}


def test_reading_is_stopped_after_a_time(transactional_db, other_session, monkeypatch):
    monkeypatch.setattr("django_dhara.stats.past.LIMIT_SECONDS", 0.05)
    with transaction.atomic(using="default"), other_session.cursor() as cursor:
        cursor.execute("BEGIN")
        cursor.execute("LOCK TABLE dhara_minute")
        with pytest.raises(stats.TooSlow):
            stats.history("default", None, stats.RANGES["1h"])
        found = stats.overview("default", None, stats.RANGES["1h"])
        assert (found.slow, found.past) == (["past", "lately"], None)
        cursor.execute("ROLLBACK")
    assert stats.history("default", None, stats.RANGES["1h"]).total.runs == 0


def test_a_time_limit_is_the_shortest_and_ends_with_its_block(transactional_db):
    def now():
        return sql.on("default")("SELECT current_setting('statement_timeout'), current_setting('jit')", {})[0]

    with transaction.atomic():
        outside = now()
        with sql.time_limit("default", 2.0, jit="off"):
            assert now() == ("2s", "off")
            with sql.time_limit("default", 0.5):
                assert now() == ("500ms", "off")
            with sql.time_limit("default", 30.0):
                assert now() == ("2s", "off")
        assert now() == outside
    with pytest.raises(sql.TooSlow), sql.time_limit("default", 0.05):
        sql.on("default")("SELECT pg_sleep(5)", {})


BOUND = {"server_side_binding": True}


@pytest.mark.parametrize("options", [BOUND, {**BOUND, "prepare_threshold": 0}], ids=["bound", "prepared"])
def test_everything_is_read_where_the_server_binds_values(database, options):
    an_afternoon()
    a_crew()
    database("bound", **options)
    for range_ in stats.RANGES.values():
        assert stats.overview("bound", "default", range_).slow == []
    hour = stats.RANGES["1h"]
    assert stats.series("bound", None, hour, "queue", queue="email", function=None).keys() == {"email"}
    assert stats.totals("bound", "default", hour, "worker")
    with transaction.atomic("bound"), sql.time_limit("bound", 2.0):
        rolled_up(sql.on("bound"))


def test_what_waits_is_told_by_queue(db):
    for made in (
        {"queue": "mail", "run_at": ago(50)},
        {"queue": "mail", "run_at": ago(90), "priority": -5},
        {"queue": "mail", "run_at": ahead(90), "failures": 1},
        {"queue": "mail", "run_at": ahead(70)},
        {"queue": "later", "run_at": ahead(70)},
        {"queue": "mail", "lost": 1},
        {"queue": "theirs", "backend": "other"},
    ):
        a_task(**made)
    Queue.objects.create(backend="default", name="empty", paused_at=ago(9))
    found = {each.queue: each for each in stats.waiting("default", "default")}
    assert list(found) == ["empty", "later", "mail"]
    assert found["mail"][2:6] == (2, 2, 1, False)
    now = stats.overview("default", None, stats.RANGES["5m"]).now
    assert 89 < (now - found["mail"].ready_since).total_seconds() < 100
    assert 80 < (found["mail"].next_retry - now).total_seconds() <= 90
    assert (found["later"].ready, found["later"].scheduled, found["later"].ready_since) == (0, 1, None)
    assert (found["empty"].ready, bool(found["empty"].paused_at)) == (0, True)
    assert {each.queue for each in stats.waiting("default", None)} == {"empty", "later", "mail", "theirs"}


def test_an_afternoon_needs_a_person_in_this_order(db):
    an_afternoon()
    a_crew()
    found = stats.overview("default", None, stats.RANGES["1h"])
    assert found.slow == []
    assert [(item.kind, item.level) for item in found.attention] == [
        ("behind", "harm"), ("paused", "warning"), ("failing", "warning"), ("dead", "warning"), ("late", "warning"),
        ("suspects", "notice"), ("retries", "notice"),
    ]  # fmt: skip
    said = " ".join(plain(item.sentence) for item in found.attention)
    assert "Queue email falls behind: 60 ready, the oldest for 3 min; it grows." in said
    assert "Queue reports is paused, and 14 tasks wait." in said
    assert "12 tasks that died in the last hour are dead now: shop.orders.tasks.charge_card 12." in said
    assert "1 worker is late, silent for longer than its lease: box6-77." in said
    assert (len(found.alive), found.slots) == (3, (9, 30))


def a_worker(**columns):
    values = {"backend": "default", "name": "w", "host": "h", "pid": 1, "version": "0", "concurrency": 1}
    return Worker.objects.create(**{**values, "lease_seconds": 30.0, **columns})


def test_workers_of_one_name_are_told_apart(db):
    for pid in (1, 2, 3, 4):
        a_worker(name="smooth", pid=pid, heartbeat_at=ago(40 + pid))
    a_worker(name="other", heartbeat_at=ago(40))
    [late] = [one for one in stats.overview("default", None, stats.RANGES["1h"]).attention if one.kind == "late"]
    assert plain(late.sentence).endswith(": other, smooth (h:1), smooth (h:2) and others."), late.sentence


@pytest.mark.parametrize(
    ("worker", "kinds"),
    [
        (None, ["no_workers"]),
        ({"heartbeat_at": ago(40)}, ["no_workers", "late"]),
        ({"heartbeat_at": ago(310)}, ["no_workers", "lost"]),
        ({"heartbeat_at": ago(4000)}, ["no_workers"]),
        ({"stopped_at": ago(40)}, ["no_workers"]),
        ({"queues": ["other"]}, ["unserved"]),
        ({"exclude_queues": ["mail"]}, ["unserved"]),
        ({"backend": "other"}, ["no_workers"]),
        ({"draining_at": ago(9)}, ["no_workers"]),
        ({"queues": ["mail"]}, []),
        ({"queues": "mail"}, []),
        ({"queues": ["other", 5, None], "exclude_queues": 7}, ["unserved"]),
        ({"queues": {"mail": 1}, "exclude_queues": "other"}, []),
        ({"queues": 5, "exclude_queues": ["mail"]}, ["unserved"]),
    ],
)
def test_who_serves_a_queue_decides_what_is_said(db, worker, kinds):
    a_task(queue="mail", run_at=ago(30))
    if worker is not None:
        a_worker(**worker)
    assert [item.kind for item in stats.overview("default", None, stats.RANGES["1h"]).attention] == kinds


def test_a_paused_queue_needs_no_worker_but_a_person(db):
    a_task(queue="mail", run_at=ago(30))
    Queue.objects.create(backend="default", name="mail", paused_at=ago(90))
    assert [item.kind for item in stats.overview("default", None, stats.RANGES["1h"]).attention] == ["paused"]


def test_few_of_a_kind_are_named_and_the_rest_counted(db):
    a_worker()
    for number in range(9):
        a_task(queue=f"queue {number}", run_at=ago(600 - number))
    items = stats.overview("default", None, stats.RANGES["1h"]).attention
    assert [item.queue for item in items] == [*(f"queue {number}" for number in range(5)), ""]
    assert items[-1].sentence == "4 more queues need you."
    Task.objects.filter(queue__gte="queue 6").delete()
    items = stats.overview("default", None, stats.RANGES["1h"]).attention
    assert items[-1].sentence == "1 more queue needs you."


def test_an_old_snapshot_is_told_with_its_holder(commits, sessions, monkeypatch):
    [session] = sessions(1)
    monkeypatch.setattr("django_dhara.stats.present._HOLDERS", present._HOLDERS.replace("'300 seconds'", "'0 seconds'"))
    assert stats.holders("default") == []
    session.connection.execute("SET application_name = 'a report'")
    session.connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    session.connection.execute("SELECT count(*) FROM dhara_task")
    [holder] = stats.holders("default")
    assert holder[:4] == ("session", "a report", holder.user, session.pid)
    [item] = stats.overview("default", None, stats.RANGES["5m"]).attention
    assert plain(item.sentence).startswith("Session a report of")
    session.connection.execute("ROLLBACK")


def test_without_use_tz_a_week_in_which_clocks_were_changed_loses_no_point(settings):
    settings.USE_TZ, settings.TIME_ZONE = False, "America/New_York"

    def on_the_wall(when):
        return timezone.make_naive(when, timezone.get_default_timezone())

    now = datetime(2026, 11, 3, 10, 30, tzinfo=UTC)  # clocks were put back on the 1st
    current = now.replace(minute=0)
    starts = [current - timedelta(hours=hours) for hours in range(0, 170, 2)]
    window = past._Window.now(
        lambda *_: [[on_the_wall(now), on_the_wall(current), True]], stats.RANGES["7d"], {"worker": None}
    )
    points = window.points({(on_the_wall(start)): stats.Tally(run_seconds=1.0) for start in starts})
    assert [point.start for point in points] == starts[::-1]
    assert [point.tally.run_seconds for point in points] == [1.0] * 85
    assert points[-1].seconds == 1800


def told_of_failures(range_):
    return [
        (item.level, plain(item.sentence))
        for item in stats.overview("default", None, range_).attention
        if item.kind == "failing"
    ]


def test_what_fails_now_stands_before_what_failed_and_what_runs_well_again_is_a_note(db):
    """At night the incident of an hour ago must not hide the one of now."""
    a_minute(40, function="over", completed=2, failed=90)
    a_minute(1, function="over", completed=30)
    a_minute(40, function="silent", failed=50)
    a_minute(1, function="now", failed=20)
    a_minute(40, function="rare", failed=10)
    a_minute(1, function="rare", failed=2)
    found = told_of_failures(stats.RANGES["1h"])
    assert [sentence.split()[0] for _level, sentence in found] == ["rare", "now", "silent", "over"]
    assert found[2] == ("harm", "silent failed: 50 of 50 runs (100%) in the last hour, 0 of 0 in the last 5 minutes.")
    assert found[3] == ("notice", "over failed: 90 of 122 runs (74%) in the last hour, 0 of 30 in the last 5 minutes.")
