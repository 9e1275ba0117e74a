"""Formatters of the log: text in lines that nobody can forge, and JSON, one object a line.

For `LOGGING`, and for `dhara_worker --log-format`. They format any record, not only ours. Nothing here needs Django to
be set up, since logging is configured before.
"""

from __future__ import annotations

import json
import logging
import math
from datetime import UTC, datetime
from typing import Any

from django_dhara.payload import plain

#: What a record of Python's has of its own; the rest is somebody's `extra`.
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class LineFormatter(logging.Formatter):
    """Text. A record begins a line, and only a record does: what follows, such as a traceback, is indented, and control
    characters are written as escapes, wherever they came from."""

    def __init__(self, fmt: str = "%(asctime)s %(levelname)s %(name)s: %(message)s", **options: Any) -> None:
        super().__init__(fmt, **options)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        return plain(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802
        return _indented(super().formatStack(stack_info))

    def format(self, record: logging.LogRecord) -> str:
        known, record.exc_text = record.exc_text, None  # another handler's formatter leaves its own text there
        try:
            return super().format(record)
        finally:
            record.exc_text = known


def _indented(text: str) -> str:
    return "\n".join(f"    {plain(line)}" for line in text.splitlines())


class JSONFormatter(logging.Formatter):
    """One JSON object a line: `time`, `level`, `logger`, `message`; `event` and its fields where the record is one of
    ours; `task_id` of the task whose function logs; `exception`, the traceback; and what others gave as `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": _message(record),
        }
        for name, value in vars(record).items():
            if name not in _OWN:
                told.setdefault(name.removeprefix("dhara_"), _value(value))
        if "task_id" not in told and (task := _current_task()):
            told["task_id"] = task
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            told["stack"] = self.formatStack(record.stack_info)
        return json.dumps(told)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # noqa: BLE001  # arguments that do not fit are told, as the logging module does, not lost
        return f"{record.msg} ({type(error).__name__} in its arguments)"


def _value(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, (bool, str)):
        return value
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except Exception:  # noqa: BLE001  # anybody's object, whose text is better than no line
        return _text(value)


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001
        return f"<{type(value).__name__}>"


def _current_task() -> str | None:
    from django_dhara.signals import current_task

    task = current_task.get()
    return None if task is None else str(task)


#: By what `--log-format` is called with.
FORMATTERS: dict[str, type[logging.Formatter]] = {"text": LineFormatter, "json": JSONFormatter}
