"""The examples of docs/how-to/api.md are run by a shell with curl against a site, and answered as the page says."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from django_dhara.models import Task
from example_project.shop import tasks as shop
from tests.api.conftest import BASE, a_secret

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/api.md"
#: Each example, and the answer below it, if there is one.
EXAMPLES = re.findall(r"^```sh\n(.*?)^```\n(?:\n```json\n(.*?)^```)?", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)
MARK = "-- the next example --"


def agrees(told, answered):
    """Is the answer as the page says? It may have more fields, and anything where the page has `...`."""
    if told == "...":
        return True
    if isinstance(told, dict):
        return all(name in answered and agrees(value, answered[name]) for name, value in told.items())
    if told == ["..."]:
        return isinstance(answered, list)
    return told == answered


@pytest.mark.skipif(not shutil.which("curl"), reason="needs curl")
@pytest.mark.usefixtures("_empty_only_our_tables")
def test_the_examples_run_and_are_answered_as_the_page_says(live_server, tmp_path):
    # The page's module is that of a shop which is not ours.
    assert shop.send_receipt.module_path.endswith("shop.tasks.send_receipt")
    script = f"\necho '{MARK}'\n".join(code for code, _ in EXAMPLES).replace("shop.tasks", "example_project.shop.tasks")
    run = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", script],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin:/usr/local/bin", "API": f"{live_server.url}{BASE}", "TOKEN": a_secret()},
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    outputs = run.stdout.split(MARK)
    for (code, told), output in zip(EXAMPLES, outputs, strict=True):
        if told:
            expected = json.loads(told.replace("shop.tasks", "example_project.shop.tasks"))
            assert agrees(expected, json.loads(output)), (code, output)
    assert set(Task.objects.values_list("state", flat=True)) == {"CANCELED"}
    assert json.loads((tmp_path / "queues.json").read_text()) == {"queues": []}


def test_most_examples_show_an_answer():
    assert len(EXAMPLES) >= 7
    assert sum(bool(told) for _, told in EXAMPLES) >= 5
