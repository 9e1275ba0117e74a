"""Two of a kind, or two of different kinds, on one task at the same moment: every pair of parties, in either order, the
first one's transaction committed or rolled back, compared with the model.

The last part plants bugs and requires that each is noticed: without it nobody would know that these tests can fail.
"""

from itertools import product

import pytest
from django.db import IntegrityError
from psycopg.errors import CheckViolation

from tests.collisions import PARTIES, STARTS, Table, acts
from tests.verbs import look_then_insert


@pytest.fixture(scope="module")
def _table(django_db_setup, django_db_blocker):
    with django_db_blocker.unblock():
        table = Table()
        yield table
        table.close()


@pytest.fixture
def table(commits, _table):
    """One for all tests: sessions take longer to open than to collide."""
    return _table


def collisions(first, second, how):
    """From everywhere the first one has something to do."""
    for name, one, two in product(STARTS, PARTIES[first], PARTIES[second]):
        if acts(one, STARTS[name]):
            yield name, one, two, how


@pytest.mark.parametrize("how", ["commit", "rollback", "snapshot"])
@pytest.mark.parametrize("second", PARTIES)
@pytest.mark.parametrize("first", PARTIES)
def test_two_parties_at_once_come_to_what_one_after_the_other_would(table, first, second, how):
    for collision in collisions(first, second, how):
        table.collide(*collision)


def test_every_party_begins_somewhere():
    assert all(list(collisions(first, second, "commit")) for first, second in product(PARTIES, PARTIES))


# ------------------------------------------------------------------------------------------------------- planted bugs

_LOCK = "FOR NO KEY UPDATE OF task SKIP LOCKED"
_SHORT_LOCK = "FOR NO KEY UPDATE SKIP LOCKED"
_WAITS = [(" SKIP LOCKED", "")]
_SETTLES_ANY_STATE = [
    *[(f"WHERE task.state = {row}.state", "WHERE true") for row in ("ending", "mine")],
    ("AND task.state = held.state", ""),
]
_EXPIRY = "AND task.lease_until < statement_timestamp()"

#: name: (task, first, second, how, what is changed in the SQL)
BUGS = {
    "a settle waits for a cancel": ("overdue", "cancel", "fail", "commit", _WAITS),
    "a settle decides before it has the lock": ("overdue", "cancel", "fail", "snapshot", [(_LOCK, "")]),
    "a settle ignores the state": ("overdue", "rescue", "complete", "snapshot", _SETTLES_ANY_STATE),
    "a renewal waits for a settle": ("running", "complete", "renew", "commit", _WAITS),
    "a renewal ignores the state": ("running", "complete", "renew", "snapshot", _SETTLES_ANY_STATE),
    "a report waits for a settle": ("running", "complete", "report", "commit", _WAITS),
    "a rescue waits for a renewal": ("overdue", "renew", "rescue", "commit", _WAITS),
    "a rescue takes a finished task": (
        *("overdue", "complete", "rescue", "snapshot"),
        [(_SHORT_LOCK, ""), (f"AND task.state = 'RUNNING' {_EXPIRY}", "")],
    ),
    "a rescue takes a renewed lease": ("overdue", "renew", "rescue", "snapshot", [(_SHORT_LOCK, ""), (_EXPIRY, "")]),
    "a rescue forgets a cancel": (
        *("overdue", "cancel", "rescue", "snapshot"),
        [("task.cancel_requested_at IS NOT NULL", "false")],
    ),
    "a rescue costs the task its place": (
        *("overdue", "rescue", "claim", "commit"),
        [("lost = task.lost + 1,", "lost = task.lost + 1, run_at = statement_timestamp(),")],
    ),
    "a run counts when it has ended, so a lost one does not": (
        *("overdue", "rescue", "claim", "commit"),
        [("lost = task.lost + 1,", "")],
    ),
    "a lease is by the clock of a worker that is slow": (
        *("due", "claim", "rescue", "snapshot"),
        [("statement_timestamp() + make_interval(secs => %(lease)s)", "now() - interval '1 hour'")],
    ),
    "a claim does not raise the lease": (
        *("due", "claim", "complete", "commit"),
        [("lease = task.lease + 1, worker_id", "lease = task.lease, worker_id")],
    ),
    "a snooze is a failure": (
        *("running", "snooze", "claim", "commit"),
        [("task.failures + held.failed::int", "task.failures + (held.failed OR held.verb = 'snooze')::int")],
    ),
    "a cancel believes its snapshot": ("due", "claim", "cancel", "commit", [("FOR NO KEY UPDATE", "")]),
    "a task is revived twice": (
        *("dead", "revive", "revive", "commit"),
        [("task.state IN ('DEAD', 'CANCELED')", "true"), ("state IN ('DEAD', 'CANCELED')", "true")],
    ),
    "a revived task has no new budget": ("dead", "revive", "claim", "commit", [("failures = 0,", "")]),
    "a revived task is pruned": ("dead", "revive", "prune", "snapshot", [("FOR UPDATE SKIP LOCKED", "")]),
    "a pruning waits for a revival": ("dead", "revive", "prune", "commit", _WAITS),
    "a pruning leaves the attempts": (
        *("dead", "prune", "claim", "commit"),
        [("DELETE FROM dhara_attempt WHERE", "DELETE FROM dhara_attempt WHERE false AND")],
    ),
    "a move believes its snapshot": (
        *("due", "claim", "put off", "snapshot"),
        [("FOR NO KEY UPDATE", ""), ("AND task.state = 'PENDING'", "")],
    ),
    "a task that waits for longer is put off": (
        *("scheduled", "put off", "claim", "commit"),
        [("AND run_at < statement_timestamp() + make_interval(secs => %(seconds)s)", "")],
    ),
    "a revived task is deleted": ("dead", "revive", "delete", "snapshot", [("FOR UPDATE", "")]),
    "a deletion leaves the attempts": (
        *("dead", "delete", "claim", "commit"),
        [("DELETE FROM dhara_attempt WHERE", "DELETE FROM dhara_attempt WHERE false AND")],
    ),
    "a task is claimed twice": ("due", "claim", "claim", "snapshot", [("FOR UPDATE SKIP LOCKED", "")]),
    "a canceled task is claimed": ("due", "cancel", "claim", "snapshot", [("FOR UPDATE SKIP LOCKED", "")]),
    "a claim waits for a cancel": ("due", "cancel", "claim", "commit", _WAITS),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_noticed(table, bug):
    *collision, planted = BUGS[bug]
    with pytest.raises((AssertionError, CheckViolation)):
        table.collide(*collision, planted)


def test_a_key_that_is_looked_up_and_then_inserted_is_noticed(table, monkeypatch):
    look_then_insert(monkeypatch)
    with pytest.raises(IntegrityError):
        table.collide("absent", "enqueue", "enqueue", "commit")
