"""What is sent and answered. Fields of the API have its own words: `type` is a function, `status` a state."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from django.utils import timezone
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema

from django_dhara.backend import check_queue
from django_dhara.models import MAX_PRIORITY, MIN_PRIORITY
from django_dhara.payload import check_text
from django_dhara.states import State

#: Tasks of one page of a list.
PAGE, MAX_PAGE = 50, 200
MAX_OFFSET = 10_000
MAX_TEXT = 255
#: As a search has it: what an id and PostgreSQL can hold.
YEARS = 1970, 9000
MAX_TYPE = 1000


def _moment(value: object) -> datetime:
    """A time with an offset, as RFC 3339 has it."""
    if not isinstance(value, str):
        raise ValueError("must be a string such as 2030-01-31T08:00:00Z")
    try:
        read = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("must be a time such as 2030-01-31T08:00:00Z") from None
    if read.tzinfo is None:
        raise ValueError("must have an offset, such as Z or +02:00")
    if not YEARS[0] <= read.year <= YEARS[1]:
        raise ValueError(f"must be of a year between {YEARS[0]} and {YEARS[1]}")
    return read


def _text(value: str) -> str:
    return check_text(value, "it", max_length=MAX_TYPE)


def _queue(value: str) -> str:
    check_queue(value, "it")
    return value


def _told(value: datetime) -> str:
    aware = timezone.make_aware(value, timezone.get_default_timezone()) if timezone.is_naive(value) else value
    return aware.isoformat()


_TIME = {"type": "string", "format": "date-time"}
#: A time that was sent.
Moment = Annotated[datetime, BeforeValidator(_moment), WithJsonSchema(_TIME)]
#: A time that is answered.
Told = Annotated[datetime, PlainSerializer(_told, return_type=str), WithJsonSchema(_TIME)]
#: A name that was sent.
Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT), AfterValidator(_text)]
QueueName = Annotated[str, Field(min_length=1, max_length=MAX_TEXT), AfterValidator(_queue)]
Type = Annotated[str, Field(min_length=1, max_length=MAX_TYPE), AfterValidator(_text)]
Range = Literal["5m", "1h", "24h", "7d"]
Status = Literal["PENDING", "RUNNING", "COMPLETED", "DEAD", "CANCELED"]


class Sent(BaseModel):
    """Nothing unknown, and nothing that is only similar to what it must be."""

    model_config = ConfigDict(extra="forbid", strict=True)


class NewTask(Sent):
    """A call of a registered function."""

    type: Type = Field(description="The dotted path of the function.", examples=["shop.tasks.send_receipt"])
    payload: dict[str, Any] = Field(
        default_factory=dict,
        description='Its arguments by name; or, if it has no other keys, `{"args": [...], "kwargs": {...}}`.',
        examples=[{"order_id": 42}],
    )
    queue: QueueName | None = Field(None, description="By default the function's own.")
    priority: int | None = Field(
        None, ge=MIN_PRIORITY, le=MAX_PRIORITY, description="Larger runs sooner. By default the function's own."
    )
    run_at: Moment | None = Field(None, description="Not before this time.")
    max_attempts: int | None = Field(None, ge=1, le=10_000, description="Failed and lost runs until it is DEAD.")
    idempotency_key: Text | None = Field(
        None, description="While a task of this function with this key exists, the same call answers that task."
    )


class NewTasks(Sent):
    """A bulk: all of them are enqueued, or none."""

    tasks: list[NewTask] = Field(min_length=1)


class Selection(Sent):
    """Which tasks; a filter that is left out matches all."""

    type: Type | None = Field(None, description="The dotted path of the function.")
    queue: Text | None = None
    retrying: bool | None = Field(None, description="PENDING tasks that failed before; false: the others.")
    created_after: Moment | None = Field(None, description="Enqueued at this time or later.")
    created_before: Moment | None = Field(None, description="Enqueued before this time.")
    backend: Text | None = Field(None, description="An alias in TASKS; by default the first.")


class CancelSelection(Selection):
    status: Literal["PENDING", "RUNNING"]


class RetrySelection(Selection):
    status: Literal["DEAD", "CANCELED"]


class OfBackend(BaseModel):
    """A query about one backend."""

    model_config = ConfigDict(extra="forbid")

    backend: Text | None = Field(None, description="An alias in TASKS; by default the first.")


class Listing(OfBackend):
    """A query of the list of tasks."""

    status: Status | None = None
    type: Type | None = Field(None, description="The dotted path of the function.")
    queue: Text | None = None
    retrying: bool | None = Field(None, description="PENDING tasks that failed before; false: the others.")
    created_after: Moment | None = Field(None, description="Enqueued at this time or later.")
    created_before: Moment | None = Field(None, description="Enqueued before this time.")
    limit: int = Field(PAGE, ge=1, le=MAX_PAGE)
    cursor: str | None = Field(None, max_length=2000, description="`next` of the page before, with the same filters.")
    offset: int = Field(0, ge=0, le=MAX_OFFSET, description="Tasks to leave out first; a cursor costs less.")


class OfRange(OfBackend):
    """A query of the counts."""

    range: Range = Field("1h", description="How far back.")


class Summary(BaseModel):
    """A task, as lists have it."""

    id: UUID
    type: str = Field(description="The dotted path of its function.")
    status: Status
    queue: str
    priority: int
    backend: str = Field(description="The alias in TASKS that it was enqueued by.")
    attempts: int = Field(description="Runs that failed or were lost, and the present or successful one.")
    max_attempts: int
    retrying: bool = Field(description="It is PENDING after a failed or lost run.")
    cancel_requested: bool = Field(description="It runs, and was asked to stop.")
    idempotency_key: str | None
    error: str | None = Field(description="The class of its newest error.")
    enqueued_at: Told
    run_at: Told
    started_at: Told | None
    attempted_at: Told | None = Field(description="Start of its newest run.")
    finished_at: Told | None


class Payload(BaseModel):
    args: list[Any]
    kwargs: dict[str, Any]


class Run(BaseModel):
    """A run that failed or was lost."""

    attempt: int
    ended: Literal["FAILED", "TIMED_OUT", "LOST", "INTERRUPTED"]
    error: str = Field(description="The class of the exception.")
    message: str
    traceback: str
    worker_id: UUID
    started_at: Told
    ended_at: Told


class Task(Summary):
    """A task with all that can be large."""

    payload: Payload | dict[str, Any] | None = Field(
        description='As DHARA["REDACT"] leaves it; null where it must not be shown, or cannot be read.'
    )
    result: Any = Field(description="What its function returned.")
    progress: Any = Field(description="The last value that its function reported.")
    metadata: dict[str, Any] | None
    timeout: float | None = Field(description="Seconds; null: the backend's own.")
    parent_id: UUID | None = Field(description="The task whose run enqueued it.")
    worker_id: UUID | None = Field(description="The worker of its newest run.")
    errors: list[Run] = Field(description="The newest failed and lost runs, oldest first.")


class Enqueued(Task):
    duplicate: bool = Field(description="It was there before, with this idempotency key.")


class EnqueuedTasks(BaseModel):
    tasks: list[Enqueued] = Field(description="In the order of the request.")


class Tasks(BaseModel):
    """One page of a list."""

    tasks: list[Summary]
    next: str | None = Field(
        description="The cursor of the next page, which may exist even if this one is not full; null: the end."
    )


class Canceled(BaseModel):
    id: UUID
    answer: Literal["canceled", "requested", "finished"] = Field(
        description="canceled: it never starts. requested: it runs, is told to stop, and never starts again. "
        "finished: it had ended, and nothing changed."
    )


class Retried(BaseModel):
    id: UUID
    answer: Literal["retried"]


class Change(BaseModel):
    """A change of all tasks that match a search, and how far it is."""

    id: UUID
    verb: str = Field(description="cancel or retry; the admin has others, too.")
    search: str = Field(description="Which tasks, as the admin's search has it.")
    counts: dict[str, int] = Field(
        description="Tasks by what became of them: canceled, requested, retried; refused: in another status by then; "
        "busy: locked by somebody else, and left as they were; missing: gone by then."
    )
    more: bool = Field(description="It is not at its end: continue it.")
    begun_by: str
    begun_at: Told
    stopped_at: Told | None
    finished_at: Told | None


class Queue(BaseModel):
    name: str
    backend: str
    paused: bool
    paused_at: Told | None
    ready: int = Field(description="They could start now, but for a pause.")
    scheduled: int = Field(description="They wait for their `run_at`.")
    retrying: int = Field(description="Of the scheduled ones, those that failed before.")
    running: int
    suspects: int = Field(description="PENDING tasks that ran when a worker died; in no other count.")
    at_least: bool = Field(description="Counting stopped early: there are at least so many.")
    oldest_ready_at: Told | None = Field(description="Since when its oldest ready task could have run.")


class Queues(BaseModel):
    queues: list[Queue]


class Paused(BaseModel):
    name: str
    backend: str
    paused: bool
    changed: bool = Field(description="False: it was so before.")
    known: bool = Field(
        description="False: no task, function, worker or setting knows a queue of this name; it may be misspelt."
    )


class Worker(BaseModel):
    id: UUID
    name: str
    backend: str
    host: str
    pid: int
    version: str
    status: Literal["ALIVE", "DRAINING", "LATE", "LOST", "STOPPED"]
    queues: list[str] = Field(description="Those that it serves; empty: all.")
    exclude_queues: list[str]
    concurrency: int
    started_at: Told
    heartbeat_at: Told
    stopped_at: Told | None
    memory_bytes: int | None


class Workers(BaseModel):
    workers: list[Worker] = Field(description="The living first, at most 500.")


class Now(BaseModel):
    """Tasks of the backend at this moment; each count stops at 10,000."""

    ready: int
    scheduled: int
    running: int
    suspects: int
    dead: int


class FunctionStats(BaseModel):
    """What happened to one function of one queue. Times are in seconds."""

    queue: str
    type: str = Field(description="The dotted path of the function.")
    completed: int
    failed: int = Field(description="Runs that ended by an error or a timeout.")
    dead: int
    canceled: int
    lost: int = Field(description="Runs whose lease ran out.")
    snoozed: int
    interrupted: int
    latency_p50: float | None = Field(description="From due to started.")
    latency_p95: float | None
    latency_p99: float | None
    run_p50: float | None = Field(description="Of one run.")
    run_p95: float | None
    run_p99: float | None


class Stats(BaseModel):
    backend: str
    range: Range
    now: Now | None
    functions: list[FunctionStats]


class Error(BaseModel):
    field: str
    message: str


class ProblemDocument(BaseModel):
    """What went wrong (RFC 9457)."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    field: str = Field("", description="The value that is wrong, if one is: `tasks[2].priority`.")
    errors: list[Error] = Field(
        default_factory=list,
        description="Each value that is wrong in itself; if none is, the first that does not fit this project.",
    )


#: Every state has its word here; a test holds the two together.
STATUSES = tuple(State.values)
