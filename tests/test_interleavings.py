"""A claim, a settle, a rescue and a cancel on one task, each in a transaction of its own: all orders of their steps.

After the fashion of PostgreSQL's isolationtester. A step is BEGIN with the statement, or COMMIT. The four answers and
the row that they leave must be what the model makes of the four one after the other, in some order, where some may have
left out a row that another had locked. A session that waits takes its COMMIT as soon as it can.
"""

import random
from functools import cache
from itertools import chain, combinations, permutations

import pytest
from psycopg.errors import CheckViolation

from tests import model
from tests.collisions import SLACK, STARTS
from tests.rows import put, read
from tests.sessions import wait
from tests.verbs import PURE, SKIPPED, VERBS, told

#: How the run ends, and what becomes of it: a success, or a task that can be claimed at once.
ENDS = ("complete", "hand back")
START = STARTS["overdue"]
#: So many orders are in the default run, of 2,520.
SAMPLE = 150


def all_orders(verbs):
    """Every order of two steps for each of four parties: 8! / 2**4."""
    return sorted(set(permutations([*verbs, *verbs])))


def beside_others(order):
    """Those that began while another's transaction was open, and so may have met its lock."""
    open_, found = set(), set()
    for verb in order:
        if verb not in open_ and open_ and verb in SKIPPED:
            found.add(verb)
        open_ ^= {verb}
    return frozenset(found)


@cache
def legal(verbs, able):
    """What the four may come to, where those that are able to may have left out a locked row."""
    skipping = chain.from_iterable(combinations(able, n) for n in range(len(able) + 1))
    return [_one_by_one(order, skipped) for skipped in map(set, skipping) for order in permutations(verbs)]


def _one_by_one(order, skipped):
    task, answers = START, {verb: SKIPPED[verb] for verb in skipped}
    for n, verb in enumerate(verb for verb in order if verb not in skipped):
        answers[verb], task = PURE[verb](task, n / 1000, START)
    return answers, task


class Players:
    """Four sessions, one for each verb, and one that looks on."""

    def __init__(self, verbs, sessions):
        *sessions, self.watcher = sessions
        self._sessions = dict(zip(verbs, sessions, strict=True))
        for session in sessions:
            session.connection.execute("SET lock_timeout = '10s'")

    def session_of(self, verb):
        return self._sessions[verb]

    def play(self, order):
        """What the four have answered."""
        self._row, self._began, self._waiting, self._answers = put(START), {}, {}, {}
        for verb in order:
            self._finish(verb) if verb in self._began else self._begin(verb)
            self._release()
        assert not self._waiting
        return self._answers

    def _begin(self, verb):
        session = self._sessions[verb]
        session.begin()
        self._began[verb] = future = session.start(VERBS[verb], self._row)
        if not wait(future, session, self.watcher):
            assert verb == "cancel", f"{verb} waits"
            self._waiting[verb] = False

    def _finish(self, verb):
        if verb in self._waiting:
            self._waiting[verb] = True
            return
        self._answers[verb] = told(verb, self._began[verb].result())
        self._sessions[verb].end()

    def _release(self):
        """Who has waited and need not any more; its COMMIT, if that was its turn before, comes at once."""
        for verb, is_due in list(self._waiting.items()):
            if wait(self._began[verb], self._sessions[verb], self.watcher):
                del self._waiting[verb]
                if is_due:
                    self._finish(verb)


def check(players, order):
    """Play one order and compare."""
    players.watcher.connection.execute("DELETE FROM dhara_task; DELETE FROM dhara_attempt; DELETE FROM dhara_command")
    [[since]] = players.watcher.execute("SELECT statement_timestamp()", {})
    answers = players.play(order)
    [after] = read(players.watcher.execute, since).values()
    may = legal(tuple(sorted(set(order))), beside_others(order))
    found = [(said, model.with_times_of(task, after, SLACK)) for said, task in may]
    assert (answers, after) in found, f"{' '.join(order)}: {answers} and {after}"


@pytest.mark.parametrize("end", ENDS)
def test_four_at_once_come_to_what_some_order_of_them_would(sessions, end):
    verbs = ("claim", end, "rescue", "cancel")
    players, orders = Players(verbs, sessions(5)), all_orders(verbs)
    assert len(orders) == 2520
    for order in random.sample(orders, SAMPLE):
        check(players, order)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("end", ENDS)
def test_four_at_once_come_to_what_some_order_of_them_would_in_all_2520_orders(sessions, end):
    verbs = ("claim", end, "rescue", "cancel")
    players = Players(verbs, sessions(5))
    for order in all_orders(verbs):
        check(players, order)


@pytest.mark.parametrize(
    ("verb", "planted"),
    [
        ("cancel", [("FOR NO KEY UPDATE", "")]),
        ("rescue", [("lost = task.lost + 1,", "lost = task.lost + 1, lease = task.lease + 1,")]),
    ],
    ids=["a cancel believes its snapshot", "a rescue moves the lease"],
)
def test_a_planted_bug_is_noticed(sessions, verb, planted):
    verbs = ("claim", "complete", "rescue", "cancel")
    players = Players(verbs, sessions(5))
    players.session_of(verb).planted = planted
    with pytest.raises((AssertionError, CheckViolation)):
        for order in random.sample(all_orders(verbs), SAMPLE):
            check(players, order)
