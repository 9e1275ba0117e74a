"""Every write of a task's state after its insert: one function per arrow of `states.py`.

    claim.py     pending -> running
    runs.py      what a run writes: settle, renew, report; what its worker writes: beat
    reaper.py    what nobody's run writes: rescue, spare, prune
    operator.py  what a person asks for: cancel, revive, copy, run now, put off, move, delete

The rules that make them safe against each other:

- The guard is in the WHERE and the answer is the rows that came back; nothing is read, checked and then written.
- Every write of a run carries the number of its lease. A claim raises it, so a late worker matches no row.
- A statement that touches many rows locks them first, in the order of their ids, and skips what somebody else has
  locked: it neither waits nor deadlocks, and what it skipped comes again at the next tick.
- Each function is one statement. A block that ended without an exception would prove no commit; returned rows do.
- Time is `statement_timestamp()`: the database's, the same for the whole statement, and usable in an index condition.

Each takes `execute`, which runs the statement: on the worker's own session, or on Django's connection (`sql.on`).
"""

from django_dhara.lifecycle.claim import Claim, Haul, Order, View, Wanted, claim
from django_dhara.lifecycle.operator import (
    Answer,
    Tally,
    cancel,
    cancel_all,
    change_priority_all,
    change_queue_all,
    copy_all,
    delete_all,
    put_off_all,
    revive,
    revive_all,
    run_now,
    run_now_all,
)
from django_dhara.lifecycle.reaper import Rescued, count_expired, prune, rescue, spare
from django_dhara.lifecycle.runs import (
    Ending,
    Renewal,
    Report,
    Settled,
    beat,
    owned,
    renew,
    report,
    settle,
    settle_in_transaction,
)

__all__ = [
    "Answer",
    "Claim",
    "Ending",
    "Haul",
    "Order",
    "Renewal",
    "Report",
    "Rescued",
    "Settled",
    "Tally",
    "View",
    "Wanted",
    "beat",
    "cancel",
    "cancel_all",
    "change_priority_all",
    "change_queue_all",
    "claim",
    "copy_all",
    "count_expired",
    "delete_all",
    "owned",
    "prune",
    "put_off_all",
    "renew",
    "report",
    "rescue",
    "revive",
    "revive_all",
    "run_now",
    "run_now_all",
    "settle",
    "settle_in_transaction",
    "spare",
]
