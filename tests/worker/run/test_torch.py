"""The runtime under PyTorch's own launcher: two "hosts" on this machine, a real rendezvous, real gloo."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
from collections.abc import Callable
from typing import Any

import pytest

from tests.worker.conftest import MakeNode
from tests.worker.node import eventually, processes_of

pytestmark = [pytest.mark.torch, pytest.mark.slow, pytest.mark.heavy]

SUM = """
import os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(value)
print("sum", int(value.item()), flush=True)
{then}
dist.barrier()
dist.destroy_process_group()
"""
WAIT = "import time; print('here', flush=True); time.sleep(300)"
# Rank 3 fails while every other rank waits for it in a collective: they all see their peer's connection close.
FAIL = """
import time
time.sleep(1)
if dist.get_rank() == 3:
    raise ValueError("boom on three")
"""
# The same, but it hangs in its exit, with its connections closed: only its peers die.
HANG = """
import atexit, time
time.sleep(1)
def leave():
    dist.destroy_process_group()
    time.sleep(300)
if dist.get_rank() == 3:
    atexit.register(leave)
    raise ValueError("boom on three")
"""
# Rank 2 does fewer steps than the other ranks, and ends at once: usually its peers fail while it is on its way out.
LESS = """
import time
for step in range(40):
    if dist.get_rank() == 2 and step == 20:
        os._exit(0)
    dist.all_reduce(value)
    time.sleep(0.05)
"""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


class Pair:
    """Two nodes of two ranks under the launcher of ``python``."""

    def __init__(self, make_node: MakeNode, python: str, old: bool) -> None:
        self.old = old
        self.nodes = [make_node("node0"), make_node("node1")]
        self.python = python
        self.run = f"torch-{secrets.token_hex(6)}"
        self.key, self.port, self.gang = secrets.token_hex(32), free_port(), free_port()

    def start(self, script: str, only: tuple[int, ...] = (0, 1), **changes: Any) -> None:
        for rank in only:
            node = self.nodes[rank]
            place = {"hub_host": "node0", "hub_addr": "127.0.0.1", "port": self.gang, "bind_addr": "127.0.0.1"}
            record = node.record(
                self.run,
                node_rank=rank,
                nnodes=2,
                hosts=["node0", "node1"],
                ranks=[2 * rank, 2 * rank + 1],
                world_size=4,
                gang=place,
                **changes,
            )
            request = node.request(script, record)
            argv = [self.python, "-m", "torch.distributed.launch", "--nnodes", "2", "--node_rank", str(rank)]
            argv += ["--nproc_per_node", "2", "--master_addr", "127.0.0.1", "--master_port", str(self.port)]
            request["argv"] = [*argv, "--use_env", "--", request["argv"][-1]]
            request["gang_key"] = self.key
            # torch 1.13 needs the two PET_ variables to launch on Python 3.11; the plan sets them for it.
            request["env"] = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
            if self.old:
                request["env"].update(PET_REDIRECTS="9:1", PET_TEE="9:1")
            node.started.append(self.run)
            node.call("start", **request)

    def ended(self) -> list[dict[str, Any]]:
        return [node.wait_state(self.run, seconds=120) for node in self.nodes]

    def said(self, word: str, count: int) -> None:
        def spoken() -> bool:
            lines = [one for node in self.nodes for one in node.lines(self.run)]
            if sum(one["text"] == word for one in lines) >= count:
                return True
            states = {node.status(self.run)["state"] for node in self.nodes}
            assert not states & {"failed", "lost"}, lines
            return False

        eventually(spoken, f"{count} ranks say {word}", 120, pause=0.5)

    def nothing_left(self) -> None:
        eventually(lambda: not processes_of(self.run), "every process of the run is gone")


@pytest.fixture
def pair(request: pytest.FixtureRequest, make_node: MakeNode) -> Pair:
    fixture = "python213" if request.param == "2.13" else "python113"
    return Pair(make_node, request.getfixturevalue(fixture), request.param == "1.13")


Test = Callable[[Pair], None]


def with_both(test: Test) -> Test:
    """Under the launchers of both versions; the old launcher in `make test-all` only."""
    rest = pytest.mark.full(covered_by=f"tests/worker/run/test_torch.py::{test.__name__}")
    decorated: Test = pytest.mark.parametrize("pair", ["2.13", pytest.param("1.13", marks=rest)], indirect=True)(test)
    return decorated


@with_both
def test_four_ranks_on_two_nodes_train_to_the_end(pair: Pair) -> None:
    pair.start(SUM.format(then=""))
    assert [one["state"] for one in pair.ended()] == ["succeeded", "succeeded"]
    found = {
        (one["rank"], one["text"]) for node in pair.nodes for one in node.lines(pair.run) if one["text"][:3] == "sum"
    }
    assert found == {(rank, "sum 10") for rank in range(4)}
    pair.nothing_left()


@with_both
def test_the_failing_rank_is_named_everywhere_not_its_victims(pair: Pair) -> None:
    pair.start(SUM.format(then=FAIL))
    for status in pair.ended():
        assert status["state"] == "failed"
        assert status["cause"]["message"] == "rank 3 exited with code 1: ValueError: boom on three"
        assert (status["cause"]["host"], status["cause"]["rank"]) == ("node1", 3)
    pair.nothing_left()


@pytest.mark.full(
    covered_by="tests/worker/run/test_culprit.py"
    "::test_a_rank_that_ended_early_is_the_cause_under_a_launcher_that_is_slow_to_end"
)
@pytest.mark.parametrize("pair", ["2.13", "1.13"], indirect=True)
def test_a_rank_that_ends_too_early_is_named_not_its_victims(pair: Pair) -> None:
    pair.start(SUM.format(then=LESS))
    for status in pair.ended():
        cause = status["cause"]
        assert (cause["host"], cause["rank"], cause["exit_code"], cause["reason"]) == ("node1", 2, 0, "exited"), (
            json.dumps([cause, status["candidates"]])
        )
        assert cause["message"].startswith("rank 2 on node1 ended with exit code 0 at "), cause
        assert cause["message"].endswith("before the others failed: do all ranks run the same number of steps?")
        assert status["state"] == "failed"
    pair.nothing_left()


@pytest.mark.full(
    covered_by="tests/worker/run/test_culprit.py::test_a_rank_that_hangs_in_its_exit_on_another_node_is_the_cause"
)
@pytest.mark.parametrize("pair", ["2.13", "1.13"], indirect=True)
def test_a_rank_that_hangs_in_its_exit_is_named_not_its_victims(pair: Pair) -> None:
    pair.start(SUM.format(then=HANG))
    for status in pair.ended():
        assert (status["cause"]["host"], status["cause"]["rank"]) == ("node1", 3), json.dumps(
            [status["cause"], status["candidates"]]
        )
        assert "ValueError: boom on three" in status["cause"]["message"]
    pair.nothing_left()


@with_both
def test_a_killed_rank_is_named_with_its_signal(pair: Pair) -> None:
    pair.start(WAIT)
    pair.said("here", 4)
    victim = next(pid for pid in processes_of(pair.run) if _rank(pid) == "2")
    os.kill(victim, signal.SIGKILL)
    for status in pair.ended():
        assert (status["cause"]["host"], status["cause"]["rank"]) == ("node1", 2)
        assert status["cause"]["signal"] == "SIGKILL"
    pair.nothing_left()


@with_both
def test_stop_on_both_nodes_at_once(pair: Pair) -> None:
    pair.start(WAIT)
    pair.said("here", 4)
    stops = [node.open("stop", run=pair.run, grace=10, by="alice") for node in pair.nodes]
    for stop in stops:
        answer = stop.result()
        assert answer["status"]["state"] == "killed"
        assert (answer["survivors"], answer["forced"]) == ([], 0)
    pair.nothing_left()
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("", pair.port))


@with_both
def test_a_node_that_never_comes_is_named(pair: Pair) -> None:
    limits = {"start": 8, "stop": 2, "silence": None}
    pair.start(SUM.format(then=""), only=(0,), timeouts=limits)
    status = pair.nodes[0].wait_state(pair.run, seconds=60)
    assert (status["cause"]["reason"], status["cause"]["host"]) == ("rendezvous_timeout", "node1")
    left = {pid: words for pid, words in processes_of(pair.run).items() if "ddpctl-guardian" not in words}
    assert left == {}


@with_both
def test_a_finished_agent_does_not_wait_for_a_dead_peer(pair: Pair) -> None:
    """Without the gang an agent waits in torch's exit barrier for 300 s after its ranks have ended."""
    script = """
import os, sys, time
if os.environ["RANK"] in "01":
    print("done", flush=True)
    sys.exit(0)
print("here", flush=True)
time.sleep(300)
"""
    pair.start(script)
    pair.said("here", 2)
    pair.said("done", 2)
    for pid in [pair.nodes[1].pid(pair.run, who) for who in ("guardian", "supervisor", "launcher")]:
        with contextlib.suppress(ProcessLookupError):  # the new guardian may be quicker
            os.kill(pid, signal.SIGKILL)
    status = pair.nodes[0].wait_state(pair.run, seconds=60)
    assert (status["state"], status["cause"]["host"]) == ("failed", "node1")


def _rank(pid: int) -> str | None:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            found = [entry for entry in file.read().split(b"\0") if entry.startswith(b"RANK=")]
    except OSError:
        return None
    return found[0][5:].decode() if found else None


def test_an_elastic_run_restarts_and_its_ranks_keep_their_names(make_node: MakeNode, python213: str) -> None:
    """The rendezvous hands out ranks, and a failure that the launcher recovers from is no failure of the run."""
    node = make_node()
    script = """
import os, sys, time
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print("attempt", attempt, "rank", os.environ["RANK"], flush=True)
while not os.path.exists("go-on-%d" % attempt):
    time.sleep(0.05)
if attempt == 0 and os.environ["RANK"] == "1":
    sys.exit(5)
if attempt == 0:
    time.sleep(600)
"""
    request = node.request(script, node.record(rendezvous="c10d"))
    argv = [python213, "-m", "torch.distributed.run", "--nnodes", "1:1", "--nproc_per_node", "2", "--max_restarts", "2"]
    argv += ["--rdzv_backend", "c10d", "--rdzv_endpoint", f"127.0.0.1:{free_port()}", "--rdzv_id", "x"]
    request["argv"] = [*argv, "--local_addr", "127.0.0.1", "--", request["argv"][-1]]
    run = request["run"]["run"]
    node.started.append(run)
    node.call("start", **request)

    def said(attempt: int) -> set[tuple[int | None, str]]:
        words = f"attempt {attempt} "
        return {(one["rank"], one["text"]) for one in node.lines(run) if one["text"].startswith(words)}

    for attempt in (0, 1):

        def known(attempt: int = attempt) -> bool:
            return len(said(attempt)) == 2 and node.status(run)["attempt"] == attempt + 1

        eventually(known, "both ranks are known", 120, pause=0.25)
        (node.scratch / f"go-on-{attempt}").touch()
    status = node.wait_state(run, seconds=120)
    assert (status["state"], status["attempt"]) == ("succeeded", 2)
    for attempt in (0, 1):
        assert said(attempt) == {(rank, f"attempt {attempt} rank {rank}") for rank in (0, 1)}
