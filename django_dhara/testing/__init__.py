"""For the tests of a project: run its tasks, switch its backend, look at what was enqueued.

    from django_dhara.testing import assert_enqueued, run_all

    class OrderTests(TestCase):
        def test_receipt(self):
            self.client.post("/order/", {...})
            assert_enqueued(send_receipt, order_id=1)
            [result] = run_all()
            self.assertEqual(result.status, "SUCCESSFUL")

`run_all` and `run_one` run the rows of the real backend inside the test's transaction (see `drain.py` for what differs
from a worker). Where a test should not touch the queue, `InlineBackend` runs each call as it is enqueued, and
`ManualBackend` keeps calls in memory. Importing this package imports no model.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_dhara.testing.asserts import assert_enqueued, assert_not_enqueued, enqueued
    from django_dhara.testing.backends import InlineBackend, ManualBackend
    from django_dhara.testing.drain import arun_all, run_all, run_one

__all__ = [
    "InlineBackend",
    "ManualBackend",
    "arun_all",
    "assert_enqueued",
    "assert_not_enqueued",
    "enqueued",
    "run_all",
    "run_one",
]

_HOMES = {
    "asserts": ("assert_enqueued", "assert_not_enqueued", "enqueued"),
    "backends": ("InlineBackend", "ManualBackend"),
    "drain": ("arun_all", "run_all", "run_one"),
}


def __getattr__(name: str) -> Any:
    """Import what is asked for: the pytest plugin is part of this package, and loads before Django is configured."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
