"""The admin: what is in the queue, why it waits, and cancel, retry and run now. It imports no function's code.

tasks.py        list and page of tasks, their actions and buttons
overview.py     what needs a person, and numbers; graphs.py has charts, breakdown.py its tables
charts.py       SVG; links.py has addresses
queues.py       list and page of queues, pause and resume; backlog.py is what they read
workers.py      list and page of workers, drain and stacks; crew.py is what they read, profile.py its words
pulse.py        the last hour of a queue or a worker
audit.py        who did what to queues and workers
operations.py   what an action does, its log entries and its summary
lists.py        counting, filtering and searching at a bounded cost
scene.py        what one task's page reads; story.py says it in words, page.py lays it out
readonly.py     what all pages share
databases.py    which databases hold queues
text.py         times, states, JSON and foreign names as text
"""

from django_dhara.admin.queues import QueueAdmin
from django_dhara.admin.tasks import TaskAdmin
from django_dhara.admin.workers import WorkerAdmin

__all__ = ["QueueAdmin", "TaskAdmin", "WorkerAdmin"]
