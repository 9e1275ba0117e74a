"""The page on reliability has the figures of the recorded runs."""

import json

from tests.chaos import document


def test_the_page_has_the_figures_of_the_records():
    text = document.PAGE.read_text(encoding="utf-8")
    assert document.page(text) == text


def test_no_recorded_run_has_a_planted_bug():
    records = [json.loads(line) for line in document.RECORDS.read_text(encoding="utf-8").splitlines()]
    assert {run["plant"] for run in records} <= {""}
