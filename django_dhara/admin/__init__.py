"""The admin: what is in the queue, why it waits, and cancel, retry and run now. It imports no function's code.

tasks.py        list and page of tasks, their actions and buttons
workers.py      list and page of workers
tokens.py       tokens of the HTTP API
operations.py   what an action does, its log entries and its summary
lists.py        counting, filtering and searching at a bounded cost
scene.py        what one task's page reads; story.py says it in words, page.py lays it out
onetask.py      addresses under that page: documents, progress, the stack of a run
arrows.py       where a task can go from here
live.py         how far a running task is, and what it does right now
traces.py       tracebacks with the project's own frames standing out
trees.py        JSON that folds
readonly.py     what all pages share
databases.py    which databases hold queues
text.py         times, states, JSON and foreign names as text
"""

from django_dhara.admin.tasks import TaskAdmin
from django_dhara.admin.tokens import TokenAdmin
from django_dhara.admin.workers import WorkerAdmin

__all__ = ["TaskAdmin", "TokenAdmin", "WorkerAdmin"]
