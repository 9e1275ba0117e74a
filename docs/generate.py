"""Write the generated parts of the documentation; tests compare them with the code.

    python docs/generate.py [--check]

A part stands between `<!-- begin NAME -->` and `<!-- end NAME -->`.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from pathlib import Path
from unittest import mock

DOCS = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path.insert(0, str(DOCS.parent))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

    import django

    django.setup()

from django.core.management.base import CommandParser

import django_dhara
from django_dhara import conf, errors, signals, states


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
            found[attribute[1]] = " ".join(comment)
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


COMMANDS = ("dhara_worker", "dhara_reaper", "dhara_prune")


def _help(name: str) -> str:
    """The same at any width of the terminal, and on any Python: 3.13 writes short flags otherwise than 3.11."""
    command = importlib.import_module(f"django_dhara.management.commands.{name}").Command()
    parser = CommandParser(prog=f"manage.py {name}", add_help=False, description=command.help)
    with mock.patch.dict(os.environ, {"COLUMNS": "120"}):
        for variable in [key for key in os.environ if key.startswith("DHARA_")]:
            del os.environ[variable]
        command.add_arguments(parser)
        return parser.format_help().strip()


def names_list() -> str:
    """The public names, with the first sentence of what each says of itself."""
    return "\n".join(f"- `{name}`: {_first_sentence(getattr(django_dhara, name))}" for name in django_dhara.__all__)


def errors_tree() -> str:
    """The tree of exceptions, from the docstring of errors.py."""
    _, root, rest = inspect.cleandoc(errors.__doc__ or "").partition("DharaError")
    return f"```text\n{root}{rest}\n```"


def signals_list() -> str:
    """Each signal of ours, from its comment."""
    source = inspect.getsource(signals)
    found = re.findall(r"((?:^#: .*\n)+)^(\w+) = Signal\(\)", source, flags=re.MULTILINE)
    return "\n".join(f"- `{name}`: {' '.join(re.findall(r'#: (.*)', comment))}" for comment, name in found)


def _first_sentence(thing: object) -> str:
    text = " ".join((inspect.getdoc(thing) or "").split())
    return re.split(r"(?<=\.)\s", text, maxsplit=1)[0]


#: The generated parts: page, name, function.
PARTS = (
    ("reference/settings.md", "options", options_table),
    ("reference/commands.md", "commands", commands_help),
    ("reference/python.md", "names", names_list),
    ("reference/python.md", "errors", errors_tree),
    ("reference/python.md", "signals", signals_list),
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
