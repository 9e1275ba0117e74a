"""Aggregates for tests, as workers would have written them: `a_minute(5, completed=10)`, or a whole afternoon."""

import random
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

from django.db import connection

from django_dhara.models import Minute, Quarter, Queue, Worker
from django_dhara.stats import bucket
from tests.rows import a_task, ago, ahead

MAIL, CHARGE, SHRINK, REPORT, SYNC = (
    "shop.orders.tasks.send_receipt",
    "shop.orders.tasks.charge_card",
    "shop.images.tasks.shrink",
    "shop.reports.tasks.rebuild_monthly_report",
    "shop.stock.tasks.sync_warehouse",
)


def server_minute(ago=0):
    """The minute that the server is in, or one before."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT date_trunc('minute', statement_timestamp()) - make_interval(mins => %s)", [ago])
        return cursor.fetchone()[0]


def a_minute(minutes_ago=0, **columns):
    values = {
        "minute": server_minute(minutes_ago),
        "worker_id": uuid4(),
        "backend": "default",
        "queue": "mail",
        "function": MAIL,
    }
    return Minute.objects.create(**{**values, **columns})


def histogram(times):
    counts = {}
    for seconds in times:
        counts[str(bucket(seconds))] = counts.get(str(bucket(seconds)), 0) + 1
    return counts


#: function, queue, runs a minute, typical run time, share that fails
_LOAD = (
    (MAIL, "email", 42, 0.18, 0.004),
    (CHARGE, "default", 14, 0.9, 0.01),
    (SHRINK, "images", 23, 2.4, 0.002),
    (SYNC, "default", 3, 11.0, 0.02),
    (REPORT, "reports", 0.4, 75.0, 0.0),
)


CREW = (UUID(int=1), UUID(int=2), UUID(int=3))


def an_afternoon(workers=CREW, *, days=0, seed=5):
    """Minutes of an hour and more: a spike of mail 25 minutes ago, a payment provider that fails since 6 minutes,
    reports paused since 40 minutes; with `days`, hours and quarters of so many days before."""
    chance = random.Random(seed)
    now = server_minute()
    rows = []
    for minutes in range(75):
        at = now - timedelta(minutes=minutes)
        keys = [(load, worker) for load in _LOAD for worker in workers]
        rows += [
            _row(chance, Minute, load, minutes, len(workers), minute=at, worker_id=worker) for load, worker in keys
        ]
    Minute.objects.bulk_create(row for row in rows if row)
    rows = []
    start = datetime.fromtimestamp(now.timestamp() // 900 * 900, UTC)
    for quarters in range(5, days * 96):
        at = start - timedelta(minutes=15 * quarters)
        if quarters > 97 and at.minute:
            continue
        scale = (15 if quarters <= 97 else 60) * (0.35 + 0.65 * max(0.0, 1 - abs(at.hour - 14) / 9))
        rows += [_row(chance, Quarter, load, 999, 1 / scale, start=at) for load in _LOAD]
    Quarter.objects.bulk_create(row for row in rows if row)


def _row(chance, model, load, minutes, divisor, **key):
    function, queue, rate, typical, share = load
    wait = 0.012
    if function == MAIL and 18 <= minutes <= 27:
        rate, wait = rate * 4, 2.0 + 9 * (27 - minutes)
    if function == CHARGE and minutes <= 6:
        share, typical = 0.45, 6.0
    if function == REPORT and minutes < 40:
        return None
    # A minute has as many runs as chance brings; a busy quarter nearly its share.
    mean = rate / divisor
    runs = max(round(chance.gauss(mean, mean**0.5)), 0)
    if not runs:
        return None
    failed = sum(chance.random() < share for _ in range(runs))
    times = [typical * chance.lognormvariate(0, 0.5) for _ in range(min(runs, 200))]
    waits = [wait * chance.lognormvariate(0, 0.7) for _ in range(min(runs, 200))]
    dead = sum(chance.random() < 0.25 for _ in range(failed))
    return model(
        backend="default", queue=queue, function=function, completed=runs - failed, failed=failed, dead=dead,
        run_seconds=sum(times), run_histogram=histogram(times),
        wait_seconds=sum(waits), wait_histogram=histogram(waits), **key,
    )  # fmt: skip


def a_crew():
    """Workers of that afternoon, with what they run and what waits: reports paused, mail behind, one worker silent."""
    values = {
        "backend": "default",
        "version": "0.2.0",
        "concurrency": 10,
        "lease_seconds": 600.0,
        "started_at": ago(9000),
    }
    for number, host in enumerate(("box7", "box8", "box9"), start=1):
        Worker.objects.create(id=UUID(int=number), name=f"{host}-4{number}", host=host, pid=4000 + number, **values)
    Worker.objects.create(name="box6-77", host="box6", pid=77, heartbeat_at=ago(700), **values)
    Queue.objects.create(backend="default", name="reports", paused_at=ago(2400))
    for number in range(14):
        a_task(function=REPORT, queue="reports", run_at=ago(2300 - 60 * number))
    for number in range(60):
        a_task(function=MAIL, queue="email", run_at=ago(190 - number))
    for number in range(9):
        a_task("RUNNING", function=SHRINK, queue="images", worker_id=UUID(int=1 + number % 3), attempted_at=ago(number))
    for number in range(23):
        retry = {"failures": 2, "error_class": "stripe.error.RateLimitError"}
        a_task(function=CHARGE, run_at=ahead(40 + number), **retry)
    for number in range(12):
        end = {"failures": 5, "finished_at": ago(20 + 20 * number), "error_class": "stripe.error.RateLimitError"}
        a_task("DEAD", function=CHARGE, **end)
    a_task(function=SYNC, lost=1)
