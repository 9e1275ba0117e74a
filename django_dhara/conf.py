"""Settings: every option of a queue backend, its default and the reason for it.

An option `lease_seconds` is `LEASE_SECONDS` in `TASKS[alias]["OPTIONS"]` and `DHARA_LEASE_SECONDS` in the environment.
A worker's flag wins over the environment, the environment over OPTIONS, OPTIONS over the default below.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import Field, dataclass, field, fields
from typing import Any, Literal, NamedTuple

from django.core.exceptions import ImproperlyConfigured

_DAY = 86_400.0


def number(default: float, *, at_least: float, at_most: float) -> Any:
    return field(default=default, metadata={"at_least": at_least, "at_most": at_most})


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of one queue backend, valid or not made at all: `read` builds them, `problems` explains.

    The name of an option says its unit.
    """

    #: The alias in DATABASES that holds the queue. Enqueue inside `atomic(using=...)` of this one.
    database: str = "default"

    #: Threads that run plain functions. Most tasks wait for I/O; ten of them keep one core busy.
    concurrency: int = number(10, at_least=1, at_most=1000)
    #: Child processes that run plain functions, one at a time each, instead of threads; 0: threads. For functions that
    #: hold the interpreter (computation in Python), and for timeouts that nothing can outlive.
    processes: int = number(0, at_least=0, at_most=1000)
    #: Runs after which a child process is replaced by a new one, which gives back what their memory has grown by; 0:
    #: never.
    max_tasks_per_child: int = number(0, at_least=0, at_most=1_000_000_000)
    #: `async def` functions that run at once on the worker's one event loop.
    async_concurrency: int = number(100, at_least=0, at_most=10_000)
    #: Claimed tasks that may wait in a worker while functions are short; it falls to 0 while they are long.
    max_prefetch: int = number(500, at_least=0, at_most=10_000)

    #: How long a run owns its task without a renewal: what the death of a worker costs.
    lease_seconds: float = number(30.0, at_least=0.5, at_most=3600)
    #: Pause between two looks for abandoned runs.
    sweep_seconds: float = number(5.0, at_least=0.1, at_most=3600)
    #: How often an idle worker looks for work without being woken, which is also what a lost wake-up costs.
    poll_seconds: float = number(1.0, at_least=0.01, at_most=3600)
    #: How long a stopping worker lets running functions finish; below the usual 30 s of grace before SIGKILL.
    drain_seconds: float = number(25.0, at_least=0, at_most=86_400)
    #: How long a canceled function in a child process may take to end, after a CancelledError was raised in it, before
    #: it is killed: enough to close files and roll back.
    cancel_seconds: float = number(5.0, at_least=0, at_most=86_400)

    #: Failed and lost runs after which a task is DEAD.
    max_attempts: int = number(5, at_least=1, at_most=10_000)
    #: Lost runs after which a task is DEAD: it may be what kills its workers.
    max_lost: int = number(5, at_least=1, at_most=10_000)
    #: Runs released by stopping workers after which a task is DEAD: it never fits into a deploy.
    max_interrupted: int = number(20, at_least=1, at_most=10_000)
    #: Delay before the second attempt, doubled at each further one and drawn between 0 and itself (full jitter).
    backoff_base_seconds: float = number(1.0, at_least=0.001, at_most=86_400)
    #: The longest such delay.
    backoff_cap_seconds: float = number(300.0, at_least=0.001, at_most=31 * _DAY)
    #: How long a run may take before it counts as failed.
    timeout_seconds: float = number(3600.0, at_least=0.1, at_most=31 * _DAY)
    #: Overdue functions whose threads could not be stopped, after which the worker drains and exits with 1.
    max_abandoned: int = number(10, at_least=1, at_most=1000)

    #: The largest arguments, as JSON. Larger things belong into a file or a row, with their key as the argument.
    max_payload_bytes: int = number(1_000_000, at_least=100, at_most=50_000_000)
    #: The largest return value, as JSON; a larger one is not stored, and the task is COMPLETED all the same.
    max_result_bytes: int = number(1_000_000, at_least=100, at_most=50_000_000)
    #: The longest traceback kept; both ends stay.
    max_traceback_bytes: int = number(16_384, at_least=256, at_most=1_000_000)
    #: Refuse arguments that come back from JSON as something else (tuples, bytes, keys that are no strings, 1e16).
    strict_json: bool = False

    #: How long COMPLETED tasks stay: a week to look back at, and a table that stays small.
    retain_completed_seconds: float = number(7 * _DAY, at_least=0, at_most=36_500 * _DAY)
    #: How long CANCELED tasks stay, in which they can be revived.
    retain_canceled_seconds: float = number(7 * _DAY, at_least=0, at_most=36_500 * _DAY)
    #: How long DEAD tasks stay: they are few, and somebody has to look at them.
    retain_dead_seconds: float = number(90 * _DAY, at_least=0, at_most=36_500 * _DAY)
    #: How long a finished task with an idempotency key stays at least: so long a replay is recognised.
    retain_keyed_seconds: float = number(7 * _DAY, at_least=0, at_most=36_500 * _DAY)
    #: Pause between two prunings by a worker.
    prune_seconds: float = number(60.0, at_least=1, at_most=86_400)

    #: Wake workers by NOTIFY after an enqueue's commit. Without it they find tasks by polling.
    notify: bool = True
    #: A connection string for LISTEN that goes past a transaction pooler; empty: as in DATABASES.
    listen_dsn: str = ""

    @property
    def slots(self) -> int:
        """How many plain functions run at once."""
        return self.processes or self.concurrency

    @property
    def renew_seconds(self) -> float:
        """Pause between renewals: a third of a lease, which leaves two more tries before it runs out."""
        return self.lease_seconds / 3

    @property
    def deadline_seconds(self) -> float:
        """A statement of the control loop that takes longer is given up: below a third of the lease, so that two
        more tries fit into it."""
        return min(self.lease_seconds * 0.3, 10.0)


class Problem(NamedTuple):
    """One mistake in the settings: which option, where it was set, and what is wrong."""

    kind: Literal["shape", "unknown", "value", "conflict"]
    option: str
    where: str
    message: str


OPTIONS: dict[str, Field[Any]] = {f.name: f for f in fields(Options)}


def read(alias: str, given: Mapping[str, Any], environ: Mapping[str, str] | None = None, **flags: Any) -> Options:
    """The options of the backend `alias`: defaults, `given` (its OPTIONS), the environment, then `flags` (None: not
    given).

    Raises:
        ImproperlyConfigured: for the first mistake; `manage.py check` lists them all.
    """
    for problem in problems(alias, given, environ, **flags):
        raise ImproperlyConfigured(f"{problem.where} {problem.message}")
    return Options(**{name: parse(name, raw) for name, _, raw in _settings(alias, given, environ, flags)})


def problems(alias: str, given: object, environ: Mapping[str, str] | None = None, **flags: Any) -> Iterator[Problem]:
    """Every mistake in the options of the backend `alias`."""
    if not isinstance(given, Mapping):
        where = f"TASKS[{alias!r}]['OPTIONS']"
        yield Problem("shape", "", where, f"must be a dict, not {type(given).__name__}.")
        return
    for key in given:
        if not isinstance(key, str) or key.lower() not in OPTIONS or key != key.upper():
            where = f"TASKS[{alias!r}]['OPTIONS'][{key!r}]"
            yield Problem("unknown", str(key), where, "is not an option of django_dhara.")
    values: dict[str, Any] = {}
    for name, where, raw in _settings(alias, given, environ, flags):
        try:
            values[name] = parse(name, raw)
        except ValueError as error:
            yield Problem("value", name, where, f"{error}, not {shown(raw)}.")
    yield from _contradictions(alias, {**_defaults(), **values})


def _contradictions(alias: str, values: Mapping[str, Any]) -> Iterator[Problem]:
    base, cap = values["backoff_base_seconds"], values["backoff_cap_seconds"]
    if base > cap:
        where = f"TASKS[{alias!r}]['OPTIONS']['BACKOFF_BASE_SECONDS']"
        message = f"is {base:g}, and must not be larger than BACKOFF_CAP_SECONDS, which is {cap:g}."
        yield Problem("conflict", "backoff_base_seconds", where, message)


def usable(alias: str, given: object, environ: Mapping[str, str] | None = None) -> Options:
    """The options as far as they can be read, with the default in the place of each mistake: for the system checks."""
    values = _defaults()
    for name, _, raw in _settings(alias, given if isinstance(given, Mapping) else {}, environ, {}):
        with suppress(ValueError):
            values[name] = parse(name, raw)
    return Options(**values)


def _defaults() -> dict[str, Any]:
    return {name: option.default for name, option in OPTIONS.items()}


def _settings(
    alias: str, given: Mapping[str, Any], environ: Mapping[str, str] | None, flags: Mapping[str, Any]
) -> Iterator[tuple[str, str, Any]]:
    environ = os.environ if environ is None else environ
    for name in OPTIONS:
        key = name.upper()
        if flags.get(name) is not None:
            yield name, f"--{name.replace('_', '-')}", flags[name]
        elif f"DHARA_{key}" in environ:
            yield name, f"environment variable DHARA_{key}", environ[f"DHARA_{key}"]
        elif key in given:
            yield name, f"TASKS[{alias!r}]['OPTIONS'][{key!r}]", given[key]


def shown(raw: Any) -> str:
    """A value in a message. Large ones are cut, and Python refuses to print an integer of more than 4,300 digits."""
    try:
        text = repr(raw)
    except ValueError:
        return f"a number of {raw.bit_length()} bits"
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


def parse(name: str, raw: Any) -> Any:
    """The value of option `name` from a setting, an environment variable or a flag.

    Raises:
        ValueError: with what it must be.
    """
    return parsed(OPTIONS[name], raw)


def parsed(option: Field[Any], raw: Any) -> Any:
    """The value of an option of the kind that its default has.

    Raises:
        ValueError: with what it must be.
    """
    default = option.default
    if isinstance(default, bool):
        return _boolean(raw)
    if isinstance(default, str):
        return _string(raw)
    return _bounded(option, _whole(raw) if isinstance(default, int) else _real(raw))


def _boolean(raw: Any) -> bool:
    words = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and raw.lower() in words:
        return words[raw.lower()]
    raise ValueError("must be true or false")


def _string(raw: Any) -> str:
    if not isinstance(raw, str):
        raise ValueError("must be a string")
    return raw


def _whole(raw: Any) -> int:
    if isinstance(raw, bool) or not isinstance(raw, (int, str)):
        raise ValueError("must be a whole number")
    try:
        return int(raw)
    except ValueError:
        raise ValueError("must be a whole number") from None


def _real(raw: Any) -> float:
    if isinstance(raw, bool) or not isinstance(raw, (int, float, str)):
        raise ValueError("must be a number")
    try:
        number = float(raw)
    except (ValueError, OverflowError):
        raise ValueError("must be a number") from None
    if not math.isfinite(number):
        raise ValueError("must be a finite number")
    return number


def _bounded(option: Field[Any], number: float) -> float:
    low, high = option.metadata["at_least"], option.metadata["at_most"]
    if not low <= number <= high:
        raise ValueError(f"must be between {low:g} and {high:g}")
    return number
