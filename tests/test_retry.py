"""Backoff: delays that are capped and spread, policies that cannot lose a task."""

import math
import pickle
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from django_dhara.retry import (
    LAST_RESORT,
    MAX_DELAY,
    NEVER,
    by_exception,
    constant,
    delay_from,
    exponential,
    full_jitter,
)

pytestmark = pytest.mark.fast


def after(attempts):
    """A task of which this many attempts have failed."""
    return SimpleNamespace(attempts=attempts)


def highest(low, high):
    assert low == 0.0
    return high


def ceiling(attempt, base=1.0, cap=300.0):
    return full_jitter(attempt, base=base, cap=cap, random=highest)


def raising(error):
    def policy(exception, task_result):
        raise error

    return policy


def answering(answer):
    return lambda exception, task_result: answer


# --- Full jitter


def test_the_ceiling_doubles_with_every_attempt_up_to_the_cap():
    assert [ceiling(attempt) for attempt in range(1, 12)] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


@pytest.mark.parametrize("attempt", [47, 1_025, 10**6, 10**400])
def test_no_attempt_is_too_high(attempt):
    assert ceiling(attempt, base=5.0) == 300


@pytest.mark.parametrize("attempt", [0, -1, -(10**6)])
def test_attempts_below_one_count_as_the_first(attempt):
    assert ceiling(attempt, base=5.0) == 5


@pytest.mark.parametrize(("base", "cap"), [(0, 300), (-1, 300), (1, 0), (1, -1)])
def test_without_a_positive_base_and_cap_there_is_no_delay(base, cap):
    assert ceiling(3, base=base, cap=cap) == 0


@given(
    st.integers(-10, 10**9),
    st.floats(min_value=5e-324, allow_nan=False, allow_infinity=False),
    st.floats(min_value=5e-324, allow_nan=False, allow_infinity=False),
)
@example(10**6, 5e-324, 1.7e308)
@example(1, 1.7e308, 5e-324)
def test_a_delay_lies_between_zero_and_the_cap(attempt, base, cap):
    assert 0 <= full_jitter(attempt, base=base, cap=cap) <= cap
    assert ceiling(attempt, base, cap) <= cap
    assert ceiling(attempt, base, cap) <= ceiling(attempt + 1, base, cap)


def test_tasks_that_failed_together_do_not_come_back_together():
    delays = [full_jitter(5, base=1, cap=300) for _ in range(200)]
    assert len(set(delays)) > 150
    assert min(delays) < 4
    assert max(delays) > 12


# --- Policies


def test_exponential_goes_by_the_number_of_attempts():
    policy = exponential(base=2, cap=60)
    assert max(policy(ValueError(), after(1)) for _ in range(100)) <= 2
    assert 30 < max(policy(ValueError(), after(10**6)) for _ in range(100)) <= 60


@pytest.mark.parametrize(
    ("base", "cap"), [(0, 1), (-1, 1), (2, 1), (math.nan, 1), (1, math.inf), (1, MAX_DELAY + 1), (True, 5), ("1", 5)]
)
def test_exponential_refuses_what_would_spin_or_never_come_back(base, cap):
    with pytest.raises(ValueError, match="0 < base <= cap"):
        exponential(base, cap)


def test_constant_is_constant():
    assert constant(0)(ValueError(), after(9)) == 0
    assert constant(7)(ValueError(), after(9)) == 7


@pytest.mark.parametrize("seconds", [-1, math.nan, math.inf, MAX_DELAY + 1, True, None, "1"])
def test_constant_refuses_what_is_no_delay(seconds):
    with pytest.raises(ValueError, match="number of seconds"):
        constant(seconds)


def test_never_does_not_retry():
    assert NEVER(ValueError(), after(1)) is None


def test_by_exception_takes_the_first_class_that_matches():
    policy = by_exception(
        {KeyError: 1, LookupError: constant(2), ValueError: None, OSError: NEVER}, default=constant(9)
    )
    answers = [
        policy(error, after(1)) for error in (KeyError(), IndexError(), UnicodeError(), TimeoutError(), TypeError())
    ]
    assert answers == [1, 2, None, None, 9]


def test_by_exception_falls_back_to_exponential():
    assert 0 <= by_exception({})(ValueError(), after(1)) <= 1


@pytest.mark.parametrize(
    ("mapping", "error"),
    [
        ({"ValueError": 1}, TypeError),
        ({int: 1}, TypeError),
        ({(KeyError, ValueError): 1}, TypeError),
        ({ValueError: "5"}, TypeError),
        ({ValueError: -5}, ValueError),
        ({ValueError: True}, ValueError),
    ],
    ids=repr,
)
def test_by_exception_refuses_what_it_cannot_follow(mapping, error):
    with pytest.raises(error):
        by_exception(mapping)


@pytest.mark.parametrize(
    "policy", [exponential(2, 60), constant(5), NEVER, by_exception({ValueError: 5, OSError: None})]
)
def test_policies_survive_pickling_and_show_their_settings(policy):
    assert pickle.loads(pickle.dumps(policy)) == policy
    assert type(policy).__name__ in repr(policy)
    hash(policy)


def test_the_settings_of_a_policy_are_in_its_repr():
    assert repr(exponential(2, 60)) == "Exponential(base=2, cap=60)"


# --- Policies of users


def test_a_good_answer_is_taken():
    assert delay_from(answering(2), ValueError(), after(1), default=constant(9)) == (2.0, None)
    assert delay_from(answering(0), ValueError(), after(1), default=constant(9)) == (0.0, None)
    assert delay_from(answering(MAX_DELAY), ValueError(), after(1), default=constant(9)) == (MAX_DELAY, None)


def test_none_means_do_not_retry():
    assert delay_from(answering(None), ValueError(), after(1), default=constant(9)) == (None, None)


def test_a_policy_sees_the_exception_and_the_task():
    error, task = ValueError(), after(3)
    assert delay_from(lambda *seen: 1.0 if seen == (error, task) else None, error, task, default=NEVER) == (1.0, None)


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, GeneratorExit, RecursionError])
def test_a_policy_that_raises_is_replaced_and_its_error_handed_back(error):
    problem = error("broken")
    assert delay_from(raising(problem), ValueError(), after(1), default=constant(9)) == (9.0, problem)


@pytest.mark.parametrize(
    "answer", [math.nan, math.inf, -math.inf, -1, -(10**400), True, False, "5", [5], 5j, object()], ids=repr
)
def test_an_answer_that_is_no_delay_is_replaced_and_the_problem_handed_back(answer):
    delay, problem = delay_from(answering(answer), ValueError(), after(1), default=constant(9))
    assert delay == 9
    assert isinstance(problem, ValueError | TypeError | OverflowError)


@pytest.mark.parametrize("answer", [MAX_DELAY + 1, 10**12, 1e300, 10**400], ids=["cap", "12", "float", "int"])
def test_a_delay_beyond_the_longest_is_replaced_and_the_problem_handed_back(answer):
    delay, problem = delay_from(answering(answer), ValueError(), after(1), default=constant(9))
    assert delay == 9
    assert isinstance(problem, ValueError)


def test_a_policy_that_takes_other_arguments_is_replaced():
    delay, problem = delay_from(lambda: 3, ValueError(), after(1), default=constant(9))
    assert delay == 9
    assert isinstance(problem, TypeError)


def test_the_default_policy_may_say_never():
    problem = ValueError("broken")
    assert delay_from(raising(problem), ValueError(), after(1), default=NEVER) == (None, problem)


def test_two_broken_policies_leave_the_last_resort():
    first = ValueError("first")
    assert delay_from(raising(first), ValueError(), after(1), default=raising(OSError())) == (LAST_RESORT, first)


def test_a_task_that_cannot_tell_its_attempts_is_still_retried():
    delay, problem = delay_from(exponential(), ValueError(), object(), default=exponential())
    assert delay == LAST_RESORT
    assert isinstance(problem, AttributeError)
