"""The checker: a small history that is in order passes, and one with a single thing wrong fails, for that reason."""

import pytest

from tests.chaos.checker import Attempt, Change, Evidence, Row, check
from tests.chaos.checker.evidence import Limits

pytestmark = pytest.mark.fast

A, B = "id-a", "id-b"
WORKER, OTHER = 10, 11


class Story:
    """A history that grows: each call is something that happened a second after the one before."""

    def __init__(self):
        self.t = 0.0
        self.events, self.changes, self.rows, self.attempts, self.effects = [], [], {}, [], []
        self.minutes = None

    def event(self, name, by=1, **fields):
        self.t += 1
        self.events.append({"t": self.t, "e": name, "p": by, **fields})
        return self

    def enqueued(self, id_=A, uid=None, *, key=None, duplicate=False, function="app.work", says="ack", **columns):
        uid = uid or f"uid of {id_}"
        op = f"op {self.t}"
        self.event("try", op=op, mode="autocommit", uid=uid, key=key)
        self.event("precommit", op=op, made=[[uid, id_, duplicate]])
        self.event(says, op=op, made=[[uid, id_, duplicate]])
        if says == "ack":
            self.rows[id_] = Row(id_, uid, function, "PENDING", 0, key=key)
        return self

    def changed(self, verb, state, id_=A, **fields):
        self.t += 1
        row = self.rows[id_]
        lease = row.lease + (verb == "claim")
        counts = {name: fields.get(name, getattr(row, name)) for name in ("failures", "lost", "interrupted", "snoozed")}
        change = Change(
            len(self.changes), self.t, id_, row.state, state, row.lease, lease, verb, fields.get("run_at", 0.0)
        )
        self.changes.append(
            change._replace(**counts, **{k: v for k, v in fields.items() if k in ("asked", "newly_asked", "worker")})
        )
        self.rows[id_] = row._replace(state=state, lease=lease, **counts)
        return self

    def claimed(self, id_=A, **fields):
        return self.changed("claim", "RUNNING", id_, **fields)

    def started(self, id_=A, pid=WORKER, *, lease=None, **fields):
        row = self.rows[id_]
        return self.event("start", pid, id=id_, uid=row.uid, lease=lease or row.lease, **fields)

    def ended(self, id_=A, pid=WORKER, *, lease=None, ok=True):
        return self.event("end", pid, id=id_, lease=lease or self.rows[id_].lease, ok=ok)

    def settled(self, id_=A, pid=WORKER, *, state="COMPLETED", lease=None):
        self.event("settle", pid, began=self.t, runs=[[id_, lease or self.rows[id_].lease, "complete", state]])
        return self.changed("settle", state, id_)

    def ran(self, id_=A, pid=WORKER):
        return self.claimed(id_).started(id_, pid).ended(id_, pid).settled(id_, pid)

    def rescued(self, id_=A, *, state="PENDING"):
        row = self.rows[id_]
        self.attempts.append(Attempt(id_, row.lease, "LOST"))
        return self.changed("rescue", state, id_, lost=row.lost + 1)

    def fault(self, kind, *pids):
        return self.event("fault", kind=kind, pids=list(pids))

    def frozen(self, pid=WORKER):
        self.fault("freeze", pid)
        return self.event("heal", kind="freeze", pids=[pid])

    def broken(self, floors=None, **limits):
        """The rules that are broken."""
        return {violation.rule for violation in self.verdict(floors, **limits).violations}

    def verdict(self, floors=None, **limits):
        evidence = Evidence(
            sorted(self.events, key=lambda event: event["t"]), self.changes, list(self.rows.values()), self.attempts,
            self.effects, set(), Limits(lease=2.0, **limits), self.minutes,
        )  # fmt: skip
        return check(evidence, floors)


@pytest.fixture
def story():
    return Story()


def test_a_history_in_order_passes(story):
    story.enqueued().ran()
    assert story.verdict().word == "pass"


def test_a_task_of_a_killed_worker_that_runs_again_is_in_order(story):
    story.enqueued().claimed().started()
    story.fault("kill", WORKER).rescued().ran(pid=OTHER)
    assert story.broken() == set()


def test_a_frozen_worker_whose_settle_is_refused_is_in_order(story):
    story.enqueued().claimed().started().frozen().rescued().claimed().started(pid=OTHER)
    story.ended(lease=1).event("settle", WORKER, began=story.t, runs=[[A, 1, "complete", "refused"]])
    story.ended(pid=OTHER).settled(pid=OTHER)
    assert story.broken() == set()


def test_a_fault_that_did_not_hit_makes_the_run_vacuous(story):
    story.enqueued().ran()
    assert story.verdict({"F1": 1}).word == "VACUOUS"
    assert story.verdict({"F1": 1}).missed == {"F1": 1}


def test_a_kill_counts_only_where_it_cut_a_run_off(story):
    story.enqueued().ran().fault("kill", WORKER)
    assert story.verdict().hits["F1"] == 0
    story.enqueued(B).claimed(B).started(B, OTHER).fault("kill", OTHER)
    assert story.verdict().hits["F1"] == 1


def test_i1_an_acknowledged_task_is_not_there(story):
    story.enqueued()
    story.rows.clear()
    assert story.broken() == {"I1"}


def test_i1_a_task_that_nobody_enqueued(story):
    story.enqueued().ran()
    story.events = [event for event in story.events if event["e"] not in ("try", "precommit", "ack")]
    assert story.broken() == {"I1"}


def test_i2_a_task_is_left(story):
    story.enqueued()
    assert story.broken() == {"I2"}
    story.claimed().started()
    assert story.broken() == {"I2"}


def test_i2_a_scheduled_task_may_be_left(story):
    story.enqueued()
    story.rows[A] = story.rows[A]._replace(is_due=False)
    assert story.broken() == set()


@pytest.mark.parametrize("says", ["rb", "silent"])
def test_i3_a_task_that_was_rolled_back_runs(story, says):
    story.enqueued(says=says)
    story.rows[A] = Row(A, f"uid of {A}", "app.work", "PENDING", 0)
    story.ran()
    assert story.broken() == {"I3"}


def test_i3_a_task_that_was_rolled_back_is_there(story):
    story.enqueued(says="rb")
    story.rows[A] = Row(A, f"uid of {A}", "app.work", "PENDING", 0, is_due=False)
    assert story.broken() == {"I3"}


def test_an_unclear_commit_may_be_there_or_not(story):
    story.enqueued(says="unknown")
    assert story.broken() == set()
    story.rows[A] = Row(A, f"uid of {A}", "app.work", "PENDING", 0)
    story.ran()
    assert story.broken() == set()


def test_i4_a_task_starts_before_its_commit(story):
    story.enqueued().ran()
    for event in story.events:
        if event["e"] in ("precommit", "ack"):
            event["t"] += 20
    assert story.broken() == {"I4"}


def test_i5_a_settle_of_an_older_lease_is_accepted(story):
    story.enqueued().claimed().started().frozen().rescued().claimed().started(pid=OTHER)
    story.ended(lease=1).settled(lease=1).ended(pid=OTHER)
    assert story.broken() == {"I5"}


def test_i5_two_runs_have_one_lease(story):
    story.enqueued().claimed().started().started(pid=OTHER).ended().settled()
    assert story.broken() == {"I5"}


def test_i5_an_older_run_starts_after_a_newer_one(story):
    story.enqueued().claimed().rescued().claimed().started(pid=OTHER).started(lease=1)
    story.ended(pid=OTHER).settled(pid=OTHER)
    assert story.broken() == {"I5"}


def test_i6_a_finished_task_changes(story):
    story.enqueued().ran().changed("settle", "DEAD")
    assert "I6" in story.broken()


def test_i6_a_change_that_nobody_saw(story):
    story.enqueued().ran()
    story.changes.pop(0)
    assert "I6" in story.broken()


def test_i7_a_run_starts_unclaimed(story):
    story.enqueued().started(lease=1).ran()
    assert "I7" in story.broken()


def test_i7_a_loss_is_not_counted(story):
    story.enqueued().claimed().started().fault("kill", WORKER).rescued()
    story.rows[A] = story.rows[A]._replace(lost=0)
    story.ran(pid=OTHER)
    assert story.broken() == {"I7"}


def test_i7_a_loss_has_no_row(story):
    story.enqueued().claimed().started().fault("kill", WORKER).rescued().ran(pid=OTHER)
    story.attempts.clear()
    assert story.broken() == {"I7"}


def test_i7_a_budget_is_overdrawn(story):
    story.enqueued()
    story.rows[A] = story.rows[A]._replace(max_attempts=1)
    for _ in range(2):
        story.claimed().started().fault("kill", WORKER).rescued()
    story.ran(pid=OTHER)
    assert story.broken() == {"I7"}


def test_i8_a_body_that_ended_runs_again(story):
    story.enqueued().claimed().started().ended().rescued().ran(pid=OTHER)
    assert story.broken() == {"I8"}


@pytest.mark.parametrize("kind", ["kill", "freeze", "term"])
def test_i8_what_happened_to_its_process_explains_it(story, kind):
    story.enqueued().claimed().started().ended().fault(kind, WORKER).rescued().ran(pid=OTHER)
    assert "I8" not in story.broken()


def test_i8_an_outage_explains_nothing(story):
    story.enqueued().claimed().started().event("fault", kind="crash", down=True).ended()
    story.event("heal", kind="crash", down=True).rescued().ran(pid=OTHER)
    assert "I8" in story.broken()


def test_i8_a_child_process_dies_with_its_worker(story):
    child = 99
    story.event("hello", child, role="worker", parent=WORKER)
    story.enqueued().claimed().started(pid=child).ended(pid=child).fault("kill", WORKER).rescued().ran(pid=OTHER)
    assert "I8" not in story.broken()


def test_i9_a_key_has_two_rows(story):
    story.enqueued(key="k", uid="k").ran()
    story.enqueued(B, key="k", uid="k").ran(B)
    assert story.broken() == {"I9"}


def test_i9_two_callers_are_told_that_they_were_the_first(story):
    story.enqueued(key="k", uid="k").enqueued(key="k", uid="k").ran()
    assert story.broken() == {"I9"}


def test_i9_a_duplicate_is_in_order(story):
    story.enqueued(key="k", uid="k").enqueued(key="k", uid="k", duplicate=True).ran()
    assert story.broken() == set()


def test_i10_a_canceled_task_is_claimed(story):
    story.enqueued().changed("cancel", "CANCELED").event("cancel", id=A, began=story.t, answer="canceled")
    story.ran()
    assert "I10" in story.broken()


def test_i10_a_task_that_was_asked_to_stop_is_retried(story):
    story.enqueued().claimed().started().changed("cancel", "RUNNING", asked=True, newly_asked=True)
    story.event("cancel", id=A, began=story.t, answer="requested").ended(ok=False)
    story.settled(state="PENDING").ran()
    assert "I10" in story.broken()


def test_i10_a_running_task_is_said_to_have_ended(story):
    story.enqueued().claimed().started().event("cancel", id=A, began=story.t, answer="finished").ended().settled()
    assert story.broken() == {"I10"}


def test_i10_a_canceled_task_that_is_revived_may_run(story):
    story.enqueued().changed("cancel", "CANCELED").event("cancel", id=A, began=story.t, answer="canceled")
    story.changed("revive", "PENDING").event("revive", id=A, began=story.t, answer=True).ran()
    assert story.broken() == set()


def test_i11_a_revival_that_was_confirmed_did_not_happen(story):
    story.enqueued().ran().event("revive", id=A, began=story.t, answer=True)
    assert story.broken() == {"I11"}


def test_i11_a_task_is_revived_twice_by_one_answer(story):
    story.enqueued().changed("cancel", "CANCELED").changed("revive", "PENDING").changed("cancel", "CANCELED")
    story.changed("revive", "PENDING").event("revive", id=A, began=story.t, answer=True).ran()
    assert story.broken() == {"I11"}


def ranked(story, *, urgent_is_claimed_first):
    """Two tasks wait, the second of a higher priority, and are claimed after some seconds."""
    story.enqueued(A).enqueued(B)
    story.rows[B] = story.rows[B]._replace(priority=5)
    story.t += 5
    return story.ran(B).ran(A) if urgent_is_claimed_first else story.ran(A).ran(B)


def test_i12_a_task_is_overtaken(story):
    assert ranked(story, urgent_is_claimed_first=False).broken(order=1.5) == {"I12"}


def test_i12_the_more_urgent_is_first(story):
    assert ranked(story, urgent_is_claimed_first=True).broken(order=1.5) == set()


def test_i13_a_task_is_claimed_before_its_time(story):
    story.enqueued().claimed(run_at=1000.0).started().ended().settled()
    assert story.broken() == {"I13"}


def test_i14_a_dead_workers_task_waits_for_long(story):
    story.enqueued().claimed().started().fault("kill", WORKER)
    story.t += 30
    story.rescued().ran(pid=OTHER)
    assert story.broken() == {"I14"}


def test_i14_the_return_of_the_database_is_not_noticed(story):
    story.enqueued().event("fault", kind="crash", down=True).event("heal", kind="crash", down=True)
    story.t += 30
    story.ran()
    assert story.broken() == {"I14"}


def test_i14_where_nobody_waits_for_the_database_there_is_nothing_to_notice(story):
    story.event("fault", kind="crash", down=True).event("heal", kind="crash", down=True)
    story.t += 30
    assert story.enqueued().ran().broken() == set()


def test_i14_a_task_waits_in_a_quiet_time(story):
    story.enqueued()
    story.t += 30
    story.ran()
    assert story.broken(pickup=20.0) == {"I14"}
    assert story.broken() == set()


def test_throughput_does_not_come_back(story):
    story.event("phase", phase="load")
    for number in range(120):
        story.t = 10 + number * 0.1
        story.enqueued(f"id-{number}").ran(f"id-{number}")
    story.changes = [change._replace(t=10 + change.n / 12) for change in story.changes]
    for moment in ("fault", "heal"):
        story.event(moment, kind="end sessions")
    story.t += 40
    story.event("phase", phase="heal")
    assert "throughput" in story.broken()


def test_i15_a_worker_ends_by_itself(story):
    story.event("exit", slot="worker 0", pid=WORKER, code=1)
    assert story.broken() == {"I15"}


def test_i15_not_if_it_was_killed(story):
    story.fault("kill", WORKER).event("exit", slot="worker 0", pid=WORKER, code=-9)
    assert story.broken() == set()


def test_i19_a_worker_that_was_told_to_stop_fails(story):
    story.fault("term", WORKER).event("exit", slot="worker 0", pid=WORKER, code=1)
    assert story.broken() == {"I19"}


def test_i19_a_worker_takes_long_to_stop(story):
    story.fault("term", WORKER)
    story.t += 30
    story.event("exit", slot="worker 0", pid=WORKER, code=0)
    assert story.broken() == {"I19"}


def test_i18_too_many_sessions(story):
    story.event("sample", sessions=301)
    assert story.broken(sessions=300) == {"I18"}


def test_i20_an_effect_without_a_completed_task_or_twice(story):
    story.enqueued(function="app.effect").ran()
    assert story.broken() == {"I20"}
    story.effects = [(A, 1)]
    assert story.broken() == set()
    story.effects = [(A, 1), (A, 1)]
    assert story.broken() == {"I20"}
    story.effects = [(A, 2)]
    assert story.broken() == {"I20"}


def test_a_language_leaks(story):
    story.enqueued().claimed().started(lang="fr").ended().settled()
    assert story.broken() == {"clean"}
