"""Hosts that say again what was recorded, over the real conversation and a pipe in memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from typing import Any

from ddpctl.transport import conversation
from ddpctl.transport.base import Frame
from ddpctl.transport.bootstrap import payload
from ddpctl.transport.fleet import SSHFleet
from ddpctl.transport.watch import Watch
from ddpctl_worker.wire.contract import BANNER
from tests.garble.mutate import encode

HEARTBEAT_S = 0.2
INPUT_ENDS = b"@end@"
Change = Callable[[list[Frame]], list[bytes]]


class Wait:
    """A step of an answer: until ``word`` was heard."""

    def __init__(self, word: bytes) -> None:
        self.word = word


class NoneWaits(conversation.IdleWorker):
    """Every call has a pipe of its own."""

    def keep(self, worker: conversation.Worker) -> None:
        worker.pipe.close()


class ReplayPipe:
    """The command of one call. Without ``heartbeat`` it says nothing while it waits, as a node that hangs."""

    def __init__(self, node: Node, *, heartbeat: bool) -> None:
        self._node, self._heartbeat = node, heartbeat
        self._heard = b""
        self._words: set[bytes] = set()
        self._changed = threading.Condition()
        self._steps: list[bytes | Wait] = []
        self._lines = 0

    def send(self, data: memoryview, timeout: float) -> int:
        taken = bytes(data[: 1 << 20])
        with self._changed:
            self._heard = (self._heard if self._lines < 2 else self._heard[-100:]) + taken
            while self._lines < 2 and b"\n" in self._heard:
                line, _, self._heard = self._heard.partition(b"\n")
                self._lines += 1
                told = json.loads(line)
                banner = f"{BANNER} {told.get('nonce')} have\n".encode()
                self._steps += [banner] if self._lines == 1 else self._node.answer(told)
            self._words |= {word for word in (b'"cmd": "go"', b'"cmd": "end"') if word in self._heard}
            self._changed.notify_all()
        return len(taken)

    def end_input(self) -> None:
        with self._changed:
            self._words.add(INPUT_ENDS)
            self._changed.notify_all()

    def recv(self, timeout: float) -> bytes | None:
        with self._changed:
            patience = min(timeout, HEARTBEAT_S)
            if not self._changed.wait_for(self._may_go_on, patience):
                return b'{"hb":1}\n' if self._heartbeat and self._lines == 2 else None
            while self._steps and isinstance(self._steps[0], Wait):
                self._steps.pop(0)
            if not self._steps:
                return b""
            step = self._steps.pop(0)
            assert isinstance(step, bytes)
            if len(step) > 1 << 16:
                self._steps.insert(0, step[1 << 16 :])
            return step[: 1 << 16] or None

    def _may_go_on(self) -> bool:
        if self._lines < 2 and not self._steps:
            return False
        return not self._steps or not isinstance(self._steps[0], Wait) or self._steps[0].word in self._words

    def stderr(self) -> bytes:
        return b""

    def exit_code(self, timeout: float) -> int:
        return 0

    def close(self, *, lost: bool = False) -> None:
        self.end_input()


class Node:
    """One host: its answer to each verb, as recorded, or changed by ``change``."""

    user = "train"

    def __init__(self, host: str, said: Mapping[str, list[Frame]], change: Change | None = None) -> None:
        self.host, self._said, self._change = host, said, change

    def prepare(self) -> None:
        """It is there."""

    def close(self) -> None:
        """Nothing is held."""

    def run(self, *args: Any, **how: Any) -> Any:
        raise NotImplementedError

    def call(self, verb: str, args: Mapping[str, Any] | None = None, **how: Any) -> Any:
        watch = Watch(f"`{verb}`", how.pop("timeout", 60.0), how.pop("cancel", None), how.pop("clock", None))
        request = conversation.Request(self.host, "/base", verb, args or {}, **how)
        return conversation.call(request, watch, NoneWaits(), "python3", self._start, payload())

    def _start(self) -> ReplayPipe:
        return ReplayPipe(self, heartbeat=self._change is None)

    def answer(self, request: Mapping[str, Any]) -> list[bytes | Wait]:
        """The steps of this node's answer."""
        verb = request["verb"]
        frames = self._made(verb, request)
        pieces: list[bytes | Wait] = [*(self._change(frames) if self._change else map(encode, frames))]
        if verb == "listen":
            pieces.insert(1, Wait(INPUT_ENDS))
        elif verb == "spread":
            pieces.insert(1, Wait(b'"cmd": "go"'))
            pieces.insert(max(2, len(pieces) - 1), Wait(b'"cmd": "end"'))
        return pieces

    def _made(self, verb: str, request: Mapping[str, Any]) -> list[Frame]:
        """As recorded, with an answer to what is asked this time."""
        if verb == "install":
            lock = request["lock_hash"]
            made = {"python": "/base/envs/x/bin/python", "env": f"{lock[:40]}-0", "versions": {"torch": "2.13.0"}}
            return [Frame({"ok": True, "result": {**made, "reused": False, "seconds": 1.0}})]
        frames = self._said[verb]
        if verb == "probe":
            known = frames[-1].data["result"]
            by_name = {key.partition(":")[0]: answer for key, answer in known["answers"].items()}
            answers = {one["id"]: by_name[one["name"]] for one in request["questions"]}
            return [Frame({"ok": True, "result": {**known, "answers": answers}})]
        if verb == "free_port":
            ports = request.get("exactly") or [29600 + number for number in range(request["count"])]
            return [Frame({"ok": True, "result": {"ports": ports, "port": ports[0]}})]
        if verb == "dial":
            targets = request["targets"]
            reached = [[one["peer"], one["address"], "127.0.0.1", "lo", one["ports"]] for one in targets]
            told = frames[-1].data["result"]
            speeds = [{**told["speeds"][0], "peer": one["peer"], "address": one["address"]} for one in targets]
            return [Frame({"ok": True, "result": {**told, "open": reached, "links": [], "speeds": speeds}})]
        return list(frames)


def fleet(said: Mapping[str, Mapping[str, list[Frame]]], bad: str = "", change: Change | None = None) -> SSHFleet:
    """The recorded hosts, ``bad`` changed."""
    return SSHFleet({host: Node(host, told, change if host == bad else None) for host, told in said.items()})
