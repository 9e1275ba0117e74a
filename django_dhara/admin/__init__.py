"""The admin: what is in the queue, why it waits, and cancel, retry and run now. It imports no function's code.

tasks.py        tasks: the page of one; tasklist.py their list, sidebar.py its filters, actions.py what is done to them
bulkchanges.py  changes of all that match a search
workers.py      list and page of workers
operations.py   what an action does, its log entries and its summary
lists.py        what all lists share
scene.py        what one task's page reads; story.py says it in words, page.py lays it out
readonly.py     what all pages share
databases.py    which databases hold queues
text.py         times, states, JSON and foreign names as text
"""

from django_dhara.admin.bulkchanges import BulkChangeAdmin
from django_dhara.admin.tasks import TaskAdmin
from django_dhara.admin.workers import WorkerAdmin

__all__ = ["BulkChangeAdmin", "TaskAdmin", "WorkerAdmin"]
