"""How long the ranks of an attempt may run."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.agent.part import LocalPart
from ddpctl_worker.machine.notes import boottime
from ddpctl_worker.machine.processes import guardian_argv_tail
from ddpctl_worker.record.paths import RunPaths
from ddpctl_worker.run import guardian, start
from ddpctl_worker.run.lease import GUARDIAN, SUPERVISOR, Lease, pipes, send_lease
from ddpctl_worker.slots.claims import Hold
from tests.worker.node import Node, eventually


class Pipes:
    def __init__(self) -> None:
        self.readers, self.writers = pipes()

    def lease(self, seconds: float, reader: str = SUPERVISOR) -> Lease:
        return Lease({**self.readers, "until": boottime() + seconds}, reader)


@pytest.fixture
def pair() -> Iterator[Pipes]:
    made = Pipes()
    yield made
    for fd in (*made.readers.values(), *made.writers):
        with contextlib.suppress(OSError):
            os.close(fd)


def test_a_run_without_restarts_has_no_end() -> None:
    assert not Lease(None, SUPERVISOR).is_over()


def test_it_ends_when_nobody_renews_it(pair: Pipes) -> None:
    assert not pair.lease(60).is_over()
    assert pair.lease(-1).is_over()


def test_the_latest_end_counts(pair: Pipes) -> None:
    lease = pair.lease(-1)
    send_lease(pair.writers, boottime() + 60)
    send_lease(pair.writers, boottime() + 5)
    assert not lease.is_over()
    assert not lease.abandoned
    for fd in pair.writers:  # the agent is gone: its last report still counts
        os.close(fd)
    assert lease.remaining() > 50
    assert lease.abandoned


def test_the_guardian_hears_it_too(pair: Pipes) -> None:
    lease, guardians = pair.lease(-1), pair.lease(-1, GUARDIAN)
    send_lease(pair.writers, boottime() + 60)
    assert not lease.is_over()
    assert not guardians.is_over()


def test_who_takes_the_guardians_place_knows_what_the_guardian_has_read(pair: Pipes) -> None:
    lease, guardians = pair.lease(-1), pair.lease(-1, GUARDIAN)
    send_lease(pair.writers, boottime() + 60)
    assert not lease.is_over()
    assert not guardians.is_over()
    heir = Lease(lease.for_replacement(), GUARDIAN)
    assert not heir.is_over()
    send_lease(pair.writers, boottime() + 120)
    assert heir.remaining() > 100


def test_half_a_word_waits_for_the_rest(pair: Pipes) -> None:
    lease = pair.lease(-1)
    word = b"%.3f\n" % (boottime() + 60)
    os.write(pair.writers[0], word[:4])
    assert lease.is_over()
    os.write(pair.writers[0], word[4:])
    assert not lease.is_over()


def test_who_does_not_read_holds_up_nobody(pair: Pipes) -> None:
    for _ in range(20_000):
        send_lease(pair.writers, 1.0)
    guardians = pair.lease(-1, GUARDIAN)
    assert guardians.is_over()
    send_lease(pair.writers, boottime() + 60)
    assert not guardians.is_over()  # a stuck process costs the other process nothing


def started_late(node: Node) -> LocalPart:
    """The part of an attempt that was started after the end of its lease, once it has ended."""
    run = node.record(f"lease-{secrets.token_hex(4)}")
    attempt = {"attempt": 1, "hosts": [node.host], "master_port": 29500, "gang_port": 29501}
    run["restart"] = {"hosts": [{"host": node.host, "address": "127.0.0.1", "nproc": 1}], "first": attempt}
    request = node.request("pass", run, gang_key="ab" * 32, slots=Hold().to_json())
    node.base.mkdir(parents=True, exist_ok=True)
    part = LocalPart(str(node.folder(run["run"])), 1)
    part.start(request, str(node.base), attempt, 0o077, boottime() - 0.1)
    eventually(lambda: os.path.exists(part.paths.exit), "it has ended")
    part.look()
    return part


def test_no_rank_starts_once_the_lease_is_over(node: Node) -> None:
    """The processes between agent and ranks were held up."""
    part = started_late(node)
    assert part.end is not None
    assert part.end["cause"]["reason"] in ("node_lost", "supervisor_lost")  # the guardian may have been quicker
    assert json.loads(Path(part.paths.state).read_text()).get("launcher") is None


def test_a_guardian_that_is_slow_to_clean_up_says_why_a_start_failed(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = {"state": "lost", "cause": {"reason": "supervisor_lost"}}
    started: list[subprocess.Popen[bytes]] = []
    write = f"open('exit', 'w').write({json.dumps(record)!r}); os.rename('exit', sys.argv[1])"
    code = f"import os, sys, time; time.sleep(1); {write}"

    def launch(order: dict[str, Any]) -> dict[str, Any]:
        words = [RunPaths(order["top"], 1).exit, *guardian_argv_tail(order["run"]["run"], node.host)]
        started.append(subprocess.Popen([sys.executable, "-c", code, *words], cwd=node.scratch))
        return {"refused": "the supervisor did not start"}

    monkeypatch.setattr(guardian, "launch", launch)
    monkeypatch.setattr(start, "FAILED_START_S", 0.0)
    assert started_late(node).end == record
    assert [process.wait(60) for process in started] == [0]
