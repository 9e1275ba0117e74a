"""How many rows one statement changes."""

import pytest

from django_dhara.worker.portion import Portion
from django_dhara.worker.session import Busy

pytestmark = pytest.mark.fast


def said(portion, rows, most=1000):
    """The sizes of the statements, of which those of more than `most` rows fail."""
    sizes = []

    def say(part):
        sizes.append(len(part))
        if len(part) > most:
            raise Busy

    try:
        portion.each(range(rows), say)
    except Busy:
        sizes.append("busy")
    return sizes


def test_all_at_once_while_that_works_and_one_statement_for_nothing():
    assert said(Portion(100), 80) == [80]
    assert said(Portion(100), 250) == [100, 100, 50]
    assert said(Portion(100), 0) == [0]


def test_a_quarter_after_a_failure_and_a_few_more_after_each_success():
    portion = Portion(100)
    assert said(portion, 80, most=50) == [80, "busy"]
    assert said(portion, 80, most=60) == [20, 26, 33, 1]
    assert said(portion, 200)[:3] == [53, 67, 80]


def test_never_less_than_the_least():
    portion = Portion(100)
    for _ in range(9):
        said(portion, 100, most=0)
    assert portion.size == Portion.LEAST
