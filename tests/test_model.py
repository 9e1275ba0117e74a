"""Whatever is asked of the queue, in whatever order, it answers and stands as the model does (model.py).

Hypothesis makes up the steps, and cuts what fails down to a few of them. MODEL_STEPS says how many are taken in all:

    MODEL_STEPS=1000000 .venv/bin/pytest tests/test_model.py
"""

import json
import os
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from itertools import product
from typing import ClassVar
from uuid import UUID

import psycopg
import pytest
from django.db import transaction
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from django_dhara import cancel, enqueue_many, lifecycle, operations, pause, resume, revive, run_now
from django_dhara.compat import TaskResultDoesNotExist
from django_dhara.errors import IdempotencyConflict
from django_dhara.lifecycle import Ending, Report, Wanted
from django_dhara.models import Task as Row
from django_dhara.states import ARROWS, FINAL, State
from tests import model
from tests.app.tasks import add
from tests.collisions import STARTS
from tests.rows import MAX_INTERRUPTED, MAX_LOST, OTHER_WORKER, OUTCOMES, WORKER, read
from tests.verbs import PURE, told

STEPS = int(os.environ.get("MODEL_STEPS", "20000"))
#: Steps in one story, and unfinished tasks in it: so few that the same ones meet again and again.
LENGTH, MOST_OPEN = 50, 5
#: Seconds: longer than any test takes. Leases and delays are that long; when time passes, they are over.
LONG, PASSING = 1000.0, 1500.0
DELAYED = ("fail", "time out", "snooze", "hand back")
PROGRESS, CHECKPOINT = json.dumps(model.PROGRESS), json.dumps(model.CHECKPOINT)

QUEUES = ("default", "mail")
OPERATORS = {"cancel": cancel, "revive": revive, "run_now": run_now}


# ------------------------------------------------------------------------------------------------- the model by itself


@pytest.mark.fast
def test_the_model_takes_the_arrows_of_the_table_and_no_others():
    cancels, budgets = (None, -200.0), ({}, {"max_attempts": 1, "lost": 2, "interrupted": 2})
    seen = set()
    for start, verb, canceled_at, budget in product(filter(None, STARTS.values()), PURE, cancels, budgets):
        before = replace(start, canceled_at=canceled_at, **budget)
        _, after = PURE[verb](before, 0.0, Row(state=before.state, lease=before.lease, idempotency_key="k"))
        if after is not None and after.state != before.state:
            seen.add((before.state, verb, after.state))
    assert seen == set(ARROWS)


# ------------------------------------------------------------------------------------------- the queue beside the model

calls = st.fixed_dictionaries(
    {
        "argument": st.sampled_from((1, 1, 1, 2)),
        "key": st.sampled_from((None, "a", "b")),
        "queue": st.sampled_from(QUEUES),
        "priority": st.sampled_from((0, 5)),
        "max_attempts": st.sampled_from((1, 2, 9, 9)),
        "delay": st.sampled_from((0.0, 0.0, LONG)),
    }
)
#: Which of the tasks, or of the runs, as a number that stands for one of however many there are.
which = st.integers(0, 7)
several = st.lists(which, min_size=1, max_size=3)
end = st.tuples(st.sampled_from([*OUTCOMES]), st.sampled_from((0.0, 0.0, LONG)), st.booleans())
canceled = st.sampled_from((False, False, False, True))
workers = st.sampled_from((WORKER, OTHER_WORKER))
moves = st.sampled_from(
    [
        *(("change_queue", {"queue": queue}) for queue in QUEUES),
        *(("change_priority", {"priority": priority}) for priority in (0, 5)),
        ("snooze", {"seconds": LONG}),
    ]
)
#: Of what people do in transactions some are rolled back.
rolls_back = st.sampled_from((False, False, False, True))


class Stories(RuleBasedStateMachine):
    """The public API and the verbs of workers, and beside them the model of every task."""

    session = None
    steps = 0
    #: The arrows that were taken.
    taken: ClassVar = set()

    def __init__(self):
        super().__init__()
        self.sql("TRUNCATE dhara_task, dhara_attempt, dhara_command, dhara_queue")
        [[self.since]] = self.sql("SELECT statement_timestamp()")
        #: The tasks as they stand, and one that was pruned.
        self.tasks, self.gone = {}, []
        #: (id, lease) of runs, the newest first, whether they have ended or not.
        self.runs = []
        self.paused = set()
        self.now = 0.0

    def sql(self, statement, **parameters):
        cursor = self.session.connection.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []

    def expect(self, expected):
        """The tasks are those, their times within this step."""
        Stories.steps += 1
        found = read(self.session.execute, self.since)
        [[now]] = self.sql("SELECT extract(epoch FROM statement_timestamp() - %(since)s)::float8", since=self.since)
        timed = {id_: model.with_times_of(task, found.get(id_), now - self.now) for id_, task in expected.items()}
        assert found == {id_: task for id_, task in timed.items() if task is not None}
        self.gone = [*self.gone, *(self.tasks.keys() - found.keys())][-1:]
        self.tasks, self.now = dict(sorted(found.items())), now

    def tell(self, verb, ids, *arguments, **named):
        """What the model answers for each of these tasks, and all tasks as they stand then."""
        tasks, answers = dict(self.tasks), []
        for id_ in ids:
            answers.append(self.apply(tasks, id_, verb.__name__, verb, self.now, *arguments, **named))
        return answers, tasks

    def apply(self, tasks, id_, name, verb, *arguments, **named):
        """What the model answers for one of `tasks`, which is then as it makes it."""
        before = tasks.get(id_)
        answer, tasks[id_] = verb(before, *arguments, **named)
        if before and tasks[id_] and before.state != tasks[id_].state:
            Stories.taken.add((before.state, name, tasks[id_].state))
        return answer

    def due(self):
        return [id_ for id_ in self.in_states(State.PENDING) if self.tasks[id_].run_at <= self.now]

    def in_states(self, *states):
        return [id_ for id_, task in self.tasks.items() if task.state in states]

    def chosen(self, numbers, among):
        """Those of `among` that the numbers stand for, each once."""
        return list(dict.fromkeys(among[number % len(among)] for number in numbers)) if among else []

    # ------------------------------------------------------------------------------------------------- who enqueues

    @initialize(calls=st.lists(calls, min_size=1, max_size=3), seed=st.integers(0, 9))
    def begin(self, calls, seed):
        self.sql("SELECT setseed(%(seed)s)", seed=seed / 10)  # by which the server's random() repeats a story
        self.enqueue_several(calls, rolls_back=False)

    @precondition(lambda self: len(self.in_states(State.PENDING, State.RUNNING)) < MOST_OPEN)
    @rule(calls=st.lists(calls, min_size=1, max_size=2), rolls_back=rolls_back)
    def enqueue(self, calls, rolls_back):
        self.enqueue_several(calls, rolls_back)

    def enqueue_several(self, calls, rolls_back):
        results = _enqueue(calls, rolls_back)
        ids = [UUID(result.id) for result in results] if results else range(len(calls))
        expected, answers, owners = dict(self.tasks), [], []
        for call, id_ in zip(calls, ids, strict=True):
            owner = next((o for o, task in expected.items() if task.key is not None and task.key == call["key"]), id_)
            options = {**call, "run_at": self.now + call["delay"]}
            del options["delay"]
            answer, expected[owner] = model.enqueue(expected.get(owner), self.now, **options)
            answers.append(answer)
            owners.append(owner)
        if results is None:
            assert "conflict" in answers
            self.expect(self.tasks)
        else:
            assert ([told("enqueue", result) for result in results], list(ids)) == (answers, owners)
            self.expect(self.tasks if rolls_back else expected)

    # ---------------------------------------------------------------------------------------------- what workers do

    @precondition(lambda self: self.due())
    @rule(worker=workers, queue=st.sampled_from(QUEUES), limit=st.integers(1, 3), suspects=st.integers(0, 1))
    def claim_from_one_queue(self, worker, queue, limit, suspects):
        self.claim(worker, (queue,), limit, suspects)

    @precondition(lambda self: self.due())
    @rule(worker=workers, suspects=st.integers(0, 1))
    def claim_from_all_queues(self, worker, suspects):
        self.claim(worker, (), 1, suspects)

    def claim(self, worker, queues, limit, suspects):
        wanted, options = Wanted("default", queues), {"limit": limit, "suspects": suspects, "lease_seconds": LONG}
        claims = lifecycle.claim(self.session.execute, "default", wanted, worker, **options).claims
        ids = [claimed.id for claimed in claims]
        assert ids in self.may_claim(queues or QUEUES, limit, suspects)
        answers, expected = self.tell(model.claim, ids, worker, seconds=LONG)
        assert [(claimed.lease, claimed.attempt) for claimed in claims] == answers
        self.runs = [*((claimed.id, claimed.lease) for claimed in claims), *self.runs][:8]
        self.expect(expected)
        return ids

    def may_claim(self, queues, limit, suspects):
        """One queue gives its first tasks. Of several, one of those with the highest priority is asked by chance."""
        order = self.in_order(set(queues), suspects)
        if len(queues) == 1:
            return [order[:limit]]
        firsts = [id_ for queue in queues for id_ in self.in_order({queue}, 0)[:1]]
        best = max((self.tasks[id_].priority for id_ in firsts), default=None)
        suspect = [id_ for id_ in order if self.tasks[id_].lost]
        asked = [[id_, *suspect] for id_ in firsts if self.tasks[id_].priority == best] or [suspect]
        return [sorted(ids, key=order.index)[:1] for ids in asked]

    def in_order(self, queues, suspects):
        return model.in_order(self.tasks, self.now, queues - self.paused, suspects)

    @precondition(lambda self: self.runs)
    @rule(ends=st.lists(st.tuples(which, end), min_size=1, max_size=3))
    def settle_several(self, ends):
        self.settle({self.runs[number % len(self.runs)]: end for number, end in ends})

    @precondition(lambda self: self.due())
    @rule(worker=workers, ends=st.lists(st.tuples(end, canceled), min_size=1, max_size=5))
    def claim_and_settle(self, worker, ends):
        for end, is_canceled in ends:
            for id_ in self.claim(worker, (), 1, 1):
                if is_canceled:
                    self.change("cancel", id_)
                self.settle({self.runs[0]: end})

    @precondition(lambda self: self.due())
    @rule(worker=workers)
    def claim_and_lose(self, worker):
        for id_ in self.claim(worker, (), 1, 1):
            self.expire(id_)
            self.rescue()

    def settle(self, ends):
        expected, answers, endings = dict(self.tasks), [], []
        for (id_, lease), (verb, delay, was_started) in ends.items():
            seconds = 0.5 if was_started or verb != "hand back" else None
            outcome = OUTCOMES[verb]
            endings.append(Ending(id_, lease, replace(outcome, delay=delay) if verb in DELAYED else outcome, seconds))
            options = {"delay": delay if verb in DELAYED else 0.0, "seconds": seconds}
            answers.append(self.apply(expected, id_, verb, model.settle, self.now, verb, lease, **options))
        found = lifecycle.settle(self.session.execute, WORKER, endings, max_interrupted=MAX_INTERRUPTED)
        assert [told("complete", answer) for answer in found] == answers
        self.expect(expected)

    @precondition(lambda self: self.runs)
    @rule(numbers=several)
    def renew_and_report(self, numbers):
        runs = self.chosen(numbers, self.runs)
        expected, answers = dict(self.tasks), {"renewed": set(), "refused": set(), "skipped": set()}
        for id_, lease in runs:
            answer = self.apply(expected, id_, "renew", model.renew, self.now, lease, seconds=LONG)
            answers[answer].add((id_, lease))
            self.apply(expected, id_, "report", model.report, lease)
        renewal = lifecycle.renew(self.session.execute, WORKER, runs, lease_seconds=LONG)
        assert renewal == (answers["renewed"], answers["refused"], False)
        reports = [Report(id_, lease, PROGRESS, CHECKPOINT) for id_, lease in runs]
        assert lifecycle.report(self.session.execute, reports) == answers["renewed"]
        self.expect(expected)

    # -------------------------------------------------------------------------------------------------- what is swept

    @precondition(lambda self: self.in_states(State.RUNNING))
    @rule()
    def rescue(self):
        answers, expected = self.tell(model.rescue, self.tasks)
        rescued = lifecycle.rescue(self.session.execute, "default", "default", max_lost=MAX_LOST, grace_seconds=0.0)
        states = {task.id: task.state for task in rescued}
        assert [states.get(id_) for id_ in self.tasks] == answers
        self.expect(expected)

    @precondition(lambda self: self.in_states(*FINAL))
    @rule(state=st.sampled_from(FINAL), age=st.sampled_from((0.0, LONG)), keyed_age=st.sampled_from((0.0, 2 * LONG)))
    def prune(self, state, age, keyed_age):
        answers, expected = self.tell(model.prune, self.tasks, state, age=age, keyed_age=keyed_age)
        options = {"older_than": age, "keyed_older_than": keyed_age}
        assert lifecycle.prune(self.session.execute, "default", "default", state, **options) == sum(answers)
        self.expect(expected)

    # ------------------------------------------------------------------------------------------------ what people do

    @precondition(lambda self: self.tasks)
    @rule(verb=st.sampled_from([*OPERATORS]), number=which, rolls_back=rolls_back)
    def operate(self, verb, number, rolls_back):
        [id_] = self.chosen([number], [*self.tasks, *self.gone])
        self.change(verb, id_, rolls_back)

    def change(self, verb, id_, rolls_back=False):
        [answer], expected = self.tell(getattr(model, verb), [id_])
        found = None
        with suppress(TaskResultDoesNotExist), transaction.atomic():
            found = OPERATORS[verb](id_)
            transaction.set_rollback(rolls_back)
        assert found == answer
        self.expect(self.tasks if rolls_back else expected)

    @precondition(lambda self: self.tasks)
    @rule(verb=st.sampled_from([*OPERATORS]), numbers=several)
    def operate_on_several(self, verb, numbers):
        ids = self.chosen(numbers, [*self.tasks, *self.gone])
        answers, expected = self.tell(getattr(model, verb), ids)
        tally = operations.change(verb, ids, database="default")
        said = [answer for answer, changed in tally.changed.items() for _ in changed]
        names = {True: {"revive": "revived", "run_now": "hastened"}.get(verb)}
        assert Counter(said) == Counter(names.get(a, a) for a in answers if a not in {None, False, "finished"})
        assert (tally.missing, tally.busy) == (answers.count(None), 0)
        self.expect(expected)

    @precondition(lambda self: self.in_states(State.PENDING))
    @rule(move=moves, numbers=several)
    def move_several(self, move, numbers):
        (verb, arguments), ids = move, self.chosen(numbers, [*self.tasks, *self.gone])
        self.change_several({"snooze": "put_off"}.get(verb, verb), verb, ids, arguments)

    @precondition(lambda self: self.in_states(*FINAL))
    @rule(numbers=several)
    def delete_several(self, numbers):
        self.change_several("delete", "delete", self.chosen(numbers, [*self.tasks, *self.gone]), {})

    def change_several(self, name, verb, ids, arguments):
        answers, expected = self.tell(getattr(model, name), ids, *arguments.values())
        tally = operations.change(verb, ids, database="default", **arguments)
        [*changed] = tally.changed.values() or [[]]
        assert [len(each) for each in changed] == [answers.count(True)]
        assert (tally.missing, tally.busy, tally.refused) == (answers.count(None), 0, answers.count(False))
        self.expect(expected)

    @precondition(lambda self: self.in_states(State.PENDING))
    @rule(queue=st.sampled_from(QUEUES), is_paused=st.sampled_from((False, False, True)))
    def pause_or_resume(self, queue, is_paused):
        (pause if is_paused else resume)(queue)
        self.paused = self.paused | {queue} if is_paused else self.paused - {queue}
        self.expect(self.tasks)

    # --------------------------------------------------------------------------------------------------------- time

    @precondition(lambda self: self.in_states(State.RUNNING))
    @rule(number=which)
    def a_worker_dies(self, number):
        [id_] = self.chosen([number], self.in_states(State.RUNNING))
        self.expire(id_)

    def expire(self, id_):
        self.sql("UPDATE dhara_task SET lease_until = statement_timestamp() - interval '1 s' WHERE id = %(id)s", id=id_)
        self.expect({**self.tasks, id_: replace(self.tasks[id_], lease_until=self.now - 1)})

    @precondition(lambda self: len(self.due()) < len(self.tasks))
    @rule()
    def time_passes(self):
        columns = ("run_at", "lease_until", "cancel_requested_at", "started_at", "attempted_at", "finished_at")
        moved = ", ".join(f"{column} = {column} - make_interval(secs => {PASSING})" for column in columns)
        self.sql(f"UPDATE dhara_task SET {moved}")
        self.expect({id_: model.later(task, PASSING) for id_, task in self.tasks.items()})


def _enqueue(calls, rolls_back):
    """The results, or None if two calls have one key and different arguments."""
    bound = []
    for call in calls:
        options = {"queue_name": call["queue"], "priority": call["priority"], "max_attempts": call["max_attempts"]}
        delay = timedelta(seconds=call["delay"]) if call["delay"] else None
        bound.append(add.using(idempotency_key=call["key"], run_after=delay, **options).bind(call["argument"]))
    with suppress(IdempotencyConflict), transaction.atomic():
        results = [bound[0].task.enqueue(*bound[0].args)] if len(bound) == 1 else [*enqueue_many(bound)]
        transaction.set_rollback(rolls_back)
        return results


@pytest.fixture
def stories(sessions):
    """Lets Hypothesis play; the SQL of what workers do may have a bug in it."""

    def play(steps, planted=(), **options):
        [Stories.session] = sessions(1)
        Stories.session.planted = planted
        Stories.steps, Stories.taken = 0, set()
        run_state_machine_as_test(
            Stories,
            settings=settings(
                max_examples=max(1, steps // LENGTH),
                stateful_step_count=LENGTH,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
                **options,
            ),
        )

    return play


@pytest.mark.timeout(120 + STEPS / 20)
def test_the_queue_does_what_the_model_does(stories):
    stories(STEPS)
    print(f"{Stories.steps} steps")
    changes = {(source, target) for source, _, target in Stories.taken}
    assert changes == {(arrow.source, arrow.target) for arrow in ARROWS}, "a change that no story makes is not tested"
    assert Stories.steps > STEPS * 0.7  # Hypothesis gives some stories up


_IS_DUE = '"dhara_task"."run_at" <= (STATEMENT_TIMESTAMP())'

#: What many stories would find, had the SQL of workers this bug.
BUGS = {
    "a settle is guarded by the state alone": [
        ("AND task.lease = ending.lease", ""),
        ("AND task.lease = held.lease AND", "AND"),
    ],
    "a lost run does not count": [("lost = task.lost + 1,", "")],
    "a lost run counts for the attempts alone": [("OR task.lost + 1 >= %(max_lost)s", "")],
    "a lease is by the clock of a worker that is slow": [
        ("lease_until = statement_timestamp() +", "lease_until = now() - interval '1 hour' +")
    ],
    "a task that is handed back loses its place": [("ELSE task.run_at END", "ELSE statement_timestamp() END")],
    "a key is free too early": [("idempotency_key IS NULL OR", "true OR")],
    "a paused queue is served": [("AND paused_at IS NOT NULL", "AND false")],
    "a worker takes all suspects that it finds": [("LIMIT %(suspects)s", "LIMIT 9")],
    "a low priority goes first": [("ORDER BY priority DESC, random()", "ORDER BY priority, random()")],
    "a task is claimed before its time": [
        ("is_open AND run_at <= statement_timestamp()", "is_open"),
        (_IS_DUE, "true"),
    ],
    "a run that was told to stop tries again": [("WHEN task.cancel_requested_at IS NOT NULL THEN 'CANCELED'", "")],
    "a first run begins again and again": [
        ("started_at = CASE WHEN task.started_at <> task.attempted_at", "started_at = CASE WHEN false")
    ],
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_noticed(stories, bug):
    with pytest.raises((AssertionError, psycopg.IntegrityError)):
        stories(STEPS, BUGS[bug], phases=[Phase.generate], report_multiple_bugs=False)
    print(f"{bug}: after {Stories.steps} steps")
