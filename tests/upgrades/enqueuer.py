"""Enqueues a bit of everything with the django_dhara that it finds; prints the ids by how their tasks must end.

python enqueuer.py QUEUE
"""

import json
import sys
from datetime import timedelta

import django

django.setup()

from django.db import transaction  # noqa: E402

import django_dhara  # noqa: E402
from tests.app import tasks  # noqa: E402

queue = sys.argv[1]


def put(function, *args, **options):
    return str(function.using(queue_name=queue, **options).enqueue(*args).id)


completed = [put(tasks.add, 1), put(tasks.acount, "coroutine"), put(tasks.fail_until, f"{queue} retried", 2)]
completed.append(put(tasks.add, 2, priority=7, metadata={"by": queue}, max_attempts=2, timeout=20))
completed.append(put(tasks.atomic_note, f"{queue} note", 0))
completed.append(put(tasks.add, 3, run_after=timedelta(seconds=0.5)))
with transaction.atomic():
    completed.append(put(tasks.add, 4))
with transaction.atomic():
    lost = put(tasks.add, 5)
    transaction.set_rollback(True)
shared = put(tasks.add, 6, idempotency_key="shared")
many = [tasks.add.using(queue_name=queue).bind(number) for number in range(20)]
completed += [str(result.id) for result in django_dhara.enqueue_many(many)]

later = [put(tasks.add, 7, run_after=timedelta(hours=1)) for _ in range(2)]
assert [str(django_dhara.cancel(id_)) for id_ in later] == ["canceled"] * 2
django_dhara.revive(later[0])
django_dhara.run_now(later[0])
completed.append(later.pop(0))
dead = [put(tasks.end_by, "discard")]

print(
    json.dumps({
        "code": django_dhara.__file__,
        "COMPLETED": completed, "CANCELED": later, "DEAD": dead, "lost": lost, "shared": shared,
    })
)  # fmt: skip
