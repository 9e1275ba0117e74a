"""The search language, and what a search finds: the same as looking at every row, at a bounded cost."""

from datetime import UTC, datetime, timedelta
from itertools import count as counter
from uuid import UUID

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from django_dhara import search
from django_dhara.models import Task, Worker
from django_dhara.search import conditions, finding, moments, sources
from django_dhara.search.language import FIELDS, KINDS, MAX_TERMS, Search, SearchError, Term, Value, parse
from django_dhara.states import State
from tests.rows import OTHER_WORKER, WORKER, a_task, ago, ahead

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
_serial = counter(1)


def an_id(seconds_ago=0.0):
    """A UUIDv7 of that time."""
    milliseconds = int((datetime.now(UTC).timestamp() - seconds_ago) * 1000)
    return UUID(int=(milliseconds << 80) | (7 << 76) | (2 << 62) | next(_serial))


def put(state=State.PENDING, seconds_ago=0.0, **columns):
    """A task as it is after an enqueue so long ago."""
    return a_task(state, **{"id": an_id(seconds_ago), "enqueued_at": ago(seconds_ago), **columns})


def found(text, **options):
    return list(search.page("default", parse(text), **options).ids)


def terms(text):
    return [str(term) for term in parse(text).terms]


def problems(text):
    with pytest.raises(SearchError) as raised:
        parse(text)
    return raised.value


# The language


@pytest.mark.fast
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("  state:dead   -queue:email ", ["state:dead", "-queue:email"]),
        ("State:DEAD,Canceled", ["state:dead,canceled"]),
        ("state:dead state:dead", ["state:dead"]),
        ('error:"a \\"b\\" \\\\ c"', ['error:"a \\"b\\" \\\\ c"']),
        ("after:14:00", ["after:14:00"]),
        ("a,b", ["a,b"]),
        ('"state:dead"', ['"state:dead"']),
        ('queue:a,"b,c",d', ['queue:a,"b,c",d']),
        ("priority:>=10 attempts:1..3 priority:-5", ["priority:>=10", "attempts:1..3", "priority:-5"]),
        ("payload.Order.0.id:42", ["payload.Order.0.id:42"]),
        ("id:018F", ["id:018f"]),
    ],
)
def test_a_text_is_taken_apart_into_terms(text, expected):
    assert terms(text) == expected


@pytest.mark.fast
@pytest.mark.parametrize(
    ("text", "position", "word", "message", "corrected"),
    [
        ("is:dead", 0, "is:dead", "there are: ready", "state:dead"),
        ("-state:retrying", 0, "-state:retrying", "there are: pending", "-is:retrying"),
        ("state:failed", 0, "state:failed", "There is no “failed”", "state:dead"),
        ("sort:age", 0, "sort:age", "There is no field “sort”", ""),
        ('""', 0, '""', "There is no word here.", ""),
        ("-", 0, "-", "There is no word here.", ""),
        ("stat:dead", 0, "stat:dead", "There is no field “stat”. Did you mean state?", "state:dead"),
        ("queue:x -state:daed", 8, "-state:daed", "There is no “daed”; there are: pending", "queue:x -state:dead"),
        ("zzz:1", 0, "zzz:1", "There is no field “zzz”; there are: state, function", '"zzz:1"'),
        ("a/b:c", 0, "a/b:c", "What stands before a colon is no field", '"a/b:c"'),
        ("queue:", 0, "queue:", "There is no value behind the colon", ""),
        ('queue:""', 0, 'queue:""', "There is no value behind the colon", ""),
        ("queue:a,,b", 0, "queue:a,,b", "There is no value between two commas", ""),
        ('a "b c', 2, '"b c', "A quote is opened and not closed", ""),
        ('queue:a"b"', 0, 'queue:a"b"', "Quotes stand around a whole value", ""),
        ("priority:high", 0, "priority:high", "“high” is no number", ""),
        ("attempts:5..2", 0, "attempts:5..2", "No number is in “5..2”", "attempts:2..5"),
        ("-priority:1..-1", 0, "-priority:1..-1", "write the smaller one first", "-priority:-1..1"),
        ("after:soon", 0, "after:soon", "“soon” is no time", ""),
        ("after:1h,2h", 0, "after:1h,2h", "It takes one value", ""),
        ("after:99999999w", 0, "after:99999999w", "is no time", ""),
        ("id:xyz", 0, "id:xyz", "“xyz” is no id", ""),
        ("parent:018f", 0, "parent:018f", "all of it is needed", ""),
        ("payload.:1", 0, "payload.:1", "There is no field “payload.”", ""),
        ("a\x00b", 0, "a\x00b", "NUL", ""),
    ],
)
def test_what_is_not_understood_is_said_with_its_place_and_a_remedy(text, position, word, message, corrected):
    error = problems(text)
    [problem] = error.problems
    assert (problem.position, problem.word) == (position, word)
    assert message in problem.message
    assert error.corrected == corrected
    assert not corrected or parse(corrected)


@pytest.mark.fast
def test_every_problem_is_told_and_all_are_corrected_at_once():
    error = problems("stat:dead queue:x staet:dead")
    assert [problem.position for problem in error.problems] == [0, 18]
    assert error.corrected == "state:dead queue:x state:dead"


@pytest.mark.fast
@pytest.mark.parametrize("text", ["x" * 2001, " ".join(map(str, range(MAX_TERMS + 1))), "queue:" + "a," * 100 + "a"])
def test_a_search_that_is_too_long_is_refused(text):
    assert "at most" in str(problems(text))


@pytest.mark.fast
def test_every_field_has_an_example_that_is_understood():
    for name, field in FIELDS.items():
        assert parse(field.example.replace("018f2c3a-…", str(UUID(int=1)))), name


words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), min_size=1, max_size=12)
values = st.builds(Value, words, st.just(True)) | words.map(Value.of)
kinds = st.sampled_from(
    ["function", "queue", "error", "worker", "key", "backend", "fingerprint", "payload.order_id", "payload.0.a"]
)
some_terms = st.one_of(
    st.builds(Term, kinds, st.lists(values, min_size=1, max_size=3, unique=True).map(tuple), st.booleans()),
    st.builds(Term, st.just("text"), values.map(lambda value: (value,)), st.booleans()),
    st.builds(Term, st.just("state"), st.sampled_from(State.values).map(lambda s: (Value(s.lower()),)), st.booleans()),
    st.builds(Term, st.just("is"), st.sampled_from(KINDS).map(lambda kind: (Value(kind),)), st.booleans()),
    st.builds(
        Term,
        st.sampled_from(["priority", "attempts"]),
        st.from_regex(r"(>=|<=|>|<)?-?[0-9]{1,3}|[0-4]\.\.[4-9]", fullmatch=True).map(lambda text: (Value(text),)),
        st.booleans(),
    ),
    st.builds(
        Term,
        st.sampled_from(["after", "before", "finished_after", "finished_before"]),
        st.from_regex(r"[0-9]{1,3}[smhdw]|202[0-9]-1[0-2]-0[1-9]", fullmatch=True).map(lambda text: (Value(text),)),
        st.booleans(),
    ),
    st.builds(
        Term, st.just("id"), st.from_regex(r"[0-9a-f]{4,12}", fullmatch=True).map(lambda t: (Value(t),)), st.booleans()
    ),
)
searches = st.lists(some_terms, max_size=5, unique=True).map(lambda found: Search(tuple(found)))


@pytest.mark.fast
@settings(deadline=None)
@given(searches)
def test_a_search_can_be_written_and_read_again(asked):
    assert parse(str(asked)) == asked


@pytest.mark.fast
@settings(deadline=None, max_examples=300)
@given(st.text(max_size=200) | st.text('ab:",\\- *.<>=0123456789', max_size=60))
@example('"')
@example('a:"\\')
@example("-")
@example(":")
@example("payload.")
def test_no_text_is_too_odd_to_be_parsed_or_refused_with_a_reason(text):
    try:
        asked = parse(text)
    except SearchError as error:
        assert error.problems
        for problem in error.problems:
            assert problem.message
            assert text[problem.position :].startswith(problem.word)
    else:
        assert parse(str(asked)) == asked


@pytest.mark.fast
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", "2026-11-30T11:58:30+00:00"),
        ("1d12h", "2026-11-29T00:00:00+00:00"),
        ("2w", "2026-11-16T12:00:00+00:00"),
        ("today", "2026-11-29T23:00:00+00:00"),
        ("yesterday", "2026-11-28T23:00:00+00:00"),
        ("9:30", "2026-11-30T08:30:00+00:00"),
        ("2026-07-01", "2026-06-30T22:00:00+00:00"),
        ("2026-07-01 14:00", "2026-07-01T12:00:00+00:00"),
        ("2026-07-01T14:00-05:00", "2026-07-01T19:00:00+00:00"),
    ],
)
def test_a_time_is_in_the_time_zone_of_django_unless_it_says_otherwise(text, expected):
    with timezone.override("Europe/Berlin"):
        assert moments.moment(text, NOW).astimezone(UTC).isoformat() == expected


@pytest.mark.fast
def test_a_search_whose_times_are_written_out_means_the_same_later():
    fixed = parse("state:dead after:2h -before:2026-11-01").at(NOW)
    assert str(fixed) == 'state:dead after:"2026-11-30T10:00:00+00:00" -before:"2026-11-01T00:00:00+00:00"'
    assert parse(str(fixed)) == fixed == fixed.at(NOW + timedelta(days=1))


# What is found


@pytest.fixture
def shop(db):
    """Some tasks of every kind, by name."""
    Worker.objects.create(id=WORKER, name="box7-4711", host="box7", pid=4711, concurrency=1, lease_seconds=30)
    Worker.objects.create(id=OTHER_WORKER, name="box8-12", host="box8", pid=12, concurrency=1, lease_seconds=30)
    timeout = "shop.errors.ReceiptTimeout"
    return {
        "sent": put(State.COMPLETED, 9000, function="shop.tasks.send_receipt", finished_at=ago(8000), failures=1),
        "dead": put(State.DEAD, 7000, function="shop.tasks.send_receipt", error_class=timeout, failures=5, lost=1),
        "other": put(State.DEAD, 6000, function="tasks.charge", queue="email", error_class="a.B", finished_at=ago(50)),
        "keyed": put(State.CANCELED, 500, function="tasks.charge", idempotency_key="receipt-7", error_fingerprint="f0"),
        "running": put(State.RUNNING, 100, priority=10, payload={"args": ["x"], "kwargs": {"order_id": 42}}),
        "late": put(State.RUNNING, 90, worker_id=OTHER_WORKER, lease_until=ago(5), cancel_requested_at=ago(9)),
        "ready": put(seconds_ago=50, priority=-5, payload={"args": [], "kwargs": {"a": {"b": [7]}, "order_id": "43"}}),
        "later": put(seconds_ago=40, run_at=ahead(900), backend="far", failures=1),
        "suspect": put(seconds_ago=30, lost=1, queue="email", parent_id=UUID(int=9)),
    }


def named(shop, ids):
    names = {task.id: name for name, task in shop.items()}
    return " ".join(names[id_] for id_ in ids)


SEARCHES = {
    "": "suspect later ready late running keyed other dead sent",
    "state:dead": "dead other",
    "state:dead,canceled": "keyed other dead",
    "-state:completed,dead,canceled": "suspect later ready late running",
    "state:running": "late running",
    "state:pending": "suspect later ready",
    "state:pending queue:email": "suspect",
    "state:dead state:canceled": "",
    "function:send_receipt": "dead sent",
    "function:tasks.send_receipt": "dead sent",
    "function:receipt": "",
    "function:*receipt": "dead sent",
    'function:"tasks.charge"': "keyed other",
    'function:"charge"': "",
    "receipt": "dead sent",
    "CHARGE": "keyed other",
    "-receipt state:dead": "other",
    "queue:email": "suspect other",
    "queue:em*,default -queue:default": "suspect other",
    "priority:>=10": "running",
    "priority:<0": "ready",
    "priority:-5,10": "ready running",
    "priority:1..20": "running",
    "attempts:>2": "dead",
    "attempts:2": "sent",
    "attempts:1 state:pending": "suspect later",
    "worker:box7": "running",
    "worker:box8:12": "late",
    "worker:box*": "late running",
    "-worker:box7 state:running": "late",
    f"worker:{WORKER}": "running",
    "worker:nobody": "",
    "error:Timeout": "dead",
    "error:timeout": "dead",
    'error:"a.B"': "other",
    "error:any": "other dead",
    "error:none state:running": "late running",
    "-error:Timeout state:dead": "other",
    "after:2h": "suspect later ready late running keyed other dead",
    "before:2h": "sent",
    "after:2h before:1h": "other dead",
    "state:dead after:110m": "other",
    "finished_after:1h": "keyed other dead",
    "finished_before:1h": "sent",
    "state:dead finished_before:30s": "other",
    "key:receipt-7": "keyed",
    "key:receipt-*": "keyed",
    "key:receipt-7 function:charge": "keyed",
    "key:receipt-7 function:send_receipt": "",
    "fingerprint:f0": "keyed",
    "fingerprint:f": "keyed",
    'fingerprint:"f"': "",
    "payload.order_id:42": "running",
    "payload.order_id:43": "ready",
    "payload.a.b.0:7": "ready",
    "payload.0:x": "running",
    "payload.kwargs.order_id:42,43": "ready running",
    "-payload.order_id:42 state:running": "late",
    "is:ready": "suspect ready",
    "is:scheduled": "later",
    "is:retrying": "later",
    "is:suspect": "suspect",
    "is:late": "late",
    "is:stopping": "late",
    "is:ready,late": "suspect ready late",
    "-is:scheduled state:pending": "suspect ready",
    f"parent:{UUID(int=9)}": "suspect",
    "backend:far": "later",
    "-backend:default": "later",
}


@pytest.mark.parametrize("text", SEARCHES)
def test_a_search_finds_what_it_says(shop, text):
    assert named(shop, found(text)) == SEARCHES[text]


@pytest.mark.fast
def test_a_task_is_found_by_its_id_or_the_beginning_of_it(shop):
    for name, task in shop.items():
        assert named(shop, found(str(task.id))) == name
        assert named(shop, found(f"id:{task.id.hex}")) == name
    both = f"id:{shop['dead'].id},{shop['late'].id}"
    assert named(shop, found(both)) == "late dead"
    assert len(found(str(shop["dead"].id)[:4])) == len(shop)


@pytest.mark.fast
def test_a_count_is_exact_up_to_a_bound(shop):
    assert search.count("default", parse("state:dead,canceled"))[:3] == (3, False, None)
    assert search.count("default", parse("state:dead,canceled"), most=2)[:2] == (2, True)
    assert search.count("default", parse("worker:nobody"))[:2] == (0, False)
    assert search.count("default", Search(), most=2).estimate is not None


@settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))
@given(asked=searches, size=st.integers(1, 4), window=st.integers(1, 5))
def test_all_pages_together_are_what_one_look_at_every_row_finds(everything_of_the_shop, asked, size, window):
    """Through whichever source and however small a window: nothing is missing, nothing is twice."""
    names = dict(everything_of_the_shop.values_list("id", "finished_at"))
    matching = conditions.conditions(asked, "default", NOW_IN_SHOP)
    expected = set(everything_of_the_shop.filter(matching).values_list("id", flat=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finding, "WINDOWS", (window,))
        for module in (finding, sources):
            patch.setattr(module, "PATIENCE", 60.0)  # a busy machine stands still for a second
        for gather in (3, 1000):
            patch.setattr(sources, "GATHER", gather)
            patch.setattr(finding, "GATHER", gather)
            seen, cursors, cursor = [], [""], ""
            while True:
                page = search.page("default", asked, cursor=cursor, size=size, now=NOW_IN_SHOP)
                seen += page.ids
                if not page.older:
                    break
                assert page.older not in cursors
                cursors.append(cursor := page.older)
            assert set(seen) == expected
            assert len(seen) == len(expected)
            key = (lambda id_: (names[id_], id_)) if sources.source(asked, "default", NOW_IN_SHOP).key != "id" else None
            assert seen == sorted(seen, key=key, reverse=True)
            assert _backwards(asked, page, size) == seen
            assert _walked(asked, size) == sorted(expected, reverse=True)


def _backwards(asked, page, size):
    """The same, read from the last page back to the first."""
    seen = [*page.ids]
    while page.newer:
        page = search.page("default", asked, cursor=page.newer, size=size, now=NOW_IN_SHOP)
        seen = [*(id_ for id_ in page.ids if id_ not in seen), *seen]
    return seen


def _walked(asked, size):
    seen, below = [], UUID(int=2**128 - 1)
    while below:
        part = finding.walk("default", asked, below=below, size=size, until=NOW_IN_SHOP)
        seen, below = [*seen, *part.ids], part.last
    return seen


#: After everything in it was enqueued.
NOW_IN_SHOP = datetime.now(UTC) + timedelta(hours=1)


@pytest.fixture
def everything_of_the_shop(shop):
    for n in range(12):
        put(State.DEAD, 100 + n, finished_at=ago(n // 3), function=f"f{n % 3}")
        put(State.COMPLETED, 200 + n, finished_at=ago(50))
    return Task.objects.all()


@pytest.mark.fast
@pytest.mark.parametrize(
    "cursor",
    ["x", "older", "older~x", "newer~", "up~018f", f"older~2026-11-30T00:00:00+00:00~{UUID(int=1)}", "older~" * 99],
)
def test_a_cursor_of_another_list_is_refused(shop, cursor):
    with pytest.raises(search.CursorError):
        search.page("default", Search(), cursor=cursor)
    for odd in (f"older~{UUID(int=1)}", f"older~0001-01-01~{UUID(int=1)}", f"older~2026-01-01T00:00~{UUID(int=1)}"):
        with pytest.raises(search.CursorError):
            search.page("default", parse("state:dead"), cursor=odd)


def test_a_cursor_may_have_any_offset_that_python_knows(db):
    put(State.DEAD, 9)
    for offset in ("+23:59", "-16:00", "+00:00:01"):
        cursor = f"older~2026-01-01T00:00:00{offset}~{UUID(int=1)}"
        assert search.page("default", parse("state:dead"), cursor=cursor).ids == []


def test_without_use_tz_pages_follow_each_other_and_times_mean_what_they_say(db, settings):
    settings.USE_TZ, settings.TIME_ZONE = False, "America/St_Johns"
    tasks = [put(State.DEAD, age) for age in (30, 20, 10)]
    first = search.page("default", parse("state:dead"), size=2)
    assert first.ids == [tasks[2].id, tasks[1].id]
    assert search.page("default", parse("state:dead"), cursor=first.older, size=2).ids == [tasks[0].id]
    assert search.page("default", parse("state:dead after:yesterday before:2126-11-30"), size=3).ids[2] == tasks[0].id
    assert not search.page("default", parse("state:dead before:1h")).ids


def test_many_stars_are_one(db):
    task = put(function="shop.tasks.send_receipt")
    with CaptureQueriesContext(connection) as captured:
        assert search.page("default", parse(f"function:shop{'*' * 1900}receipt")).ids == [task.id]
    assert ".*.*" not in str(captured.captured_queries)


def test_a_search_through_a_window_says_how_far_it_looked(db, monkeypatch):
    monkeypatch.setattr(finding, "WINDOWS", (2,))
    tasks = [put(seconds_ago=100 - n) for n in range(4)]
    page = search.page("default", parse("queue:nothing"))
    assert (page.ids, page.looked.complete, page.looked.rows) == ([], False, 2)
    assert abs(page.looked.until - timezone.now() + timedelta(seconds=98)) < timedelta(seconds=5)
    assert page.older == f"older~{tasks[2].id}"
    rest = search.page("default", parse("queue:nothing"), cursor=page.older)
    assert rest.looked.complete is False
    last = search.page("default", parse("queue:nothing"), cursor=rest.older)
    assert (last.looked.complete, last.older) == (True, "")


def test_a_search_of_payloads_that_takes_too_long_looks_through_fewer_rows(db, monkeypatch):
    put(payload={"args": [], "kwargs": {"order_id": 1}})
    slow = finding._keys

    def _keys(alias, *others):
        if others[-1] > 200:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_sleep(2)")
        return slow(alias, *others)

    monkeypatch.setattr(finding, "PATIENCE", 0.1)
    monkeypatch.setattr(finding, "_keys", _keys)
    page = search.page("default", parse("payload.order_id:1"))
    assert (len(page.ids), page.looked.rows) == (1, 200)


@pytest.mark.fast
def test_a_time_limit_within_another_one_keeps_to_the_shorter_and_puts_it_back(db):
    from django_dhara.sql import TooSlow, time_limit

    def limit():
        with connection.cursor() as cursor:
            cursor.execute("SHOW statement_timeout")
            return cursor.fetchone()[0]

    before = limit()
    with time_limit("default", 5):
        with time_limit("default", 2):
            assert limit() == "2s"
        assert limit() == "5s"
        with time_limit("default", 9):
            assert limit() == "5s"
        with pytest.raises(TooSlow), time_limit("default", 0.05), connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(3)")
        assert limit() == "5s"
    assert limit() == before


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(word=words, field=kinds)
@example(word="'; DROP TABLE dhara_task; --", field="queue")
@example(word="%s %(x)s {} {0} %", field="queue")
@example(word="\\' OR 1=1", field="key")
def test_no_value_becomes_sql(shop, word, field):
    assume(word.strip())
    for text in (Value.of(word), Value(word, exact=True), Value(f"*{word}*")):
        for negated in (False, True):
            asked = Search((Term(field, (text,), negated),))
            number = len(search.page("default", asked).ids)
            assert search.count("default", asked).number == number
    assert Task.objects.count() == len(shop)


@pytest.mark.fast
def test_a_row_is_found_by_the_very_name_it_has_however_odd(db):
    names = ["a,b", 'say "hi"', "back\\slash", "-minus", "co:lon", "sp ace", "ünï", "pa*tern", "\u202eright", "a\nb"]
    for name in names:
        put(queue=name)
    for name in names:
        [id_] = found(str(Search().replaced("queue", Value.of(name))))
        assert Task.objects.get(pk=id_).queue == name
