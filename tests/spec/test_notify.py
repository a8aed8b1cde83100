"""The notifications of a job: the allowed values, the nodes' part, and the values in any output."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ddpctl.errors import UsageError
from ddpctl.files.inventory import load_text
from ddpctl.render.console import make_console
from ddpctl.render.status import plan_view
from ddpctl.spec.notify import Notifier, shown_target
from ddpctl.spec.origin import Origin
from ddpctl.spec.plan import Plan, RunIdentity
from ddpctl.stages.launch import Launch, launch_of
from ddpctl.stages.start import start_request

SECRET = "T0/B1/s3cr3t"
URL = f"https://hooks.example.org/services/{SECRET}"
WHO = RunIdentity("r-1", Origin("me", "here", "/home/me", 1), "2026-01-02T03:04:05+00:00")
WHOLE = "${HOOK}"
PART = "https://hooks.example.org/services/${TOKEN}"


@pytest.mark.parametrize(
    "value",
    [URL, "http://10.0.0.1:8080", "https://[fe80::1]:80/x?y=1", "https://h?token=a", WHOLE, PART],
)
def test_a_webhook_is_an_address_or_the_name_of_one(value: str) -> None:
    assert Notifier(webhook=value).webhook == value


@pytest.mark.parametrize(
    "value",
    [
        "",
        "hooks.example.org",
        "ftp://h/x",
        "file:///etc/passwd",
        "HTTPS://h",
        "https://",
        "https://user:s3cr3t@h/x",
        "https://h:port/x",
        "https://h/a b",
        "https://h/ü",
        "https://h/x\n",
        "${HOOK",
        "$HOOK",
        "x${HOOK}",
        "${HO-OK}",
        "https://${HOST}/x",
        7,
    ],
)
def test_anything_else_is_refused_without_being_repeated(value: object) -> None:
    with pytest.raises(ValidationError) as raised:
        Notifier(webhook=value)  # type: ignore[arg-type]
    assert "must be an http:// or https:// address" in str(raised.value)
    assert "s3cr3t" not in str(raised.value)


@pytest.mark.parametrize("keys", [{}, {"command": ("true",), "webhook": URL}, {"command": ()}, {"command": "mail me"}])
def test_a_notifier_is_one_of_the_two(keys: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Notifier(**keys)  # type: ignore[arg-type]


def test_a_reference_is_replaced_by_the_secret_of_that_name() -> None:
    secrets = {"HOOK": URL, "TOKEN": SECRET}
    assert Notifier(webhook=WHOLE).resolved(secrets) == {"webhook": URL}
    assert Notifier(webhook=PART).resolved(secrets) == {"webhook": URL}
    assert Notifier(command=("echo", WHOLE)).resolved(secrets) == {"command": ["echo", WHOLE]}


@pytest.mark.parametrize(
    ("secrets", "words"), [({}, "lacks HOOK"), ({"HOOK": "s3cr3t"}, "with the values of env_file")]
)
def test_a_reference_that_leads_nowhere_is_refused(secrets: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words) as raised:
        Notifier(webhook=WHOLE).resolved(secrets)
    assert "s3cr3t" not in str(raised.value)


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126)))
def test_what_is_shown_of_an_address_is_where_it_leads(path: str) -> None:
    address = f"https://hooks.example.org/{path}"
    assert Notifier(webhook=address).webhook == address
    assert shown_target({"webhook": address}) == {"webhook": "https://hooks.example.org/********"}


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "keys.env").write_text(f"HOOK={URL}\nTOKEN={SECRET}\n")
    notify = [{"webhook": WHOLE}, {"webhook": PART}, {"webhook": URL}, {"command": ["mail", "-s", "done", "me"]}]
    job = {"script": "train.py", "env_file": "keys.env", "notify": notify}
    document = {"hosts": [{"name": "a", "connection": "local"}], "jobs": {"train": job}}
    inventory = load_text(json.dumps(document).encode(), str(tmp_path / "inventory.yaml"))
    return launch_of(inventory, inventory.job("train"), WHO)


def view(plan: Plan) -> str:
    out = io.StringIO()
    make_console(out).print(plan_view(plan))
    return out.getvalue()


def test_the_address_goes_to_the_node_and_nowhere_else(launch: Launch) -> None:
    plan = launch.plan()
    request = start_request(plan, plan.nodes[0], launch.secrets, "key", None, launch.notify)
    assert [one.get("webhook") for one in request["notify"]] == [URL, URL, URL, None]
    place = {"webhook": "https://hooks.example.org/********"}
    assert request["run"]["notify"] == [place] * 3 + [{"command": ["mail", "-s", "done", "me"]}]
    for text in (repr(plan), json.dumps(plan.to_json()), json.dumps(request["run"]), repr(launch), view(plan)):
        assert "s3cr3t" not in text
    assert "notify  webhook https://hooks.example.org/********\nnotify  command mail -s done me" in view(plan)


def test_a_missing_secret_is_found_before_any_host_is_contacted(launch: Launch) -> None:
    assert launch.job is not None
    with pytest.raises(UsageError, match=r"jobs.train.notify\[0\].webhook: the job's env_file lacks HOOK"):
        launch_of(launch.inventory, launch.job.model_copy(update={"env_file": None}), WHO)


def test_a_launch_without_notifiers_has_none_in_its_plan(launch: Launch) -> None:
    assert replace(launch, notify=()).plan().to_json()["notify"] == []
