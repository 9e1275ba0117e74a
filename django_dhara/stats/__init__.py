"""Counts and times for people: what workers write, and cheap questions about the queue. Nothing else depends on them.

record.py       what a worker adds up and writes, by minute
rollup.py       minutes become quarters of an hour, quarters become two hours each
histogram.py    times in buckets, and percentiles of them
past.py         what happened in a range of time
present.py      what waits, runs and lives now
trouble.py      what needs a person, worst first
glance.py       all of it at once

Everything is read by SQL that adds up on the server, in statements that are stopped after `LIMIT_SECONDS`.
"""

from django_dhara.sql import TooSlow
from django_dhara.stats.glance import Overview, overview
from django_dhara.stats.histogram import BUCKETS, bucket, percentile, upper_bound
from django_dhara.stats.past import LIMIT_SECONDS, RANGES, By, History, Point, Range, Tally, history, series, totals
from django_dhara.stats.present import (
    COUNT_LIMIT,
    DEPTH_LIMIT,
    LOST_SECONDS,
    Died,
    Holder,
    Standing,
    Waiting,
    WorkerSeen,
    died,
    holders,
    standing,
    waiting,
    workers,
)
from django_dhara.stats.record import COUNTED, Counts, Event, Recorder, events_of
from django_dhara.stats.rollup import roll_up
from django_dhara.stats.trouble import Facts, Item, attention, in_words

__all__ = [
    "BUCKETS",
    "COUNTED",
    "COUNT_LIMIT",
    "DEPTH_LIMIT",
    "LIMIT_SECONDS",
    "LOST_SECONDS",
    "RANGES",
    "By",
    "Counts",
    "Died",
    "Event",
    "Facts",
    "History",
    "Holder",
    "Item",
    "Overview",
    "Point",
    "Range",
    "Recorder",
    "Standing",
    "Tally",
    "TooSlow",
    "Waiting",
    "WorkerSeen",
    "attention",
    "bucket",
    "died",
    "events_of",
    "history",
    "holders",
    "in_words",
    "overview",
    "percentile",
    "roll_up",
    "series",
    "standing",
    "totals",
    "upper_bound",
    "waiting",
    "workers",
]
