"""A worker process, from its control loop to its threads.

    loop.py       the control loop: claim, hand out, gather, settle, wait
    hand.py       the runs it holds             settling.py   writing how they ended
    executors.py  where user code runs: threads, one event loop, the herald of signals
    children.py   ... or child processes            child.py      one of them, from within
    pace.py       how much to prefetch          reports.py    progress and checkpoints of running functions
    session.py    its own connection, with a deadline for every statement
    ears.py       its listening session         alarm.py      what wakes the loop
    orders.py     the command channel           presence.py   its own row, for people to see
    lanes.py      from where to look for tasks  stacks.py     what threads and coroutines do right now

What a run is stands beside this package, in `execution.py`.
"""

from django_dhara.worker.loop import Worker

__all__ = ["Worker"]
