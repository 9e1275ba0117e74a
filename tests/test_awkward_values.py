"""Awkward values at the enqueue and in the modes for tests; what a worker makes of them is in tests/workers/."""

import ast
import logging
import tracemalloc
from pathlib import Path

import pytest

import django_dhara
from django_dhara.errors import PayloadError, PayloadTooLarge, PayloadTypeError
from django_dhara.models import Task
from django_dhara.states import State
from django_dhara.testing import plugin, run_all
from tests.app.awkward import fail_by, measure, receive

dhara_inline, dhara_manual = plugin.dhara_inline, plugin.dhara_manual

#: Values that come back as they are, and values that do not.
SAME = ["text", 1, 2.5, True, None, [1, [2.0]], {"a": {"b": []}}, 2**70, "é\u2028😀"]
CONVERTED = [(1, 2), {1: "a"}, 1e16, -0.0, b"abc", [{"a": (1,)}], {"x": [{None: 1}]}, type("Name", (str,), {})("a")]
COLLIDING = {1: "a", "1": "b"}


def strictly(settings, backend):
    options = {**settings.TASKS["default"]["OPTIONS"], "STRICT_JSON": True}
    settings.TASKS = {"default": {"BACKEND": backend, "QUEUES": [], "OPTIONS": options}}


@pytest.mark.fast
@pytest.mark.parametrize("backend", ["backend.DharaBackend", "testing.InlineBackend", "testing.ManualBackend"])
def test_strict_json_refuses_what_does_not_come_back_the_same_in_every_mode(db, settings, backend):  # E07, E08
    for value in CONVERTED:
        receive.enqueue(value)  # taken, and converted
    Task.objects.all().delete()
    strictly(settings, f"django_dhara.{backend}")
    for value in [*CONVERTED, COLLIDING]:
        with pytest.raises(PayloadError, match=r"^args\[0\]"):
            receive.enqueue(value)
    assert not Task.objects.exists()
    results = [receive.enqueue(value) for value in SAME]
    assert [result.args for result in results] == [[value] for value in SAME]
    if backend == "backend.DharaBackend":
        results = run_all()
    if backend != "testing.ManualBackend":
        assert [result.return_value[0][1][0] for result in results] == [receive.func(value)[0][1][0] for value in SAME]


@pytest.mark.parametrize("megabytes", [20, 100, 300])
def test_arguments_above_the_limit_are_refused_with_their_size_and_without_a_copy(db, megabytes):  # E14
    text, count = "x" * (megabytes * 1_000_000), Task.objects.count
    tracemalloc.start()
    try:
        for argument in (text, [text], {"deep": [{"in": text}]}):
            with pytest.raises(PayloadTooLarge, match=rf"{megabytes},000,0\d\d bytes of JSON, the limit is 1,000,000"):
                measure.enqueue(argument)
            [_, peak] = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            assert peak < 2_000_000
    finally:
        tracemalloc.stop()
    assert count() == 0
    assert measure.enqueue("x" * 999_900).state == State.PENDING


class Unspeakable:
    def __repr__(self):
        raise RuntimeError("no words")

    __str__ = __repr__


@pytest.mark.parametrize("mode", ["real", "inline", "manual"])
def test_what_cannot_be_shown_breaks_no_logging(db, request, caplog, mode):  # E15
    backend = None if mode == "real" else request.getfixturevalue(f"dhara_{mode}")
    with caplog.at_level(logging.DEBUG):
        for value in (Unspeakable(), [Unspeakable()], {"a": Unspeakable()}):
            with pytest.raises(PayloadTypeError, match=r"tests\.test_awkward_values\.Unspeakable"):
                receive.enqueue(value)
        result = fail_by.using(max_attempts=1).enqueue("unspeakable")
        if mode == "manual":
            backend.run_all()
        elif mode == "real":
            run_all()
        result.refresh()
        assert result.state == State.DEAD
        assert "<the message could not be read: RuntimeError>" in result.errors[0].traceback
    assert [record.getMessage() for record in caplog.records]


@pytest.mark.fast
def test_nothing_of_ours_forks_and_only_children_are_pickled_to():  # C04, C16, E16, J03
    banned = {"pickle", "marshal", "shelve", "multiprocessing", "concurrent", "subprocess"}
    pipe = {"child.py", "children.py"}  # a socket pair between a process and the fresh interpreter that it starts
    for path in Path(django_dhara.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            imported = {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
            imported |= {node.module or ""} if isinstance(node, ast.ImportFrom) else set()
            assert path.name in pipe or not {name.partition(".")[0] for name in imported} & banned, path
            assert getattr(node, "attr", "") not in ("fork", "forkpty", "posix_spawn"), path
