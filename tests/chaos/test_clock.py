"""The server's times in the history's."""

from time import monotonic, time

import pytest

from tests.chaos.checker import Change
from tests.chaos.clock import Clock
from tests.chaos.server import STEP

pytestmark = pytest.mark.fast


def change(at, run_at=0.0):
    return tuple(Change(1, at, "id", "PENDING", "RUNNING", 0, 1, "claim", run_at))


def samples(offset, *ages):
    return [{"e": "sample", "t": monotonic() - age, "wall": monotonic() - age - offset} for age in ages]


@pytest.mark.parametrize("age", [10, STEP * 0.6, STEP * 5])
def test_a_run_of_any_length_is_in_one_time(age):
    offset = monotonic() - time()
    found = Clock([], offset, steps=False).change(change(time() - age, run_at=time() - age - 1))
    assert found.t == pytest.approx(monotonic() - age, abs=0.1)
    assert found.t - found.run_at == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_a_time_of_a_clock_that_was_ahead_is_told_by_its_hour(steps):
    offset = monotonic() - time()
    found = Clock([], offset, steps=True).change(change(time() + STEP * steps - 60))
    assert found.t == pytest.approx(monotonic() - 60, abs=0.1)


def test_a_clock_that_was_put_right_counts_as_it_was_then():
    offset = monotonic() - time()
    clock = Clock([*samples(offset - 2, 300, 200), *samples(offset, 100, 50)], offset, steps=False)
    assert clock.change(change(time() + 2 - 250)).t == pytest.approx(monotonic() - 250, abs=0.1)
    assert clock.change(change(time() - 70)).t == pytest.approx(monotonic() - 70, abs=0.1)
