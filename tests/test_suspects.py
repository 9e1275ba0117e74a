"""Tasks that were running when a worker died: one at a time, but without a pause in between."""

import pytest
from django.core.management import call_command

from django_dhara.models import Task
from django_dhara.states import State
from tests.rows import a_task


def test_a_suspect_follows_the_other_at_once(transactional_db):
    for _ in range(5):
        a_task(lost=1)
    with pytest.raises(SystemExit) as stopped:
        call_command("dhara_worker", "--burst", "--no-reap", "--no-prune")
    assert stopped.value.code == 0
    # A burst ends where the worker would wait for its next poll: it must not while there are more.
    assert set(Task.objects.values_list("state", flat=True)) == {State.COMPLETED}
