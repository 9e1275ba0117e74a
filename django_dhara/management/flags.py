"""Flags of the commands: what a deploy sets has an environment variable, too; a bad value is one line, exit code 2.

What a command says of a value quotes it, and a value may be anything: it forges no further line, and fills no screen.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NoReturn

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser, SystemCheckError

from django_dhara import conf
from django_dhara.backend import DharaBackend
from django_dhara.compat import task_backends
from django_dhara.management import outage
from django_dhara.payload import check_text, plain

#: The exit code where nobody reads the output to its end: what a shell says of a program that SIGPIPE has ended.
UNREAD = 128 + signal.SIGPIPE if hasattr(signal, "SIGPIPE") else 1
#: What is wrong is said in so many characters.
MOST_CHARACTERS = 800


class Command(BaseCommand):
    """Of ours: what is wrong is one line, and so is what the database refuses."""

    #: False where code of the project runs, whose own statements are at fault.
    tells_outages = True

    def execute(self, *args: Any, **given: Any) -> str | None:
        try:
            with _maybe_unread(), outage.in_one_line() if self.tells_outages else nullcontext():
                return super().execute(*args, **given)
        except SystemCheckError:
            raise
        except CommandError as error:
            raise CommandError(one_line(str(error)), returncode=error.returncode) from error


@contextmanager
def _maybe_unread() -> Iterator[None]:
    """Whoever reads what is printed may leave early, as `head` does; there is nobody to tell that."""
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end
        sys.exit(UNREAD)


def one_line_errors(parser: CommandParser) -> None:
    """Say what is wrong in one line, without the usage of all flags in front; `--help` has them."""
    parser.print_usage = lambda file=None: None  # type: ignore[method-assign]
    say: Callable[[str], NoReturn] = parser.error
    parser.error = lambda message: say(one_line(message))  # type: ignore[method-assign]


def one_line(message: str) -> str:
    """The beginning and the end of a message, without control characters."""
    text = plain(message)
    half = MOST_CHARACTERS // 2
    return text if len(text) <= MOST_CHARACTERS else f"{text[:half]} ... {text[-half:]}"


def add(
    parser: CommandParser,
    flag: str,
    variable: str,
    help: str,
    *,
    read: Callable[[str], Any] = str,
    **options: Any,
) -> None:
    """A flag whose default is the environment variable `variable`; `read` makes the value of either."""
    if variable in os.environ:
        try:
            options["default"] = read(os.environ[variable])
        except argparse.ArgumentTypeError as error:
            parser.error(f"environment variable {variable}: {error}")
    if "action" not in options:
        options["type"] = read
    parser.add_argument(flag, help=f"{help} Environment: {variable}.", **options)


def add_switch(parser: CommandParser, flag: str, variable: str, help: str, default: bool | None = False) -> None:
    """`--flag` and `--no-flag`."""
    add(parser, flag, variable, help, read=boolean, action=argparse.BooleanOptionalAction, default=default)


def add_option(parser: CommandParser, flag: str, option: str, help: str) -> None:
    """A flag for one of the backend's options."""
    default = conf.OPTIONS[option].default
    add(
        parser,
        flag,
        f"DHARA_{option.upper()}",
        f"{help} Default: {option.upper()} of the backend's OPTIONS, or {default:g}.",
        read=number(option),
        dest=option,
        metavar="SECONDS" if option.endswith("seconds") else "N",
    )


def add_backend(parser: CommandParser) -> None:
    add(parser, "--backend", "DHARA_BACKEND", "Alias in TASKS.", default="default", metavar="ALIAS")


def number(option: str) -> Callable[[str], Any]:
    def parse(raw: str) -> Any:
        try:
            return conf.parse(option, raw)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{error}, not {raw!r}") from None

    return parse


def count(raw: str) -> int:
    if not _is_whole(raw) or not 1 <= int(raw) <= 10**9:
        raise argparse.ArgumentTypeError(f"must be a whole number of 1 or more, not {raw!r}")
    return int(raw)


def port(raw: str) -> int:
    if not _is_whole(raw) or not 0 <= int(raw) <= 65_535:
        raise argparse.ArgumentTypeError(f"must be a port from 0 to 65535, not {raw!r}")
    return int(raw)


def _is_whole(raw: str) -> bool:
    """Digits, and no more of them than Python reads."""
    return raw.isdecimal() and len(raw) <= 20


def span(unit: str, most: int) -> Callable[[str], float]:
    """A number of `unit`, from 0 to `most`."""

    def parse(raw: str) -> float:
        try:
            value = float(raw)
        except ValueError:
            value = math.nan
        if not 0 <= value <= most:
            raise argparse.ArgumentTypeError(f"must be a number of {unit} between 0 and {most}, not {raw!r}")
        return value

    return parse


def one_of(*words: str) -> Callable[[str], str]:
    """One of these words."""

    def parse(raw: str) -> str:
        if raw not in words:
            raise argparse.ArgumentTypeError(f"must be {' or '.join(words)}, not {raw!r}")
        return raw

    return parse


def boolean(raw: str) -> bool:
    if raw.lower() not in ("1", "true", "yes", "on", "0", "false", "no", "off"):
        raise argparse.ArgumentTypeError(f"must be true or false, not {raw!r}")
    return raw.lower() in ("1", "true", "yes", "on")


def choice(*words: str) -> Callable[[str], str]:
    """One of these."""

    def parse(raw: str) -> str:
        if raw not in words:
            raise argparse.ArgumentTypeError(f"must be {' or '.join(words)}, not {raw!r}")
        return raw

    return parse


def name(raw: str) -> str:
    """For people, or of a queue: what PostgreSQL can hold, which is less than a command line can."""
    try:
        return check_text(raw, "the name", max_length=255) if raw else ""
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def names(raw: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(name(part.strip()) for part in raw.split(",")))
    if not all(found):
        raise argparse.ArgumentTypeError(f"must be names with commas between them, not {raw!r}")
    return found


def backend(alias: str) -> DharaBackend:
    """The backend of an alias.

    Raises:
        CommandError: there is none, it is not ours, or its options are wrong.
    """
    if alias not in task_backends.settings:
        known = ", ".join(map(repr, task_backends.settings))
        raise CommandError(f"--backend {alias}: TASKS has no such alias; it has {known}.")
    try:
        found = task_backends[alias]
    except ImproperlyConfigured as error:
        raise CommandError(f"--backend {alias}: {error}") from None
    if not isinstance(found, DharaBackend):
        kind = type(found)
        raise CommandError(
            f"--backend {alias}: TASKS[{alias!r}] is {kind.__module__}.{kind.__name__}, not DharaBackend."
        )
    try:
        _ = found.settings
    except ImproperlyConfigured as error:
        raise CommandError(str(error)) from None
    return found
