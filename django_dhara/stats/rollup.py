"""Old minutes become quarters of an hour, and old quarters two hours, so that a week is read in milliseconds.

Each step is one statement that deletes rows and adds what they held to others. Either all of it happens or nothing, so
nothing is lost or counted twice, however many workers do it at once and wherever one of them is killed.
"""

from __future__ import annotations

from django_dhara.sql import Execute
from django_dhara.stats.record import COUNTED, added, merged

#: Minutes stay for the longest range that is shown by the minute, an hour, and a quarter more; quarters for a day and
#: an hour; then they are two hours each, which stay this long.
MINUTES_STAY, QUARTERS_STAY, HOURS_STAY = "75 minutes", "25 hours", "35 days"
#: The step of the longest range: a chart of a week has 84 of them.
HOURS = "2 hours"
#: A worker writes into the minute that it is, so one that ended so long ago does not change any more.
MINUTE_IS_OVER = "2 minutes"
#: Rows that one statement takes away.
BATCH = 1000
#: What quarters and hours are counted from: a full hour in every time zone whose offset is a whole number of hours.
ORIGIN = "timestamptz '2000-01-01 00:00:00+00'"

_IS_THERE = "/* dhara:has_quarters */ SELECT to_regclass('dhara_quarter') IS NOT NULL"

# The histograms are what costs when an hour is read. Those of one minute and function are gathered in the row of one
# worker; the counts stay where they are, and so tell the workers apart.
_FOLD = f"""/* dhara:fold_minutes */
WITH part AS MATERIALIZED (
    SELECT id, minute, backend, queue, function, run_histogram, wait_histogram FROM dhara_minute
    WHERE minute < statement_timestamp() - interval '{MINUTE_IS_OVER}'
      AND minute >= statement_timestamp() - interval '10 minutes'
      AND (run_histogram <> '{{}}' OR wait_histogram <> '{{}}')
    ORDER BY minute, backend, queue, function, id LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
),
keeper AS (
    SELECT min(id) AS id, array_agg(id) AS ids, {merged("run_histogram")}, {merged("wait_histogram")}
    FROM part GROUP BY minute, backend, queue, function HAVING count(*) > 1
)
UPDATE dhara_minute AS minute SET
    run_histogram = CASE WHEN minute.id = keeper.id THEN keeper.run_histogram ELSE '{{}}' END,
    wait_histogram = CASE WHEN minute.id = keeper.id THEN keeper.wait_histogram ELSE '{{}}' END
FROM keeper WHERE minute.id = ANY (keeper.ids) RETURNING 1
"""

# Rows of the target are met in one order by everybody, so that two who add to the same ones wait and do not deadlock.
_MOVE = """/* dhara:roll_up */
WITH gone AS (
    DELETE FROM {source} WHERE id = ANY (ARRAY(
        SELECT id FROM {source} WHERE {old} ORDER BY {time} LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
    RETURNING date_bin('{step}', {time}, {origin}) AS start, backend, queue, function, run_seconds, wait_seconds,
              run_histogram, wait_histogram, {columns}
),
moved AS (
    INSERT INTO dhara_quarter AS quarter (start, backend, queue, function, run_seconds, wait_seconds,
                                          run_histogram, wait_histogram, {columns})
    SELECT start, backend, queue, function, sum(run_seconds), sum(wait_seconds),
           {run_histogram}, {wait_histogram}, {sums}
    FROM gone GROUP BY start, backend, queue, function ORDER BY start, backend, queue, function
    ON CONFLICT (start, backend, queue, function) DO UPDATE SET {added}
)
SELECT count(*) FROM gone
"""


def _move(source: str, time: str, step: str, old: str) -> str:
    return _MOVE.format(
        source=source,
        time=time,
        step=step,
        old=old,
        origin=ORIGIN,
        columns=", ".join(COUNTED),
        sums=", ".join(f"sum({name})" for name in COUNTED),
        run_histogram=merged("run_histogram"),
        wait_histogram=merged("wait_histogram"),
        added=added("quarter"),
    )


def _before(step: str, stay: str) -> str:
    return f"date_bin('{step}', statement_timestamp() - interval '{stay}', {ORIGIN})"


_MINUTES = _move("dhara_minute", "minute", "15 minutes", f"minute < {_before('15 minutes', MINUTES_STAY)}")
_QUARTERS = _move(
    "dhara_quarter",
    "start",
    HOURS,
    # The first quarter of two hours is where they are kept, and stays.
    f"start < {_before(HOURS, QUARTERS_STAY)} AND start <> date_bin('{HOURS}', start, {ORIGIN})",
)
_PRUNE = f"""/* dhara:prune_quarters */
WITH gone AS (
    DELETE FROM dhara_quarter WHERE id = ANY (ARRAY(
        SELECT id FROM dhara_quarter WHERE start < statement_timestamp() - interval '{HOURS_STAY}'
        ORDER BY start LIMIT %(limit)s FOR UPDATE SKIP LOCKED))
    RETURNING 1
)
SELECT count(*) FROM gone
"""


def roll_up(execute: Execute) -> int:
    """One batch of each step; returns the largest number of rows that one of them took away.

    Does nothing where migration 0003 is not applied yet: minutes then stay for eight days, as before.
    """
    [[is_there]] = execute(_IS_THERE, {})
    if not is_there:
        return 0
    limit = {"limit": BATCH}
    execute(_FOLD, {"limit": 5 * BATCH})
    return max(int(execute(statement, limit)[0][0]) for statement in (_MINUTES, _QUARTERS, _PRUNE))
