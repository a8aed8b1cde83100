"""Two nodes on this very machine, without SSH and without root: `connection: local`."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.programs import REPORT, SLEEP
from tests.e2e.site import until
from tests.lab.command import Ddpctl
from tests.lab.process import Process, read_processes
from tests.worker import nvml_library


@pytest.fixture
def inventory(tmp_path: Path, stand_in: str) -> Path:
    local: dict[str, Any] = {"connection": "local", "python": stand_in, "slots": 2}
    local["base_dir"] = str(tmp_path / "base dir")
    path = tmp_path / "work" / "local.yaml"
    path.parent.mkdir()
    (path.parent / "report.py").write_text(REPORT)
    (path.parent / "sleep.py").write_text(SLEEP)
    jobs = {"local_report": {"script": "report.py", "args": ["a b", "$(id)"]}, "local_sleep": {"script": "sleep.py"}}
    hosts = [{"name": "a", **local}, {"name": "b", **local}]
    path.write_text(json.dumps({"cluster": "here", "hosts": hosts, "jobs": jobs}))
    return path


def test_up_to_the_end(ddpctl: Ddpctl, inventory: Path) -> None:
    done = ddpctl("up", "--job", "local_report", inventory=inventory, timeout=120).ok()
    reports = [json.loads(line[line.index("{") :]) for line in done.stdout.splitlines() if '{"argv"' in line]
    assert [report["argv"][1:] for report in reports] == [["a b", "$(id)"]] * 4
    assert sorted(report["environ"]["RANK"] for report in reports) == ["0", "1", "2", "3"]
    assert len({report["cwd"] for report in reports}) == 2  # each node has its own folder
    status = ddpctl("status", "local_report", "--json", inventory=inventory).ok().json()
    assert (status["state"], status["world_size"]) == ("succeeded", 4)


def test_the_first_use_says_what_runs_here(ddpctl: Ddpctl, inventory: Path) -> None:
    words = f"{inventory}: the first use of this inventory; it runs on this machine: jobs (`connection: local`)"
    first, second = (ddpctl("ps", "--json", inventory=inventory).ok() for _ in range(2))
    assert words in first.stderr.splitlines()
    assert first.json() == second.json()
    assert words not in second.stderr


def test_kill_ends_all_and_nobody_else(ddpctl: Ddpctl, inventory: Path) -> None:
    up = ddpctl("up", "--job", "local_sleep", "-d", "--json", inventory=inventory, timeout=120).ok()
    run = up.json()["run"]
    told = [
        f"follow it:  ddpctl attach {run}",
        f"its output: ddpctl tail {run} -n 20",
        f"end it:     ddpctl kill {run}",
    ]
    assert up.stderr.splitlines()[-3:] == told
    until(lambda: len([one for one in of_run(run) if "RANK" in one.environ]) == 4, 60)
    kill = ddpctl("kill", "local_sleep", "--json", inventory=inventory).ok().json()
    assert of_run(run) == []
    assert [node["survivors"] for node in kill["nodes"]] == [[], []]
    assert sum(node["signalled"] for node in kill["nodes"]) >= 6
    assert ddpctl("ps", "--json", inventory=inventory).ok().json()["jobs"][0]["state"] == "killed"


def test_the_report_says_how_busy_the_gpus_were(ddpctl: Ddpctl, inventory: Path, tmp_path: Path) -> None:
    """With a stand-in for NVIDIA's library, of two GPUs."""
    if nvml_library.build(tmp_path, gpus=2) is None:
        pytest.skip("there is no C compiler")
    library = {"LD_LIBRARY_PATH": str(tmp_path)}
    ddpctl("up", "--job", "local_sleep", "-d", "--only", "ssh", inventory=inventory, env=library, timeout=120).ok()

    def seen() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = ddpctl("report", "local_sleep", "--json", inventory=inventory).ok().json()["gpus"]
        return found if len(found) == 4 else []

    gpus = until(seen, 200, "no GPU in the report", pause=1.0)
    assert [(one["host"], one["index"]) for one in gpus] == [("a", 0), ("a", 1), ("b", 0), ("b", 1)]
    assert all(40 < one["use"] < 98 and one["memory_max_mb"] == 40 << 10 for one in gpus)
    done = ddpctl("report", "local_sleep", "--html", str(tmp_path / "report.html"), inventory=inventory).ok()
    assert "GPUs     4, busy " in done.stdout
    assert (tmp_path / "report.html").read_text().count('<svg class="use"') == 4
    ddpctl("kill", "local_sleep", inventory=inventory).ok()


# Waits for a file before it runs a launcher, and only then.
SLOW_PYTHON = """\
#!/bin/sh
case "$*" in *torch.distributed*report.py*) while [ ! -e "{go_on}" ]; do sleep 0.1; done;; esac
exec "{python}" "$@"
"""


@pytest.mark.full(
    covered_by="tests/stages/test_joining.py::test_who_is_waited_for_is_said_once_and_so_is_that_all_have_come"
)
def test_a_launcher_that_the_others_wait_for_does_not_look_like_a_hang(
    ddpctl: Ddpctl, inventory: Path, stand_in: str
) -> None:
    go_on, enough = inventory.with_name("go-on"), inventory.with_name("enough")
    wait = f"import os, time\nwhile not os.path.exists({str(enough)!r}): time.sleep(0.1)\n"
    (inventory.parent / "report.py").write_text(wait + REPORT)
    slow = inventory.with_name("slow-python")
    slow.write_text(SLOW_PYTHON.format(python=stand_in, go_on=go_on))
    slow.chmod(0o755)
    data = json.loads(inventory.read_text())
    data["hosts"][1]["python"] = str(slow)
    inventory.write_text(json.dumps(data))
    up = ddpctl.start("up", "--job", "local_report", "--only", "ssh", inventory=inventory)
    up.wait_for("launchers run on every node and wait for each other: no rank has started yet\n", 120)
    go_on.touch()
    up.wait_for("ranks run on every node\n", 120)
    enough.touch()
    up.wait(120).ok()


GROWS = """\
import os, time
print("rank", os.environ["RANK"], flush=True)
for number in range(10**6):
    if os.environ["RANK"] == "0":
        with open("events.out", "a") as file:
            file.write(f"step {number}\\n")
    if os.path.exists(os.path.join(os.environ["DDPCTL_CHECKPOINT_DIR"], "enough")):
        break
    time.sleep(0.2)
"""


@pytest.mark.full(covered_by="tests/e2e/test_fetch.py::test_a_file_of_a_node_grows_here_until_the_run_is_killed")
def test_outputs_of_a_live_run_grow_here_until_it_ends(ddpctl: Ddpctl, inventory: Path, tmp_path: Path) -> None:
    (inventory.parent / "grows.py").write_text(GROWS)
    data = json.loads(inventory.read_text())
    data["jobs"]["grows"] = {"script": "grows.py", "outputs": ["events.out"]}
    inventory.write_text(json.dumps(data))
    run = ddpctl("up", "--job", "grows", "-d", "--json", inventory=inventory, timeout=120).ok().json()["run"]
    where: dict[str, Any] = {"inventory": inventory, "cwd": inventory.parent}
    folder = inventory.parent / "ddpctl-runs" / "grows" / run
    events = folder / "a" / "outputs" / "events.out"

    left = ddpctl.start("fetch", "grows", "--watch", **where)
    left.wait_for(r"1 file, \d+ bytes from a")
    left.signal(signal.SIGINT)
    done = left.wait()
    assert done.rc == 130
    assert f"hint: logs and records: ddpctl fetch {run} ddpctl-runs/grows/{run}" in done.stderr
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["events.out"]
    with events.open() as reader:
        assert reader.readline() == "step 0\n"

    watch = ddpctl.start("fetch", "grows", "--watch", **where)
    watch.wait_for(r"1 file, \d+ bytes from a")
    with events.open() as reader:  # as TensorBoard does
        first = reader.read()
        until(lambda: len(reader.read()) > 0, 30)
    assert first.startswith("step 0\n")
    for path in tmp_path.rglob("checkpoints/here/*/grows/*"):
        if path.is_dir():
            (path / "enough").touch()
    assert watch.wait(60).rc == 0
    (real,) = (path for path in (tmp_path / "base dir").rglob("events.out") if "/a/" in str(path))
    assert events.read_text() == real.read_text()
    assert (folder / "b" / "logs" / "rank-2.log").read_text() == "rank 2\n"

    ddpctl("fetch", "grows", "some", "--rank", "3", **where).ok()
    logs = sorted(str(path.relative_to(inventory.parent / "some")) for path in inventory.parent.glob("some/*/logs/*"))
    assert logs == ["b/logs/rank-3.log"]
    ddpctl("fetch", "grows", "one", "--host", "a", **where).ok()
    assert [path.name for path in (inventory.parent / "one").iterdir()] == ["a"]
    for wrong, why in (
        (("--rank", "3", "--host", "a"), "has no rank 3 on a"),
        (("--host", "c"), "does not run on 'c'"),
    ):
        refused = ddpctl("fetch", "grows", "none", *wrong, **where)
        assert (refused.rc, why in refused.stderr) == (2, True)


def of_run(run: str) -> list[Process]:
    """The living processes of a run on this machine."""
    return [
        one for one in read_processes(Path("/proc")) if one.environ.get("DDPCTL_RUN") == run and one.state not in "ZX"
    ]
