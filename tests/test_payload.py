"""Payloads: what is refused before any SQL, what comes back, and what is stored of results and exceptions."""

import datetime
import decimal
import enum
import json
import pathlib
import subprocess
import sys
import time
import uuid
from collections import OrderedDict, UserDict, deque, namedtuple
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import pytest
from django.utils.functional import SimpleLazyObject, lazystr
from django.utils.safestring import SafeString
from hypothesis import given
from hypothesis import strategies as st

from django_dhara.errors import DharaError, PayloadError, PayloadTooLarge, PayloadTypeError
from django_dhara.payload import (
    MAX_DEPTH,
    Encoded,
    canonical_hash,
    check_text,
    clean_text,
    decode,
    describe_exception,
    encode,
    encode_metadata,
    encode_result,
    encode_value,
    storable_result,
)

pytestmark = pytest.mark.fast

MB = 1_000_000


def encoded(*args, **kwargs):
    return encode(args, kwargs, max_bytes=MB)


def plain(value, **options):
    return encode((value,), {}, max_bytes=MB, **options).args[0]


def refusal(value, error=PayloadError, **options):
    with pytest.raises(error) as caught:
        encode((value,), {}, max_bytes=options.pop("max_bytes", MB), **options)
    return str(caught.value)


def nested(levels):
    value = []
    for _ in range(levels - 1):
        value = [value]
    return value


def raised(exc, cause=None):
    try:
        raise exc from cause
    except BaseException as caught:  # whatever the test wants raised
        return caught


class Float(float):
    """Looks like numpy.float64."""

    def __repr__(self):
        return f"np.float64({float(self)!r})"


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Label(enum.StrEnum):
    A = "a"


class Count(int):
    def __repr__(self):
        return "many"


class Broken:
    """Raises whatever it is told to, wherever it is looked at."""

    def __init__(self, error):
        self.error = error

    def fail(self, *args):
        raise self.error

    __len__ = __iter__ = __getitem__ = __repr__ = __str__ = __bool__ = items = keys = fail


class BrokenSequence(Broken, Sequence): ...


class BrokenMapping(Broken, Mapping): ...


class BrokenList(Broken, list): ...


class Endless(Sequence):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        return index


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
floats = st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | st.integers() | floats | texts | texts.map(str.encode)
keys = texts | st.integers() | st.booleans() | st.none() | floats
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=15,
)
anything = st.text() | st.text(st.characters(categories=["Cs", "Cc", "Lo"]))


# --- What comes back


@pytest.mark.parametrize(
    ("given_value", "returned"),
    [
        pytest.param((1, (2,)), [1, [2]], id="tuples are lists"),
        pytest.param(namedtuple("Point", "x y")(1, 2), [1, 2], id="named tuples are lists"),
        pytest.param(deque([1]), [1], id="other sequences are lists"),
        pytest.param(range(3), [0, 1, 2], id="ranges are lists"),
        pytest.param(OrderedDict(a=1), {"a": 1}, id="dict subclasses are dicts"),
        pytest.param(UserDict(a=(1,)), {"a": [1]}, id="mappings are dicts"),
        pytest.param(MappingProxyType({"a": 1}), {"a": 1}, id="mapping proxies are dicts"),
        pytest.param("é".encode(), "é", id="UTF-8 bytes are str"),
        pytest.param(SafeString("<b>"), "<b>", id="safe strings are str"),
        pytest.param({SafeString("k"): 1}, {"k": 1}, id="safe strings as keys are str"),
        pytest.param({b"k": 1}, {"k": 1}, id="bytes as keys are str"),
        pytest.param(Float(1.5), 1.5, id="float subclasses are floats"),
        pytest.param(Count(3), 3, id="int subclasses are ints"),
        pytest.param({1: 0, 2.5: 0, None: 0}, {"1": 0, "2.5": 0, "null": 0}, id="keys are JSON text"),
        pytest.param({False: 0, 1e16: 0}, {"false": 0, "1e+16": 0}, id="keys are JSON text, not Python's"),
        pytest.param(1e16, 10**16, id="a float without a point is an int"),
        pytest.param(1e23, 10**23, id="exactly the digits of its repr"),
        pytest.param(-1.5e300, -15 * 10**299, id="a float of 301 digits is an int"),
        pytest.param(9999999999999998.0, 9999999999999998.0, id="the last float with a point stays"),
        pytest.param(5e-324, 5e-324, id="the smallest float stays"),
        pytest.param(10**4299, 10**4299, id="an int of 4,300 digits stays"),
    ],
)
def test_a_value_is_normalised_to_what_jsonb_gives_back(given_value, returned):
    result = plain(given_value)
    assert result == returned
    assert repr(result) == repr(returned)


def test_minus_zero_loses_its_sign():
    assert repr(plain({"y": -0.0})) == "{'y': 0.0}"


@pytest.mark.parametrize("value", [True, None, 1, 1.0, "é\u2028😀", [], {}, {"a": [1.5, {"b": None}]}])
def test_a_json_value_stays_as_it_is(value):
    for strict in (False, True):
        result = plain(value, strict=strict)
        assert repr(result) == repr(value)
        assert type(result) is type(value)


def test_the_callers_own_containers_are_not_handed_on():
    rows = [[1]]
    result = encoded(rows).args
    rows[0].append(2)
    assert result == [[[1]]]


@given(st.lists(values), st.dictionaries(texts, values, max_size=3))
def test_the_text_reads_back_as_the_normalised_value(args, kwargs):
    try:
        result = encode(args, kwargs, max_bytes=MB)
    except PayloadError as problem:
        assert "both become" in str(problem)
        return
    assert repr(json.loads(result.text)) == repr({"args": result.args, "kwargs": result.kwargs})
    assert decode(result.text) == (result.args, result.kwargs)
    again = encode(result.args, result.kwargs, max_bytes=MB, strict=True)
    assert again == result


@given(st.lists(values), st.dictionaries(texts, values, max_size=3))
def test_the_size_limit_is_exact(args, kwargs):
    try:
        size = len(encode(args, kwargs, max_bytes=MB).text.encode())
    except PayloadError:
        return
    encode(args, kwargs, max_bytes=size)
    with pytest.raises(PayloadTooLarge):
        encode(args, kwargs, max_bytes=size - 1)


def test_the_text_is_compact_and_not_escaped():
    assert encoded("é", a=(1, 2)).text == '{"args":["é"],"kwargs":{"a":[1,2]}}'


# --- What is refused


@pytest.mark.parametrize(
    ("value", "says"),
    [
        pytest.param("x\0y", "NUL character at index 1", id="NUL"),
        pytest.param({"a\0": 1}, "NUL character", id="NUL in a key"),
        pytest.param(b"a\0", "NUL character", id="NUL in bytes"),
        pytest.param(SafeString("\0"), "NUL character", id="NUL in a str subclass"),
        pytest.param("é\ud800", "lone surrogate ('\\ud800') at index 1", id="lone surrogate"),
        pytest.param("\ud83d\ude00", "lone surrogate", id="two surrogates are no character"),
        pytest.param({"\udfff": 1}, "lone surrogate", id="lone surrogate in a key"),
        pytest.param(float("nan"), "nan (float), which JSON does not have", id="NaN"),
        pytest.param(float("inf"), "inf (float)", id="infinity"),
        pytest.param(Float("-inf"), "-inf (float)", id="infinity of a subclass"),
        pytest.param({float("nan"): 1}, "nan (float)", id="NaN as a key"),
        pytest.param(b"\xff", "not UTF-8", id="bytes"),
        pytest.param(10**4300, "more than 4,300 digits", id="4,301 digits"),
        pytest.param(-(10**100_000), "more than 4,300 digits", id="100,000 digits"),
        pytest.param({10**4300: 1}, "more than 4,300 digits", id="4,301 digits as a key"),
        pytest.param({1: "a", "1": "b"}, "the keys 1 and '1' both become '1'", id="int and str key"),
        pytest.param({None: "a", "null": "b"}, "the keys None and 'null' both become 'null'", id="None and str key"),
    ],
)
def test_what_postgresql_or_python_cannot_take_is_refused_with_its_path(value, says):
    for wrapped, path in (
        (value, "args[0]"),
        ([value], "args[0][0]"),
        ({"order": {"lines": [0, value]}}, "args[0].order.lines[1]"),
        ({"a b": (value,)}, "args[0]['a b'][0]"),
    ):
        message = refusal(wrapped)
        assert message.startswith(path)
        assert says in message


@pytest.mark.parametrize(
    ("value", "name", "remedy"),
    [
        (datetime.datetime(2026, 1, 1), "datetime.datetime", "value.isoformat()"),
        (datetime.date(2026, 1, 1), "datetime.date", "value.isoformat()"),
        (datetime.timedelta(1), "datetime.timedelta", "total_seconds"),
        (decimal.Decimal(1), "decimal.Decimal", "str(value)"),
        (uuid.UUID(int=1), "uuid.UUID", "str(value)"),
        (pathlib.Path("a"), "Path", "str(value)"),
        ({1}, "set", "list(value)"),
        (Color.RED, "Color", "value.value"),
        (Level.LOW, "Level", "value.value"),
        (Label.A, "Label", "value.value"),
        ({Label.A: 1}, "Label", "value.value"),
        (lazystr("text"), "__proxy__", "str(value)"),
        (SimpleLazyObject(lambda: "text"), "SimpleLazyObject", "primary key"),
        (SimpleLazyObject(lambda: [1]), "SimpleLazyObject", "primary key"),
        ((n for n in "ab"), "generator", "list(value)"),
        (object(), "object", "lists and dicts"),
        ({(1, 2): 3}, "tuple", "list of pairs"),
        ({frozenset(): 3}, "frozenset", "list(value)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_type_that_json_lacks_is_refused_with_its_name_and_a_remedy(value, name, remedy):
    message = refusal([value], PayloadTypeError)
    assert message.startswith("args[0][0]")
    assert name in message
    assert remedy in message


def test_payload_errors_are_also_what_python_programmers_catch():
    with pytest.raises(ValueError):
        encoded("\0")
    with pytest.raises(TypeError):
        encoded(object())
    with pytest.raises(DharaError):
        encoded("x" * MB)


def test_keyword_arguments_are_named():
    with pytest.raises(PayloadError, match=r"^kwargs\.order\.lines\[2\]: "):
        encoded(order={"lines": ["a", "b", "\0"]})
    with pytest.raises(PayloadError, match=r"^args\[1\]\.a: "):
        encoded(1, {"a": "\0"})


def test_depth_is_limited_at_the_documented_level():
    plain(nested(MAX_DEPTH - 1))
    assert f"more than {MAX_DEPTH} levels" in refusal(nested(MAX_DEPTH))


@pytest.mark.parametrize("levels", [900, 3_000, 20_000])
def test_deep_nesting_is_refused_and_its_path_stays_short(levels):
    message = refusal(nested(levels))
    assert "levels deep" in message
    assert len(message) < 300


def test_a_value_that_contains_itself_is_refused():
    own_list, own_dict = [], {}
    own_list.append(own_list)
    own_dict["me"] = own_dict
    for value in (own_list, own_dict, [own_list, own_list]):
        assert "contains itself" in refusal(value)


def test_a_small_object_with_a_gigantic_text_is_refused_at_once():
    value = "x"
    for _ in range(100):
        value = [value, value]
    started = time.perf_counter()
    refusal(value, PayloadTooLarge)
    refusal([["x" * 10_000] * 1_000] * 1_000, PayloadTooLarge)
    refusal([10**4000] * MB, PayloadTooLarge)
    refusal([1e300] * MB, PayloadTooLarge)
    refusal(range(10**15), PayloadTooLarge)
    refusal(Endless(), PayloadTooLarge)
    assert time.perf_counter() - started < 10


def test_the_size_and_the_limit_are_in_the_message():
    message = refusal({"doc": "é" * 1_000}, PayloadTooLarge, max_bytes=1_500)
    assert "2,0" in message
    assert "1,500" in message
    message = refusal({"doc": "x" * 20_000_000}, PayloadTooLarge)
    assert message.startswith("args[0].doc: at least 20,000,0")
    assert "1,000,000" in message


def test_a_lower_limit_of_digits_in_this_process_counts():
    value = 10**1000
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        assert "digits" in refusal(value)
    finally:
        sys.set_int_max_str_digits(limit)
    assert plain(value) == value


def test_without_a_limit_of_digits_the_default_one_counts():
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        assert "digits" in refusal(10**4300)
        assert plain(10**4299) == 10**4299
    finally:
        sys.set_int_max_str_digits(limit)


@pytest.mark.parametrize("kind", [BrokenSequence, BrokenMapping, BrokenList])
def test_a_container_that_cannot_be_read_is_a_payload_error_with_its_path(kind):
    message = refusal({"a": [kind(LookupError("secret"))]})
    assert message.startswith("args[0].a[0]: ")
    assert "LookupError" in message
    assert "secret" not in message


def test_a_dict_that_changes_while_it_is_read_is_a_payload_error():
    class Spoiler(dict):
        def items(self) -> Iterator:
            target["more"] = 1
            return iter(())

    target = {"a": Spoiler()}
    assert "could not be read" in refusal(target)


def test_a_call_from_a_deep_stack_fails_cleanly():
    def deep(levels):
        return deep(levels - 1) if levels else plain(nested(150))

    with pytest.raises(PayloadError, match="RecursionError"):
        for levels in range(0, 100_000, 50):
            try:
                deep(levels)
            except RecursionError:
                raise AssertionError("escaped") from None


@pytest.mark.parametrize(
    "value",
    [
        (1,),
        {1: 1},
        {None: 1},
        1e16,
        -0.0,
        b"a",
        SafeString("a"),
        {SafeString("a"): 1},
        Float(1.5),
        Count(1),
        OrderedDict(a=1),
        deque(),
        UserDict(),
    ],
    ids=repr,
)
def test_strict_refuses_what_does_not_come_back_unchanged(value):
    plain(value)
    message = refusal({"a": [value]}, strict=True)
    assert message.startswith("args[0].a[0]")
    assert "strict" in message


def test_strict_takes_the_arguments_as_python_collects_them():
    assert encode((1, "a"), MappingProxyType({"k": [2]}), max_bytes=MB, strict=True).kwargs == {"k": [2]}


# --- Hashes


def test_equal_calls_hash_equal_whatever_their_order_and_spelling():
    first = encoded((1, 2), a=1e16, b={"x": -0.0, "y": SafeString("é")})
    second = encoded([1, 2], b={"y": "é", "x": 0.0}, a=10**16)
    assert canonical_hash(first) == canonical_hash(second)
    assert len(canonical_hash(first)) == 16


@pytest.mark.parametrize("other", [1.0, True, "1", [1], None])
def test_what_the_function_could_tell_apart_hashes_differently(other):
    assert canonical_hash(encoded(1)) != canonical_hash(encoded(other))


def test_positional_and_keyword_arguments_hash_differently():
    assert canonical_hash(encoded(1)) != canonical_hash(encoded(a=1))


def test_a_hash_is_the_same_in_every_process_and_release():
    assert canonical_hash(encoded(1, b="é")).hex() == "9d52494cfb2069b22ef172e1321d9521"


@given(st.dictionaries(texts, values, max_size=3))
def test_a_row_that_was_read_back_hashes_like_the_call(kwargs):
    try:
        result = encode((), kwargs, max_bytes=MB)
    except PayloadError:
        return
    args, kwargs = decode(result.text)
    assert canonical_hash(Encoded(args, kwargs, "")) == canonical_hash(result)


# --- Rows that anybody wrote


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "cannot be read"),
        ("{", "cannot be read"),
        ("null", "not an object but null"),
        ("[]", "not an object but a list"),
        ("3", "not an object but a number"),
        ("{}", "args is not a list but null or missing"),
        ('{"args": "x", "kwargs": {}}', "args is not a list but a string"),
        ('{"args": {}, "kwargs": {}}', "args is not a list but an object"),
        ('{"args": true, "kwargs": {}}', "args is not a list but a boolean"),
        ('{"args": [], "kwargs": null}', "kwargs is not an object but null or missing"),
        ('{"args": [], "kwargs": []}', "kwargs is not an object but a list"),
        ('{"args": [NaN], "kwargs": {}}', "NaN is not JSON"),
        pytest.param(f'{{"args": [1{"0" * 5_000}], "kwargs": {{}}}}', "digits", id="5,001 digits"),
        *(
            pytest.param(f'{{"args": {"[" * n}{"]" * n}, "kwargs": {{}}}}', "levels deep", id=f"{n:,} levels")
            for n in (MAX_DEPTH + 1, 3_000, 20_000, 200_000)
        ),
        pytest.param('{"args": [], "kwargs": ' + '{"a":' * 300 + "1" + "}" * 301, "levels deep", id="300 objects"),
    ],
)
def test_a_row_that_cannot_be_called_has_a_reason(text, says):
    with pytest.raises(PayloadError) as caught:
        decode(text)
    assert says in str(caught.value)


def test_the_deepest_call_that_was_taken_can_be_read():
    text = encoded(nested(MAX_DEPTH - 1)).text
    assert decode(text)[0] == [nested(MAX_DEPTH - 1)]


def test_many_brackets_are_not_depth():
    assert decode(encoded([[]] * 500, ["[" * 500]).text)[0] == [[[]] * 500, ["[" * 500]]


@given(st.text() | st.recursive(scalars.filter(lambda v: type(v) is not bytes), st.lists).map(json.dumps))
def test_reading_a_row_raises_nothing_but_payload_errors(text):
    try:
        args, kwargs = decode(text)
    except PayloadError:
        return
    assert type(args) is list
    assert type(kwargs) is dict


# --- Results


def test_a_result_is_encoded_by_the_rules_of_arguments():
    assert encode_result({"a": (1, 1e16)}, max_bytes=MB) == '{"a":[1,10000000000000000]}'
    assert encode_result(None, max_bytes=MB) == "null"


@pytest.mark.parametrize(
    ("value", "error", "path"),
    [
        ("\0", PayloadError, "result: "),
        ({"k": ["\0"]}, PayloadError, "result.k[0]: "),
        ([float("nan")], PayloadError, "result[0]: "),
        ({"when": uuid.UUID(int=0)}, PayloadTypeError, "result.when: "),
        ("x" * MB, PayloadTooLarge, "result: "),
    ],
)
def test_a_result_that_cannot_be_stored_is_refused_with_its_path(value, error, path):
    with pytest.raises(error) as caught:
        encode_result(value, max_bytes=MB)
    assert str(caught.value).startswith(path)


def test_another_value_is_encoded_under_its_own_name():
    assert encode_value({"done": 4}, "progress", max_bytes=MB) == '{"done":4}'
    with pytest.raises(PayloadTypeError, match=r"^progress\.at: "):
        encode_value({"at": object()}, "progress", max_bytes=MB)


def test_metadata_is_an_object():
    assert encode_metadata({"tenant": 4}, max_bytes=MB) == '{"tenant":4}'
    with pytest.raises(PayloadError, match=r"^metadata\['a\\x00'\]: "):
        encode_metadata({"a\0": 1}, max_bytes=MB)
    with pytest.raises(PayloadTypeError, match="metadata must be a mapping, not list"):
        encode_metadata([], max_bytes=MB)


def test_a_clean_result_is_stored_without_a_warning():
    assert storable_result({"ok": True}, max_bytes=MB) == ('{"ok":true}', None)


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ("a\0b", "a\ufffdb"),
        ({"k": ["\0"]}, {"k": ["\ufffd"]}),
        ({"k\0": 1}, {"k\ufffd": 1}),
        ("\ud800é", "\ufffdé"),
        ({"score": float("nan"), "x": [float("inf"), 1.5]}, {"score": None, "x": [None, 1.5]}),
        (Float("nan"), None),
        (b"a\xff", "a\ufffd"),
    ],
    ids=ascii,
)
def test_an_awkward_result_is_mended_with_a_warning(value, stored):
    text, warning = storable_result(value, max_bytes=MB)
    assert json.loads(text) == stored
    assert "changed" in warning
    assert "result" in warning


class Hostile(type):
    """The metaclass of classes that cannot be looked at either."""

    def __getattribute__(cls, name):
        raise SystemExit

    def __hash__(cls):
        raise SystemExit


@pytest.mark.parametrize(
    "make",
    [
        object,
        lambda: (n for n in "ab"),
        lambda: {1: "a", "1": "b"},
        lambda: {"a\0": 1, "a\ufffd": 2},
        lambda: "x" * MB,
        lambda: ["\0"] * MB,
        lambda: nested(5_000),
        lambda: 10**5_000,
        lambda: [float("nan"), object()],
        lambda: Hostile("Odd", (), {})(),
        *(
            lambda kind=kind, error=error: {"\0": kind(error())}
            for kind in (Broken, BrokenSequence, BrokenMapping, BrokenList)
            for error in (ValueError, RecursionError, SystemExit, KeyboardInterrupt, GeneratorExit)
        ),
        lambda: BrokenSequence(raised(Unprintable())),
    ],
)
def test_a_result_that_cannot_be_mended_is_null_with_a_warning_and_nothing_is_raised(make):
    text, warning = storable_result(make(), max_bytes=MB)
    assert text == "null"
    assert "stored as null" in warning
    assert "\n" not in warning
    assert len(warning.encode()) <= 1_000


@given(values | anything | st.floats() | st.binary() | st.lists(anything | st.floats()))
def test_every_result_can_be_stored(value):
    text, warning = storable_result(value, max_bytes=2_000)
    assert len(text.encode()) <= 2_000
    assert not {"\\u0000", "\0"} & {text[at : at + 6] for at in range(len(text))} or "\\\\u0000" in text
    encode_result(json.loads(text), max_bytes=MB)
    assert (warning is None) or ("\n" not in warning and warning.isprintable())


# --- Texts


def test_a_clean_text_stays_as_it_is():
    assert clean_text("née\n\t😀", max_bytes=100) == "née\n\t😀"


def test_what_a_text_column_cannot_hold_is_replaced():
    assert clean_text("a\0b\ud800c", max_bytes=100) == "a\ufffdb\ufffdc"


def test_of_a_long_text_both_ends_are_kept_and_the_gap_is_counted():
    text = clean_text("A" * 5_000 + "Z" * 5_000, max_bytes=1_000)
    head, marker, tail = text.split("\n")
    assert set(head) == {"A"}
    assert set(tail) == {"Z"}
    assert marker == f"[... {10_000 - len(head) - len(tail)} bytes left out ...]"
    assert 990 <= len(text) <= 1_000


def test_a_character_is_never_cut_in_half():
    text = clean_text("😀" * 1_000, max_bytes=333)
    assert set(text.split("\n")[0] + text.split("\n")[2]) == {"😀"}


@given(anything.map(lambda text: text * 40) | anything, st.integers(0, 300))
def test_a_clean_text_fits_and_is_utf8_without_nul(text, max_bytes):
    result = clean_text(text, max_bytes=max_bytes)
    assert len(result.encode()) <= max_bytes
    assert "\0" not in result


# --- Exceptions


class Unprintable(Exception):
    def __str__(self):
        raise KeyboardInterrupt

    __repr__ = __str__


class NoAttributes(Exception):
    def __getattribute__(self, name):
        raise SystemExit


class NotText(Exception):
    def __str__(self):
        return 3  # noqa: PLE0307 - that is the point


def described(exc, max_bytes=16_384):
    result = describe_exception(exc, max_bytes=max_bytes)
    assert len(result.traceback.encode()) <= max_bytes
    assert len(result.message.encode()) <= max_bytes // 4
    assert len(result.class_path) <= 255
    assert len(result.fingerprint) == 16
    assert int(result.fingerprint, 16) >= 0
    assert "\0" not in result.class_path + result.message + result.traceback
    return result


def test_an_exception_is_described_with_class_message_traceback_and_notes():
    exc = ValueError("wrong\0")
    exc.add_note("see the manual")
    result = described(raised(exc))
    assert result.class_path == "builtins.ValueError"
    assert result.message == "wrong\ufffd"
    assert result.traceback.startswith("Traceback (most recent call last):\n")
    assert "raise exc from cause" in result.traceback
    assert result.traceback.endswith("\nValueError: wrong\ufffd\nsee the manual\n")


def test_an_exception_that_was_never_raised_is_described():
    assert described(KeyError("k")).traceback == "KeyError: 'k'\n"
    assert described(Unprintable()).message == "<the message could not be read: KeyboardInterrupt>"


def test_local_classes_have_a_path():
    class Local(Exception): ...

    assert described(Local()).class_path.endswith("test_local_classes_have_a_path.<locals>.Local")


@pytest.mark.parametrize("kind", [Unprintable, NoAttributes, NotText])
def test_an_exception_that_cannot_be_looked_at_has_placeholders(kind):
    for exc in (kind(), raised(kind()), raised(ValueError("outer"), kind()), ExceptionGroup("g", [kind()])):
        result = described(exc)
        assert "could not be read" in result.traceback
    assert described(kind()).class_path.endswith(kind.__qualname__)


def test_a_metaclass_that_raises_does_no_harm():
    exc = Hostile("Odd", (Exception,), {})("text")
    assert described(exc).message == "text"
    assert "could not be read" in described(exc).class_path


def test_causes_and_contexts_are_told_oldest_first():
    try:
        try:
            raise KeyError("first")
        except KeyError as first:
            raise LookupError("second") from first
    except LookupError:
        outer = raised_in_context()
    report = described(outer).traceback
    assert report.index("KeyError: 'first'") < report.index("direct cause") < report.index("LookupError: second")
    assert report.index("LookupError: second") < report.index("being handled") < report.index("OSError: third")


def raised_in_context():
    try:
        raise OSError("third")
    except OSError as caught:
        return caught


def test_a_suppressed_context_is_not_told():
    try:
        raise KeyError("hidden")
    except KeyError:
        exc = raised(ValueError("shown"))
    assert "hidden" not in described(exc).traceback


def test_a_cause_that_is_its_own_cause_ends():
    exc = ValueError("me")
    exc.__cause__ = exc
    assert described(exc).traceback.count("ValueError: me") == 1


def test_groups_are_told_with_their_members():
    group = ExceptionGroup("many", [raised(ValueError("one")), ExceptionGroup("in", [raised(KeyError("two"))])])
    report = described(raised(group)).traceback
    assert "ExceptionGroup: many (2 sub-exceptions)" in report
    assert "  ValueError: one" in report
    assert "    KeyError: 'two'" in report


def bomb_of_groups():
    group = ValueError("leaf")
    for _ in range(30):
        group = ExceptionGroup("level", [group, group, *map(ValueError, range(100))])
    return group


def chain_of(length):
    exc = ValueError(0)
    for number in range(1, length):
        newer = ValueError(number)
        newer.__context__ = exc
        exc = newer
    return exc


def endless_recursion():
    def one(depth):
        return two(depth + 1)

    def two(depth):
        return one(depth + 1)

    try:
        one(0)
    except RecursionError as caught:
        return caught


@pytest.mark.parametrize(
    "make",
    [
        lambda: raised(ValueError("x" * 5_000_000)),
        lambda: raised(ValueError("é" * 5_000_000)),
        lambda: raised(ValueError("x\n" * 2_500_000), ValueError("y" * 5_000_000)),
        lambda: ValueError(["x" * 100] * 50_000),
        lambda: raised(SyntaxError("bad", ("f.py", 1, 1, "y" * 5_000_000))),
        bomb_of_groups,
        lambda: chain_of(100_000),
        endless_recursion,
    ],
    ids=["ascii", "text", "lines, cause", "list", "syntax", "groups", "chain", "recursion"],
)
def test_a_gigantic_exception_is_described_in_a_moment(make):
    exc = make()
    started = time.perf_counter()
    described(exc)
    assert time.perf_counter() - started < 2


def test_of_a_deep_stack_both_ends_are_shown():
    report = described(endless_recursion(), max_bytes=100_000).traceback
    assert "in endless_recursion" in report
    assert "frames left out" in report
    assert report.endswith("maximum recursion depth exceeded\n")


def place(exc):
    raise exc


def caught_at_place(exc):
    try:
        place(exc)
    except Exception as caught:  # whatever the test wants raised
        return caught


def caught_in_library(text):
    try:
        json.loads(text)
    except ValueError as caught:
        return caught


def test_the_fingerprint_tells_class_and_place_and_nothing_else():
    first = described(caught_at_place(ValueError("order 1"))).fingerprint
    assert described(caught_at_place(ValueError("order 2"))).fingerprint == first
    assert described(raised(ValueError("order 1"))).fingerprint != first
    assert described(caught_at_place(KeyError("order 1"))).fingerprint != first


def test_the_fingerprint_goes_by_our_frame_not_the_librarys():
    frames = {described(caught_in_library(text)).fingerprint for text in ("{", '{"a"', "[1", "x", '"\n')}
    assert len(frames) == 1


def test_an_exception_without_our_frames_has_a_fingerprint_of_the_librarys():
    exc = caught_in_library("{")
    library = described(exc.with_traceback(exc.__traceback__.tb_next)).fingerprint
    assert library != described(exc.with_traceback(None)).fingerprint


# --- Names and keys


@pytest.mark.parametrize("value", ["email", "naïve key", "a" * 10, "\u2028", SafeString("safe"), Label.A])
def test_a_good_name_is_returned_as_a_plain_str(value):
    result = check_text(value, "queue_name", max_length=10)
    assert type(result) is str
    assert result == value


@pytest.mark.parametrize(
    ("value", "error", "says"),
    [
        (None, PayloadTypeError, "must be a str, not NoneType"),
        (b"a", PayloadTypeError, "must be a str, not bytes"),
        (lazystr("a"), PayloadTypeError, "must be a str"),
        ("", PayloadError, "1 to 10 characters"),
        ("a" * 11, PayloadError, "not 11"),
        ("a\0", PayloadError, "control character ('\\x00') at index 1"),
        ("a\n", PayloadError, "control character"),
        ("\x85", PayloadError, "control character"),
        ("\ud800", PayloadError, "lone surrogate"),
    ],
    ids=ascii,
)
def test_a_bad_name_is_refused_with_the_name_of_the_argument(value, error, says):
    with pytest.raises(error) as caught:
        check_text(value, "idempotency_key", max_length=10)
    assert str(caught.value).startswith("idempotency_key ")
    assert says in str(caught.value)


def test_the_modules_need_no_settings_and_load_no_model():
    code = (
        "import sys, django_dhara.payload, django_dhara.retry; from django.conf import settings;"
        "sys.exit(settings.configured or 'django_dhara.models' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
