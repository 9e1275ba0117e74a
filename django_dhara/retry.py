"""When to try a failed task again: backoff policies, and a guard around those that users write. Pure.

A policy is any callable `backoff(exception, task_result)` that answers with the seconds to wait, or with None for
"never again"; Django's open proposals for retries name it so. The number of the attempt that failed is
`task_result.attempts`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import uniform
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from django.tasks import TaskResult

__all__ = ["MAX_DELAY", "NEVER", "Backoff", "by_exception", "constant", "delay_from", "exponential", "full_jitter"]

#: Answers how many seconds to wait before the next attempt, or None: do not retry.
Backoff: TypeAlias = Callable[[BaseException, "TaskResult[..., Any]"], float | None]

#: Seconds. A retry further away than a month is a slip of units (milliseconds, a timestamp), and not taken.
MAX_DELAY = 31 * 24 * 3600.0

#: Seconds to wait when the user's policy and the default one are both broken: no spinning, no lost task.
LAST_RESORT = 60.0


def full_jitter(attempt: int, *, base: float, cap: float, random: Callable[[float, float], float] = uniform) -> float:
    """Draw a delay in seconds between 0 and `base * 2 ** (attempt - 1)`, at most `cap`.

    The whole interval is drawn from, so that tasks that failed together do not come back together: the "full jitter" of
    Marc Brooker, "Exponential Backoff and Jitter" (AWS Architecture Blog, 2015). The exponent is compared with the cap
    before anything is raised to it: attempt 10**6 costs what attempt 1 does.

    Args:
        attempt: number of the attempt that failed, from 1; a smaller one counts as 1.
        base: seconds, the ceiling after the first attempt.
        cap: seconds, the ceiling of all ceilings. Without a positive base and cap the delay is 0.
        random: draws between its two arguments; for tests.
    """
    if base <= 0 or cap <= 0:
        return 0.0
    doublings = max(attempt - 1, 0)
    if doublings >= math.log2(cap) - math.log2(base):
        return random(0.0, cap)
    return random(0.0, min(cap, math.ldexp(base, doublings)))


@dataclass(frozen=True, slots=True)
class Exponential:
    """What `exponential` makes."""

    base: float = 1.0
    cap: float = 300.0

    def __post_init__(self) -> None:
        if not (_is_delay(self.base) and _is_delay(self.cap) and 0 < self.base <= self.cap):
            raise ValueError(
                f"exponential backoff needs 0 < base <= cap in seconds, not {self.base!r} and {self.cap!r}"
            )

    def __call__(self, exception: BaseException, task_result: "TaskResult[..., Any]") -> float:
        return full_jitter(task_result.attempts, base=self.base, cap=self.cap)


@dataclass(frozen=True, slots=True)
class Constant:
    """What `constant` makes."""

    seconds: float

    def __post_init__(self) -> None:
        if not _is_delay(self.seconds):
            raise ValueError(
                f"a constant backoff is a number of seconds from 0 to {MAX_DELAY:.0f}, not {self.seconds!r}"
            )

    def __call__(self, exception: BaseException, task_result: "TaskResult[..., Any]") -> float:
        return float(self.seconds)


@dataclass(frozen=True, slots=True)
class Never:
    """What `NEVER` is."""

    def __call__(self, exception: BaseException, task_result: "TaskResult[..., Any]") -> None:
        return None


#: The policy that never retries: every failure is permanent.
NEVER = Never()


@dataclass(frozen=True, slots=True)
class ByException:
    """What `by_exception` makes."""

    policies: tuple[tuple[type[BaseException], Backoff], ...]
    default: Backoff = field(default_factory=Exponential)

    def __call__(self, exception: BaseException, task_result: "TaskResult[..., Any]") -> float | None:
        for kind, policy in self.policies:
            if isinstance(exception, kind):
                return policy(exception, task_result)
        return self.default(exception, task_result)


def exponential(base: float = 1.0, cap: float = 300.0) -> Exponential:
    """Make the policy that doubles the ceiling of a random delay with every attempt (see `full_jitter`).

    Args:
        base: seconds, the ceiling after the first attempt.
        cap: seconds, no ceiling is higher.

    Raises:
        ValueError: unless 0 < base <= cap <= `MAX_DELAY`.
    """
    return Exponential(base, cap)


def constant(seconds: float) -> Constant:
    """Make the policy that always waits the same number of seconds, without jitter.

    Raises:
        ValueError: if `seconds` is not a number from 0 to `MAX_DELAY`.
    """
    return Constant(seconds)


def by_exception(
    mapping: Mapping[type[BaseException], Backoff | float | None], default: Backoff | None = None
) -> ByException:
    """Make the policy that goes by the exception: the first class, in the order given, that it is an instance of.

    Args:
        mapping: exception class to a policy, a number of seconds, or None (like `NEVER`): such a failure is permanent.
        default: the policy for everything else; `exponential()` if left out.

    Raises:
        TypeError: if a key is not an exception class or a value none of the above.
        ValueError: if a number of seconds is out of range.
    """
    policies = tuple((_exception_class(kind), _policy(value)) for kind, value in mapping.items())
    return ByException(policies) if default is None else ByException(policies, _policy(default))


def _exception_class(kind: object) -> type[BaseException]:
    if isinstance(kind, type) and issubclass(kind, BaseException):
        return kind
    raise TypeError(f"by_exception maps exception classes to policies; {kind!r} is no exception class")


def _policy(value: Backoff | float | None) -> Backoff:
    if value is None:
        return NEVER
    if callable(value):
        return value
    if isinstance(value, int | float):
        return Constant(value)
    raise TypeError(f"a backoff policy is a callable, a number of seconds or None, not {value!r}")


def delay_from(
    backoff: Backoff, exception: BaseException, task_result: "TaskResult[..., Any]", *, default: Backoff
) -> tuple[float | None, BaseException | None]:
    """Ask a policy for the delay before the next attempt, and never fail or spin because of it.

    A policy that raises (anything, KeyboardInterrupt and SystemExit too: the failed run must still be settled) or
    answers with something that is no delay (NaN, an infinity, a negative number, a bool, another type, more than
    `MAX_DELAY`) is replaced by `default` for this once, and that by `LAST_RESORT`.

    Args:
        backoff: the policy of the task.
        exception: what the run ended with.
        task_result: the task, the failed attempt counted in `attempts`.
        default: the policy of the backend.

    Returns:
        The seconds to wait, or None: do not retry. And the problem with `backoff`, to be logged, if there was one.
    """
    delay, problem = _ask(backoff, exception, task_result)
    if problem is None:
        return delay, None
    delay, also = _ask(default, exception, task_result)
    return delay if also is None else LAST_RESORT, problem


def _ask(
    policy: Backoff, exception: BaseException, task_result: "TaskResult[..., Any]"
) -> tuple[float | None, BaseException | None]:
    try:
        answer: object = policy(exception, task_result)
        return (None if answer is None else _checked(answer)), None
    except BaseException as problem:  # noqa: BLE001 - user code, and the failed run must be settled whatever it does
        return None, problem


def _checked(answer: object) -> float:
    if isinstance(answer, bool) or not isinstance(answer, int | float):
        raise TypeError(f"a backoff policy answers with seconds or None, not with a {type(answer).__qualname__}")
    if not 0 <= answer < math.inf:
        raise ValueError(f"a backoff policy answers with seconds from 0 up, not with {float(answer)}")
    if answer > MAX_DELAY:
        raise ValueError(f"a backoff policy answers with at most {MAX_DELAY:.0f} s")
    return float(answer)


def _is_delay(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= MAX_DELAY
