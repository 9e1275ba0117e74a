"""Tokens are made, shown once, listed and revoked: by command and in the admin."""

import io
import re

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.test import Client

from django_dhara import tokens
from django_dhara.models import Token
from tests.api.conftest import Api, problem

pytestmark = [pytest.mark.fast, pytest.mark.django_db]

TOKEN = re.compile(r"dht_[A-Za-z0-9_-]{43}")
LIST, ADD = "/admin/dhara/token/", "/admin/dhara/token/add/"


def run(*words):
    """What a command writes on stdout and stderr."""
    out, err = io.StringIO(), io.StringIO()
    call_command("dhara_token", *words, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def test_the_command_prints_a_token_alone_on_stdout():
    out, err = run("create", "ci", "--scopes", "enqueue,read", "--queues", "mail, reports", "--days", "30")
    assert TOKEN.fullmatch(out.strip())
    assert out.strip() not in err
    row = Token.objects.get()
    assert (row.name, row.scopes, row.queues) == ("ci", ["read", "enqueue"], ["mail", "reports"])
    assert 29 <= (row.expires_at - row.created_at).days <= 30
    assert tokens.find(tokens.Secret(out.strip())) == row


def test_the_command_lists_no_secret_and_revokes():
    out, _ = run("create", "ci")
    listed, _ = run("list")
    assert out.strip() not in listed
    assert "valid  read  all queues  used never  ci" in listed
    pk = Token.objects.get().pk
    assert run("revoke", str(pk))[0] == f"Token {pk} is revoked.\n"
    assert "revoked" in run("list")[0]
    problem(Api(out.strip()).get("/tasks"), 401)
    with pytest.raises(CommandError, match="no token"):
        run("revoke", str(pk))


@pytest.mark.parametrize(
    "words",
    [
        (), ("make",), ("create",), ("create", ""), ("create", "a\nb"), ("create", "x" * 101),
        ("create", "ci", "--scopes", "all"), ("create", "ci", "--scopes", ""), ("create", "ci", "--queues", ","),
        ("create", "ci", "--days", "-1"),
        ("create", "ci", "--days", "0"), ("create", "ci", "--days", "x"), ("revoke",), ("revoke", "x"),
        ("revoke", "0"), ("revoke", "9" * 30), ("list", "x"),
    ],
    ids=str,
)  # fmt: skip
def test_a_wrong_word_is_one_line_and_nothing_is_written(words):
    with pytest.raises(CommandError) as raised:
        run(*words)
    assert "\n" not in str(raised.value).strip()
    assert Token.objects.count() == 0


def staff(*permissions):
    user = User.objects.create_user("boss", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


ALL = ("view_token", "add_token", "change_token", "view_task", "view_queue", "view_worker", "add_task")
FORM = {"name": "ci", "scopes": ["read"], "queues": "mail, b", "expires_at_0": "", "expires_at_1": ""}


def test_the_admin_shows_a_new_token_once():
    client = staff(*ALL)
    assert client.get(ADD).status_code == 200
    made = client.post(ADD, FORM)
    [secret] = TOKEN.findall(made.content.decode())
    assert "no-store" in made["Cache-Control"]
    row = Token.objects.get()
    assert (row.name, row.scopes, row.queues, row.created_by) == ("ci", ["read"], ["b", "mail"], "boss")
    assert tokens.find(tokens.Secret(secret)) == row
    for page in (client.get(LIST), client.get(f"{LIST}{row.pk}/change/", follow=True), client.get(ADD)):
        assert secret not in page.content.decode()
    assert secret not in "".join(str(entry.__dict__) for entry in LogEntry.objects.all())
    assert LogEntry.objects.count() == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": ""},
        {"scopes": []},
        {"scopes": ["operate"]},
        {"queues": "x" * 300},
        {"name": "a\x7fb"},
        {"expires_at_0": "x"},
    ],
    ids=str,
)
def test_the_admin_makes_no_wrong_token(wrong):
    response = staff(*ALL).post(ADD, {**FORM, **wrong})
    assert response.status_code == 200
    assert "errorlist" in response.content.decode()
    assert Token.objects.count() == 0


def test_nobody_gives_a_token_what_they_may_not_do():
    page = staff("view_token", "add_token", "add_task").get(ADD).content.decode()
    assert re.findall(r'name="scopes" value="(\w+)"', page) == ["enqueue"]


def test_the_admin_revokes():
    client = staff(*ALL)
    row, secret = tokens.create("ci", ["read"])
    data = {"action": "revoke", "_selected_action": [row.pk]}
    asked = client.post(LIST, data).content.decode()
    assert "Revoke 1 token?" in asked
    assert "That cannot be undone" in asked
    assert tokens.find(tokens.Secret(secret)) == row
    data["confirmed"] = "yes"
    assert "1 token revoked." in client.post(LIST, data, follow=True).content.decode()
    assert "0 tokens revoked." in client.post(LIST, data, follow=True).content.decode()
    assert tokens.find(tokens.Secret(secret)) is None
    assert LogEntry.objects.count() == 1


def test_who_may_look_may_not_make_or_revoke():
    client = staff("view_token")
    row, secret = tokens.create("ci", ["read"])
    assert client.get(LIST).status_code == 200
    assert client.get(ADD).status_code == client.post(ADD, FORM).status_code == 403
    client.post(LIST, {"action": "revoke", "_selected_action": [row.pk], "confirmed": "yes"})
    assert tokens.find(tokens.Secret(secret)) == row
    assert Token.objects.count() == 1
