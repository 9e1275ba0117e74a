"""What is logged of tasks, as listeners of the core's signals. Logger `django_dhara`; a worker's own words go to
`django_dhara.worker`.

A run that succeeds is not worth a line: at thousands of tasks a second the lines would cost more than the tasks. DEAD
tasks are logged by Django's own receiver of `task_finished`, at ERROR with the traceback, in `django.tasks`.
"""

from __future__ import annotations

import logging
from typing import Any

from django.dispatch import receiver

from django_dhara import signals
from django_dhara.payload import plain

logger = logging.getLogger("django_dhara")


@receiver(signals.attempt_failed)
def log_attempt_failed(sender: type, *, task_result: Any, error: Any, delay: float | None, **kwargs: Any) -> None:
    after = "it will not run again" if delay is None else f"again in {delay:.1f} s"
    logger.info(
        "Task %s (%s) failed in attempt %d: %s: %s; %s",
        task_result.id,
        plain(task_result.task.module_path),
        task_result.attempts,
        plain(error.class_path),
        plain(error.message)[:500],
        after,
    )


@receiver(signals.task_canceled)
def log_task_canceled(sender: type, *, task_result: Any, **kwargs: Any) -> None:
    logger.info("Task %s (%s) is canceled", task_result.id, plain(task_result.task.module_path))


@receiver(signals.task_rescued)
def log_task_rescued(sender: type, *, task_id: str, function: str, state: str, **kwargs: Any) -> None:
    logger.warning("Rescued task %s (%s) of a lost worker: now %s", task_id, plain(function), state)


@receiver(signals.lease_lost)
def log_lease_lost(sender: type, *, task_id: str, function: str, lease: int, **kwargs: Any) -> None:
    logger.warning(
        "Lease lost: task %s (%s), lease %d; another run may have it, and nothing of this one is written",
        task_id,
        plain(function),
        lease,
    )
