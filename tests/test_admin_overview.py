"""The overview of the admin: what it says, to whom, at what cost, and on which database and site."""

import re
from html import unescape
from itertools import pairwise

import pytest
from django.contrib.admin import AdminSite
from django.db import connection
from django.db.utils import OperationalError
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import path
from django.utils import translation

from django_dhara import stats
from django_dhara.admin import TaskAdmin, WorkerAdmin, charts, overview
from django_dhara.admin.charts import HEIGHT, Mark, TimeScale
from django_dhara.models import Queue, Task, Worker
from django_dhara.words import capped, grouped, isolated, rate, short_time, span
from example_project.urls import urlpatterns as ours
from tests.minutes import CHARGE, MAIL, a_crew, a_minute, an_afternoon
from tests.rows import a_task, ago, ahead
from tests.test_admin import a_client, second_database, shown  # noqa: F401

OVERVIEW = "/admin/dhara/"


@pytest.fixture
def client(db):
    return a_client("view_task", "view_worker")


@pytest.fixture
def afternoon(db):
    an_afternoon()
    a_crew()


@pytest.mark.fast
def test_what_needs_a_person_stands_first_with_a_link_to_where_it_is_mended(client, afternoon):
    response = client.get(OVERVIEW)
    seen = shown(response)
    assert seen.index("Needs a person") < seen.index("Throughput") < seen.index("By queue")
    assert "! Harm Queue email falls behind: 60 ready, the oldest for 3 min; it grows. Ready tasks" in seen
    assert f"▲ Warning {CHARGE} fails" in seen
    body = response.content.decode()
    # Also on Django 5.2, whose block of object tools is within the content.
    assert body.index("<h1>Overview") < body.index('class="dhara-lists"') < body.index('class="dhara-attention"')
    for address in (
        "/admin/dhara/task/?is=ready&amp;queue=email",
        f"/admin/dhara/task/?function={CHARGE}&amp;errors=yes",
        "/admin/dhara/worker/",
    ):
        assert f'href="{address}"' in body


def test_the_list_behind_a_number_has_that_many(client):
    """At night the difference between ready and pending is what one came for."""
    for columns in ({"failures": 1, "run_at": ahead(90)}, {"run_at": ahead(90)}, {"run_at": ahead(90), "queue": "b"}):
        a_task(**columns)
    a_task(queue="b")
    body = client.get(OVERVIEW).content.decode()
    for address, number in (("is=ready", 1), ("is=ready&amp;queue=b", 1), ("is=scheduled", 3), ("is=retrying", 1)):
        assert f'href="/admin/dhara/task/?{address}"' in body
        listed = client.get(f"/admin/dhara/task/?{address.replace('&amp;', '&')}").context["cl"].total
        assert listed == str(number)


def test_dead_tasks_of_one_function_lead_to_its_dead_letters(client):
    a_task("DEAD", function="shop.charge", failures=5, error_class="builtins.KeyError")
    assert "/admin/dhara/task/dead/?function=shop.charge" in client.get(OVERVIEW).content.decode()


@pytest.mark.fast
@pytest.mark.parametrize("key", [*stats.RANGES, "", "1 year"])
def test_every_range_has_its_charts_and_a_wrong_one_is_the_hour(client, afternoon, key):
    response = client.get(OVERVIEW, {"range": key})
    body = response.content.decode()
    assert body.count('role="img"') == 3
    chosen = key if key in stats.RANGES else "1h"
    [current] = re.findall(r'href="\?range=(\w+)" aria-current', body)
    assert current == chosen
    steps = stats.RANGES[chosen].seconds // stats.RANGES[chosen].step + 1
    assert len(re.findall(r'class="dhara-hit"', body)) == 3 * steps
    assert not re.search(r"<script>|\son\w+=|\sstyle=", body)


def test_an_empty_database_needs_nobody_and_draws_its_charts(client):
    seen = shown(client.get(OVERVIEW))
    assert "Nothing. Queues are served, nothing fails." in seen
    assert "nothing waits" in seen


def test_ready_tasks_of_paused_queues_are_not_nothing(client):
    a_task(queue="mail", run_at=ago(5))
    Queue.objects.create(backend="default", name="mail", paused_at=ago(60))
    seen = shown(client.get(OVERVIEW))
    assert "Ready 1 all in paused queues" in seen
    assert "nothing waits" not in seen


def test_dead_tasks_and_deaths_are_two_words(client):
    """Of three that died one is dead still."""
    a_minute(1, failed=9, dead=3)
    a_task("DEAD", failures=1, finished_at=ago(60), function=MAIL)
    seen = shown(client.get(OVERVIEW))
    assert f"1 task that died in the last hour is dead now: {MAIL} 1." in seen
    assert "Dead now 1 3 deaths in the last hour" in seen
    assert "Deaths" in seen[seen.index("By function") :]
    assert "· 3 deaths" in client.get(OVERVIEW).content.decode()


def test_a_function_does_not_fail_since_before_it_is_known_to(client):
    """Of an aggregate of a day ago only the hour is known."""
    a_minute(7, failed=9)
    assert re.search(r"failed: 9 of 9 runs .*? since (7|8) min", shown(client.get(OVERVIEW, {"range": "7d"})))


def test_who_may_not_see_tasks_or_workers_sees_neither(afternoon):
    assert "You may not see tasks." in shown(a_client("view_worker").get(OVERVIEW))
    seen = a_client("view_task").get(OVERVIEW).content.decode()
    assert "dhara-table-workers" not in seen
    assert "dhara-table-functions" in seen
    assert a_client("add_user").get(OVERVIEW).status_code == 404
    assert Client().get(OVERVIEW).status_code == 302


def test_the_tables_tell_queues_functions_and_workers(client, afternoon):
    seen = shown(client.get(OVERVIEW))
    assert re.search(r"reports ❚❚ Paused 14 38 min [\d.]+ 0 0 \d+ ms", seen)
    assert re.search(rf"{CHARGE} \d+ \d+ \(\d+%\) \d+ [\d.]+ ms", seen) or f"{CHARGE} 1" in seen
    assert re.search(r"box6-77 ! Late 0/10 0 0 11 min", seen)
    assert re.search(r"box7-41 box7:4001 ✓ Alive 3/10 [\d,]+ \d+ \d+ s", seen)


def test_the_charts_have_their_values_as_a_table(client, afternoon):
    body = client.get(OVERVIEW).content.decode()
    table = body[body.index("dhara-values") : body.index("</details>")]
    assert table.count('<th scope="row">') == 61
    titles = [unescape(title) for title in re.findall(r"<title>(.*?)</title></rect>", body)]
    assert len(titles) == 183
    assert re.fullmatch(r"\d\d:\d\d · \d+ done · \d+ failed( · \d+ dead)?", titles[30])
    assert re.fullmatch(r"\d\d:\d\d · p50 \d+ ms · p95 \d+ ms · p99 \d+ ms", titles[61 + 10])


def test_the_overview_makes_few_queries_and_none_without_a_limit(client, afternoon):
    client.get(OVERVIEW)
    with CaptureQueriesContext(connection) as made:
        client.get(OVERVIEW)
    ours_ = [query["sql"] for query in made if "dhara_" in query["sql"] and "FROM" in query["sql"]]
    assert len(ours_) <= 16
    limits = sum("set_config('statement_timeout'" in query["sql"] for query in made)
    assert limits >= 2 * 7


def test_a_part_that_takes_too_long_is_left_out_and_the_rest_shown(client, afternoon, monkeypatch):
    def slow(*arguments):
        raise stats.TooSlow

    monkeypatch.setattr("django_dhara.stats.past.history", slow)
    seen = shown(client.get(OVERVIEW))
    assert "Not everything could be read within a second and is left out." in seen
    assert "Queue reports is paused" in seen
    assert "Throughput" not in seen


def test_a_database_that_is_away_is_told(client, monkeypatch):
    def away(*arguments):
        raise OperationalError("no route")

    monkeypatch.setattr("django_dhara.stats.overview", away)
    assert "The database default cannot be asked (OperationalError)." in shown(client.get(OVERVIEW))


def test_each_database_has_its_overview(second_database):
    a_minute(0, completed=5, function="only.here")
    client = a_client("view_task", "view_worker")
    assert "only.here" in shown(client.get(OVERVIEW))
    there = client.get(OVERVIEW, {"database": second_database, "range": "5m"})
    assert "only.here" not in shown(there)
    body = there.content.decode()
    assert 'href="?range=1h&amp;database=queue"' in body
    assert "state=RUNNING&amp;database=queue" in body
    lists = re.findall(r'href="([^"]+)"', body.partition('class="dhara-lists"')[2].partition("</nav>")[0])
    assert lists == [f"{OVERVIEW}{name}/?database=queue" for name in ("task", "task/dead", "worker", "bulkchange")]


# A project's own admin site, and one that does not show queues.
other_site = AdminSite(name="back-office")
other_site.register(Task, TaskAdmin)
other_site.register(Worker, WorkerAdmin)
urlpatterns = [*ours, path("back-office/", other_site.urls)]


@pytest.mark.urls(__name__)
def test_on_another_admin_site_links_stay_there(client, afternoon):
    body = client.get("/back-office/dhara/").content.decode()
    assert 'href="/back-office/dhara/task/?is=ready&amp;queue=email"' in body
    assert 'href=""' not in body
    assert "/admin/dhara/" not in body


def test_hostile_names_are_written_out(client):
    name = '"><script>alert(1)</script>\u202e\x1b[31m'
    a_minute(0, queue=name, function=name, completed=1, failed=9)
    a_task(queue=name, run_at=ago(600))
    body = client.get(OVERVIEW).content.decode()
    assert "<script>alert" not in body
    assert "\u202e" not in body
    assert "\x1b" not in body


def test_the_overview_speaks_the_readers_language_and_its_numbers(client, afternoon):
    with translation.override("de"):
        body = client.get(OVERVIEW, headers={"accept-language": "de"}).content.decode()
    assert not re.search(r'\s[xy]="\d+,\d', body), "a decimal comma in a coordinate"


# ---------------------------------------------------------------------------------------------------------- drawing


@pytest.mark.parametrize(
    ("highest", "top"), [(0, 1), (0.02, 0.02), (0.9, 1), (1, 1), (7, 8), (9, 10), (101, 200), (460, 500), (1e6, 1e6)]
)
def test_the_top_of_a_scale_is_a_round_number(highest, top):
    assert charts.ceiling(highest) == pytest.approx(top)


@pytest.mark.parametrize(
    ("values", "marks"),
    [
        ([], ["100 ms", "1 s"]),
        ([0.0002], ["1 ms", "10 ms"]),
        ([0.012, 0.5], ["10 ms", "100 ms", "1 s"]),
        ([3.0, None, 100.0], ["1 s", "10 s", "1 min", "10 min"]),
        ([10.0], ["10 s", "1 min"]),
        ([1e9], ["100 h", "1,000 h"]),
    ],
)
def test_a_scale_of_times_holds_all_of_them(values, marks):
    scale = TimeScale(values)
    assert [mark.text for mark in scale.marks()][: len(marks)] == marks
    assert all(0 <= scale.place(value) <= HEIGHT for value in values if value is not None)


def test_a_line_has_gaps_where_nothing_ran(db):
    drawn = charts.line("p50", [1.0, 2.0, None, 3.0, None], lambda value: value)
    assert 'd="M5 1L15 2M30 3h10"' in drawn


def test_names_of_lines_keep_apart_and_within_the_chart():
    for places in ([10, 10, 10], [149, 149, 149], [0, 0, 0], [75]):
        found = charts.apart(Mark(y, str(number)) for number, y in enumerate(places))
        heights = [mark.y for mark in found]
        assert all(later - earlier >= charts.LETTER - 0.01 for earlier, later in pairwise(heights))
        assert heights[0] > 0
        assert heights[-1] <= HEIGHT


def test_names_in_a_sentence_are_set_apart():
    assert overview.in_html(f"Queue {isolated('a<b')} & {isolated('c')}.") == (
        'Queue <bdi class="dhara-name">a&lt;b</bdi> &amp; <bdi class="dhara-name">c</bdi>.'
    )


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "–"),
        (0.0004, "0.4 ms"),
        (0.0123, "12 ms"),
        (0.9996, "1.0 s"),
        (12, "12 s"),
        (60, "1.0 min"),
        (7200, "2.0 h"),
    ],
)
def test_a_short_time_has_about_two_digits(seconds, said):
    assert short_time(seconds) == said


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (0, "0"),
        (0.000099, "<0.01"),
        (0.1234, "0.12"),
        (3.456, "3.46"),
        (60.91, "60.9"),
        (99.6, "100"),
        (1234.5, "1,234"),
    ],
)
def test_a_rate_has_about_three_digits(number, said):
    assert rate(number) == said


@pytest.mark.parametrize(
    ("language", "told"),
    [
        ("en", ["12,345", "2,000+", "1,234", "7.5", "0.25", "1.2 s", "0.5 s"]),
        ("de", ["12.345", "2.000+", "1.234", "7,5", "0,25", "1,2 s", "0,5 s"]),
        ("fr", ["12\xa0345", "2\xa0000+", "1\xa0234", "7,5", "0,25", "1,2 s", "0,5 s"]),
    ],
)
def test_numbers_are_written_as_the_language_does(language, told):
    """To a German "3,077" is a little more than three."""
    with translation.override(language):
        numbers = [
            grouped(12_345),
            capped(2000, 2000),
            rate(1234.4),
            rate(7.5),
            rate(0.25),
            short_time(1.23),
            span(0.5),
        ]
    assert numbers == told


def test_a_german_page_has_german_numbers(client, settings):
    settings.LANGUAGE_CODE = "de"
    a_minute(1, completed=12_000, failed=345)
    seen = shown(client.get(OVERVIEW))
    assert "345 von 12.345 Läufen" in seen
    assert "12,345" not in seen


def test_the_lists_stand_in_one_order_in_all_languages(client, settings):
    """In that of the alphabet the first was "Bulk changes", and another one in German."""
    places = []
    for settings.LANGUAGE_CODE in ("en", "de"):
        body = client.get(OVERVIEW).content.decode()
        nav = body[body.index('class="dhara-lists"') :]
        places.append(re.findall(r'href="/admin/dhara/(\w+/(?:dead/)?)"', nav[: nav.index("</nav>")]))
    assert places == [["task/", "task/dead/", "worker/", "bulkchange/"]] * 2


def test_counts_that_stopped_say_so_for_each_function(client, monkeypatch):
    monkeypatch.setattr("django_dhara.stats.trouble.DEPTH_LIMIT", 2)
    for _ in range(2):
        a_task("DEAD", function="shop.charge", failures=5, error_class="builtins.KeyError")
    assert "2+ tasks that died in the last hour are dead now: shop.charge 2+." in shown(client.get(OVERVIEW))
