"""The short form: half a minute of three profiles. The long one is `python -m tests.chaos`.

The seed is another one each time, and is in the message of a failure; `CHAOS_SEED=N` repeats it.
"""

import os
import random

import pytest

from tests.chaos import report
from tests.chaos.app.plants import FOUND_BY
from tests.chaos.profiles import PROFILES
from tests.chaos.run import run

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(400)]

SEED = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(10**6))
SHORT = ("A", "B", "C")


@pytest.mark.parametrize("profile", SHORT)
def test_nothing_is_lost_and_nothing_happens_twice(profile):
    result = run(PROFILES[profile], seed=SEED, minutes=0.5)
    print(report.text(result))
    assert result.verdict.word == "pass", report.text(result)


@pytest.mark.slow
@pytest.mark.parametrize("bug", FOUND_BY)
def test_a_planted_bug_is_found(bug):
    profile, rules = FOUND_BY[bug]
    result = run(PROFILES[profile], seed=SEED, minutes=1.0, plant=bug)
    found = {violation.rule for violation in result.verdict.violations}
    assert found & rules, report.text(result)
