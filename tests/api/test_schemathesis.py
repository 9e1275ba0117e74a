"""Schemathesis against the running API: no 500, and no answer that the description does not have.

`SCHEMATHESIS_SECONDS=600` runs it for longer than the half a minute by default.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from django_dhara import tokens
from django_dhara.models import Task
from tests.api.conftest import BASE, a_secret
from tests.rows import a_task

pytest.importorskip("schemathesis")

SECONDS = int(os.environ.get("SCHEMATHESIS_SECONDS", "30"))
#: `positive_data_acceptance` is left out: a queue name with a comma, or a function that does not exist, has the right
#: type and is wrong all the same.
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,negative_data_rejection,unsupported_method,allow_header_conformance,"
    "missing_required_header,ignored_auth"
)


def described(address, secret):
    """The description, with functions and arguments that there are: chance does not find them."""
    request = Request(f"{address}{BASE}/openapi.json", headers={"Authorization": f"Bearer {secret}"})
    with urlopen(request) as response:
        document = json.load(response)
    fields = document["components"]["schemas"]["NewTask"]["properties"]
    fields["type"] = {"enum": ["tests.app.tasks.add"]}
    # What is narrowed here must be refused beyond it, or Schemathesis takes a right answer for a wrong one.
    fields["payload"] = {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"]}
    fields["payload"]["additionalProperties"] = False
    fields["idempotency_key"] = {"anyOf": [{"enum": ["one", "two"]}, fields["idempotency_key"]]}
    return document


@pytest.mark.usefixtures("_empty_only_our_tables")
@pytest.mark.timeout(SECONDS + 240)
@pytest.mark.parametrize("scopes", [tokens.SCOPES, ("read",)], ids=["all scopes", "read only"])
def test_schemathesis_finds_nothing(live_server, tmp_path, settings, scopes):
    settings.DHARA = {"API_FAILURES_PER_MINUTE": 0}
    for state in ("PENDING", "RUNNING", "COMPLETED", "DEAD", "CANCELED"):
        for _ in range(5):
            a_task(state)
    secret = a_secret(*scopes)
    before = sorted(Task.objects.values_list("id", "state"))
    (tmp_path / "openapi.json").write_text(json.dumps(described(live_server.url, secret)))
    run = subprocess.run(
        [
            str(Path(sys.executable).with_name("schemathesis")), "run", str(tmp_path / "openapi.json"),
            "--url", live_server.url, "--header", f"Authorization: Bearer {secret}", "--checks", CHECKS,
            "--max-time", str(SECONDS), "--continue-on-failure", "--no-color", "--warnings", "off",
            "--suppress-health-check", "all",
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS + 200,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-12_000:] + run.stderr[-2000:]
    if scopes == ("read",):
        assert sorted(Task.objects.values_list("id", "state")) == before
    else:
        assert Task.objects.count() > len(before)
