"""docs/explanation/failures.md lists every case once, and every test that it names exists."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.fast

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/explanation/failures.md"

#: The cases that have been collected, by group.
CASES = {
    "A": "01 02 05 06 07 08 10 11 13 14 15 17 18 19",
    "B": "01 02 04 05 07 08 09 10 11 12 14 15",
    "C": "01 02 03 04 05 06 07 08 11 12 13 14 15 16",
    "D": "01 03 04 05 06 07 09 10 11 12 13",
    "E": "01 03 04 05 07 08 09 10 12 13 14 15 16 17",
    "F": "01 02 03 04 05 06 07 09 11 13 14 15 16 17 18 19",
    "G": "01 02 05 06 07 08 09 11 12 13",
    "H": "01 02 04 05 06 08 09 10 11 12 13 14 15 16",
    "I": "01 02 04 05 07 08 09 10 11 12 13 14 15 16 17 18 19",
    "J": "01 02 03 05 06 07 08 09 10 11 12 14 15 16 17 18",
    "K": "01 02 03 04 05 06 08 09 10 11",
    "L": "01 02 04 05 06 07 09 10 11 12 13 14",
}


def rows():
    """The cells of each row of the tables, without their headers."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return [row for row in cells if row[0] != "case"]


@cache
def functions_of(path):
    """The tests of a file as pytest names them: functions, and methods of classes."""
    found = set()
    for node in ast.parse((ROOT / path).read_text(encoding="utf-8")).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        found |= {f"{prefix}{test.name}" for test in inner if isinstance(test, (ast.FunctionDef, ast.AsyncFunctionDef))}
    return found


def test_every_case_is_listed_once():
    assert sum(len(numbers.split()) for numbers in CASES.values()) == 160
    assert [row[0] for row in rows()] == [f"{group}{n}" for group, numbers in CASES.items() for n in numbers.split()]


def test_every_case_has_a_test_or_a_reason():
    for case, elsewhere, here, last in rows():
        assert elsewhere, case
        assert here, case
        assert re.match(r"(`tests/\S+`(<br>)?)+$", last) or re.search(r"\b(waits for|cannot)\b", last), case


def test_every_test_that_is_named_exists():
    for case, *_, last in rows():
        for path, name in re.findall(r"`(tests/[\w/]+\.py)::([\w:]+)`", last):
            assert name in functions_of(path), f"{case}: {path}::{name}"
