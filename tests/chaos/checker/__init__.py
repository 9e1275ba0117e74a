"""The checker: the history, the trigger log and the last rows of a run against the promises. It is pure."""

from tests.chaos.checker.evidence import Attempt, Change, Evidence, Row, Violation
from tests.chaos.checker.verdict import Verdict, check

__all__ = ["Attempt", "Change", "Evidence", "Row", "Verdict", "Violation", "check"]
