"""DHARA["REDACT"]: arguments are shown as the project's hook lets them be, and not at all where it does not work."""

import json
import logging

import pytest

from django_dhara import redaction, search

PAYLOAD = '{"args": [48213], "kwargs": {"card": "4111 1111", "n": 1.50}}'

pytestmark = pytest.mark.fast


def without_cards(function, payload):
    payload["kwargs"]["card"] = f"hidden by {function}"
    return payload


def broken(function, payload):
    raise LookupError(payload["kwargs"]["card"])


def set_hook(settings, name):
    settings.DHARA = {"REDACT": f"tests.test_redaction.{name}"}


def test_without_a_hook_arguments_are_shown_as_they_are(settings):
    assert not redaction.is_redacting()
    assert redaction.shown("shop.pay", PAYLOAD) == (PAYLOAD, False, False)
    settings.DHARA = {}
    assert not redaction.is_redacting()


def test_the_hook_is_told_the_function_and_says_what_is_shown(settings):
    set_hook(settings, "without_cards")
    assert redaction.is_redacting()
    shown = redaction.shown("shop.pay", PAYLOAD)
    assert json.loads(shown.text)["kwargs"] == {"card": "hidden by shop.pay", "n": 1.5}
    assert (shown.is_redacted, shown.is_hidden) == (True, False)


@pytest.mark.parametrize(
    "answer", [None, [], "text", 5, {"args": [object()]}, {("a",): 1}], ids=lambda answer: type(answer).__name__
)
def test_a_hook_that_answers_nonsense_hides_the_arguments(settings, monkeypatch, answer):
    set_hook(settings, "without_cards")
    monkeypatch.setattr("tests.test_redaction.without_cards", lambda function, payload: answer)
    assert redaction.shown("shop.pay", PAYLOAD) == ("", True, True)


@pytest.mark.parametrize("hook", ["broken", "no_such_name", "PAYLOAD"])
def test_a_hook_that_raises_or_does_not_exist_hides_the_arguments_and_is_logged(settings, caplog, hook):
    set_hook(settings, hook)
    with caplog.at_level(logging.ERROR):
        assert redaction.shown("shop.pay", PAYLOAD) == ("", True, True)
    [record] = caplog.records
    assert record.getMessage() == 'The arguments of shop.pay are hidden: the hook DHARA["REDACT"] does not work'
    assert (record.dhara_event, record.dhara_function) == ("arguments.hidden", "shop.pay")
    assert record.exc_info


@pytest.mark.parametrize(
    "mistaken", ["shop.redact", {"REDACT": 5}, {"redact": "shop.redact"}, {"REDCAT": "shop.redact"}, {1: 2}], ids=str
)
def test_a_mistake_where_a_hook_may_have_been_meant_hides_the_arguments(settings, mistaken):
    settings.DHARA = mistaken
    assert redaction.is_redacting()
    assert redaction.shown("shop.pay", PAYLOAD).is_hidden


@pytest.mark.parametrize("text", ['{"args": [', "", "[1]", "[" * 20_000])
def test_arguments_that_the_hook_cannot_read_are_hidden(settings, text):
    set_hook(settings, "without_cards")
    assert redaction.shown("shop.pay", text).is_hidden


@pytest.mark.parametrize("text", ["payload.card:4111", '-payload.0:"48213"', "state:dead payload.card:4*"])
def test_nobody_can_search_for_what_a_hook_may_hide(settings, text):
    assert search.parse(text)
    for hook in ("without_cards", "broken", "no_such_name"):
        set_hook(settings, hook)
        with pytest.raises(search.SearchError, match="redacts"):
            search.parse(text)
