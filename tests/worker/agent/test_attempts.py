"""A host's part of an attempt, from the record of its run."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.spec.inventory import Host, Inventory
from ddpctl.spec.job import JobSpec
from ddpctl.spec.origin import Origin
from ddpctl.spec.plan import Facts, NodeFacts, Plan, RunIdentity
from ddpctl.spec.planning import make_plan
from ddpctl.spec.script import Start
from ddpctl_worker.agent.part import LocalPart, attempt_argv, attempt_record
from ddpctl_worker.record.paths import RunPaths
from ddpctl_worker.record.runrecord import RunRecord
from ddpctl_worker.run.launcher import environment
from tests.worker.checkpoints import OF_JOB
from tests.worker.node import eventually

NAMES = [f"n{i}" for i in range(4)]


def recorded(made: Plan, host: str) -> RunRecord:
    return cast(RunRecord, made.record(made.node(host)))


def plan(hosts: int, nproc: list[int], start: Start = "ranks") -> Plan:
    chosen = [Host(name=name, address=f"10.0.0.{i + 1}", slots=nproc[i]) for i, name in enumerate(NAMES[:hosts])]
    facts = Facts({one.name: NodeFacts(fabric_address=one.address) for one in chosen}, 29500, 29600)
    job = JobSpec(name="job", script="train.py", restarts=3)
    identity = RunIdentity("20260102T030405Z-abcdef", Origin("me", "here", "/home/me", 1), "2026-01-02T03:04:05+00:00")
    return make_plan(Inventory(hosts=tuple(chosen)), job, chosen, identity, facts=facts, start=start)


@given(
    hosts=st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True),
    nproc=st.lists(st.integers(1, 8), min_size=4, max_size=4),
)
def test_an_attempt_is_what_a_plan_of_its_hosts_would_be(hosts: list[str], nproc: list[int]) -> None:
    """Ranks are dense, and the command line is the same as in ddpctl's plan."""
    hosts = sorted(hosts)
    whole = plan(4, nproc)
    attempt: dict[str, Any] = {"attempt": 2, "hosts": hosts, "master_port": 29501, "gang_port": 29601}
    first = 0
    for rank, host in enumerate(hosts):
        node = whole.node(host)
        found = attempt_record(recorded(whole, node.host), attempt, host)
        count = nproc[NAMES.index(host)]
        assert (found["node_rank"], found["nproc"], found["nnodes"]) == (rank, count, len(hosts))
        assert found["ranks"] == list(range(first, first + count))
        assert found["host_map"] == ",".join(f"{one}:{nproc[NAMES.index(one)]}" for one in hosts)
        argv = attempt_argv(list(node.command.argv), found)
        options = dict(zip(argv[3:13:2], argv[4:13:2], strict=True))
        assert options["--node_rank"] == str(rank)
        assert options["--nnodes"] == str(len(hosts))
        assert options["--nproc_per_node"] == str(count)
        assert options["--master_port"] == "29501"
        assert options["--master_addr"] == ("127.0.0.1" if len(hosts) == 1 else whole.node(hosts[0]).address)
        assert argv[13:] == list(node.command.argv[13:])
        assert (found["gang"] is None) == (len(hosts) == 1)
        first += count
    assert first == found["world_size"]


def test_arguments_of_the_script_stay() -> None:
    """The variables with a name of the launcher's."""
    node = plan(2, [1, 1, 1, 1]).nodes[0]
    argv = [*node.command.argv, "--nnodes", "7"]
    found = attempt_record(
        recorded(plan(2, [1] * 4), node.host), {"attempt": 2, "hosts": ["n0"], "master_port": 1, "gang_port": 2}, "n0"
    )
    assert attempt_argv(argv, found)[-2:] == ["--nnodes", "7"]


@pytest.mark.parametrize("start", ["node", "alone"])
def test_a_script_that_starts_its_own_processes_finds_the_attempts_hosts(tmp_path: Path, start: Start) -> None:
    whole = plan(3, [2] * 4, start)
    node = whole.node("n2")
    attempt = {"attempt": 2, "hosts": ["n1", "n2"], "master_port": 29501, "gang_port": 29601}
    found = attempt_record(recorded(whole, node.host), attempt, "n2")
    argv = [*node.command.argv, "--nnodes", "7"]
    assert attempt_argv(argv, found) == argv
    request = {"run": found, "env": dict(node.command.env), "token_env": []}
    env = environment(request, {"RANK": "9"}, RunPaths(str(tmp_path / "n2")), "", "cookie")
    told = {name: env.get(name) for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    want = ["1", "2", "10.0.0.2", "29501"] if start == "node" else [None] * 4
    assert list(told.values()) == want
    assert not [name for name in env if name.startswith("TORCHELASTIC_")]


def test_what_an_attempt_shares_with_its_run(tmp_path: Path) -> None:
    run = RunPaths(str(tmp_path / "node0"))
    first, second = run.of_attempt(1), run.of_attempt(2)
    assert (first.logs, first.code, first.output) == (run.logs, run.code, run.output)
    assert len({run.exit, first.exit, second.exit}) == 3
    assert len({run.metrics, first.metrics, second.metrics}) == 3
    assert first.host == second.host == "node0"
    assert run.newest() is run
    for number in ("1", "2", "10", ".3.abc"):
        (tmp_path / "node0" / "attempts" / number).mkdir(parents=True)
    assert [one.attempt for one in run.attempts()] == [1, 2, 10]
    assert run.newest().exit == run.of_attempt(10).exit


@pytest.mark.parametrize(("own", "told"), [({}, "n0:1,n1:1"), ({"host_map": "n1:1"}, "n1:1")], ids=["first", "later"])
def test_a_rank_finds_the_hosts_of_its_attempt(own: dict[str, str], told: str, tmp_path: Path) -> None:
    """The plan's, until an attempt has hosts of its own."""
    run = {**OF_JOB, "run": "r", "host": "n1", **own}
    request = {"run": run, "env": {"DDPCTL_HOSTS": "n0:1,n1:1"}}
    env = environment(request, {"DDPCTL_HOSTS": "login's"}, RunPaths(str(tmp_path / "n1")), "", "cookie")
    assert env["DDPCTL_HOSTS"] == told


def test_a_part_whose_records_cannot_be_read_is_not_taken_for_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent tries the stop again. Only a part that never began needs no stop."""
    part = LocalPart(str(tmp_path), 1)
    part.stop(0.0, "ddpctl")

    def away(*_: object, **__: object) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", away)
        patch.setattr(os, "open", away)
        with pytest.raises(OSError, match="Stale"):
            part.stop(0.0, "ddpctl")


def test_a_part_that_is_called_off_while_its_disk_is_away_is_stopped_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent gives the order once more, but the leader waits for the end of the part."""
    part, opened, refused = LocalPart(str(tmp_path), 1), os.open, threading.Event()
    os.makedirs(part.paths.node)
    Path(part.paths.run).write_text("{}")
    part.started = True

    def away(path: Any, *args: Any, **options: Any) -> int:
        if str(path).startswith(part.paths.node):
            refused.set()
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return opened(path, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", away)
        part.call_off()
        assert refused.wait(60)
    part.call_off()
    eventually(lambda: part.end is not None, "the end of the part")
    assert part.end is not None
    assert part.end["state"] == "killed"
