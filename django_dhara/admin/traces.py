"""Tracebacks and stacks in pieces: the project's own frames stand out, those of libraries are folded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, NamedTuple

from django.utils.translation import ngettext

from django_dhara.admin.text import visible_lines

Kind = Literal["own", "foreign", "text"]

_FRAME = re.compile(r'(\s*)File "(.+)", line (\d+)(?:, in (.*))?$')
#: Where code lives that is not the project's, each with the package that it belongs to.
_FOREIGN = (
    re.compile(r"[\\/](?:site|dist)-packages[\\/]([^\\/]+)"),
    re.compile(r"[\\/]lib(?:64)?[\\/]python3[^\\/]*[\\/]([^\\/]+)"),
    re.compile(r"[\\/]Python3[^\\/]*[\\/]Lib[\\/]([^\\/]+)", re.IGNORECASE),
    re.compile(r"(?:^|[\\/])(django_dhara)[\\/]"),
    re.compile(r"^<(?:frozen )?([^>]+)>$"),
)
#: Packages named in the summary of folded frames.
NAMED = 4


class Piece(NamedTuple):
    """One frame of the project's own, some of libraries, or lines between them."""

    kind: Kind
    text: str
    #: Of folded frames: how many, and of which packages.
    summary: str = ""
    #: Folded, but unfolded at first: there is nothing else to see.
    is_open: bool = False


class _Frame(NamedTuple):
    lines: list[str]
    #: Of a library; None: the project's own.
    package: str | None


def pieces(text: str, function: str) -> list[Piece]:
    """A traceback or a stack, in the order of its lines.

    Args:
        function: the dotted path of the task's function; its top package is the project's, wherever it is installed.
    """
    top = function.partition(".")[0]
    parts = [*_joined(_parts(visible_lines(text).splitlines(), top))]
    alone = not any(_is_own(part) for group in parts for part in group)
    return [_piece(group, alone=alone) for group in parts]


def own_frame(text: str, function: str) -> str:
    """Where it happened, in one line: the innermost frame of the project's own, else the innermost of all."""
    top = function.partition(".")[0]
    frames = [part for part in _parts(visible_lines(text).splitlines(), top) if isinstance(part, _Frame)]
    own = [frame for frame in frames if frame.package is None]
    if not frames:
        return ""
    found = _FRAME.match((own or frames)[-1].lines[0])
    assert found is not None
    _, path, line, name = found.groups()
    short = "/".join(re.split(r"[\\/]", path)[-3:])
    return f"{short}:{line}, {name}" if name else f"{short}:{line}"


def has_own_frame(text: str) -> bool:
    """Is any of its frames the project's own?"""
    return any(_is_own(part) for part in _parts(text.splitlines(), ""))


def _parts(lines: list[str], top: str) -> Iterator[_Frame | str]:
    """Each frame with the lines that belong to it, and each other line by itself."""
    frame, indent = None, 0
    for line in lines:
        if found := _FRAME.match(line):
            if frame:
                yield frame
            frame, indent = _Frame([line], _package(found[2], top)), len(found[1])
        elif frame and line.startswith(" " * (indent + 1)):
            frame.lines.append(line)
        else:
            if frame:
                yield frame
            frame = None
            yield line
    if frame:
        yield frame


def _package(path: str, top: str) -> str | None:
    for pattern in _FOREIGN:
        if found := pattern.search(path):
            package = found[1].removesuffix(".py")
            return None if package == top else package
    return None


def _is_own(part: _Frame | str) -> bool:
    return isinstance(part, _Frame) and part.package is None


def _kind(part: _Frame | str) -> Kind:
    if isinstance(part, str):
        return "text"
    return "own" if part.package is None else "foreign"


def _joined(parts: Iterator[_Frame | str]) -> Iterator[list[_Frame | str]]:
    """Neighbours of one kind together; own frames stand alone."""
    group: list[_Frame | str] = []
    for part in parts:
        if group and (_kind(part) != _kind(group[0]) or _is_own(part)):
            yield group
            group = []
        group.append(part)
    if group:
        yield group


def _piece(group: list[_Frame | str], *, alone: bool) -> Piece:
    kind = _kind(group[0])
    text = "\n".join("\n".join(part.lines) if isinstance(part, _Frame) else part for part in group)
    if kind != "foreign":
        return Piece(kind, text)
    packages = list(dict.fromkeys(part.package for part in group if isinstance(part, _Frame) and part.package))
    named = ", ".join(packages[:NAMED]) + (" …" if len(packages) > NAMED else "")
    told = ngettext("%(count)s frame of %(packages)s", "%(count)s frames of %(packages)s", len(group))
    return Piece(kind, text, told % {"count": len(group), "packages": named}, is_open=alone)
