"""What a task carries: arguments, results and error texts that PostgreSQL can store and Python can read back. Pure.

What is refused and what comes back changed is explained in jsonb.py.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import blake2b
from itertools import islice
from json import JSONDecoder, JSONEncoder
from textwrap import indent
from traceback import extract_tb, walk_tb
from types import TracebackType
from typing import Any, NoReturn
from unicodedata import category

from django_dhara.errors import PayloadError, PayloadTypeError
from django_dhara.jsonb import MAX_DEPTH, UNFIT, Walk, compact, fitting, normalised
from django_dhara.states import Error

__all__ = [
    "MAX_DEPTH",
    "Encoded",
    "canonical_hash",
    "check_text",
    "clean_text",
    "decode",
    "describe_exception",
    "encode",
    "encode_metadata",
    "encode_result",
    "encode_value",
    "plain",
    "storable_result",
]

#: What `describe_exception` shows at most: exceptions (causes, members of groups), and notes and frames of each.
EXCEPTIONS_SHOWN = 20
NOTES_SHOWN = 10
OUTER_FRAMES_SHOWN = 15
INNER_FRAMES_SHOWN = 35
#: What comes before the frames.
TRACEBACK = "Traceback (most recent call last):\n"

#: Characters of a class path; longer ones are made by programs, not by people.
MAX_CLASS_PATH = 255

_canonical = JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), sort_keys=True).encode

#: Where code lives that fails on behalf of the project: Python itself (frozen modules too) and this package.
_LIBRARIES = (os.path.dirname(os.__file__) + os.sep, "<frozen ", os.path.dirname(__file__) + os.sep)

# By the descriptor of type itself: a metaclass may have a `__name__` of its own, and that may raise.
_class_name = type.__dict__["__name__"].__get__


@dataclass(frozen=True, slots=True)
class Encoded:
    """The arguments of a call as the function will receive them, and as the JSON text that is stored."""

    args: list[Any]
    kwargs: dict[str, Any]
    text: str


def encode(args: Sequence[Any], kwargs: Mapping[str, Any], *, max_bytes: int, strict: bool = False) -> Encoded:
    """Check the arguments of a call and bring them into the form in which they come back from PostgreSQL.

    Args:
        args: the positional arguments.
        kwargs: the keyword arguments.
        max_bytes: the largest size of the JSON text, in bytes of UTF-8.
        strict: refuse what does not come back equal and of the same type, instead of converting it.

    Raises:
        PayloadTypeError: for a value of a type that JSON does not have.
        PayloadTooLarge: if the text would be larger than `max_bytes`.
        PayloadError: for a value that cannot be stored or not be read back (see jsonb.py), for two keys with one text,
            and beyond `MAX_DEPTH`. Every message begins with the path of the value, such as `kwargs.order.lines[2]`.
    """
    walk = Walk(max_bytes, strict=strict)
    plain_args = normalised(list(args), "args", walk)
    plain_kwargs = normalised(dict(kwargs), "kwargs", walk)
    text = compact({"args": plain_args, "kwargs": plain_kwargs})
    return Encoded(plain_args, plain_kwargs, fitting(text, "the arguments", max_bytes))


def decode(text: str) -> tuple[list[Any], dict[str, Any]]:
    """Read the arguments of a row that anybody may have written: `{"args": [...], "kwargs": {...}}`.

    Args:
        text: the JSON text, as PostgreSQL prints it.

    Raises:
        PayloadError: with the reason, if it is no JSON, has another shape, an integer above Python's limit of digits,
            or more than `MAX_DEPTH` levels. Nothing else is raised.
    """
    try:
        row = _DECODER.decode(text)
    except RecursionError:
        raise PayloadError(f"the arguments are nested more than {MAX_DEPTH} levels deep") from None
    except (TypeError, ValueError) as problem:
        raise PayloadError(f"the arguments cannot be read: {problem}") from problem
    args, kwargs = _parts(row)
    # Counting brackets is far cheaper than measuring, and nearly every text has fewer.
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth(args, kwargs) > MAX_DEPTH:
        raise PayloadError(f"the arguments are nested more than {MAX_DEPTH} levels deep")
    return args, kwargs


def canonical_hash(encoded: Encoded) -> bytes:
    """Return 16 bytes that are equal for calls with equal arguments, whatever the order of their keys.

    Equal means: what the function receives is equal and of the same type. So 1, 1.0 and True differ, as they do in
    JSON, while (1, 2) and [1, 2], or 1e16 and 10 ** 16, are the same after normalisation. What `decode` reads back from
    the stored row hashes the same.
    """
    text = _canonical({"args": encoded.args, "kwargs": encoded.kwargs})
    return blake2b(text.encode(), digest_size=16).digest()


def encode_value(value: object, name: str, *, max_bytes: int) -> str:
    """Return the JSON text of one value, such as a checkpoint or a progress report, by the rules of `encode`.

    Args:
        value: anything that JSON can hold.
        name: what the caller calls it; the path in a message begins with it.
        max_bytes: the largest size of the JSON text, in bytes of UTF-8.

    Raises:
        PayloadError: and its subclasses, as `encode` does.
    """
    return fitting(compact(normalised(value, name, Walk(max_bytes))), name, max_bytes)


#: What a tracer sends along, in the metadata; no caller may use the name.
TRACE_KEY = "dhara.trace"


def encode_metadata(metadata: Mapping[str, Any], *, max_bytes: int) -> str:
    """Return the JSON text of a task's metadata: `encode_value` for what must be an object.

    Raises:
        PayloadTypeError: also if it is not a mapping.
    """
    if not isinstance(metadata, Mapping):
        raise PayloadTypeError(f"metadata must be a mapping, not {type(metadata).__qualname__}")
    if TRACE_KEY in metadata:
        raise PayloadError(f"metadata has the key {TRACE_KEY!r}, which belongs to tracers")
    return encode_value(metadata, "metadata", max_bytes=max_bytes)


def encode_result(value: object, *, max_bytes: int) -> str:
    """Return the JSON text of what a function returned: `encode_value` with the name `result`."""
    return encode_value(value, "result", max_bytes=max_bytes)


def storable_result(value: object, *, max_bytes: int) -> tuple[str, str | None]:
    """Return a JSON text for whatever a function returned, and a warning of one line if it is not quite that.

    Finished work never runs again because its answer was awkward, so nothing is ever raised here, whatever
    the value does when it is looked at: KeyboardInterrupt and SystemExit are caught too (a worker stops by its signal
    handlers, which set a flag). NUL characters, lone surrogates and undecodable bytes become U+FFFD, NaN and infinities
    null; what JSON cannot hold, or not within `max_bytes`, becomes null as a whole.

    Args:
        value: the return value.
        max_bytes: the largest size of the JSON text, in bytes of UTF-8.
    """
    if value is None:
        return "null", None
    try:
        return encode_result(value, max_bytes=max_bytes), None
    except BaseException as problem:  # noqa: BLE001 - user code may run here; see the docstring
        first = _message(problem)
    try:
        plain = normalised(value, "result", Walk(max_bytes, mend=True))
        return fitting(compact(plain), "result", max_bytes), _one_line(f"changed to be storable: {first}")
    except BaseException as problem:  # noqa: BLE001 - see above
        return "null", _one_line(f"stored as null: {_message(problem)}")


def clean_text(text: str, *, max_bytes: int) -> str:
    """Return the text as a PostgreSQL text column can hold it, cut in the middle if it is too long.

    NUL characters and lone surrogates become U+FFFD. Of a longer text both ends are kept, and a line between them
    tells how many bytes were left out.

    Args:
        text: any text.
        max_bytes: the largest size of the answer, in bytes of UTF-8.
    """
    text = str.__str__(text)
    if not text.isascii() or "\0" in text:
        text = UNFIT.sub("\ufffd", text)
    if len(text) * 4 <= max_bytes:
        return text
    data = text.encode()
    return text if len(data) <= max_bytes else _both_ends(data, max_bytes)


def describe_exception(exc: BaseException, *, max_bytes: int) -> Error:
    """Describe an exception for the history of its task, whatever its class does.

    Nothing is ever raised here: where `str()` or an attribute of the exception raises (anything, KeyboardInterrupt
    too), a placeholder says so. Of a long chain, a big group or a deep stack only a part is formatted, so the cost is
    bounded.

    The fingerprint, 16 hexadecimal digits, is equal for failures that are the same to a person: class path, and module
    and function of the innermost frame that is not in a library. Neither the message, nor a line number, nor a path
    counts, so that the next release and another host give the same.

    Args:
        exc: the exception.
        max_bytes: the largest size of the traceback, in bytes of UTF-8; the message has at most a quarter of it.
    """
    class_path = _class_path(exc)
    report = _attempt(lambda: _report(exc, _Budget(EXCEPTIONS_SHOWN, max_bytes // 4)), "the traceback")
    return Error(
        class_path=class_path,
        message=clean_text(_message(exc), max_bytes=max_bytes // 4),
        traceback=clean_text(report, max_bytes=max_bytes),
        fingerprint=_fingerprint(exc, class_path),
    )


def plain(text: object) -> str:
    """One line without control characters: a name from outside must not forge lines of a log."""
    line = str(text)
    if line.isprintable():  # nearly all of them
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def check_text(value: object, name: str, *, max_length: int) -> str:
    """Return a queue name, an idempotency key or the like as a plain str, or say what is wrong with it.

    Args:
        value: what the caller passed.
        name: the name of the argument, for the message.
        max_length: in characters.

    Raises:
        PayloadTypeError: if it is not a str.
        PayloadError: if it is empty or too long, or has a control character (NUL too) or a lone surrogate in it.
    """
    if not issubclass(type(value), str):
        raise PayloadTypeError(f"{name} must be a str, not {type(value).__qualname__}")
    text = str.__str__(value)
    if not 0 < len(text) <= max_length:
        raise PayloadError(f"{name} must have 1 to {max_length} characters, not {len(text):,}")
    if not text.isprintable():
        _check_characters(text, name)
    return text


def _check_characters(text: str, name: str) -> None:
    for index, character in enumerate(text):
        if category(character) in ("Cc", "Cs"):
            what = "a control character" if category(character) == "Cc" else "a lone surrogate"
            raise PayloadError(f"{name} has {what} ({character!a}) at index {index}")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = JSONDecoder(parse_constant=_refuse_constant)


def _parts(row: Any) -> tuple[list[Any], dict[str, Any]]:
    if type(row) is not dict:
        raise PayloadError(f"the arguments are not an object but {_json_name(row)}")
    args, kwargs = row.get("args"), row.get("kwargs")
    if type(args) is not list:
        raise PayloadError(f"args is not a list but {_json_name(args)}")
    if type(kwargs) is not dict:
        raise PayloadError(f"kwargs is not an object but {_json_name(kwargs)}")
    return args, kwargs


def _json_name(value: object) -> str:
    names = {list: "a list", dict: "an object", str: "a string", bool: "a boolean", type(None): "null or missing"}
    return names.get(type(value), "a number")


def _depth(*level: Any) -> int:
    containers = list(level)
    depth = 0
    while containers:
        depth += 1
        inside = (item for each in containers for item in (each.values() if type(each) is dict else each))
        containers = [item for item in inside if type(item) in (list, dict)]
    return depth


def _one_line(text: str) -> str:
    return plain(" ".join(clean_text(text, max_bytes=1000).split()))


def _both_ends(data: bytes, max_bytes: int) -> str:
    room = max_bytes - len(_left_out(len(data)))
    if room <= 0:
        return data[:max_bytes].decode("utf-8", "ignore")
    head = data[: room // 2].decode("utf-8", "ignore")
    tail = data[len(data) - (room - room // 2) :].decode("utf-8", "ignore")
    return head + _left_out(len(data) - len(head.encode()) - len(tail.encode())) + tail


def _left_out(size: int) -> str:
    return f"\n[... {size} bytes left out ...]\n"


def _attempt(call: Callable[[], str], what: str) -> str:
    try:
        return str.__str__(call())
    except BaseException as problem:  # noqa: BLE001 - whatever a class of the user does, its failure is recorded
        return f"<{what} could not be read: {_class_name(type(problem))}>"


def _class_path(exc: BaseException) -> str:
    kind = type(exc)
    path = _attempt(lambda: f"{kind.__module__}.{kind.__qualname__}", "the class name")
    return clean_text(path[:MAX_CLASS_PATH], max_bytes=4 * MAX_CLASS_PATH)


def _message(exc: BaseException) -> str:
    return _attempt(lambda: str(exc), "the message")


class _Budget:
    """How many more exceptions a report may show, none twice, and the bytes of each message."""

    def __init__(self, exceptions: int, message_bytes: int) -> None:
        self.left = exceptions
        self.message_bytes = message_bytes
        self.seen: set[int] = set()

    def spend(self, exc: BaseException) -> bool:
        if self.left <= 0 or id(exc) in self.seen:
            return False
        self.left -= 1
        self.seen.add(id(exc))
        return True


def _report(exc: BaseException, budget: _Budget) -> str:
    # Not traceback.format_exception(): it formats whole messages, whole chains and up to 15 ** 10 members of groups.
    if not budget.spend(exc):
        return "[an exception that is shown elsewhere, or one too many]\n"
    parts = (_before, _stack, _last_lines, _members)
    return "".join(_attempt(partial(part, exc, budget), "this part of the traceback") for part in parts)


def _before(exc: BaseException, budget: _Budget) -> str:
    if exc.__cause__ is not None:
        return _report(exc.__cause__, budget) + "\nThe exception above is the direct cause of the one below:\n\n"
    if exc.__context__ is not None and not exc.__suppress_context__:
        return (
            _report(exc.__context__, budget)
            + "\nThe exception above was being handled when the one below was raised:\n\n"
        )
    return ""


def _stack(exc: BaseException, budget: _Budget) -> str:
    if exc.__traceback__ is None:
        return ""
    return TRACEBACK + "".join(_frames(exc.__traceback__))


def _frames(stack: TracebackType) -> list[str]:
    count = sum(1 for _ in walk_tb(stack))
    left_out = count - OUTER_FRAMES_SHOWN - INNER_FRAMES_SHOWN
    if left_out <= 0:
        return extract_tb(stack).format()
    inner: TracebackType | None = stack
    for _ in range(count - INNER_FRAMES_SHOWN):
        inner = inner and inner.tb_next
    outer = extract_tb(stack, limit=OUTER_FRAMES_SHOWN)
    return [*outer.format(), f"  [... {left_out} frames left out ...]\n", *extract_tb(inner).format()]


def _last_lines(exc: BaseException, budget: _Budget) -> str:
    message = clean_text(_message(exc), max_bytes=budget.message_bytes)
    lines = [f"{_class_path(exc).removeprefix('builtins.')}: {message}".removesuffix(": ")]
    for note in islice(getattr(exc, "__notes__", ()), NOTES_SHOWN):
        lines.append(clean_text(str(note), max_bytes=budget.message_bytes))
    return "\n".join(lines) + "\n"


def _members(exc: BaseException, budget: _Budget) -> str:
    if not isinstance(exc, BaseExceptionGroup):
        return ""
    members = list(exc.exceptions)
    shown = [
        f"--- {number} of {len(members)}:\n{_report(member, budget)}"
        for number, member in enumerate(members[: budget.left], 1)
    ]
    return indent("".join(shown), "  ") + ("" if len(shown) == len(members) else "  [more members left out]\n")


def _fingerprint(exc: BaseException, class_path: str) -> str:
    place = _attempt(lambda: _place(exc.__traceback__), "the place")  # the placeholder stands for "no traceback", too
    return blake2b(f"{class_path}|{place}".encode("utf-8", "replace"), digest_size=8).hexdigest()


def _place(stack: TracebackType | None) -> str:
    frames = [frame for frame, _ in walk_tb(stack)]
    ours = [frame for frame in frames if not _is_library(frame.f_code.co_filename)]
    innermost = (ours or frames)[-1]
    return f"{innermost.f_globals.get('__name__')}:{innermost.f_code.co_qualname}"


@lru_cache(maxsize=1024)
def _is_library(filename: str) -> bool:
    return filename.startswith(_LIBRARIES) or "site-packages" in filename or "dist-packages" in filename
