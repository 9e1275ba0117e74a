"""The worker's side of the command channel: rows of `dhara_command`, read by the statement that claims.

Most commands are answered at once. A stack is looked at beside the control loop, which never waits for it: the answer
is written in a later turn. Until then the same command comes with each claim, and is known to be asked already.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic
from typing import Any
from uuid import UUID

from django_dhara.lifecycle import Order
from django_dhara.models import Command
from django_dhara.sql import Execute
from django_dhara.worker import stacks
from django_dhara.worker.hand import Hand

#: After so many seconds without an answer, the answer is that there is none.
ANSWER_SECONDS = 1.5

_ANSWER = """/* dhara:answer */
UPDATE dhara_command AS command SET answered_at = statement_timestamp(), answer = reply.answer
FROM unnest(%(id)s::bigint[], %(answer)s::text[]::jsonb[]) AS reply(id, answer)
WHERE command.id = reply.id AND command.answered_at IS NULL
"""


class Orders:
    """Carries out commands to this worker, and writes the answers.

    Args:
        stop: drains the worker.
        ring: wakes the control loop.
    """

    def __init__(self, hand: Hand, stop: Callable[[], None], ring: Callable[[], None]) -> None:
        self._hand, self._stop, self._ring = hand, stop, ring
        #: Answers to come, by the command, and when each is given up.
        self._asked: dict[int, float] = {}
        #: What has come, from any thread.
        self._come: deque[tuple[int, Any]] = deque()
        self._answers: dict[int, str] = {}

    @property
    def has_news(self) -> bool:
        return bool(self._come)

    def obey(self, execute: Execute, orders: Iterable[Order]) -> None:
        """Carry out these commands, and write what is known by now by one statement."""
        for order in orders:
            if order.id not in self._asked and order.id not in self._answers:
                self._take(order)
        self.answer(execute)

    def answer(self, execute: Execute) -> None:
        """Write what has been answered since the last time; if the database does not take it, it is kept."""
        while self._come:
            id_, answer = self._come.popleft()
            if self._asked.pop(id_, None) is not None:
                self._answers[id_] = json.dumps(answer)
        self._give_up_late_ones()
        if answers := dict(self._answers):
            execute(_ANSWER, {"id": list(answers), "answer": list(answers.values())})
            self._answers.clear()

    def _give_up_late_ones(self) -> None:
        now = monotonic()
        for id_ in [id_ for id_, until in self._asked.items() if until < now]:
            del self._asked[id_]
            self._answers[id_] = json.dumps(stacks.SILENT)

    def _take(self, order: Order) -> None:
        """A row of commands may come from anywhere, and must not stop the worker that reads it."""
        try:
            answer = self._carry_out(order)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            answer = f"this worker does not understand the argument: {type(error).__name__}"
        if order.id not in self._asked:
            self._answers[order.id] = json.dumps(answer)

    def _carry_out(self, order: Order) -> Any:
        match order.verb:
            case Command.Verb.CANCEL:
                return self._cancel(order.argument)
            case Command.Verb.DRAIN:
                self._stop()
                return "draining"
            case Command.Verb.STACKS:
                return self._show(order)
        return f"this worker does not know the command {order.verb}"

    def _find(self, argument: Any) -> Any:
        return self._hand.find(UUID(argument["task"]), int(argument["lease"]))

    def _cancel(self, argument: Any) -> str:
        run = self._find(argument)
        if run is None:
            return "not running here"
        self._hand.cancel(run)
        return "told"

    def _show(self, order: Order) -> Any:
        """The stacks of all threads, or with a task and a lease as the argument that of one run."""
        if order.argument is not None:
            run = self._find(order.argument)
            if run is None:
                return stacks.ELSEWHERE
            self._ask(order, lambda tell: self._hand.show_stack(run, tell))
        else:
            self._ask(order, lambda tell: stacks.ask(tell, stacks.of_all))
        return None

    def _ask(self, order: Order, ask: Callable[[stacks.Tell], None]) -> None:
        self._asked[order.id] = monotonic() + ANSWER_SECONDS
        try:
            ask(partial(self._on_answer, order.id))
        except RuntimeError:  # the system has no thread to give
            self._on_answer(order.id, stacks.SILENT)

    def _on_answer(self, id_: int, answer: Any) -> None:
        self._come.append((id_, answer))
        self._ring()
