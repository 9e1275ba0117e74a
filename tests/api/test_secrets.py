"""Without credentials only the liveness probe answers, a token that may read changes nothing, and no secret gets out.

Every address is walked, those of the API by its own description. What gets out is looked at where it would be read: in
records of the log and their JSON, in the mails that Django sends to its admins, and in events of Sentry's own SDK.
"""

import logging
from uuid import uuid4

import pytest
from django.test import Client
from django.urls import URLPattern, get_resolver, include, path
from django.utils.log import AdminEmailHandler

from django_dhara import tokens
from django_dhara.api import access
from django_dhara.api.openapi import document, operations
from django_dhara.formatters import JSONFormatter, LineFormatter
from tests.api.conftest import BASE, Api, a_secret, problem, rows
from tests.api.test_access import CALLS, WRITES, call, scene  # noqa: F401

pytestmark = pytest.mark.fast

urlpatterns = [
    path("dhara/", include("django_dhara.api.urls")),
    path("dhara/", include("django_dhara.metrics.urls")),
    path("dhara/", include("django_dhara.probes")),
]
#: Of the secret in the settings.
OBSERVE = "dho_" + "q" * 43


@pytest.fixture(autouse=True)
def _all_addresses(settings):
    settings.ROOT_URLCONF = __name__
    settings.DHARA = {"OBSERVE_TOKEN": OBSERVE, "API_FAILURES_PER_MINUTE": 0}


def addresses(patterns=None, prefix="/"):
    """Every address there is, with something in the place of each parameter."""
    for pattern in get_resolver().url_patterns if patterns is None else patterns:
        text = prefix + str(pattern.pattern)
        if isinstance(pattern, URLPattern):
            for name, converter in pattern.pattern.converters.items():
                value = str(uuid4()) if type(converter).__name__ == "UUIDConverter" else "mail"
                text = text.replace(f"<{converter_of(text, name)}:{name}>", value)
            yield text, pattern.name
        else:
            yield from addresses(pattern.url_patterns, text)


def converter_of(text, name):
    return text.partition(f":{name}>")[0].rpartition("<")[2]


def test_without_credentials_only_the_liveness_probe_answers(db):
    found = list(addresses())
    assert {"livez", "readyz", "metrics", "docs", "openapi", "list_tasks"} <= {name for _, name in found}
    assert all("<" not in where for where, _ in found)
    before = rows()
    for where, name in found:
        for method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
            response = Client(raise_request_exception=False).generic(method, where)
            if name == "livez":
                assert response.status_code == (200 if method in ("GET", "HEAD") else 405)
            else:  # `/readyz` and `/metrics` take no other methods, and say so to everybody
                assert response.status_code in ((401,) if where.startswith(BASE) else (401, 405)), (method, where)
            assert b"tests.app" not in response.content
    assert rows() == before


def test_the_description_says_what_is_tested():
    """The table of calls is the description: none is left out, and each takes the scope that it says it takes."""
    described = {each.id: each for each in operations(document(f"{BASE}/"))}
    paths = document(f"{BASE}/")["paths"]
    security = {each["operationId"]: each["security"] for methods in paths.values() for each in methods.values()}
    assert set(CALLS) - {"openapi", "docs"} == set(described)
    for name, operation in described.items():
        method, _, _, scope, permissions = CALLS[name]
        assert operation.method == method
        assert security[name][0] == {"token": [scope]}
        assert {f"dhara.{each}" for each in permissions} >= set(security[name][1]["session"]), name
        assert (method == "GET") == (scope == "read"), "what only reads changes nothing, and the other way round"


@pytest.mark.parametrize("name", WRITES)
def test_a_token_that_may_read_changes_nothing(scene, name):
    caller = Api(a_secret("read"))
    before = rows()
    problem(call(caller, name, scene), 403)
    assert rows() == before


# ------------------------------------------------------------------------------------------------------- what gets out


class Mails(AdminEmailHandler):
    """What Django would send to the admins of each record, kept."""

    def __init__(self):
        super().__init__(include_html=True)
        self.setLevel(logging.WARNING)
        self.sent = []

    def send_mail(self, subject, message, *args, html_message=None, **kwargs):
        self.sent.append((subject, message, html_message))


class Records(logging.Handler):
    def __init__(self):
        super().__init__(logging.DEBUG)
        self.kept = []

    def emit(self, record):
        self.kept.append(record)


class Leaks:
    """All that was told, and where in it a secret is to be found."""

    def __init__(self):
        self.records, self.mails, self.events = Records(), Mails(), []

    def __call__(self, secret):
        told = {f"{record.name}: {record.msg}": as_text(record) for record in self.records.kept}
        told |= {f"mail {number}": "".join(map(str, each)) for number, each in enumerate(self.mails.sent)}
        told |= {f"event {number}": str(event) for number, event in enumerate(self.events)}
        return [where for where, text in told.items() if secret[4:30] in text]


@pytest.fixture
def leaks():
    """With a client of Sentry's that takes all it is allowed to."""
    sentry_sdk = pytest.importorskip("sentry_sdk")
    from tests.observers import report_to

    leaks, root, level = Leaks(), logging.root, logging.root.level
    report_to(tell=leaks.events.append, data_collection={"user_info": True})
    root.setLevel(logging.DEBUG)
    for handler in (leaks.records, leaks.mails):
        root.addHandler(handler)
    yield leaks
    for handler in (leaks.records, leaks.mails):
        root.removeHandler(handler)
    root.setLevel(level)
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(None)


def as_text(record):
    """A record as anything may print it."""
    return f"{JSONFormatter().format(record)}{LineFormatter().format(record)}{record.args!r}{vars(record)!r}"


def everywhere(secret, scene):
    """Call all there is, and return the answers."""
    answers = [call(Api(secret), name, scene) for name in CALLS]
    client = Client(raise_request_exception=False, headers={"Authorization": f"Bearer {secret}"})
    return answers + [client.get(f"/dhara/{where}") for where in ("readyz", "metrics", "livez")]


def raising(*args, **kwargs):
    raise RuntimeError("nobody foresaw this")


def test_a_token_is_in_no_record_mail_or_event_whatever_becomes_of_the_call(scene, leaks, settings):
    settings.DHARA = {**settings.DHARA, "API_FAILURES_PER_MINUTE": 3}
    revoked = tokens.create("revoked", ["read"])
    tokens.revoke(revoked[0].pk)
    statuses = set()
    for secret in (
        a_secret(),
        a_secret("read"),
        "dht_" + "x" * 43,
        "dht_" + "\u00e9" * 43,
        revoked[1],
        a_secret(),
        OBSERVE,
    ):
        found = everywhere(secret, scene)
        statuses |= {response.status_code for response in found}
        assert leaks(secret) == []
        assert all(secret[4:30].encode() not in response.content for response in found)
    assert {200, 201, 401, 403, 429} <= statuses
    assert leaks.records.kept
    assert leaks.mails.sent


@pytest.mark.parametrize("where", ["token", "digest", "view"])
@pytest.mark.parametrize("kind", ["api", "settings"])
def test_a_token_is_not_in_what_is_told_of_an_error(scene, leaks, monkeypatch, where, kind):
    secret = a_secret() if kind == "api" else OBSERVE
    targets = {"token": (tokens, "alias"), "digest": (tokens.Secret, "digest"), "view": (access.Needs, "__call__")}
    monkeypatch.setattr(*targets[where], raising)
    if where == "view":
        monkeypatch.setattr("django_dhara.stats.standing", raising)
    found = everywhere(secret, scene)
    if kind == "api":
        assert 500 in {response.status_code for response in found}
        assert any(record.exc_info for record in leaks.records.kept)
        assert leaks.mails.sent
        assert leaks.events
    assert leaks(secret) == leaks(OBSERVE) == []


def test_what_finds_leaks_finds_one(leaks):
    secret = "dht_" + "w" * 43
    logging.getLogger("django.request").error("Bad: %s", secret)
    logging.getLogger("shop").error("Bad", extra={"header": f"Bearer {secret}"})
    places = leaks(secret)
    assert {"django.request: Bad: %s", "shop: Bad"} <= set(places)
    assert any(place.startswith("mail") for place in places)
    assert any(place.startswith("event") for place in places)
