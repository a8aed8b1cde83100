"""A node that leaves the node before it in the chain: both serve over real sockets of this machine."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from ddpctl.environment.spread import new_credentials
from ddpctl_worker.store import pull
from ddpctl_worker.store.incoming import Incoming
from ddpctl_worker.store.pull import Peer, Pieces, Puller
from ddpctl_worker.store.relay import Relay, context
from ddpctl_worker.wire.channel import Channel

pytestmark = pytest.mark.slow

SIZE = 16 << 20
DATA = os.urandom(SIZE)
FILE = {"hash": hashlib.sha256(DATA).hexdigest(), "size": SIZE, "name": "wheel"}
OURS = new_credentials()


class Said:
    """A channel that keeps what was sent."""

    def __init__(self) -> None:
        self.frames: list[dict[str, Any]] = []

    def send(self, frame: dict[str, Any], raw: bytes = b"") -> None:
        self.frames.append(frame)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as found:
        yield found


def node(folder: Path, stack: ExitStack) -> Incoming:
    found = Incoming(str(folder), [FILE])
    stack.callback(found.close)
    return found


def relay(shelf: Incoming, host: str, folder: Path, stack: ExitStack) -> Peer:
    serving = Relay(shelf, context(OURS.certificate, OURS.key, str(folder), True), host, [0])
    stack.callback(serving.close)
    return Peer({"host": host, "addresses": ["127.0.0.1"], "port": serving.port, "before": True})


def test_a_slow_node_is_left_for_a_node_that_has_much_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack
) -> None:
    """The slow node gets its own bytes slowly until the pull is over, and never has the whole file."""
    monkeypatch.setattr(pull, "PACE_LOOK_S", 0.2)
    monkeypatch.setattr(pull, "LAG_BYTES", 1 << 20)
    slow, ahead, mine = (node(tmp_path / name, stack) for name in ("slow", "ahead", "mine"))
    (full,) = ahead.pending()
    ahead.append(full, DATA)
    ahead.finish(full)
    (trickle,) = slow.pending()
    over = threading.Event()

    def drip() -> None:
        for start in range(0, SIZE // 2, 1000):
            slow.append(trickle, DATA[start : start + 1000])
            if over.wait(0.05):
                return

    dripping = threading.Thread(target=drip)
    dripping.start()
    said = Said()
    try:
        peers = [relay(shelf, name, tmp_path, stack) for shelf, name in ((slow, "slow"), (ahead, "ahead"))]
        tls = context(OURS.certificate, OURS.key, str(tmp_path), False)
        puller = Puller(mine, tls, peers, cast(Channel, said), Pieces())
        puller.run()
    finally:
        over.set()
        dripping.join()
    assert mine.pending() == []
    assert (tmp_path / "mine" / "store" / str(FILE["hash"])).read_bytes() == DATA
    (left,) = [frame for frame in said.frames if "left" in frame]
    assert left["left"] == "slow"
    assert "it is slow: a node before it has much more of wheel" in left["why"]
    assert trickle.done < SIZE // 2
    assert puller.fed == 0, "bytes from the controller"
