"""What a worker says in a terminal, where the project has not said where its log goes, and in which format."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator

from django_dhara.formatters import FORMATTERS, LineFormatter

#: The environment variable of `--log-format`, by which child processes know it, too.
VARIABLE = "DHARA_LOG_FORMAT"


class _Here(logging.StreamHandler):  # type: ignore[type-arg]
    """The handler that is made here."""


def log_here(format_: str | None = None) -> None:
    """Print what `django_dhara` logs at INFO and above to stderr, unless somebody handles it already.

    Without that, Python shows warnings only: no word of a drain, of a failed attempt or of a retry.

    Args:
        format_: "text" or "json", for every handler that prints to the terminal, the project's own too; None: what
            the environment says, or text, and the project's handlers stay as they are.
    """
    format_ = format_ or os.environ.get(VARIABLE)
    logger = logging.getLogger("django_dhara")
    if not logger.hasHandlers():
        handler = _Here()
        handler.setFormatter(LineFormatter("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(handler)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
    if format_ in FORMATTERS:
        os.environ[VARIABLE] = format_
        for printing in _printing():
            printing.setFormatter(FORMATTERS[format_]())


def is_json() -> bool:
    """Is the terminal's log JSON, so that nothing else may be printed?"""
    return os.environ.get(VARIABLE) == "json"


def is_here() -> bool:
    """Is the log printed by a handler of ours?"""
    return any(isinstance(handler, _Here) for handler in logging.getLogger("django_dhara").handlers)


def _printing() -> Iterator[logging.Handler]:
    """The handlers of all loggers that print to the terminal, and Python's last resort."""
    names = list(logging.root.manager.loggerDict)
    loggers = [logging.root, *(logging.getLogger(name) for name in names)]
    for handler in {id(handler): handler for logger in loggers for handler in logger.handlers}.values():
        if getattr(handler, "stream", None) in (sys.stdout, sys.stderr):
            yield handler
    if logging.lastResort is not None:
        yield logging.lastResort
