"""Write the generated parts of the documentation; tests compare them with the code.

    python docs/generate.py [--check]

A part stands between `<!-- begin NAME -->` and `<!-- end NAME -->`.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
if __name__ == "__main__":
    sys.path.insert(0, str(DOCS.parent))

from django_dhara import conf


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


#: The generated parts: page, name, function.
PARTS = (("reference/settings.md", "options", options_table),)


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
