"""The worker's side of the command channel: rows of `dhara_command`, read by the statement that claims."""

from __future__ import annotations

import json
import sys
import threading
import traceback
from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from django_dhara.lifecycle import Order
from django_dhara.models import Command
from django_dhara.payload import clean_text
from django_dhara.sql import Execute
from django_dhara.worker.hand import Hand

_ANSWER = """/* dhara:answer */
UPDATE dhara_command AS command SET answered_at = statement_timestamp(), answer = reply.answer
FROM unnest(%(id)s::bigint[], %(answer)s::text[]::jsonb[]) AS reply(id, answer)
WHERE command.id = reply.id AND command.answered_at IS NULL
"""


def obey(execute: Execute, orders: Iterable[Order], hand: Hand, stop: Callable[[], None]) -> None:
    """Carry out commands to this worker and write the answers by one statement.

    Args:
        stop: drains the worker.
    """
    answers = {order.id: _answer(order, hand, stop) for order in orders}
    if answers:
        execute(_ANSWER, {"id": list(answers), "answer": list(answers.values())})


def _answer(order: Order, hand: Hand, stop: Callable[[], None]) -> str:
    """As JSON. A row of commands may come from anywhere, and must not stop the worker that reads it."""
    try:
        return json.dumps(_carry_out(order, hand, stop))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        return json.dumps(f"this worker does not understand the argument: {type(error).__name__}")


def _carry_out(order: Order, hand: Hand, stop: Callable[[], None]) -> Any:
    match order.verb:
        case Command.Verb.CANCEL:
            return _cancel(order.argument, hand)
        case Command.Verb.DRAIN:
            stop()
            return "draining"
        case Command.Verb.STACKS:
            return stacks()
    return f"this worker does not know the command {order.verb}"


def _cancel(argument: Any, hand: Hand) -> str:
    run = hand.find(UUID(argument["task"]), int(argument["lease"]))
    if run is None:
        return "not running here"
    hand.cancel(run)
    return "told"


def stacks() -> dict[str, str]:
    """What every thread of this process does right now, by the thread's name."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return {
        clean_text(f"{names.get(ident, 'thread')} {ident}", max_bytes=200): clean_text(
            "".join(traceback.format_stack(frame))[-10_000:], max_bytes=20_000
        )
        for ident, frame in sys._current_frames().items()  # noqa: SLF001
    }
