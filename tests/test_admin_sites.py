"""An admin site of a project's own: links stay on it, and lead nowhere that it does not have."""

import re
from html import unescape

import pytest
from django.contrib.admin import AdminSite
from django.db.models.functions import Now
from django.urls import path

from django_dhara import bulk, search
from django_dhara.admin import BulkChangeAdmin, QueueAdmin, TaskAdmin, TokenAdmin, WorkerAdmin
from django_dhara.models import BulkChange, Queue, Task, Token, Worker
from django_dhara.states import State
from example_project.urls import urlpatterns as ours
from tests.rows import WORKER, a_task, an_attempt, everything
from tests.test_admin import a_client, a_worker
from tests.test_admin_dead import group_of

ADMINS = {Task: TaskAdmin, Worker: WorkerAdmin, Queue: QueueAdmin, BulkChange: BulkChangeAdmin, Token: TokenAdmin}


def a_site(name, *models):
    site = AdminSite(name=name)
    for model in models:
        site.register(model, ADMINS[model])
    return path(f"{name}/", site.urls)


#: One with all of it, and some that show a part.
SITES = {"ops": tuple(ADMINS), "desk": (Task,), "fleet": (Worker, Queue)}
urlpatterns = [*ours, *(a_site(name, *models) for name, models in SITES.items())]
pytestmark = pytest.mark.urls(__name__)


@pytest.fixture
def pages(db):
    """The pages of each model, with rows that have a link for everything."""
    a_worker(heartbeat_at=Now())
    running = a_task(State.RUNNING)
    waiting, dead = a_task(parent_id=running.pk), a_task(State.DEAD, error_class="x.E", error_fingerprint="f00")
    an_attempt(dead)
    Queue.objects.create(backend="default", name="default", paused_at=Now())
    change = bulk.create("default", "cancel", search.parse("state:dead"))
    group = group_of(dead).removeprefix("/admin/dhara/")
    tasks = [f"task/{task.pk}/{page}/" for task in (running, waiting, dead) for page in ("change", "live")]
    return {
        Task: ["task/", "task/dead/", group, *tasks],
        Worker: ["worker/", f"worker/{WORKER}/change/"],
        Queue: ["queue/", "queue/default_3Adefault/change/"],
        BulkChange: ["bulkchange/", f"bulkchange/{change.pk}/change/"],
        Token: ["token/", "token/add/"],
    }


@pytest.mark.parametrize("site", SITES)
def test_every_page_stays_on_its_site(pages, site):
    client = a_client(superuser=True)
    for address in ["", *(page for model in SITES[site] for page in pages[model])]:
        response = client.get(f"/{site}/dhara/{address}")
        assert response.status_code == 200, address
        found = {unescape(link) for link in re.findall(r'(?:href|action)="([^"]*)"', response.content.decode())}
        assert not [link for link in found if link.startswith("/admin/")], address
        assert 'href=""' not in response.content.decode(), address


def test_a_site_without_bulk_changes_begins_none(pages):
    client, before = a_client(superuser=True), everything()
    assert "select_across" not in client.get("/desk/dhara/task/").content.decode()
    assert "Discard all" not in client.get(f"/desk/dhara/{pages[Task][2]}").content.decode()
    everywhere = {"action": "cancel", "select_across": "1", "confirmed": "yes"}
    assert client.post("/desk/dhara/task/", everywhere).status_code == 400
    discard = pages[Task][2].replace("group/", "group/discard/")
    assert client.post(f"/desk/dhara/{discard}", {"reason": "old"}).status_code == 400
    assert everything() == before
    assert BulkChange.objects.count() == 1
