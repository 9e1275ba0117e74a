"""Bad input of every kind to every endpoint: a problem document, never a 500, and nothing half-written.

`API_FUZZ=5000` tries so many of each kind instead of 25.
"""

import json
import os
from urllib.parse import quote, urlencode
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_dhara.models import BulkChange, Task
from django_dhara.states import State
from tests.api.conftest import BASE, Api, a_secret, rows
from tests.api.test_access import CALLS
from tests.rows import a_task

EXAMPLES = int(os.environ.get("API_FUZZ", "25"))
fuzzed = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
    derandomize=EXAMPLES == 25,
)

#: What trips a parser, a driver or a database more often than chance finds.
TRAPS = [
    None, True, 0, -1, 2**31, 2**63, 2**200, 10**400, 1e400, float("nan"), -0.0, "", " ", "\0", "\ud800", "a\nb",
    "x" * 3000, "DEAD", "PENDING", "tests.app.tasks.add", "os.system", "__main__", "default", "a,b", "../..", "%00",
    "'; DROP TABLE dhara_task;--", "9999-12-31T23:59:59+14:00", "0001-01-01T00:00:00-14:00", "2030-02-30T00:00:00Z",
    "W10", [], {}, [[]], {"args": 1}, {"kwargs": []}, {"a": 1}, {"args": [1]}, {"__proto__": 1}, {"": ""}, {"\0": "\0"},
]  # fmt: skip
NAMES = [
    "type", "payload", "queue", "priority", "run_at", "max_attempts", "idempotency_key", "status", "cursor", "limit",
    "offset", "backend", "retrying", "created_after", "created_before", "tasks", "range", "odd", "", "\0",
]  # fmt: skip
#: Bodies that are no JSON, or more of it than a parser likes.
HEAPS = [
    b"{" * 5000,
    b"[" * 100_000,
    b'{"a":' * 3000,
    b'"' + b"\\u0000" * 100 + b'"',
    b"\xef\xbb\xbf{}",
    b"NaN",
    b"1" * 5000,
]
values = st.sampled_from(TRAPS) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=8,
)
items = st.dictionaries(st.sampled_from(NAMES), values, max_size=6)
#: Right but for what is put over it.
tasks = items.map(lambda wrong: {"type": "tests.app.tasks.add", "payload": {"a": 1}, **wrong})
bodies = values | items | tasks | st.lists(tasks, max_size=3).map(lambda several: {"tasks": several})
raw = st.binary(max_size=50) | bodies.map(lambda body: json.dumps(body).encode()) | st.sampled_from(HEAPS)
queries = st.lists(st.tuples(st.sampled_from(NAMES), values.map(str) | st.text()), max_size=4)
queries = queries.map(lambda pairs: urlencode(pairs, errors="surrogatepass"))
words = st.text(max_size=20) | st.sampled_from([trap for trap in TRAPS if isinstance(trap, str)])
segments = words.map(lambda text: quote(text, safe="/", errors="surrogatepass"))


@pytest.fixture
def caller(db):
    for state in State:
        a_task(state, function="tests.app.tasks.add", queue="mail")
    return Api(a_secret())


def holds_together(response, before):
    """The answer is of the API, and what it says is what happened."""
    assert response.status_code < 500, response.content
    if response.status_code >= 400:
        assert response["Content-Type"] == "application/problem+json"
        assert response.json()["status"] == response.status_code
        assert rows() == before
    elif response.status_code == 200 and response.request["REQUEST_METHOD"] == "GET":
        assert rows() == before


def path_of(name):
    found = {task.state: task.id for task in Task.objects.all()}
    change = BulkChange.objects.values_list("pk", flat=True).first() or UUID(int=0)
    return CALLS[name][1].format(pending=found.get("PENDING"), dead=found.get("DEAD"), change=change)


@pytest.mark.parametrize("name", CALLS)
@fuzzed
@given(
    data=raw,
    query=queries,
    content_type=st.sampled_from(["application/json", "application/json;charset=x", "text/xml"]),
)
def test_any_body_and_any_query(caller, name, data, query, content_type):
    before = rows()
    path = f"{path_of(name)}?{query}"
    holds_together(caller(CALLS[name][0], path, data=data, content_type=content_type), before)


@fuzzed
@given(body=bodies, name=st.sampled_from(["enqueue_task", "enqueue_tasks", "cancel_tasks", "retry_tasks"]))
def test_almost_right_bodies(caller, body, name):
    before = rows()
    try:
        data = json.dumps(body).encode()
    except UnicodeEncodeError:
        return
    response = caller(*CALLS[name][:2], data=data)
    holds_together(response, before)
    if response.status_code == 201:
        tasks = response.json().get("tasks", [response.json()])
        assert len(rows()["Task"]) - len(before["Task"]) == len({each["id"] for each in tasks if not each["duplicate"]})


@fuzzed
@given(segment=segments, method=st.sampled_from(["GET", "POST", "DELETE", "PUT"]))
@pytest.mark.parametrize("path", ["/tasks/{}", "/tasks/{}/retry", "/queues/{}/pause", "/queues/{}/resume", "/{}"])
def test_any_path(caller, path, segment, method):
    before = rows()
    response = caller.client.generic(method, f"{BASE}{path.format(segment)}", headers=caller.headers)
    if response.status_code not in (301, 404) or response["Content-Type"].startswith("application/"):
        holds_together(response, before)


@fuzzed
@given(header=st.text(max_size=60) | st.sampled_from(["Bearer " + "dht_" + "x" * 43, "Bearer \0", "bearer", "Basic x"]))
def test_any_credentials(db, header):
    before = rows()
    header = header.encode("utf-8", "surrogatepass").decode("latin-1")
    response = Api(Authorization=header)("POST", "/tasks", {"type": "tests.app.tasks.add", "payload": {"a": 1}})
    assert response.status_code in (401, 429)
    holds_together(response, before)
