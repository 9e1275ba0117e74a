"""Tasks and the rows beside them, while real workers look for tasks all the time: committed or never seen."""

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from django.db import DatabaseError, InterfaceError, connection, transaction
from django.http import HttpResponse
from django.test import Client
from django.urls import path

from tests.app.awkward import look_for
from tests.app.models import Note
from tests.workers.harness import until


class Undone(Exception):
    pass


def place_order(text):
    """A business row and its task, as a view would write them."""
    Note.objects.create(text=text)
    look_for.enqueue(text)


def view(request, text, how):
    place_order(text)
    if how == "raise":
        raise Undone
    return HttpResponse()


urlpatterns = [path("<str:text>/<str:how>/", view)]


def by_request(text, how):
    Client(raise_request_exception=False).get(f"/{text}/{how}/")


def by_block(text, how):
    with transaction.atomic():
        place_order(text)
        if how == "raise":
            raise Undone
        transaction.set_rollback(how == "set rollback")


def by_inner_block(text, how):
    with transaction.atomic():
        try:
            by_block(text, "raise")
        except Undone:
            place_order(f"{text} outer")


def by_lost_session(text, how):
    """The session ends before the commit."""
    with psycopg.connect(**killer()) as other, transaction.atomic():
        place_order(text)
        other.execute("SELECT pg_terminate_backend(%s)", [connection.connection.info.backend_pid])


def killer():
    parameters = connection.get_connection_params()
    return {name: parameters[name] for name in ("dbname", "host", "port", "user")}


#: How an order is placed, and whether it is there in the end.
WAYS = [
    (by_block, "return", True),
    (by_request, "return", True),
    (by_block, "raise", False),
    (by_block, "set rollback", False),
    (by_request, "raise", False),
    (by_inner_block, "", False),
]


def many_orders(customer, number):
    """Places orders in all ways, each with a name of its own, and returns those that must be there."""
    kept, lost = [], 0
    for n in range(number):
        place, how, stays = random.choice(WAYS) if n % 50 else (by_lost_session, "", False)
        text = f"order {customer} {n}"
        try:
            place(text, how)
        except Undone:
            assert not stays
        except (DatabaseError, InterfaceError):
            assert place is by_lost_session
            lost += 1
            connection.close()
        kept += [text] if stays else [f"{text} outer"] if place is by_inner_block else []
    connection.close()
    return kept, lost


@pytest.mark.parametrize("each", [100, pytest.param(2500, marks=[pytest.mark.slow, pytest.mark.timeout(600)])])
def test_workers_see_what_was_committed_and_nothing_else(crew, database, settings, monkeypatch, each):  # F01, F02, F04
    settings.ROOT_URLCONF = __name__
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
    workers = [crew.start(DHARA_POLL_SECONDS=0.01) for _ in range(2)]
    with ThreadPoolExecutor(4) as threads:
        done = list(threads.map(many_orders, "abcd", [each] * 4))
    kept = sorted(text for texts, _ in done for text in texts)
    until(lambda: database.value("SELECT count(*) FROM dhara_task WHERE state <> 'COMPLETED'") == 0, 60)
    seen = Counter(text for (text,) in database.rows("SELECT task FROM app_effect"))
    assert sorted(seen) == kept  # "without its row" would stand here of a task that started too early
    assert set(seen.values()) == {1}
    assert sum(lost for _, lost in done) == 4 * each / 50, "no session was lost"
    assert len(kept) < 4 * each, "nothing was rolled back"
    assert all(worker.lives for worker in workers)


def test_a_task_that_waits_long_for_its_commit_starts_right_after_it(crew, database):  # F01
    crew.start(DHARA_POLL_SECONDS=0.01)
    with transaction.atomic():
        place_order("late")
        others = [database.add("count", f"meanwhile {n}") for n in range(20)]
        until(lambda: database.states(*others) == ["COMPLETED"] * 20)
        assert database.effects("late") == 0
    until(lambda: database.effects("late") == 1)
