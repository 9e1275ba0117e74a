"""The admin: what is in the queue, why it waits, and cancel, retry and run now. It imports no function's code.

tasks.py        list and page of tasks, their actions and buttons
workers.py      list and page of workers
tokens.py       tokens of the HTTP API
tasks.py        tasks: the page of one; tasklist.py their list, sidebar.py its filters, actions.py what is done to them
bulkchanges.py  changes of all that match a search
overview.py     what needs a person, and numbers; graphs.py has charts, breakdown.py its tables
charts.py       SVG; links.py has addresses
queues.py       list and page of queues, pause and resume; backlog.py is what they read
workers.py      list and page of workers, drain and stacks; crew.py is what they read, profile.py its words
pulse.py        the last hour of a queue or a worker
audit.py        who did what to queues and workers
operations.py   what an action does, its log entries and its summary
lists.py        what all lists share
scene.py        what one task's page reads; story.py says it in words, page.py lays it out
onetask.py      addresses under that page: documents, progress, the stack of a run
arrows.py       where a task can go from here
live.py         how far a running task is, and what it does right now
traces.py       tracebacks with the project's own frames standing out
trees.py        JSON that folds
letters.py      the pages of dead letters; dead.py groups and counts them
readonly.py     what all pages share
databases.py    which databases hold queues
text.py         times, states, JSON and foreign names as text
"""

from django_dhara.admin.bulkchanges import BulkChangeAdmin
from django_dhara.admin.queues import QueueAdmin
from django_dhara.admin.tasks import TaskAdmin
from django_dhara.admin.tokens import TokenAdmin
from django_dhara.admin.workers import WorkerAdmin

__all__ = ["BulkChangeAdmin", "QueueAdmin", "TaskAdmin", "TokenAdmin", "WorkerAdmin"]
