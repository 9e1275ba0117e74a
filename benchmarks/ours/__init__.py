"""The queue of this repository, and the limit: the same statements from a bare psycopg connection."""

from benchmarks.contender import Contender

#: One count for each partial index, which is cheaper than one for all.
_REMAINING = """
    SELECT (SELECT count(*) FROM dhara_task WHERE backend = 'default' AND state = 'PENDING' AND lost = 0)
         + (SELECT count(*) FROM dhara_task WHERE backend = 'default' AND state = 'PENDING' AND lost > 0)
         + (SELECT count(*) FROM dhara_task WHERE state = 'RUNNING')
"""
_DONE = "SELECT count(*) FROM dhara_task WHERE state = 'COMPLETED'"

OURS = Contender(
    name="django-dhara",
    driver=("{python}", "-m", "benchmarks.ours.driver"),
    requirements=(),
    ecosystem="ours",
    remaining=_REMAINING,
    done=_DONE,
    settings="manage.py dhara_worker --concurrency SLOTS, all else by default (finished tasks stay, fences, reaper and "
    "pruner on); prepared statements on; logging at WARNING",
)
BARE = Contender(
    name="bare",
    driver=("{python}", "-m", "benchmarks.ours.bare"),
    requirements=(),
    ecosystem="ours",
    remaining=_REMAINING,
    done=_DONE,
    settings="the limit: psycopg, prepared, autocommit; W1: django_dhara's claim and settle, 500 at a time, no "
    "function is run; W2: INSERT of the same row; W3: COPY of the same rows",
)
