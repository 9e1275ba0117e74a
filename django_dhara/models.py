"""The rows: what a task, its failed runs, the workers and the queues look like in PostgreSQL.

Columns, constraints, indexes and named predicates stand here; no change of state does (see `lifecycle`). Times are the
database's own, never a worker's. Two rules shape the indexes: `lease_until` is in none, so that renewing a lease is a
HOT update; and a claim walks `dhara_task_ready`, which leads with what a worker asks for (backend, queue, priority).
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _

from django_dhara.states import FINAL, REVIVABLE, State

if TYPE_CHECKING:
    from collections.abc import Collection
    from uuid import UUID

if not apps.is_installed("django_dhara"):  # Django would speak of a missing app_label
    raise ImproperlyConfigured("Add 'django_dhara' to INSTALLED_APPS and run `manage.py migrate`.")

#: Bounds of a priority, from Django's tasks API (django.tasks.base); larger runs sooner.
MIN_PRIORITY, MAX_PRIORITY = -100, 100

#: What a claim reads must fit into Python and be countable. One row with `run_at = '-infinity'` would be claimed and
#: not read, again and again, and its neighbours with it; one with the largest bigint as its lease would end each claim.
READABLE = datetime(2, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
MAX_COUNT, MAX_LEASE = 10**9, 10**18


class TaskQuerySet(models.QuerySet["Task"]):
    """What one may ask of tasks, each question under one name and written once."""

    def pending(self) -> TaskQuerySet:
        return self.filter(state=State.PENDING)

    def ready(self) -> TaskQuerySet:
        """Could be claimed now, were a worker free and its queue not paused; in the order of claiming."""
        return self.pending().filter(run_at__lte=Now()).order_by("-priority", "run_at", "id")

    def scheduled(self) -> TaskQuerySet:
        """Waits for its `run_at`: a delay, a retry or a snooze."""
        return self.pending().filter(run_at__gt=Now())

    def suspects(self) -> TaskQuerySet:
        """Was running when a worker died, and so may be what killed it."""
        return self.filter(lost__gt=0)

    def trusted(self) -> TaskQuerySet:
        return self.filter(lost=0)

    def running(self) -> TaskQuerySet:
        return self.filter(state=State.RUNNING)

    def abandoned(self) -> TaskQuerySet:
        """Runs whose lease ran out: their worker died, or has been out of reach for longer than its lease."""
        return self.running().filter(lease_until__lt=Now())

    def owned_by(self, worker: UUID) -> TaskQuerySet:
        return self.running().filter(worker_id=worker)

    def finished(self) -> TaskQuerySet:
        return self.filter(state__in=FINAL)

    def cancelable(self) -> TaskQuerySet:
        return self.filter(state__in=(State.PENDING, State.RUNNING))

    def revivable(self) -> TaskQuerySet:
        return self.filter(state__in=REVIVABLE)

    def on_queues(self, include: Collection[str], exclude: Collection[str] = ()) -> TaskQuerySet:
        """Tasks of the queues `include` (all where it is empty) without those in `exclude`."""
        chosen = self.filter(queue__in=include) if include else self
        return chosen.exclude(queue__in=exclude) if exclude else chosen


class Task(models.Model):
    """One enqueued call of a function."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False, help_text="A UUIDv7, made at enqueue.")
    backend = models.CharField(help_text="The alias in TASKS that enqueued it.")
    function = models.CharField(help_text="The dotted path of the function.")
    queue = models.CharField()
    priority = models.SmallIntegerField(db_default=0, help_text="-100 to 100; larger runs sooner.")
    payload = models.JSONField(help_text='{"args": [...], "kwargs": {...}}')
    payload_hash = models.BinaryField(null=True, help_text="Of the canonical payload, for keyed tasks.")
    idempotency_key = models.CharField(null=True, help_text="Unique for its function while the row exists.")
    max_attempts = models.IntegerField(db_default=5)
    timeout = models.FloatField(null=True, help_text="Seconds; empty: the backend's TIMEOUT.")
    metadata = models.JSONField(null=True, help_text="The caller's own, and trace context.")
    parent_id = models.UUIDField(null=True, help_text="The task whose run enqueued this one.")
    enqueued_at = models.DateTimeField(db_default=Now())

    # What changes comes last: of a new version of a row PostgreSQL logs what is behind the first byte that changed.
    run_at = models.DateTimeField(db_default=Now(), help_text="Not before this time.")
    failures = models.IntegerField(db_default=0, help_text="Runs ended by an error or a timeout.")
    lost = models.IntegerField(db_default=0, help_text="Runs whose lease ran out.")
    interrupted = models.IntegerField(db_default=0, help_text="Runs released by a stopping worker.")
    snoozed = models.IntegerField(db_default=0, help_text="Runs that asked to run again later.")
    lease = models.BigIntegerField(db_default=0, help_text="Number of the newest run; it fences every write of a run.")
    state = models.CharField(choices=State.choices, db_default=State.PENDING)
    lease_until = models.DateTimeField(null=True)
    worker_id = models.UUIDField(null=True, help_text="The worker of the newest run.")
    cancel_requested_at = models.DateTimeField(null=True)

    result = models.JSONField(null=True)
    progress = models.JSONField(null=True)
    checkpoint = models.JSONField(null=True, help_text="Kept across attempts.")
    error_class = models.CharField(null=True, help_text="Dotted path of the newest error's class.")
    error_fingerprint = models.CharField(null=True, help_text="Equal for errors of the same class and place.")

    started_at = models.DateTimeField(null=True, help_text="Start of the first run.")
    attempted_at = models.DateTimeField(null=True, help_text="Start of the newest run.")
    finished_at = models.DateTimeField(null=True)

    objects = TaskQuerySet.as_manager()

    class Meta:
        db_table = "dhara_task"
        permissions = (
            ("cancel_task", "Can cancel tasks"),
            ("revive_task", "Can retry dead and canceled tasks"),
            ("run_task_now", "Can make a task run now"),
            ("move_task", "Can change the queue and the priority of tasks"),
            ("snooze_task", "Can put pending tasks off"),
        )
        constraints = (
            models.CheckConstraint(name="dhara_task_state", condition=Q(state__in=State.values)),
            models.CheckConstraint(
                name="dhara_task_running_has_lease",
                condition=~Q(state=State.RUNNING) | Q(worker_id__isnull=False, lease_until__isnull=False, lease__gt=0),
            ),
            models.CheckConstraint(
                name="dhara_task_final_has_finished_at",
                condition=Q(state__in=FINAL, finished_at__isnull=False)
                | (~Q(state__in=FINAL) & Q(finished_at__isnull=True)),
            ),
            models.CheckConstraint(
                name="dhara_task_priority", condition=Q(priority__gte=MIN_PRIORITY, priority__lte=MAX_PRIORITY)
            ),
            models.CheckConstraint(
                name="dhara_task_budgets",
                condition=Q(
                    max_attempts__range=(1, MAX_COUNT),
                    failures__range=(0, MAX_COUNT),
                    lost__range=(0, MAX_COUNT),
                    interrupted__range=(0, MAX_COUNT),
                    snoozed__range=(0, MAX_COUNT),
                    lease__range=(0, MAX_LEASE),
                ),
            ),
            models.CheckConstraint(
                name="dhara_task_times",
                condition=Q(
                    run_at__range=READABLE,
                    enqueued_at__range=READABLE,
                    started_at__range=READABLE,
                    attempted_at__range=READABLE,
                    finished_at__range=READABLE,
                    cancel_requested_at__range=READABLE,
                ),
            ),
            models.CheckConstraint(name="dhara_task_names", condition=~Q(function="") & ~Q(queue="") & ~Q(backend="")),
            # No CHECK looks into the payload: it would be read again, out of TOAST, at every renewal of a lease.
            models.UniqueConstraint(
                name="dhara_task_key",
                fields=("function", "idempotency_key"),
                condition=Q(idempotency_key__isnull=False),
            ),
        )
        indexes = (
            models.Index(
                name="dhara_task_ready",
                fields=("backend", "queue", "priority", "run_at", "id"),
                condition=Q(state=State.PENDING, lost=0),
            ),
            models.Index(
                F("backend"),
                F("priority").desc(),
                F("run_at"),
                F("id"),
                name="dhara_task_suspects",
                condition=Q(state=State.PENDING, lost__gt=0),
            ),
            models.Index(name="dhara_task_children", fields=("parent_id", "id"), condition=Q(parent_id__isnull=False)),
            models.Index(name="dhara_task_running", fields=("worker_id",), condition=Q(state=State.RUNNING)),
            models.Index(
                name="dhara_task_finished", fields=("state", "finished_at"), condition=Q(finished_at__isnull=False)
            ),
            # All that groups dead letters, so that nothing else is read to count 50,000 of them.
            models.Index(
                name="dhara_task_dead",
                fields=("backend", "function", "error_class", "error_fingerprint", "finished_at"),
                condition=Q(state=State.DEAD),
            ),
        )

    def __str__(self) -> str:
        return f"{self.function} {self.id}"


class Attempt(models.Model):
    """One failed or lost run of a task."""

    class Ended(models.TextChoices):
        FAILED = "FAILED", _("Failed")
        TIMED_OUT = "TIMED_OUT", _("Timed out")
        LOST = "LOST", _("Lost")
        INTERRUPTED = "INTERRUPTED", _("Interrupted once too often")

    id = models.BigAutoField(primary_key=True)
    # No foreign key: its check would lock the task's row at every insert.
    task_id = models.UUIDField()
    lease = models.BigIntegerField(help_text="The lease of the run.")
    number = models.IntegerField(help_text="Which attempt it was, from 1.")
    worker_id = models.UUIDField()
    started_at = models.DateTimeField()
    ended_at = models.DateTimeField(db_default=Now())
    ended = models.CharField(choices=Ended.choices)
    error_class = models.CharField()
    message = models.TextField(db_default="")
    traceback = models.TextField(db_default="")

    class Meta:
        db_table = "dhara_attempt"
        indexes = (models.Index(name="dhara_attempt_task", fields=("task_id", "id")),)

    def __str__(self) -> str:
        return f"attempt {self.number} of {self.task_id}"


class Worker(models.Model):
    """A worker process, for people to look at; recovery does not need it."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    backend = models.CharField()
    name = models.CharField()
    host = models.CharField()
    pid = models.IntegerField()
    version = models.CharField()
    queues = models.JSONField(default=list)
    exclude_queues = models.JSONField(default=list)
    concurrency = models.IntegerField()
    lease_seconds = models.FloatField()
    started_at = models.DateTimeField(db_default=Now())
    heartbeat_at = models.DateTimeField(db_default=Now())
    draining_at = models.DateTimeField(null=True)
    stopped_at = models.DateTimeField(null=True)
    memory_bytes = models.BigIntegerField(null=True, help_text="Resident memory of the process and its children.")

    class Meta:
        db_table = "dhara_worker"
        permissions = (
            ("drain_worker", "Can make a worker finish and exit"),
            ("view_stacks", "Can see what the threads of a worker do"),
        )

    def __str__(self) -> str:
        return self.name


class Queue(models.Model):
    """What was decided about a queue: today, whether it is paused. A queue without a row is open."""

    id = models.BigAutoField(primary_key=True)
    backend = models.CharField()
    name = models.CharField()
    paused_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "dhara_queue"
        permissions = (("pause_queue", "Can pause and resume queues"),)
        constraints = (models.UniqueConstraint(name="dhara_queue_name", fields=("backend", "name")),)

    def __str__(self) -> str:
        return self.name


class Command(models.Model):
    """Something a worker is asked to do; it reads its commands in the statement that claims, at least once a poll."""

    class Verb(models.TextChoices):
        CANCEL = "CANCEL", "Stop a run whose task was canceled"
        DRAIN = "DRAIN", "Stop claiming, finish, exit"
        STACKS = "STACKS", "Write down what every thread does"

    id = models.BigAutoField(primary_key=True)
    worker_id = models.UUIDField()
    verb = models.CharField(choices=Verb.choices)
    argument = models.JSONField(null=True)
    created_at = models.DateTimeField(db_default=Now())
    answered_at = models.DateTimeField(null=True)
    answer = models.JSONField(null=True)

    class Meta:
        db_table = "dhara_command"
        indexes = (
            models.Index(name="dhara_command_open", fields=("worker_id",), condition=Q(answered_at__isnull=True)),
        )

    def __str__(self) -> str:
        return f"{self.verb} for {self.worker_id}"


class Aggregate(models.Model):
    """What was settled for one function of one queue in a span of time; see `stats.py`."""

    id = models.BigAutoField(primary_key=True)
    backend = models.CharField()
    queue = models.CharField()
    function = models.CharField()
    completed = models.IntegerField(db_default=0)
    failed = models.IntegerField(db_default=0)
    dead = models.IntegerField(db_default=0)
    canceled = models.IntegerField(db_default=0)
    lost = models.IntegerField(db_default=0)
    snoozed = models.IntegerField(db_default=0)
    interrupted = models.IntegerField(db_default=0)
    run_seconds = models.FloatField(db_default=0.0)
    wait_seconds = models.FloatField(db_default=0.0)
    run_histogram = models.JSONField(default=dict)
    wait_histogram = models.JSONField(default=dict)

    class Meta:
        abstract = True


class Minute(Aggregate):
    """One minute of one worker."""

    minute = models.DateTimeField()
    worker_id = models.UUIDField()

    class Meta:
        db_table = "dhara_minute"
        constraints = (
            models.UniqueConstraint(
                name="dhara_minute_key", fields=("minute", "worker_id", "backend", "queue", "function")
            ),
        )

    def __str__(self) -> str:
        return f"{self.minute:%Y-%m-%d %H:%M} {self.function}"


class Quarter(Aggregate):
    """A quarter of an hour of all workers, made of minutes that are no longer told apart; after a day, two hours."""

    start = models.DateTimeField()

    class Meta:
        db_table = "dhara_quarter"
        constraints = (
            models.UniqueConstraint(name="dhara_quarter_key", fields=("start", "backend", "queue", "function")),
        )

    def __str__(self) -> str:
        return f"{self.start:%Y-%m-%d %H:%M} {self.function}"


class BulkChange(models.Model):
    """A change of all tasks that match a search, made in batches: how far it is, and who asked for it."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
    verb = models.CharField()
    search = models.CharField(help_text="What was searched for, as it was written.")
    arguments = models.JSONField(default=dict, help_text="Of the verb: a queue, a priority, seconds.")
    reason = models.TextField(db_default="")
    user_id = models.CharField(db_default="", help_text="The primary key of the user who asked for it.")
    user_name = models.CharField(db_default="")
    cursor = models.UUIDField(null=True, help_text="The last id that was looked at.")
    looked_at = models.BigIntegerField(db_default=0)
    counts = models.JSONField(default=dict, help_text="By answer.")
    created_at = models.DateTimeField(db_default=Now())
    changed_at = models.DateTimeField(db_default=Now())
    stopped_at = models.DateTimeField(null=True, help_text="Somebody stopped it before its end.")
    finished_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "dhara_bulk_change"

    def __str__(self) -> str:
        return f"{self.verb} {self.search}"


class Token(models.Model):
    """A bearer token of the HTTP API. Only its hash is kept."""

    id = models.BigAutoField(primary_key=True)
    name = models.CharField(help_text="Whose it is, or what for.")
    hint = models.CharField(help_text="Its first characters, by which people tell tokens apart.")
    digest = models.BinaryField(unique=True, help_text="SHA-256.")
    scopes = models.JSONField(default=list, help_text="Of read, enqueue, operate.")
    queues = models.JSONField(default=list, help_text="Only these; empty: all.")
    created_at = models.DateTimeField(db_default=Now())
    created_by = models.CharField(db_default="")
    expires_at = models.DateTimeField(null=True)
    used_at = models.DateTimeField(null=True, help_text="About when it was last used.")
    revoked_at = models.DateTimeField(null=True)

    class Meta:
        db_table = "dhara_token"

    def __str__(self) -> str:
        return self.name


class AppliedMigration(models.Model):
    """A migration of any app, as `dhara_migrate` applied it or first met it; nothing else reads this.

    It is read before migrations run, so a newer version must get along with the columns that are here.
    """

    id = models.BigAutoField(primary_key=True)
    app = models.CharField()
    name = models.CharField()
    digest = models.CharField(db_default="", help_text="Of its syntax tree; empty: its file was never seen.")
    file_may_go = models.BooleanField(db_default=False, help_text="It was squashed, or somebody said that it may.")
    recorded_at = models.DateTimeField(db_default=Now())
    accepted_at = models.DateTimeField(null=True, help_text="When somebody last said that a change is fine.")

    class Meta:
        db_table = "dhara_migration"
        constraints = (models.UniqueConstraint(name="dhara_migration_name", fields=("app", "name")),)

    def __str__(self) -> str:
        return f"{self.app}.{self.name}"
