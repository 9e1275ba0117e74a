"""The page of one task: what it shows of its arguments, its errors and its run, and to whom."""

import json
import re
from html import unescape

import pytest
from django.contrib.admin.models import LogEntry
from django.db.models.functions import Now
from django.urls import reverse

from django_dhara.admin import arrows, live, scene, traces, trees
from django_dhara.models import Command, Task
from django_dhara.states import ARROWS, State
from tests.rows import WORKER, a_task, ago, an_attempt
from tests.test_admin import a_client, is_not_pressed, page_of, queries, shown

TRACE = """Traceback (most recent call last):
  File "/srv/venv/lib/python3.13/site-packages/django_dhara/execution.py", line 88, in _call
    return function(*args, **kwargs)
           ~~~~~~~~^^^^^^^^^^^^^^^^^
  File "/srv/shop/orders/tasks.py", line 41, in send_receipt
    smtp.send_message(message)
  File "/usr/lib/python3.13/smtplib.py", line 908, in sendmail
    raise SMTPRecipientsRefused(senderrs)
  File "/srv/venv/lib/python3.13/site-packages/sentry_sdk/hub.py", line 5, in wrapped
    raise
  [Previous line repeated 3 more times]
smtplib.SMTPRecipientsRefused: {'a@example.org': (451, b'4.7.1')}
"""


@pytest.fixture
def client(db):
    return a_client("view_task", "view_stacks", "view_worker")


@pytest.fixture
def viewer(db):
    return a_client("view_task")


def address(name, task, *more):
    return reverse(f"admin:dhara_task_{name}", args=[task.pk, *more])


# Tracebacks


@pytest.mark.fast
def test_own_frames_stand_alone_and_those_of_libraries_are_folded():
    found = traces.pieces(TRACE, "orders.tasks.send_receipt")
    assert [(piece.kind, piece.summary) for piece in found] == [
        ("text", ""),
        ("foreign", "1 frame of django_dhara"),
        ("own", ""),
        ("foreign", "2 frames of smtplib, sentry_sdk"),
        ("text", ""),
    ]
    assert "\n".join(piece.text for piece in found) == TRACE.rstrip("\n")
    assert not any(piece.is_open for piece in found)


@pytest.mark.fast
@pytest.mark.parametrize(
    ("path", "is_own"),
    [
        ("/srv/shop/orders/tasks.py", True),
        ("orders/tasks.py", True),
        ("C:\\shop\\orders\\tasks.py", True),
        ("/srv/venv/lib/python3.13/site-packages/shop/tasks.py", True),  # the project, installed as a package
        ("/srv/venv/lib/python3.13/site-packages/requests/api.py", False),
        ("/usr/lib/python3/dist-packages/requests/api.py", False),
        ("/usr/local/lib/python3.13t/asyncio/runners.py", False),
        ("C:\\Program Files\\Python313\\Lib\\asyncio\\runners.py", False),
        ("/home/me/src/django_dhara/worker/loop.py", False),
        ("<frozen importlib._bootstrap>", False),
        ("<string>", False),
    ],
)
def test_what_is_the_projects_own(path, is_own):
    [piece] = traces.pieces(f'  File "{path}", line 1, in f', "shop.tasks.send")
    assert (piece.kind == "own") is is_own


@pytest.mark.fast
def test_where_it_happened_is_the_innermost_own_frame():
    assert traces.own_frame(TRACE, "orders.tasks.send_receipt") == "shop/orders/tasks.py:41, send_receipt"
    foreign = '  File "/usr/lib/python3.13/json/decoder.py", line 345, in decode\n    raise\nValueError: x'
    assert traces.own_frame(foreign, "a.b") == "python3.13/json/decoder.py:345, decode"
    assert traces.own_frame("ValueError: x", "a.b") == ""
    assert traces.pieces(foreign, "a.b")[0].is_open


@pytest.mark.fast
@pytest.mark.parametrize(
    "text", ["", "\n\n", 'File "', '  File "a", line x', "é\u202e\x00", '  File "x.py", line 3', "x" * 100_000]
)
def test_any_text_is_shown_whole(text):
    found = traces.pieces(text, "a.b")
    assert "".join("".join(piece.text for piece in found).split()) == "".join(traces.visible_lines(text).split())


def test_attempts_that_follow_a_retry_say_so(client):
    task = a_task("DEAD", failures=2, finished_at=ago(1))
    for number, age in ((1, 90), (2, 80), (3, 70), (1, 60), (2, 50)):
        an_attempt(task, number=number, started_at=ago(age + 5), ended_at=ago(age))
    seen = shown(client.get(page_of(task)))
    assert seen.count("Attempt 1, counted anew after a retry") == 2, "in the timeline, and over the run"
    assert seen.count("Attempt 2, counted") == 0


def test_the_class_of_an_error_is_broken_at_its_dots(client):
    task = a_task("DEAD", error_class="smtplib.SMTPRecipientsRefused", finished_at=ago(1))
    an_attempt(task, error_class="smtplib.SMTPRecipientsRefused", ended_at=ago(1))
    body = client.get(page_of(task)).content.decode()
    assert body.count('<code><bdi class="dhara-name">smtplib.<wbr>SMTPRecipientsRefused</bdi></code>') == 3


def test_the_page_shows_a_traceback_in_pieces(client):
    task = a_task(State.DEAD, function="orders.tasks.send_receipt")
    an_attempt(task, traceback=TRACE, message="<script>alert(1)</script>")
    body = client.get(page_of(task)).content.decode()
    assert re.search(r'<pre class="dhara-own">  File &quot;/srv/shop/orders/tasks.py', body)
    assert "<summary>2 frames of smtplib, sentry_sdk</summary>" in body
    assert "<script>alert" not in body


# JSON


@pytest.mark.fast
@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ('{"args": [17, 1.50], "kwargs": {}}', "args list of 2 items 0 17 1 1.50 kwargs {}"),
        ("42", "42"),
        ('"a\\nb"', '"a\\nb"'),
        ("[true, null, []]", "0 true 1 null 2 []"),
        (f'["{"x" * 5000}"]', f'0 "{"x" * trees.STRING}…" text of 5,000 characters'),
        ("1" * 10_000, "1" * trees.STRING + "…"),
    ],
    ids=lambda value: value[:20],
)
def test_json_is_a_tree(text, seen):
    html = str(trees.tree(trees.parse(text)))
    assert " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split()).replace('" ', '"').replace(' "', '"') == (
        seen.replace('" ', '"').replace(' "', '"')
    )


@pytest.mark.fast
def test_a_tree_is_never_large():
    broad = trees.tree(trees.parse(json.dumps({f"key {n}": ["x" * 9] * 120 for n in range(1000)})))
    assert len(broad) < 400_000
    assert "900 more" in broad
    assert broad.count("<li") <= 2 * trees.MOST
    both = trees.tree(
        trees.parse(json.dumps({"args": [[[*range(90)] for _ in range(90)]], "kwargs": {"last": "seen"}}))
    )
    assert "seen" in both  # what comes behind something large is seen all the same
    deep = trees.tree(trees.parse("[" * 500 + "]" * 500))
    assert deep.count("<details") == trees.DEEPEST
    with pytest.raises(ValueError, match=r"deep|Expecting"):
        trees.parse("[" * 100_000)


def test_names_in_json_run_nothing_and_turn_nothing_around(client):
    task = a_task(payload={"args": ["<script>alert(1)</script>"], "kwargs": {"\u202eabc": "</details>"}})
    body = client.get(page_of(task)).content.decode()
    assert "<script>alert" not in body
    assert "\u202e" not in body
    assert "\\u202eabc" in body


def test_a_payload_of_1_mb_is_a_small_page_and_a_download(client):
    payload = {"args": ["x" * 900_000, [*range(10_000)]], "kwargs": {"last": "seen"}}
    task = a_task(payload=payload)
    response = client.get(page_of(task))
    assert len(response.content) < 200_000
    assert "text of 900,000 characters" in shown(response)
    assert "last" in shown(response)
    whole = client.get(address("document", task, "payload"))
    assert json.loads(whole.content) == payload
    assert whole["Content-Type"] == "text/plain; charset=utf-8"
    assert whole["Content-Disposition"].startswith("attachment;")
    assert whole["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("name", ["payload_hash", "id", "nothing"])
def test_nothing_but_documents_can_be_downloaded(client, name):
    assert client.get(address("document", a_task(), name)).status_code == 404


def test_an_empty_document_or_one_of_no_task_is_not_found(client):
    task = a_task()
    assert client.get(address("document", task, "result")).status_code == 404
    Task.objects.all().delete()
    assert client.get(address("document", task, "payload")).status_code == 404


# Redaction


def without_cards(function, payload):
    payload["kwargs"]["card"] = "hidden"
    return payload


def broken(function, payload):
    raise LookupError


SECRET = {"args": [7], "kwargs": {"card": "4111 1111 1111 1111"}}


def test_arguments_are_redacted_on_the_page_and_in_the_download(client, settings):
    settings.DHARA = {"REDACT": "tests.test_admin_onetask.without_cards"}
    task = a_task(payload=SECRET)
    seen, whole = client.get(page_of(task)), client.get(address("document", task, "payload"))
    for response in (seen, whole):
        assert b"4111" not in response.content
        assert b"hidden" in response.content
    assert "As this project redacts them." in shown(seen)


@pytest.mark.parametrize("hook", ["broken", "not_there"])
def test_a_hook_that_does_not_work_hides_the_arguments(client, settings, hook):
    settings.DHARA = {"REDACT": f"tests.test_admin_onetask.{hook}"}
    task = a_task(payload=SECRET, result={"sum": 19})
    response = client.get(page_of(task))
    assert b"4111" not in response.content
    assert "The arguments are hidden" in shown(response)
    assert '{"sum": 19}' in shown(response)
    assert client.get(address("document", task, "payload")).status_code == 404


def test_the_hook_is_asked_about_whole_arguments_only(client, settings, monkeypatch):
    settings.DHARA = {"REDACT": "tests.test_admin_onetask.without_cards"}
    monkeypatch.setattr(scene, "WHOLE", 20)
    task = a_task(payload=SECRET)
    response = client.get(page_of(task))
    assert b"4111" not in response.content
    assert "The arguments are hidden" in shown(response)
    assert b"hidden" in client.get(address("document", task, "payload")).content


# Arrows


@pytest.mark.fast
def test_every_arrow_has_its_words():
    assert set(arrows.WORDS) == {(arrow.verb, arrow.target) for arrow in ARROWS}


@pytest.mark.fast
@pytest.mark.parametrize(
    ("state", "columns", "targets"),
    [
        (State.PENDING, {}, ["Running", "Canceled"]),
        (State.RUNNING, {}, ["Completed", "Pending", "Dead", "Canceled"]),
        (State.RUNNING, {"cancel_requested_at": Now()}, ["Completed", "Canceled"]),
        (State.COMPLETED, {}, []),
        (State.DEAD, {}, ["Pending"]),
        (State.CANCELED, {}, ["Pending"]),
    ],
)
def test_the_page_says_where_it_can_go(client, state, columns, targets):
    response = client.get(page_of(a_task(state, **columns)))
    assert [re.sub(r"<[^>]+>", " ", badge).split()[-1] for badge, _ in response.context["ways"]] == targets
    assert ("Nothing else: this is its end." in shown(response)) is (not targets)


@pytest.mark.fast
def test_a_last_attempt_cannot_be_retried():
    assert "an error: no attempt is left" in str(_ways(a_task_like(failures=4)))
    assert "an error: no attempt is left" not in str(_ways(a_task_like(failures=3)))


def a_task_like(**columns):
    return Task(state=State.RUNNING, max_attempts=5, **{"failures": 0, "lost": 0, **columns})


def _ways(task):
    return [(str(badge), [str(reason) for reason in reasons]) for badge, reasons in arrows.ways(task)]


# Progress


@pytest.mark.fast
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.4, (40.0, "")),
        (1, (100.0, "")),
        (40, (40.0, "")),
        ({"done": 4, "of": 10}, (40.0, "4 of 10")),
        ({"current": 1, "total": 4, "message": "pages"}, (25.0, "1 of 4, pages")),
        ({"percent": 7, "step": "one"}, (7.0, "one")),
        ({"message": "so far"}, (None, "so far")),
        ("reading", (None, "reading")),
        ({"done": 4, "of": 0}, None),
        ({"done": 40, "of": 10}, (100.0, "40 of 10")),
        ({"done": True, "of": True}, None),
        (-3, None),
        (True, None),
        (None, None),
        ([1], None),
        ({"message": "x" * 5000}, None),
    ],
    ids=repr,
)
def test_how_far_it_is(value, expected):
    found = live.gauge(json.dumps(value))
    assert (found and (round(found.percent, 9) if found.percent is not None else None, found.said)) == expected


def test_a_running_task_shows_a_bar_that_is_fetched_anew(client):
    task = a_task(State.RUNNING, progress={"done": 4, "of": 10})
    for response in (client.get(page_of(task)), client.get(address("live", task))):
        body = response.content.decode()
        assert '<progress max="100" value="40.0"' in body
        assert f'data-dhara-refresh="{address("live", task)}"' in body
        assert "4 of 10" in body
    Task.objects.update(state=State.COMPLETED, finished_at=Now())
    body = client.get(address("live", task)).content.decode()
    assert "data-dhara-refresh" not in body
    assert "Completed" in body


def test_a_look_at_a_running_task_is_cheap(client):
    task = a_task(State.RUNNING, payload={"args": ["x" * 1000], "kwargs": {}})
    with queries() as made:
        client.get(address("live", task))
    assert len([query for query in made if "dhara_" in query]) <= 3
    assert not [query for query in made if '"payload"' in query]


# The stack


def test_the_worker_of_a_running_task_is_asked_for_its_stack(client):
    task = a_task(State.RUNNING, lease=7)
    assert "Show stack" in shown(client.get(page_of(task)))
    response = client.post(address("stack", task), follow=True)
    command = Command.objects.get()
    assert (command.verb, command.worker_id) == ("STACKS", WORKER)
    assert command.argument == {"task": str(task.pk), "lease": 7}
    assert "Its worker has been asked" in shown(response)
    answer = {"where": "thread", "stack": TRACE}
    Command.objects.update(answer=answer, answered_at=Now())
    for answered in (client.get(page_of(task), {"stack": command.pk}), fragment(client, task)):
        assert "In thread, outermost call first." in shown(answered)
        assert 'class="dhara-own"' in answered.content.decode()
        assert f"stack/{command.pk}" not in answered.content.decode()
    assert LogEntry.objects.get().change_message == "Asked for its stack."


def fragment(client, task):
    return client.get(address("answer", task, Command.objects.get().pk))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"problem": "silent"}, "C code that holds the interpreter"),
        ({"problem": "not started"}, "has not started the function yet"),
        ({"problem": "ended"}, "has just ended"),
        ({"problem": "not running here"}, "does not run there any more"),
        ({"problem": "<b>else"}, "<b>else"),
        ("this worker does not know", "this worker does not know"),
        ({"MainThread 1": "line of the loop", "dhara-run 2": "line of the task"}, "line of the task"),
        (None, "None"),
        ([], "[]"),
    ],
    ids=str,
)
def test_whatever_the_worker_answers_is_told(client, answer, said):
    task = a_task(State.RUNNING)
    client.post(address("stack", task))
    Command.objects.update(answer=answer, answered_at=Now())
    assert said in shown(fragment(client, task))


def test_a_worker_that_does_not_answer_is_given_up(client):
    task = a_task(State.RUNNING)
    client.post(address("stack", task))
    assert "data-dhara-refresh" in fragment(client, task).content.decode()
    Command.objects.update(created_at=ago(4))
    assert "Its worker has not answered" in shown(fragment(client, task))
    assert "data-dhara-refresh" not in fragment(client, task).content.decode()


@pytest.mark.parametrize("state", [State.PENDING, State.COMPLETED])
def test_a_task_that_does_not_run_has_no_stack(client, state):
    task = a_task(state)
    assert "Show stack" not in shown(client.get(page_of(task)))
    assert "It does not run any more." in shown(client.post(address("stack", task), follow=True))
    assert not Command.objects.exists()


def test_of_another_tasks_command_nothing_is_told(client):
    one, other = a_task(State.RUNNING), a_task(State.RUNNING)
    client.post(address("stack", one))
    command = Command.objects.get().pk
    assert client.get(address("answer", other, command)).status_code == 404
    assert client.get(page_of(other) + f"?stack={command}").context["stack"] is None
    Command.objects.update(verb="CANCEL")
    assert client.get(address("answer", one, command)).status_code == 404


@pytest.mark.parametrize("nonsense", ["x", "-1", "9" * 30, "\u0661"])
def test_a_command_that_is_no_number_is_none(client, nonsense):
    assert client.get(page_of(a_task(State.RUNNING)), {"stack": nonsense}).status_code == 200


def test_a_log_that_cannot_be_read_in_time_is_left_out(transactional_db, other_session):
    client, task = a_client("view_task"), a_task()
    other_session.set_autocommit(False)
    with other_session.cursor() as cursor:
        cursor.execute("LOCK TABLE django_admin_log")
    seen = shown(client.get(page_of(task)))
    other_session.rollback()
    assert "What people did to it could not be read in time" in seen
    assert "could not be read in time" not in shown(client.get(page_of(task)))


def test_who_may_not_see_stacks_sees_no_button_and_gets_403(viewer):
    task = a_task(State.RUNNING)
    command = Command.objects.create(worker_id=WORKER, verb="STACKS", argument={"task": str(task.pk)}, answer="secret")
    response = viewer.get(page_of(task), {"stack": command.pk})
    assert "Show stack" not in shown(response)
    assert "secret" not in shown(response)
    assert viewer.post(address("stack", task)).status_code == 403
    assert viewer.get(address("answer", task, command.pk)).status_code == 403
    assert viewer.get(address("live", task)).status_code == 200
    assert Command.objects.count() == 1


def test_who_may_not_see_tasks_sees_nothing(db):
    stranger, task = a_client("view_stacks"), a_task(State.RUNNING)
    for name, more in (("live", []), ("document", ["payload"]), ("answer", [1])):
        assert stranger.get(address(name, task, *more)).status_code == 403
    assert stranger.post(address("stack", task)).status_code == 403


def test_a_look_changes_nothing(client):
    task = a_task(State.RUNNING)
    assert is_not_pressed(client, address("stack", task), address("change", task))
