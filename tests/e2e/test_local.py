"""Two nodes on this very machine, without SSH and without root: `connection: local`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.programs import REPORT, SLEEP
from tests.e2e.site import until
from tests.lab.command import Ddpctl
from tests.lab.process import Process, read_processes


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    local: dict[str, Any] = {"connection": "local", "python": sys.executable, "slots": 2}
    local["base_dir"] = str(tmp_path / "base dir")
    path = tmp_path / "work" / "local.yaml"
    path.parent.mkdir()
    (path.parent / "report.py").write_text(REPORT)
    (path.parent / "sleep.py").write_text(SLEEP)
    jobs = {"report": {"script": "report.py", "args": ["a b", "$(id)"]}, "sleep": {"script": "sleep.py"}}
    hosts = [{"name": "a", **local}, {"name": "b", **local}]
    path.write_text(json.dumps({"cluster": "here", "hosts": hosts, "jobs": jobs}))
    return path


def test_up_to_the_end(ddpctl: Ddpctl, inventory: Path) -> None:
    done = ddpctl("up", "--job", "report", inventory=inventory, timeout=120).ok()
    reports = [json.loads(line[line.index("{") :]) for line in done.stdout.splitlines() if '{"argv"' in line]
    assert [report["argv"][1:] for report in reports] == [["a b", "$(id)"]] * 4
    assert sorted(report["environ"]["RANK"] for report in reports) == ["0", "1", "2", "3"]
    assert len({report["cwd"] for report in reports}) == 2  # each node has its own folder
    status = ddpctl("status", "report", "--json", inventory=inventory).ok().json()
    assert (status["state"], status["world_size"]) == ("succeeded", 4)


def test_kill_ends_all_and_nobody_else(ddpctl: Ddpctl, inventory: Path) -> None:
    run = ddpctl("up", "--job", "sleep", "-d", "--json", inventory=inventory, timeout=120).ok().json()["run"]
    until(lambda: len([one for one in of_run(run) if "RANK" in one.environ]) == 4, 60)
    kill = ddpctl("kill", "sleep", "--json", inventory=inventory).ok().json()
    assert of_run(run) == []
    assert [node["survivors"] for node in kill["nodes"]] == [[], []]
    assert sum(node["signalled"] for node in kill["nodes"]) >= 6
    assert ddpctl("ps", "--json", inventory=inventory).ok().json()["jobs"][0]["state"] == "killed"


def of_run(run: str) -> list[Process]:
    """The living processes of a run on this machine."""
    return [
        one for one in read_processes(Path("/proc")) if one.environ.get("DDPCTL_RUN") == run and one.state not in "ZX"
    ]
