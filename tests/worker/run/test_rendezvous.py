"""What the exceptions of torch's elastic agent come from."""

from __future__ import annotations

from typing import Any

import pytest

from ddpctl_worker.run.rendezvous import find_rejected_host

RUN: Any = {
    "host": "node1",
    "hosts": ["node0", "node1", "node2"],
    "nnodes": 3,
    "min_nodes": 2,
    "master_addr": "10.0.0.1",
    "master_port": 29400,
    "rendezvous": "c10d",
    "timeouts": {"start": 120.0},
}
API = "the launcher exited with code 1: torch.distributed.elastic.rendezvous.api."
GONE = "The connection to the C10d store has failed. See inner exception for details."


@pytest.mark.parametrize(
    ("error", "host", "reason", "words"),
    [
        (f"RendezvousConnectionError: {GONE}", "node0", "node_lost", "(10.0.0.1:29400), does not answer node1"),
        ("RendezvousTimeoutError", "node1", "rendezvous_timeout", "node1 waited 120 s (timeouts.start)"),
    ],
)
def test_the_place_is_named(error: str, host: str, reason: str, words: str) -> None:
    found = find_rejected_host(RUN, API + error)
    assert found is not None
    assert (found.host, found.reason) == (host, reason)
    assert words in found.message


def test_anything_else_speaks_for_itself() -> None:
    static: Any = {**RUN, "rendezvous": "static"}
    assert find_rejected_host(RUN, "the launcher was killed by SIGKILL") is None
    assert find_rejected_host(static, f"{API}RendezvousConnectionError: {GONE}") is None
