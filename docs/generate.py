"""Write the generated parts of the documentation; tests compare them with the code.

    python docs/generate.py [--check]

A part stands between `<!-- begin NAME -->` and `<!-- end NAME -->`.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import inspect
import logging
import os
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

DOCS = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path.insert(0, str(DOCS.parent))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

    import django

    django.setup()

from django.core.management.base import CommandParser

import django_dhara
from django_dhara import (
    conf,
    doctor,
    enqueue,
    errors,
    events,
    execution,
    project,
    results,
    retry,
    signals,
    states,
    tasks,
)
from django_dhara.api import openapi, problems, urls  # noqa: F401 - the addresses declare all calls


def options_table() -> str:
    """Every option of a queue backend, and why it is as it is, from the `#:` comments in conf.py."""
    rows = ["| option | environment | default | unit | limits | why |", "|---|---|---|---|---|---|"]
    for name, reason in reasons(conf.Options).items():
        option, key = conf.OPTIONS[name], name.upper()
        limits = " to ".join(_number(option.metadata[end]) for end in ("at_least", "at_most") if option.metadata)
        unit = name.rpartition("_")[2] if name.endswith(("_seconds", "_bytes")) else ""
        default = _number(option.default) if limits else f"`{option.default!r}`"
        rows.append(f"| `{key}` | `DHARA_{key}` | {default} | {unit} | {limits} | {reason} |")
    return "\n".join(rows)


def project_table() -> str:
    """Every setting of `DHARA`, from the `#:` comments in project.py."""
    rows = ["| setting | default | limits | why |", "|---|---|---|---|"]
    for name, reason in reasons(project.Project).items():
        option = project.KEYS[name]
        limits = " to ".join(_number(option.metadata[end]) for end in ("at_least", "at_most") if end in option.metadata)
        default = _number(option.default) if limits else f"`{option.default!r}`"
        rows.append(f"| `{name.upper()}` | {default} | {limits} | {reason} |")
    return "\n".join(rows)


def _number(value: float) -> str:
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


def reasons(cls: type) -> dict[str, str]:
    """The `#:` comment above each attribute in the source of a class."""
    found: dict[str, str] = {}
    comment: list[str] = []
    for line in map(str.strip, inspect.getsource(cls).splitlines()):
        if line.startswith("#:"):
            comment.append(line.removeprefix("#:").strip())
        elif attribute := re.match(r"(\w+): .+ = ", line):
            found.setdefault(attribute[1], " ".join(comment))
            comment = []
        else:
            comment = []
    return found


def arrows_table() -> str:
    """Every allowed change of state."""
    rows = ["| from | verb | to |", "|---|---|---|"]
    return "\n".join(rows + [f"| {arrow.source} | {arrow.verb} | {arrow.target} |" for arrow in states.ARROWS])


def commands_help() -> str:
    """What `--help` prints, for each of our commands, without Django's own options."""
    return "\n\n".join(f"## {name}\n\n```text\n{_help(name)}\n```" for name in COMMANDS)


COMMANDS = (
    "dhara_worker",
    "dhara_reaper",
    "dhara_prune",
    "dhara_pause",
    "dhara_resume",
    "dhara_stats",
    "dhara_top",
    "dhara_token",
    "dhara_health",
    "dhara_doctor",
    "dhara_migrate",
)


def _help(name: str) -> str:
    """The same at any width of the terminal, and on any Python: 3.13 writes short flags otherwise than 3.11. A command
    with verbs is followed by the help of each."""
    command = importlib.import_module(f"django_dhara.management.commands.{name}").Command()
    parser = CommandParser(prog=f"manage.py {name}", add_help=False, description=command.help)
    with mock.patch.dict(os.environ, {"COLUMNS": "120"}):
        for variable in [key for key in os.environ if key.startswith("DHARA_")]:
            del os.environ[variable]
        command.add_arguments(parser)
        return "\n\n".join(each.format_help().strip() for each in (parser, *_verbs(parser)))


def _verbs(parser: CommandParser) -> Iterator[CommandParser]:
    """Without their `--help`. What a parser has is nothing that argparse would tell."""
    for action in vars(parser)["_actions"]:
        for verb in (action.choices or {}).values() if action.nargs == argparse.PARSER else ():
            for actions in (vars(verb)["_actions"], vars(vars(verb)["_optionals"])["_group_actions"]):
                actions[:] = [each for each in actions if each.dest != "help"]
            yield verb


def names_list() -> str:
    """Every public name: its signature, and what its docstring says."""
    return "\n\n".join(_entry(name, getattr(django_dhara, name)) for name in django_dhara.__all__)


def task_fields() -> str:
    """Our options of a task, from the `#:` comments in tasks.py, and the methods that we add or change."""
    fields = "\n".join(f"- `{name}`: {reason}" for name, reason in reasons(tasks.Task).items() if reason)
    methods = "\n\n".join(_entry(f"Task.{name}", getattr(tasks.Task, name)) for name in ("using", "bind"))
    return f"{fields}\n\n{methods}"


def result_attributes() -> str:
    """Our attributes of a result, from the `#:` comments in results.py."""
    return "\n".join(f"- `{name}`: {reason}" for name, reason in reasons(results.TaskResult).items())


def context_attributes() -> str:
    """What a context has: properties, then methods, from their docstrings."""
    own = {name: thing for name, thing in vars(execution.Context).items() if not name.startswith("_")}
    properties = [f"- `{name}`: {_text(thing)}" for name, thing in own.items() if isinstance(thing, property)]
    methods = [_entry(f"context.{name}", thing) for name, thing in own.items() if inspect.isfunction(thing)]
    return "\n\n".join(["\n".join(properties), *methods])


#: What projects need of `django_dhara.retry`; the rest of it is for the worker.
POLICIES = ("exponential", "constant", "by_exception", "full_jitter")


def policies_list() -> str:
    """Backoff policies: the constants with their `#:` comments, and the functions that make policies."""
    comments = {name: text for text, name in re.findall(r"^#: (.*)\n(\w+)", inspect.getsource(retry), re.MULTILINE)}
    constants = "\n".join(f"- `{name}`: {comments[name]}" for name in ("Backoff", "NEVER"))
    return "\n\n".join([constants, *(_entry(name, getattr(retry, name)) for name in POLICIES)])


def warning_text() -> str:
    """What AliasWarning is."""
    return f"`django_dhara.enqueue.AliasWarning`: {_text(enqueue.AliasWarning)}"


def _entry(name: str, thing: Any) -> str:
    """A heading, the signature, the docstring with its sections as lists."""
    called = [] if thing is tasks.Task else [f"```text\n{signature(name, thing)}\n```"]  # `@task` makes it
    return "\n\n".join([f"### {name}", *called, *_paragraphs(thing)])


def _paragraphs(thing: Any) -> Iterator[str]:
    text = inspect.getdoc(thing) or ""
    body, *sections = re.split(r"^(Args|Returns|Raises):\n", text, flags=re.MULTILINE)
    yield body.strip()
    for title, section in zip(sections[::2], sections[1::2], strict=True):
        lines = inspect.cleandoc(f"\n{section}")
        if title == "Returns":
            yield f"Returns: {' '.join(lines.split())}"
        else:
            items = [" ".join(item.split()) for item in re.split(r"\n(?=\S)", lines)]
            names = [re.sub(r"^([\w, ]+)", _as_code, item) for item in items]
            yield f"{'Arguments' if title == 'Args' else 'Raises'}:\n\n" + "\n".join(f"- {item}" for item in names)


def _as_code(names: re.Match[str]) -> str:
    return ", ".join(f"`{name}`" for name in names[1].split(", "))


def _text(thing: Any) -> str:
    return " ".join((inspect.getdoc(thing) or "").split())


def signature(name: str, thing: Any) -> str:
    """How a name is called, as its source says it: what Python shows of a signature changes from version to version."""
    if dataclasses.is_dataclass(thing):
        return _laid_out(name, [_field(field) for field in dataclasses.fields(thing)], "")
    function = thing.__init__ if inspect.isclass(thing) else thing
    if not inspect.isfunction(function):
        return f"{name}(*args)"  # an exception with the constructor of all exceptions
    tree: Any = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    await_ = "await " if isinstance(tree, ast.AsyncFunctionDef) else ""
    arrow = "" if inspect.isclass(thing) else f" -> {ast.unparse(tree.returns)}"
    return _laid_out(f"{await_}{name}", [one for one in _parameters(tree.args) if one != "self"], arrow)


def _laid_out(name: str, parameters: list[str], arrow: str) -> str:
    line = f"{name}({', '.join(parameters)}){arrow}"
    lines = "".join(f"    {parameter},\n" for parameter in parameters)
    return (line if len(line) <= 100 else f"{name}(\n{lines}){arrow}").replace("'", '"')


def _parameters(of: ast.arguments) -> Iterator[str]:
    plain = [*of.posonlyargs, *of.args]
    defaults = [None] * (len(plain) - len(of.defaults)) + of.defaults
    for number, (parameter, default) in enumerate(zip(plain, defaults, strict=True), start=1):
        yield _parameter(parameter, default)
        if number == len(of.posonlyargs):
            yield "/"
    if of.vararg or of.kwonlyargs:
        yield f"*{ast.unparse(of.vararg)}" if of.vararg else "*"
    yield from map(_parameter, of.kwonlyargs, of.kw_defaults)
    if of.kwarg:
        yield f"**{ast.unparse(of.kwarg)}"


def _parameter(parameter: ast.arg, default: ast.expr | None) -> str:
    return ast.unparse(parameter) + (f" = {ast.unparse(default)}" if default else "")


def _field(field: dataclasses.Field[Any]) -> str:
    made = field.default_factory is not dataclasses.MISSING
    default = " = {}" if made else "" if field.default is dataclasses.MISSING else f" = {field.default!r}"
    return f"{field.name}: {field.type}{default}"


def errors_tree() -> str:
    """The tree of exceptions, from the docstring of errors.py."""
    _, root, rest = inspect.cleandoc(errors.__doc__ or "").partition("DharaError")
    return f"```text\n{root}{rest}\n```"


def signals_list() -> str:
    """Each signal of ours, from its comment."""
    source = inspect.getsource(signals)
    found = re.findall(r"((?:^#: .*\n)+)^(\w+) = Signal\(\)", source, flags=re.MULTILINE)
    return "\n".join(f"- `{name}`: {' '.join(re.findall(r'#: (.*)', comment))}" for comment, name in found)


def api_calls() -> str:
    """Every call of the API: what it takes, and how it is answered."""
    return "\n\n".join(_call(each) for each in openapi.operations(_description()))


def _call(each: openapi.Operation) -> str:
    parts = [f"### {each.method} {each.path}", f"{each.summary}. {each.description}".strip(), f"Takes {each.needs}."]
    if each.parameters:
        rows = ["| parameter | | |", "|---|---|---|"]
        rows += [f"| `{one.name}` | {one.kind} | {one.description} |" for one in each.parameters]
        parts.append("\n".join(rows))
    if each.body:
        parts.append(f"Body: [{each.body}](#{each.body.lower()}).")
    answers = ", ".join(f"{status} [{name}](#{name.lower()})" for status, name in each.answers)
    conflict = ", or the problem 409" if "409" in each.problems else ""
    return "\n\n".join([*parts, f"Answers: {answers}{conflict}."])


def api_schemas() -> str:
    """Everything that is sent to the API, or answered."""
    return "\n\n".join(_schema(*each) for each in openapi.schemas(_description()))


def _schema(name: str, description: str, fields: list[openapi.Value]) -> str:
    rows = ["| field | | |", "|---|---|---|"]
    rows += [f"| `{one.name}` | {one.kind} | {one.description} |" for one in fields]
    return "\n\n".join(filter(None, [f"### {name}", description, "\n".join(rows)]))


def api_problems() -> str:
    """Every kind of problem document."""
    rows = ["| status | `type` | title |", "|---|---|---|"]
    kinds = sorted(problems.KINDS.items(), key=lambda item: item[1].status)
    return "\n".join(rows + [f"| {kind.status} | `{problems.TYPE}{name}` | {kind.title} |" for name, kind in kinds])


def _description() -> dict[str, Any]:
    return openapi.document("/dhara/api/v1/")


def troubles_list() -> str:
    """A section for each trouble that the doctor can find."""
    return "\n\n".join(map(_trouble, doctor.troubles()))


def _trouble(trouble: doctor.Trouble) -> str:
    remedy = trouble.remedy.replace("{{", "{").replace("}}", "}")
    severity = trouble.severity.name.capitalize()
    return f"### {trouble.id}\n\n*{severity}.* {trouble.title}.\n\n{trouble.why}\n\n```text\n{remedy}\n```"


def limits_table() -> str:
    """From when on something is a finding, from the `#:` comments in doctor/case.py."""
    rows = ["| limit | value | what it is |", "|---|---|---|"]
    defaults = doctor.Limits()
    for name, reason in reasons(doctor.Limits).items():
        rows.append(f"| `{name}` | {_number(getattr(defaults, name))} | {reason} |")
    return "\n".join(rows)


def events_table() -> str:
    """Every kind of line, by its logger and in the order of events.py."""
    rows = ["| event | logger | level | text | fields beside those of the text |", "|---|---|---|---|---|"]
    for event in events.EVENTS.values():
        text = re.sub(r"%\((\w+)\)(?:\.\d+)?[a-z]", r"*\1*", event.text).replace("_", r"\_").replace("|", r"\|")
        beside = [f"`{name}`" for name in event.fields if f"%({name})" not in event.text]
        level = logging.getLevelName(event.level)
        rows.append(f"| `{event.name}` | `{event.logger.name}` | {level} | {text} | {', '.join(beside)} |")
    return "\n".join(rows)


#: The generated parts: page, name, function.
PARTS = (
    ("reference/settings.md", "options", options_table),
    ("reference/settings.md", "project", project_table),
    ("reference/commands.md", "commands", commands_help),
    ("reference/api.md", "calls", api_calls),
    ("reference/api.md", "schemas", api_schemas),
    ("reference/api.md", "problems", api_problems),
    ("reference/python.md", "names", names_list),
    ("reference/python.md", "task", task_fields),
    ("reference/python.md", "result", result_attributes),
    ("reference/python.md", "context", context_attributes),
    ("reference/python.md", "policies", policies_list),
    ("reference/python.md", "warning", warning_text),
    ("reference/python.md", "errors", errors_tree),
    ("reference/python.md", "signals", signals_list),
    ("reference/doctor.md", "troubles", troubles_list),
    ("reference/doctor.md", "limits", limits_table),
    ("reference/events.md", "events", events_table),
    ("explanation/states.md", "arrows", arrows_table),
)


def with_part(text: str, name: str, part: str) -> str:
    """The text of a page with its part `name` replaced."""
    begin, end = f"<!-- begin {name} -->\n", f"\n<!-- end {name} -->"
    head, _, rest = text.partition(begin)
    _, found, tail = rest.partition(end)
    if not found:
        raise LookupError(f"the page has no part {name!r}")
    return f"{head}{begin}{part}{end}{tail}"


def main() -> int:
    stale = 0
    for page, name, function in PARTS:
        path = DOCS / page
        text = path.read_text(encoding="utf-8")
        fresh = with_part(text, name, function())
        if fresh != text and "--check" in sys.argv[1:]:
            stale += 1
            print(f"docs/{page}: run `python docs/generate.py`")
        elif fresh != text:
            path.write_text(fresh, encoding="utf-8")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
