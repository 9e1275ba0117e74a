"""How much a worker claims: many short tasks at once, and no short one behind a long one."""

import pytest

from django_dhara.worker.pace import Mix, Pace
from tests.workers.harness import until

_FILL = """
INSERT INTO dhara_task (id, backend, queue, function, payload, run_at)
SELECT gen_random_uuid(), 'default', 'default', 'tests.app.tasks.' || CASE WHEN n = ANY (%s) THEN 'nap' ELSE 'add' END,
       jsonb_build_object('args', CASE WHEN n = ANY (%s) THEN '["long", 10]' ELSE '[1, 2]' END::jsonb,
                          'kwargs', '{}'::jsonb),
       now() - interval '1 hour' + n * interval '1 millisecond'
FROM generate_series(1, 1000) AS n
"""
_LONG, _SHORT = "function = 'tests.app.tasks.nap'", "function = 'tests.app.tasks.add'"


def test_no_short_task_waits_for_a_long_one_among_them(crew, database):
    database.rows(_FILL, [500], [500])
    crew.start("--concurrency", "4")
    until(lambda: database.value(f"SELECT count(*) FROM dhara_task WHERE {_SHORT} AND state = 'COMPLETED'") == 999, 9)
    assert database.rows(f"SELECT state FROM dhara_task WHERE {_LONG}") == [("RUNNING",)]
    assert database.value("SELECT sum(failures + lost + interrupted) FROM dhara_task") == 0


def test_what_was_claimed_before_all_slots_became_busy_goes_to_another_worker(crew, database):
    database.rows(_FILL, [500, 501], [500, 501])
    crew.start("--concurrency", "2")
    until(lambda: database.effects("long") == 2)
    crew.start("--concurrency", "2")
    until(lambda: database.value(f"SELECT count(*) FROM dhara_task WHERE {_SHORT} AND state = 'COMPLETED'") == 998, 9)
    assert database.rows(f"SELECT DISTINCT state FROM dhara_task WHERE {_LONG}") == [("RUNNING",)]


def test_after_many_brief_functions_long_ones_still_get_all_threads(crew, database):
    database.rows(_FILL, [], [])
    crew.start("--concurrency", "8")
    until(lambda: database.states() == {"COMPLETED"})
    long = [database.add("nap", "side by side", 3) for _ in range(8)]
    until(lambda: database.effects("side by side") == 8, 3)
    assert database.states(*long) == ["RUNNING"] * 8


@pytest.mark.fast
def test_functions_that_nobody_has_seen_are_taken_for_long_ones():
    pace = Pace(4, 500)
    assert (pace.room(0), pace.room(4)) == (4, 0)
    for _ in range(200):
        pace.ended(0.0001)
    assert pace.room(0) > 400
    pace.stalled()
    assert pace.room(0) == 4


@pytest.mark.fast
def test_room_for_coroutines_limits_a_claim_only_where_there_are_some():
    mix = Mix()
    assert mix.fitting(500, 100) == 100
    mix.brought(0, 100)
    assert mix.fitting(500, 100) == 500
    mix.brought(50, 100)  # a quarter, by the last two
    assert mix.fitting(500, 100) == 400
    for _ in range(12):
        mix.brought(100, 100)
    assert mix.fitting(500, 100) == 100
    mix.brought(0, 0)
    assert mix.fitting(500, 100) == 100
