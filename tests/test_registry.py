"""Only tasks of this project can be called by a stored path, and only functions that a worker can find can be tasks."""

import sys
from textwrap import dedent

import pytest

from django_dhara import registry
from django_dhara.compat import DjangoTask, InvalidTask
from django_dhara.errors import UnknownFunction
from django_dhara.tasks import task
from tests.app.tasks import add


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes an importable module; it and its tasks are forgotten after the test."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_tasks", dict(registry._tasks))
    known = set(sys.modules)

    def write(name, text):
        (tmp_path / f"{name}.py").write_text(dedent(text))

    yield write
    for name in set(sys.modules) - known:
        del sys.modules[name]


@pytest.mark.fast
def test_a_task_is_found_by_its_path():
    assert registry.resolve("tests.app.tasks.add") is add


def test_every_task_of_an_installed_app_is_known():
    assert "tests.app.tasks.add" in list(registry.paths())
    assert list(registry.paths()) == sorted(registry.paths())


def test_a_task_outside_the_tasks_modules_is_imported(module):
    module("elsewhere", "from django_dhara.tasks import task\n@task\ndef work(): pass")
    found = registry.resolve("elsewhere.work")
    assert isinstance(found, DjangoTask)
    assert registry.resolve("elsewhere.work") is found


@pytest.mark.fast
@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("no_such_module.f", "no_such_module"),
        ("no_such_package.tasks.f", "no_such_package"),
        ("tests.app.no_such_module.f", "tests.app.no_such_module"),
        ("tests.app.tasks.no_such_name", "no_such_name"),
        ("tests.app.tasks.task", "has no task 'task'"),
        ("tests.app.models.Note", "has no task 'Note'"),
        ("os.system", "has no task 'system'"),
        ("tests.app.tasks.add.func", "tests.app.tasks.add"),
        ("builtins.eval", "has no task 'eval'"),
        ("__main__.f", "is not the dotted path"),
        ("tests.app.tasks.<lambda>", "is not the dotted path"),
        ("tests.f.<locals>.g", "is not the dotted path"),
        ("add", "is not the dotted path"),
        ("", "is not the dotted path"),
        ("..add", "is not the dotted path"),
        ("tests/app/tasks.add", "is not the dotted path"),
        ("tests.app.tasks.add\0", "is not the dotted path"),
    ],
)
def test_what_is_no_task_here_is_an_unknown_function(path, message):
    with pytest.raises(UnknownFunction, match=message):
        registry.resolve(path)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("raise RuntimeError('at import')", RuntimeError),
        ("import no_such_dependency", ModuleNotFoundError),
        ("from os import no_such_name", ImportError),
        ("def broken(:", SyntaxError),
    ],
)
def test_an_error_at_import_is_not_an_unknown_function(module, text, error):
    module("breaks", text)
    for _ in range(2):  # the second time, too: nothing about it is remembered
        with pytest.raises(error) as caught:
            registry.resolve("breaks.f")
        assert not isinstance(caught.value, UnknownFunction)


def test_a_module_that_could_not_be_imported_can_be_later(module):
    module("repaired", "raise RuntimeError")
    with pytest.raises(RuntimeError):
        registry.resolve("repaired.work")
    # Another size, so that the compiled file of the first version is not taken for this one's.
    module("repaired", "from django_dhara.tasks import task\n@task\ndef work(): pass")
    assert registry.resolve("repaired.work").name == "work"


@pytest.mark.fast
def test_a_copy_with_other_options_does_not_take_the_place_of_the_task():
    add.using(queue_name="elsewhere")
    assert registry.resolve("tests.app.tasks.add").queue_name == "default"


nameless = lambda: None  # noqa: E731 - it is what the test is about


def run_as_a_script():
    pass


def test_a_function_that_no_worker_could_find_cannot_be_a_task(monkeypatch):
    def inside():
        pass

    monkeypatch.setattr(run_as_a_script, "__module__", "__main__")
    for function in (inside, nameless, run_as_a_script, print, str.upper):
        with pytest.raises(InvalidTask):
            task(function)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("function", "message"), [(nameless, "<lambda> cannot be found"), (run_as_a_script, "__main__.run_as_a_script")]
)
def test_who_decorates_such_a_function_is_told_why(monkeypatch, function, message):
    if function is run_as_a_script:
        monkeypatch.setattr(function, "__module__", "__main__")
    with pytest.raises(InvalidTask, match=message):
        task(function)


def test_a_path_that_becomes_a_coroutine_is_no_plain_function_any_more(module, monkeypatch):
    for name in ("async_paths", "plain_paths"):
        monkeypatch.setattr(registry, name, set())
    module("changing", "from django_dhara import task\n\n@task\ndef work(): ...\n")
    registry.resolve("changing.work")
    assert registry.plain_paths == {"changing.work"}
    sys.modules["changing"].__dict__.pop("work")
    exec("@task\nasync def work(): ...", sys.modules["changing"].__dict__)
    assert registry.async_paths == {"changing.work"}
    assert not registry.plain_paths
