"""Agents on three names of this machine carry a run from attempt to attempt: real processes, over loopback."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import secrets
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ddpctl_worker.machine import child, proc
from ddpctl_worker.run.start import start
from ddpctl_worker.wire.channel import Channel
from tests.worker.checkpoints import credentials
from tests.worker.conftest import MakeNode
from tests.worker.node import Node, eventually, processes_of

AGENTS = "tests/simulator/test_seeds.py::test_agents"


def only_in_test_all(value: str, covered_by: str) -> Any:
    return pytest.param(value, marks=pytest.mark.full(covered_by=covered_by))


SCRIPT = """
import os, pathlib, sys, time
attempt, host = os.environ["DDPCTL_ATTEMPT"], os.environ["DDPCTL_HOST"]
print("attempt", attempt, "rank", os.environ["RANK"], "restarts", os.environ.get("TORCHELASTIC_RESTART_COUNT"),
      flush=True)
%s
"""


def free_port() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Team:
    """A run with restarts: its first ``nodes`` hosts run it, but for ``skip``; the first agent leads."""

    def __init__(
        self,
        make_node: MakeNode,
        scratch: Path,
        hosts: int,
        nodes: int,
        skip: int = 0,
        **rules: Any,
    ) -> None:
        self.names = [f"node{i}" for i in range(hosts)]
        self.nodes: dict[str, Node] = {name: make_node(name) for name in self.names}
        self.run = f"agent-{secrets.token_hex(6)}"
        self.scratch = scratch
        self.chosen = self.names[skip : skip + nodes]
        members = [{"host": name, "address": "127.0.0.1", "nproc": 1} for name in self.names]
        first = {"attempt": 1, "hosts": self.chosen, "master_port": free_port(), "gang_port": free_port()}
        first.update(started="2026-01-02T03:04:05Z", ended=None, cause=None, set_aside=[])
        self.place = {"hosts": members, "nodes": nodes, "least": nodes, "restarts": 3, "first": first, **rules}

    def begin(self, body: str, **more: Any) -> None:
        key = secrets.token_hex(32)
        ports: dict[str, list[Any]] = {}
        for rank, (name, node) in enumerate(self.nodes.items()):
            record = node.record(
                self.run, hosts=self.names, nproc=1, ranks=[rank], node_rank=rank, restart=self.place, nnodes=3
            )
            request = node.request(SCRIPT % body, record, gang_key=key, **more)
            node.started.append(self.run)
            answer = node.call("start", **request)
            ports[name] = ["127.0.0.1", answer["port"]]
        for stream in [node.open("begin", run=self.run, peers=ports) for node in self.nodes.values()]:
            stream.result()  # each agent waits for all other agents

    def status(self, name: str) -> dict[str, Any]:
        return self.nodes[name].status(self.run)

    def attempts(self, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.status(name)["agreed"]["attempts"]
        return found

    def said(self, name: str) -> list[str]:
        return [one["text"] for one in self.nodes[name].lines(self.run) if one["text"].startswith("attempt")]

    def wait_said(self, name: str, text: str, seconds: float = 60.0) -> None:
        eventually(lambda: any(text in one for one in self.said(name)), f"{text!r} on {name}", seconds, pause=0.3)

    def agent(self, name: str) -> int:
        return self.nodes[name].pid(self.run, "supervisor")

    def supervisor(self, name: str, who: str = "supervisor") -> int:
        """Return the pid of the first attempt's supervisor, or of another process in its record."""
        state = self.nodes[name].folder(self.run) / "attempts" / "1" / "state.json"
        return int(json.loads(state.read_text())[who]["pid"])

    def lose(self, name: str) -> None:
        """Kill all processes of ddpctl and of the job on a host at once."""
        for pid in processes_of(self.run):
            if _belongs(pid, name):
                with contextlib.suppress(ProcessLookupError):  # the death of another process has ended it
                    os.kill(pid, signal.SIGKILL)

    def of_script(self, name: str) -> list[int]:
        return [pid for pid in processes_of(self.run) if f"DDPCTL_HOST={name}".encode() in _variables(pid)]


@pytest.fixture
def team(make_node: MakeNode, tmp_path: Path) -> Any:
    def make(hosts: int, nodes: int, **rules: Any) -> Team:
        return Team(make_node, tmp_path, hosts, nodes, **rules)

    return make


def test_a_run_that_succeeds_has_one_attempt(team: Any) -> None:
    three = team(3, 2)
    three.begin("time.sleep(1)")
    for name in three.names:
        status = three.nodes[name].wait_state(three.run, "succeeded")
        assert status["attempt"] == 1
    assert [len(three.said(name)) for name in three.names] == [1, 1, 0]
    eventually(lambda: not processes_of(three.run), "all processes are gone")


FAILS_LATER = """
if attempt == "0":
    while host == "node0" or not os.path.exists(%r): time.sleep(0.1)
    sys.exit(3)
"""


def test_a_rank_that_fails_is_started_again_everywhere(team: Any, tmp_path: Path) -> None:
    three = team(3, 2)
    go_on = tmp_path / "go-on"
    three.begin(FAILS_LATER % str(go_on))
    for name in three.chosen:
        three.wait_said(name, "attempt 0")
    go_on.touch()
    for name in three.names:
        status = three.nodes[name].wait_state(three.run, "succeeded", seconds=60.0)
        assert status["attempt"] == 2
    first, second = three.attempts("node2")
    assert (first["hosts"], second["hosts"]) == (["node0", "node1"], ["node0", "node1"])
    assert (first["cause"]["host"], first["cause"]["exit_code"], first["set_aside"]) == ("node1", 3, [])
    assert three.said("node0") == ["attempt 0 rank 0 restarts 0", "attempt 1 rank 0 restarts 1"]


@pytest.mark.full(covered_by="tests/worker/agent/test_restart_policy.py::test_the_same_exception_twice_in_a_row")
def test_the_same_exception_twice_ends_the_run(team: Any) -> None:
    three = team(2, 2)
    three.begin("if host == 'node1': raise ValueError('the data are broken')\ntime.sleep(60)")
    status = three.nodes["node0"].wait_state(three.run, "failed", seconds=60.0)
    assert status["attempt"] == 2
    assert "restarting will not help" in status["cause"]["message"]


ITS_OWN = "tests/worker/agent/test_agent.py::test_a_host_without_its_checkpoint_is_the_cause"


@pytest.mark.parametrize("victim", [only_in_test_all("node0", ITS_OWN), "node1"])
def test_a_host_without_its_checkpoint_is_the_cause(team: Any, victim: str) -> None:
    """The host could not begin its part. That stays the cause when the attempt is called off."""
    three = team(3, 2)
    body = """
    if host == %r:
        folder = pathlib.Path(os.environ["DDPCTL_CHECKPOINT_DIR"])
        folder.rename(folder.with_name("gone"))
        folder.write_text("")
        sys.exit(3)
    time.sleep(600)
    """
    who = credentials()
    three.begin(
        inspect.cleandoc(body % victim),
        copying={"certificate": who.certificate, "key": who.key},
        env={"DDPCTL_CHECKPOINT_DIR": "{checkpoint_dir}"},
        token_env=["DDPCTL_CHECKPOINT_DIR"],
    )
    for name in three.names:
        cause = three.nodes[name].wait_state(three.run, "failed", seconds=60.0)["cause"]
        assert (cause["host"], cause["reason"]) == (victim, "spawn_failed")
        assert "the checkpoint to resume from cannot be had" in cause["message"]
    assert [one["cause"]["host"] for one in three.attempts("node2")][1:] == [victim, victim]


@pytest.mark.full(covered_by="tests/worker/agent/test_restart_policy.py::test_restarts_are_used_up")
def test_restarts_are_counted(team: Any) -> None:
    three = team(1, 1, restarts=1)
    three.begin("os.kill(os.getpid(), 9)")
    status = three.nodes["node0"].wait_state(three.run, "failed", seconds=60.0)
    assert status["attempt"] == 2
    assert "it was restarted once before" in status["cause"]["message"]


@pytest.mark.full(
    covered_by="tests/simulator/test_stories.py::test_an_attempt_begins_though_the_agent_of_its_first_host_is_gone"
)
def test_the_first_host_of_an_attempt_is_lost_while_that_is_prepared(team: Any) -> None:
    """It leads, and it chooses the checkpoint for all hosts of the attempt. Another host does both then."""
    three = team(3, 2)
    who = credentials()
    three.begin(
        "sys.exit(3) if attempt == '0' and host == 'node1' else time.sleep(600)",
        copying={"certificate": who.certificate, "key": who.key},
        env={"DDPCTL_CHECKPOINT_DIR": "{checkpoint_dir}"},
        token_env=["DDPCTL_CHECKPOINT_DIR"],
    )
    agent = three.agent("node0")
    eventually(lambda: len(three.attempts("node2")) == 2, "attempt 2 is agreed on", 60.0, pause=0.01)
    os.kill(agent, signal.SIGKILL)
    for name in ("node1", "node2"):
        three.wait_said(name, "attempt 2", seconds=90.0)
    _, lost, last = three.attempts("node2")
    assert [one["host"] for one in lost["set_aside"]] == ["node0"]
    assert last["hosts"] == ["node1", "node2"]
    for node in three.nodes.values():
        assert node.call("stop", run=three.run, grace=0, by="me")["survivors"] == []


def test_a_kill_ends_the_run_and_its_agents(team: Any) -> None:
    three = team(3, 2)
    three.begin("time.sleep(600)")
    three.wait_said("node1", "attempt 0")
    for node in three.nodes.values():
        answer = node.call("stop", run=three.run, grace=2, by="me")
        assert answer["survivors"] == []
        assert answer["status"]["state"] == "killed"
    eventually(lambda: not processes_of(three.run), "all processes are gone")


@pytest.mark.parametrize("victim", ["node0", only_in_test_all("node1", AGENTS)])
def test_a_host_that_is_lost_is_replaced_by_a_spare(team: Any, victim: str) -> None:
    """All of ddpctl's processes there are killed at once, the leader's and the master's host included."""
    three = team(3, 2)
    three.begin("time.sleep(600)")
    for name in three.chosen:
        three.wait_said(name, "attempt 0")
    three.lose(victim)
    left = [name for name in three.names if name != victim]
    for name in left:
        three.wait_said(name, "attempt 1", seconds=60.0)
    first, second = three.attempts(left[0])
    assert second["hosts"] == left
    assert [one["host"] for one in first["set_aside"]] == [victim]
    assert three.status(victim)["state"] == "lost"


def test_a_host_whose_agent_was_killed_is_lost(team: Any) -> None:
    """Its ranks live as long as their lease, and the other hosts continue without it."""
    three = team(3, 3, least=2)
    three.begin("time.sleep(600)")
    for name in three.chosen:
        three.wait_said(name, "attempt 0")
    os.kill(three.agent("node1"), signal.SIGKILL)
    end = three.nodes["node1"].folder(three.run) / "attempts" / "1" / "exit.json"
    eventually(end.exists, "its ranks have ended", 60.0)
    assert "ddpctl's agent on node1 has ended" in json.loads(end.read_text())["cause"]["message"]
    three.nodes["node1"].wait_state(three.run, "lost")
    for name in ("node0", "node2"):
        three.wait_said(name, "attempt 1")
    first, second = three.attempts("node0")
    assert (second["hosts"], three.status("node0")["agreed"]["set_aside"]) == (["node0", "node2"], {})
    assert first["cause"]["reason"] in ("node_lost", "supervisor_lost")
    answer = three.nodes["node1"].call("stop", run=three.run, grace=1, by="me")
    assert (answer["survivors"], answer["status"]["state"]) == ([], "lost")


BEATS = """
with open(os.path.join(%r, host + attempt), "a", buffering=1) as file:
    while True:
        file.write("%%r\\n" %% time.monotonic())
        time.sleep(0.02)
"""


STUCK = "tests/worker/agent/test_agent.py::test_a_stuck_supervisor_does_not_outlive_its_lease"


@pytest.mark.parametrize("watcher", ["guardian", only_in_test_all("standby", STUCK)])
def test_a_stuck_supervisor_does_not_outlive_its_lease(team: Any, tmp_path: Path, watcher: str) -> None:
    """Its agent is stuck, too. No rank of an attempt may run when the next attempt begins."""
    three = team(3, 2)

    def beats(name: str, attempt: int) -> list[float]:
        path = tmp_path / f"{name}{attempt}"
        return [float(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []

    three.begin(BEATS % str(tmp_path))
    for name in three.chosen:
        eventually(partial(beats, name, 0), f"attempt 0 runs on {name}", 60.0)
    stuck = [three.agent("node1"), three.supervisor("node1")]
    if watcher == "standby":
        os.kill(three.supervisor("node1", who="guardian"), signal.SIGKILL)
        eventually(lambda: "ddpctl-standby" in _children(stuck[1]), "a standby takes the guardian's place")
    for pid in stuck:
        os.kill(pid, signal.SIGSTOP)
    try:
        for name in ("node0", "node2"):
            eventually(partial(beats, name, 1), f"attempt 1 runs on {name}", 90.0)
        eventually(lambda: not Path(f"/proc/{stuck[1]}").exists(), "the supervisor is gone", 60.0)
    finally:
        os.kill(stuck[0], signal.SIGKILL)
    assert beats("node1", 0)[-1] < min(beats("node0", 1)[0], beats("node2", 1)[0])


def test_those_that_notify_are_no_zombies_later(team: Any, tmp_path: Path) -> None:
    tally = tmp_path / "tally"
    three = team(2, 2)
    body = "sys.exit(3) if attempt == '0' and host == 'node1' else time.sleep(600)"
    three.begin(body, notify=[{"command": ["sh", "-c", f"echo $DDPCTL_EVENT >> {tally}"]}])
    eventually(tally.exists, "somebody is notified of the restart", 60.0)
    agents = [three.agent(name) for name in three.names]
    eventually(lambda: not any(map(_children, agents)), "no agent has children left", 60.0)


def test_one_that_is_left_alone_says_so(team: Any, tmp_path: Path) -> None:
    """The leader is lost, of two hosts: there is no leader, and the end must not be silent."""
    tally = tmp_path / "tally"
    two = team(2, 2)
    two.begin("time.sleep(600)", notify=[{"command": ["sh", "-c", f"echo $DDPCTL_EVENT $DDPCTL_TEXT >> {tally}"]}])
    for name in two.names:
        two.wait_said(name, "attempt 0")
    two.lose("node0")
    two.nodes["node1"].wait_state(two.run, "failed", seconds=120.0)
    said = eventually(lambda: tally.exists() and tally.read_text(), "somebody is notified of the end", 60.0)
    assert said.startswith("ended")
    assert "continue it with: ddpctl restart" in said


@contextlib.contextmanager
def _kept_full(folder: Path) -> Iterator[None]:
    """Another process takes every byte there as soon as it is free."""
    over = threading.Event()

    def fill() -> None:
        with open(folder / "filler", "wb", buffering=0) as file:
            while not over.is_set():
                with contextlib.suppress(OSError):
                    file.write(b"x" * 4096)
                    continue
                over.wait(0.001)

    thread = threading.Thread(target=fill)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_full_disk_takes_nothing_from_a_success(team: Any, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small filesystem needs root")
    three = team(3, 2)
    base = three.nodes["node0"].base  # all three nodes have this base_dir
    base.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=0700", "tmpfs", str(base)], check=True)
    try:
        go_on = tmp_path / "go-on"
        three.begin(f"while not os.path.exists({str(go_on)!r}): time.sleep(0.1)")
        for name in three.chosen:
            three.wait_said(name, "attempt 0")
        with _kept_full(base):
            eventually(lambda: os.statvfs(base).f_bavail == 0, "the disk is full")
            go_on.touch()
            for name in three.names:
                status = three.nodes[name].wait_state(three.run, "succeeded", seconds=90.0)
                assert status["attempt"] == 1
            # The end is on disk, and not only in the memory of an agent that is gone by now.
            assert [three.status(name)["agreed"]["over"]["state"] for name in three.names] == ["succeeded"] * 3
    finally:
        subprocess.run(["umount", "-l", str(base)], check=True)


@pytest.mark.full(covered_by="tests/simulator/test_stories.py::test_a_host_that_is_cut_off_says_so_and_waits")
@pytest.mark.timeout(280)
def test_a_host_that_is_cut_off_waits_for_the_others(team: Any) -> None:
    """The other hosts may go on without it. Only a stop ends its part; until then its status says that it waits."""
    three = team(3, 2)
    three.begin("time.sleep(600)")
    for name in three.chosen:
        three.wait_said(name, "attempt 0")
    others = [three.agent(name) for name in ("node0", "node2")]
    with _stopped(others):
        eventually(lambda: three.status("node1")["note"], "its status tells that it waits", 90.0, pause=0.3)
        assert "a majority of the run's 3 hosts" in three.status("node1")["note"]
        assert three.status("node1")["state"] == "starting"
        assert not three.of_script("node1")
    eventually(lambda: three.status("node1")["note"] is None, "it has heard of the others", 60.0, pause=0.3)
    three.wait_said("node1", "attempt 1", seconds=90.0)
    with _stopped(others):
        eventually(lambda: three.status("node1")["note"], "its status tells that it waits", 90.0, pause=0.3)
        answer = three.nodes["node1"].call("stop", run=three.run, grace=1, by="me")
        assert (answer["survivors"], answer["status"]["state"]) == ([], "killed")


@contextlib.contextmanager
def _stopped(pids: list[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def _children(pid: int) -> list[str]:
    """Return the names of the child processes, zombies included."""
    found = (proc.read_stat(child) for child in proc.children_of(pid))
    return [one.name for one in found if one is not None]


TICKS = """
import itertools
for second in itertools.count(1):
    time.sleep(1)
    print("attempt", attempt, "second %%d." %% second, flush=True)
    if attempt == "0" and host == "node1" and os.path.exists(%r):
        sys.exit(3)
"""


@pytest.mark.full(covered_by="tests/simulator/test_stories.py::test_the_loss_of_a_spare_stops_nothing")
def test_the_loss_of_a_spare_that_leads_stops_nothing(team: Any, tmp_path: Path) -> None:
    """The spare does not refuse connections: it is silent, like a host that is switched off."""
    three = team(3, 2, skip=1)
    go_on = tmp_path / "go-on"
    three.begin(TICKS % str(go_on))
    for name in three.chosen:
        three.wait_said(name, "attempt 0")
    agent = three.agent("node0")
    os.kill(agent, signal.SIGSTOP)
    try:
        for name in three.chosen:
            three.wait_said(name, "attempt 0 second 29.", seconds=120.0)
        go_on.touch()
        for name in three.chosen:
            three.wait_said(name, "attempt 1", seconds=120.0)
    finally:
        os.kill(agent, signal.SIGKILL)
    assert three.attempts("node1")[0]["cause"]["exit_code"] == 3


def _belongs(pid: int, host: str) -> bool:
    return host.encode() in _read(pid, "cmdline") or f"DDPCTL_HOST={host}".encode() in _variables(pid)


def _variables(pid: int) -> list[bytes]:
    return _read(pid, "environ")


def _read(pid: int, file: str) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes().split(b"\0")
    except OSError:
        return []


@pytest.mark.parametrize("process", ["agent", "waiter"])
def test_a_run_goes_on_when_its_starter_was_killed_before_the_answer(
    node: Node, monkeypatch: pytest.MonkeyPatch, process: str
) -> None:
    def unheard(module: str, order: Mapping[str, Any], words: Sequence[str], fds: Sequence[int] = ()) -> dict[str, Any]:
        """Start the process as ``child.launch`` does. No process reads its answer."""
        reader, reply = os.pipe()
        os.close(reader)
        argv = child.command(module, str(reply), *words)
        subprocess.run(argv, input=json.dumps(order).encode(), pass_fds=(reply, *fds), start_new_session=True, cwd="/")
        os.close(reply)
        return {"refused": None}

    first = {"attempt": 1, "hosts": ["node0"], "master_port": free_port(), "gang_port": free_port()}
    first.update(started="2026-01-02T03:04:05Z", ended=None, cause=None, set_aside=[])
    members = [{"host": "node0", "address": "127.0.0.1", "nproc": 1}]
    rules = {"hosts": members, "nodes": 1, "least": 1, "restarts": 1, "first": first}
    how = {"restart": rules} if process == "agent" else {"master_port": free_port()}
    record = node.record(nproc=1, ranks=[0], world_size=1, **how)
    request = node.request("print('trained')", record, gang_key=secrets.token_hex(32))
    request.update(host="node0", base_dir=str(node.base), argv=[*request["argv"], "--"])
    node.started.append(record["run"])
    monkeypatch.setattr(child, "launch", unheard)
    if process == "agent":
        start(request, cast(Channel, SimpleNamespace(login_umask=0o022)))
        port = eventually(lambda: node.state(record["run"]).get("port"), "the agent has begun")
        node.call("begin", run=record["run"], peers={"node0": ["127.0.0.1", port]})
    else:
        start({**request, "line": {"address": "127.0.0.1"}}, cast(Channel, SimpleNamespace(login_umask=0o022)))
        node.call("line_up", run=record["run"], peers={}, order=["node0"])
    node.wait_state(record["run"], "succeeded")
