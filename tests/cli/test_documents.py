"""The documents that programs read: every document of a run that really ran on this machine, key for key and type for
type.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest

from ddpctl.cli.session import print_json
from tests.lab.command import PROGRAM
from tests.suite.speed import stretch

pytestmark = pytest.mark.slow

LINES = 40
SCRIPT = f"""\
import os
for number in range({LINES}):
    print("line", number, flush=True)
with open(os.environ["DDPCTL_METRICS"], "a") as file:
    file.write('{{"step": 7, "loss": 0.5}}\\n')
raise SystemExit(int(os.environ.get("FAIL", "0")))
"""
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def ddpctl(tmp_path_factory: pytest.TempPathFactory, stand_in: str) -> Run:
    folder = tmp_path_factory.mktemp("documents")
    (folder / "code").mkdir()
    (folder / "code" / "count.py").write_text(SCRIPT)
    host: dict[str, Any] = {
        "name": "here",
        "connection": "local",
        "python": stand_in,
        "base_dir": str(folder / "base"),
    }
    host |= {"fabric_address": "127.0.0.1", "slots": 1}
    job = {"script": "count.py", "code": "code"}
    jobs = {"good": job, "again": job, "bad": job | {"env": {"FAIL": "7"}}}
    (folder / "inventory.yaml").write_text(json.dumps({"cluster": "desk", "hosts": [host], "jobs": jobs}))
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "DDPCTL_SLOTS_DIR": str(folder / "slots")}

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PROGRAM, *args], env=env, cwd=folder, capture_output=True, text=True, timeout=stretch(120)
        )

    return run


@pytest.fixture(scope="module")
def good(ddpctl: Run) -> dict[str, Any]:
    done = ddpctl("up", "--job", "good", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def bad(ddpctl: Run) -> dict[str, Any]:
    done = ddpctl("up", "--job", "bad", "--json")
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-2].startswith("error: bad failed: here rank 0: exited: ")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def shape(value: Any) -> Any:
    """The keys and the names of the types; of a list its first item."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner) for inner in value[:1]]
    return "null" if value is None else type(value).__name__


NODE = {
    "host": "str", "node_rank": "int", "state": "str", "pid": "int", "ranks": ["int"], "exit_code": "int",
    "heartbeat_age_s": "null", "attempt": "int",
}  # fmt: skip
STATUS: dict[str, Any] = {
    "schema": "int", "job": "str", "run": "str", "cluster": "str", "project": "str", "state": "str", "started": "str",
    "ended": "str", "untracked": [], "world_size": "int", "nodes": [NODE], "cause": "null",
    "candidates": [], "metrics": {"step": "int", "loss": "float"}, "metrics_are_printed": "bool", "slow": [],
    "diagnosis": "null", "strangers": [], "without_keeper": [], "unfinished": [],
    "checkpoints": "null", "attempt": "int", "continues": "null",
    "attempts": [
        {"attempt": "int", "hosts": ["str"], "started": "str", "ended": "str", "cause": "null", "set_aside": []}
    ],
}  # fmt: skip
CAUSE = {
    "host": "str", "rank": "int", "exit_code": "int", "signal": "null", "reason": "str", "message": "str",
    "traceback": "null", "time": "str",
}  # fmt: skip


def test_up_and_status_say_the_same(ddpctl: Run, good: dict[str, Any]) -> None:
    assert shape(good) == STATUS
    assert (good["schema"], good["state"]) == (1, "succeeded")
    assert json.loads(ddpctl("status", good["run"], "--json").stdout) == good
    assert datetime.fromisoformat(good["started"]) <= datetime.fromisoformat(good["ended"])


def test_a_failed_run_has_its_cause(bad: dict[str, Any]) -> None:
    (attempt,) = STATUS["attempts"]
    assert shape(bad) == STATUS | {"cause": CAUSE, "attempts": [attempt | {"cause": CAUSE}]}
    assert (bad["state"], bad["cause"]["reason"], bad["cause"]["exit_code"]) == ("failed", "exited", 7)


def test_ps_lists_both(ddpctl: Run, good: dict[str, Any], bad: dict[str, Any]) -> None:
    found = json.loads(ddpctl("ps", "--json").stdout)
    row = dict.fromkeys(("job", "run", "cluster", "project", "state", "started", "user"), "str") | {"hosts": ["str"]}
    assert shape(found) == {"schema": "int", "jobs": [row | {"slots": {}, "place": "null"}]}
    assert {job["run"] for job in found["jobs"]} == {good["run"], bad["run"]}


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_is_not_json_is_not_printed(capsys: pytest.CaptureFixture[str], number: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        print_json({"rows": [{"loss": number}]})
    assert capsys.readouterr().out == ""


def test_killing_what_is_over_is_harmless(ddpctl: Run, good: dict[str, Any]) -> None:
    done = ddpctl("kill", "good", "--json")
    node = {"host": "str", "signalled": "int", "forced": "int", "survivors": [], "reachable": "bool"}
    whole = {"schema": "int", "job": "str", "run": "str", "state": "str", "duration_s": "float", "nodes": [node]}
    assert done.returncode == 0
    assert shape(json.loads(done.stdout)) == whole
    assert json.loads(ddpctl("status", "good", "--json").stdout)["state"] == "succeeded"


def test_tail_prints_every_line_for_programs_and_the_last_ones_for_people(ddpctl: Run, good: dict[str, Any]) -> None:
    for words in ("", "-f", "--rank 0", "--host here", "-n all", "--since 1h", "--grep line", "-f --grep ^line"):
        lines = [json.loads(line) for line in ddpctl("tail", "good", "--json", *words.split()).stdout.splitlines()]
        texts = [line["text"] for line in lines if line["rank"] == 0 and line["stream"] == "stdout"]
        assert texts == [f"line {number}" for number in range(LINES)]
        assert {tuple(line) for line in lines} == {("host", "rank", "stream", "time", "text")}
    assert ddpctl("tail", "good", "--rank", "0", "-n", "3").stdout.count("line ") == 3
    last = ddpctl("tail", "good", "-n", "2", "--grep", "line .*3", "--timestamps").stdout.splitlines()
    assert [line.partition(" ")[2] for line in last] == ["here:0 | line 38", "here:0 | line 39"]
    began, ended = (datetime.fromisoformat(good[name]) for name in ("started", "ended"))
    assert all(began <= datetime.fromisoformat(moment) <= ended for moment in (line.partition(" ")[0] for line in last))
    assert ddpctl("tail", "good", "--since", good["ended"]).stdout == ""


def test_what_the_launcher_says_of_itself_is_for_programs_and_for_runs_that_failed(
    ddpctl: Run, good: dict[str, Any], bad: dict[str, Any]
) -> None:
    assert "is deprecated" in ddpctl("tail", "good", "--json").stdout
    for extra in ([], ["-f"], ["-n", "all"]):
        shown = ddpctl("tail", "good", *extra).stdout.splitlines()
        assert shown == [f"here:0 | line {number}" for number in range(LINES)]
    assert "is deprecated" in ddpctl("tail", "bad", "-n", "all").stdout
    assert len(ddpctl("tail", "bad").stdout.splitlines()) == 50


@pytest.mark.parametrize("wrong", [["-n", "x"], ["--since", "noon"], ["--grep", "(loss"]])
def test_what_tail_refuses_before_it_asks_anybody(ddpctl: Run, wrong: list[str]) -> None:
    done = ddpctl("tail", "no-such-job", *wrong)
    assert (done.returncode, done.stdout) == (2, "")
    assert wrong[1] in done.stderr


def test_push_names_what_every_node_has(ddpctl: Run) -> None:
    done = ddpctl("push", "--job", "good", "--json")
    assert done.returncode == 0, done.stderr
    node = {
        "host": "str", "ok": "bool", "environment": "null", "code": "str", "python": "str",
        "install_s": "float", "error": "null",
    }  # fmt: skip
    amounts = dict.fromkeys(("needed", "sent_by_controller", "relayed", "reused"), "int")
    found = json.loads(done.stdout)
    versions = found["nodes"][0].pop("versions")
    assert {"torch"} <= set(versions) <= {"torch", "torchvision", "cuda", "nccl"}
    assert shape(found) == {
        "schema": "int", "cluster": "str", "ok": "bool", "duration_s": "float", "bytes": amounts, "nodes": [node],
    }  # fmt: skip


def test_restart_says_the_same_and_which_run_it_continues(ddpctl: Run) -> None:
    """Also of a run that has succeeded."""
    first = json.loads(ddpctl("up", "--job", "again", "--json").stdout)
    done = ddpctl("restart", "again", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert shape(found) == STATUS | {"continues": "str"}
    assert (found["continues"], found["attempt"]) == (first["run"], 2)
    assert [one["ended"] is not None for one in found["attempts"]] == [True, True]
