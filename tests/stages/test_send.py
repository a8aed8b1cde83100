"""Code and py-spy onto nodes that are folders of this machine."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import pytest
import uv

from ddpctl.environment import direct, managed, spread, tools
from ddpctl.environment.direct import FileSource, hash_file
from ddpctl.environment.tools import PY_SPY, own_program
from ddpctl.errors import ProvisionError
from ddpctl.spec.event import StageEnded
from ddpctl.spec.job import JobSpec
from ddpctl.spec.origin import Origin
from ddpctl.spec.plan import Facts, NodeFacts, RunIdentity
from ddpctl.stages import py_spy, send
from ddpctl.stages.launch import Launch
from ddpctl.stages.send import Sent
from ddpctl.stages.start import start_request
from ddpctl.transport.local import LocalTransport
from tests.environment.support import BytesSource, Heard, blobs, fleet_of, local_inventory, make_wheel

HERE = platform.machine()
CODE = BytesSource(b"the code of the job", "code")
OWN = own_program(PY_SPY)
TOOL = {"hash": OWN.sha256, "kind": "binary"}
NOTHING_HELD = {"n0": ((), 0), "n1": ((), 0)}  # both were asked


def launch(folder: Path, *, count: int = 2, code: bool = True, **job: Any) -> Launch:
    inventory = local_inventory(folder, count)
    spec = JobSpec(name="j", script="train.py", **job)
    identity = RunIdentity("r", Origin("me", "here", "/home/me", 1), "")
    return Launch(inventory, spec, inventory.hosts, identity=identity, archive=cast(Any, CODE if code else None))


def facts(*machines: str | None) -> Facts:
    return Facts({f"n{number}": NodeFacts(machine=machine) for number, machine in enumerate(machines)})


def sent(one: Launch, known: Facts, heard: Heard | None = None) -> Sent:
    with fleet_of(one.inventory) as fleet:
        return send.send(one, known, fleet, Heard() if heard is None else heard)


def in_short(found: Sent) -> tuple[Any, ...]:
    """Return the errors, py-spy by host, and the checkpoints and the last serial number by host."""
    held = {host: (answer.checkpoints, answer.serial) for host, answer in found.held.results.items()}
    return dict(found.errors), dict(found.py_spy), held


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """``HOST VERB`` of every call, in order."""
    made: list[str] = []
    call = LocalTransport.call

    def noted(self: LocalTransport, verb: str, *args: Any, **keys: Any) -> Any:
        made.append(f"{self.host} {verb}")
        return call(self, verb, *args, **keys)

    monkeypatch.setattr(LocalTransport, "call", noted)
    return made


@pytest.mark.slow
def test_both_come_with_one_question_and_the_second_time_nothing_is_sent(tmp_path: Path, calls: list[str]) -> None:
    one, heard = launch(tmp_path), Heard()
    assert in_short(sent(one, facts(HERE, HERE))) == ({}, {"n0": TOOL, "n1": TOOL}, NOTHING_HELD)
    assert blobs(tmp_path / "n0") == blobs(tmp_path / "n1") == sorted([CODE.sha256, OWN.sha256])
    calls.clear()
    assert in_short(sent(one, facts(HERE, HERE), heard)) == ({}, {"n0": TOOL, "n1": TOOL}, NOTHING_HELD)
    assert sorted(calls) == ["n0 store_has", "n1 store_has"]
    assert StageEnded("code", True, "0 bytes sent") in heard


@pytest.mark.slow
def test_code_that_changed_is_sent_straight_where_py_spy_lies_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chain of nodes is for large files, and a file that lies on the nodes already does not count."""
    one = launch(tmp_path)
    sent(one, facts(HERE, HERE))
    monkeypatch.setattr(spread, "Spread", None)  # any use is an error
    changed = BytesSource(b"other code", "code")
    heard = Heard()
    assert sent(replace(one, archive=cast(Any, changed)), facts(HERE, HERE), heard).errors == {}
    assert StageEnded("code", True, f"{2 * changed.size} bytes sent") in heard


def test_it_is_read_once_for_all_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []

    def noted(path: Path) -> str:
        read.append(path)
        return direct.hash_file(path)

    monkeypatch.setattr(tools, "hash_file", noted)
    assert set(py_spy.py_spy_for(launch(tmp_path, count=5), facts(*[HERE] * 5), Heard())) == {
        f"n{number}" for number in range(5)
    }
    assert read == [OWN.path]


@pytest.mark.slow
@pytest.mark.parametrize("code", [True, False])
def test_a_job_that_wants_no_doctor_gets_none(tmp_path: Path, code: bool) -> None:
    one = launch(tmp_path, code=code, doctor="off")
    assert in_short(sent(one, facts(HERE, HERE))) == ({}, {}, NOTHING_HELD)
    assert blobs(tmp_path / "n0") == ([CODE.sha256] if code else [])


@pytest.mark.slow
def test_with_nothing_to_send_the_hosts_are_asked_and_no_stage_is_shown(tmp_path: Path, calls: list[str]) -> None:
    heard = Heard()
    sent(launch(tmp_path, code=False, doctor="off"), facts(HERE, HERE), heard)
    assert sorted(calls) == ["n0 store_has", "n1 store_has"]
    assert heard == []


@pytest.mark.slow
def test_a_job_without_code_gets_it_by_itself(tmp_path: Path) -> None:
    one, heard = launch(tmp_path, code=False), Heard()
    assert sent(one, facts(HERE, HERE), heard).py_spy == {"n0": TOOL, "n1": TOOL}
    assert [event.stage for event in heard if isinstance(event, StageEnded)] == ["py-spy"]


@pytest.mark.slow
@pytest.mark.parametrize("other", ["riscv64", "../../x", None])
def test_a_node_of_another_machine_type_gets_the_code_alone(
    tmp_path: Path, other: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(managed, "fetch_tool", None)  # an existing environment never pays for the resolver
    heard = Heard()
    assert in_short(sent(launch(tmp_path), facts(HERE, other), heard)) == ({}, {"n0": TOOL}, NOTHING_HELD)
    assert blobs(tmp_path / "n1") == [CODE.sha256]
    assert heard.notes == []


@pytest.mark.slow
def test_with_a_managed_environment_it_gets_a_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make_wheel(tmp_path, "py_spy")
    wheel = FileSource(path, hash_file(path), path.stat().st_size, path.name)
    asked: list[str] = []

    def fetch(name: str, machine: str, inventory: object) -> FileSource:
        asked.append(f"{name} {machine}")
        return wheel

    monkeypatch.setattr(managed, "fetch_tool", fetch)
    other = "aarch64" if HERE == "x86_64" else "x86_64"
    one = launch(tmp_path)
    environment = one.inventory.environment.model_copy(update={"mode": "managed"})
    one = replace(one, inventory=one.inventory.model_copy(update={"environment": environment}))
    assert sent(one, facts(HERE, other)).py_spy == {"n0": TOOL, "n1": {"hash": wheel.sha256, "kind": "wheel"}}
    assert asked == [f"py-spy {other}"]


@pytest.mark.slow
def test_where_it_is_not_installed_here_the_code_still_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> FileSource:
        raise ProvisionError(f"{name} is not installed with ddpctl")

    monkeypatch.setattr(py_spy, "own_program", missing)
    heard = Heard()
    assert in_short(sent(launch(tmp_path), facts(HERE, HERE), heard)) == ({}, {}, NOTHING_HELD)
    assert heard.notes == ["no py-spy on n0, n1: py-spy is not installed with ddpctl"]
    assert blobs(tmp_path / "n1") == [CODE.sha256]


@pytest.mark.slow
@pytest.mark.parametrize("code", [True, False])
def test_a_node_that_cannot_take_it_still_gets_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: bool
) -> None:
    """Here the file has changed since it was read, so that the nodes refuse it."""
    damaged = tmp_path / "py-spy"
    damaged.write_bytes(os.urandom(100))
    source = FileSource(damaged, "0" * 64, 100, "py-spy")
    monkeypatch.setattr(py_spy, "own_program", lambda name: source)
    heard = Heard()
    assert in_short(sent(launch(tmp_path, code=code), facts(HERE, HERE), heard)) == ({}, {}, NOTHING_HELD)
    assert [note.partition(":")[0] for note in heard.notes] == ["no py-spy"] * 2
    assert blobs(tmp_path / "n0") == ([CODE.sha256] if code else [])


@pytest.mark.slow
def test_a_host_without_the_code_is_an_error(tmp_path: Path) -> None:
    one = launch(tmp_path)
    (tmp_path / "n1").mkdir(mode=0o700)
    (tmp_path / "n1" / "store").write_text("no folder")
    found = sent(one, facts(HERE, HERE))
    assert set(found.errors) == {"n1"}
    assert set(found.py_spy) == {"n0"}


def test_a_start_says_which_file_it_is(tmp_path: Path) -> None:
    plan = launch(tmp_path, code=False).plan(facts(HERE, HERE))
    assert start_request(plan, plan.nodes[0], {}, "key", TOOL)["py_spy"] == TOOL
    assert start_request(plan, plan.nodes[0], {}, "key")["py_spy"] is None


# --- the programs of this machine -------------------------------------------------------------------------------------
@pytest.mark.slow
def test_the_installed_programs_are_found() -> None:
    assert own_program("uv").path == Path(uv.find_uv_bin()).resolve()
    done = subprocess.run([OWN.path, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["py-spy", version("py-spy")]
    with pytest.raises(ProvisionError, match="no-such is not installed with ddpctl"):
        own_program("no-such")


@pytest.mark.parametrize(
    ("system", "here", "there", "runs"),
    [
        ("linux", "x86_64", "x86_64", True),
        ("linux", "AMD64", "x86_64", True),
        ("linux", "aarch64", "arm64", True),
        ("linux", "x86_64", "aarch64", False),
        ("darwin", "arm64", "aarch64", False),
        ("darwin", "x86_64", "x86_64", False),
    ],
)
def test_programs_run_on_linux_of_the_same_machine_type(
    monkeypatch: pytest.MonkeyPatch, system: str, here: str, there: str, runs: bool
) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: here)
    assert tools.runs_there(there) is runs
