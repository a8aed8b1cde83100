"""The messages between two supervisors of a run, and the proof of their identity. No I/O.

Both hold the run's key, which each node gets over SSH and which is never written down. The member speaks first; the
first line must prove the key, or the hub sends no byte. Every later message carries a MAC over a counter. Its key is
made for this connection and direction, so a message cannot be replayed, reordered or taken from another run.

    member -> hub   {"run", "host", "nonce", "mac"}
    hub -> member   {"nonce", "mac"}            the mac covers both nonces: the answer is no replay
    then            MAC SP JSON LF              in both directions
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from typing import Any, Collection, Dict, List, Optional

from ddpctl_worker.gang.limits import MAX_HELLO, MAX_LINE
from ddpctl_worker.machine.strangers import Stranger
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.record.outcome import Outcome
from ddpctl_worker.wire.contract import EXITED, FAILED, KILLED

_DOMAIN = "ddpctl-gang/1"


class Wire:
    """One end of a connection."""

    def __init__(self, key: bytes, run: str) -> None:
        self._key, self._run = key, run
        self._buffer = b""
        self._nonce = os.urandom(32).hex()
        self._send_key = self._receive_key = b""
        self._sent = self._received = 0
        self.peer: Optional[str] = None  # the host at the other end, once it is proved

    @property
    def open(self) -> bool:
        """Return whether messages can be packed."""
        return bool(self._send_key)

    def pack(self, message: Dict[str, Any]) -> bytes:
        """Return a message in the form of the wire."""
        body = json.dumps(message, separators=(",", ":")).encode("ascii")
        mac = self._message_mac(self._send_key, self._sent, body)
        self._sent += 1
        return mac + b" " + body + b"\n"

    def feed(self, data: bytes) -> List[Dict[str, Any]]:
        """Return the messages that ``data`` completes.

        Raises: Stranger: the other side has not proved the key, or a line is not valid.
        """
        found = []
        for line in self._lines(data):
            if self.open:
                found.append(self._unpack(line))
            else:
                self._meet(_object(line))
        return found

    def _meet(self, greeting: Dict[str, Any]) -> None:
        """Check the first line of the other side, which proves the key; after it the wire is ``open``."""
        raise NotImplementedError

    def _lines(self, data: bytes) -> List[bytes]:
        limit = MAX_LINE if self.open else MAX_HELLO
        self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        if len(self._buffer) > limit or any(len(line) > limit for line in lines):
            raise Stranger("a line that is too long")
        return lines

    def _unpack(self, line: bytes) -> Dict[str, Any]:
        mac, _, body = line.partition(b" ")
        if not hmac.compare_digest(mac, self._message_mac(self._receive_key, self._received, body)):
            raise Stranger("a message that was not made with the run's key")
        self._received += 1
        return _object(body)

    def _message_mac(self, key: bytes, count: int, body: bytes) -> bytes:
        mac = hmac.new(key, b"%d|" % count + body, hashlib.sha256)
        return mac.hexdigest().encode("ascii")

    def _mac(self, *words: str) -> str:
        text = "|".join([_DOMAIN, self._run, *words])
        return hmac.new(self._key, text.encode("utf-8"), hashlib.sha256).hexdigest()

    def _agree(self, host: str, member_nonce: str, hub_nonce: str, member: bool) -> None:
        to_hub = bytes.fromhex(self._mac("to-hub", host, member_nonce, hub_nonce))
        to_member = bytes.fromhex(self._mac("to-member", host, member_nonce, hub_nonce))
        self._send_key, self._receive_key = (to_hub, to_member) if member else (to_member, to_hub)


class MemberWire(Wire):
    """The member's end."""

    def __init__(self, key: bytes, run: str, host: str, hub: str) -> None:
        super().__init__(key, run)
        self._host, self._hub = host, hub

    def hello(self) -> bytes:
        mac = self._mac("hello", self._host, self._nonce)
        line = {"run": self._run, "host": self._host, "nonce": self._nonce, "mac": mac}
        return json.dumps(line).encode("ascii") + b"\n"

    def _meet(self, greeting: Dict[str, Any]) -> None:
        nonce = str(greeting.get("nonce"))
        if not _same(greeting.get("mac"), self._mac("hub", self._host, self._nonce, nonce)):
            raise Stranger("the program that listens there does not hold the run's key")
        self._agree(self._host, self._nonce, nonce, True)
        self.peer = self._hub


class HubWire(Wire):
    """The hub's end of a member's connection.

    ``peer`` is set by the first message after the hello: a hello alone may be a replay.
    """

    def __init__(self, key: bytes, run: str, hosts: Collection[str]) -> None:
        super().__init__(key, run)
        self._hosts = hosts
        self._host = ""
        self.reply = b""  # bytes to be sent, unless empty

    def _unpack(self, line: bytes) -> Dict[str, Any]:
        message = super()._unpack(line)
        self.peer = self._host
        return message

    def _meet(self, greeting: Dict[str, Any]) -> None:
        host, nonce = str(greeting.get("host")), str(greeting.get("nonce"))
        proved = _same(greeting.get("mac"), self._mac("hello", host, nonce))
        if not proved or greeting.get("run") != self._run or host not in self._hosts:
            raise Stranger("somebody without the run's key")
        self._host = host
        self._agree(host, nonce, self._nonce, False)
        mac = self._mac("hub", host, nonce, self._nonce)
        self.reply = json.dumps({"nonce": self._nonce, "mac": mac}).encode("ascii") + b"\n"


def _same(given: Any, wanted: str) -> bool:
    return isinstance(given, str) and hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode("ascii"))


def _object(line: bytes) -> Dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise Stranger("a line that is not JSON") from None
    if not isinstance(value, dict):
        raise Stranger("a line that is not a JSON object")
    return value


def to_wire(outcome: Outcome, age: float) -> Dict[str, Any]:
    return {
        "state": outcome.state,
        "cause": outcome.cause,
        "victim": outcome.victim,
        "suspect": outcome.suspect,
        "in_time": outcome.in_time,
        "age": age,
    }


def from_wire(message: Dict[str, Any]) -> Outcome:
    """Return the outcome that another node sent. It is always a failure or a kill."""
    state = KILLED if message.get("state") == KILLED else FAILED
    cause = message.get("cause")
    if not isinstance(cause, dict):
        cause = outcomes.cause("", EXITED, "another node failed")
    in_time = message.get("in_time")
    return Outcome(
        state,
        cause,
        bool(message.get("victim")),
        suspect=bool(message.get("suspect")),
        in_time=tuple(rank for rank in in_time if isinstance(rank, int)) if isinstance(in_time, list) else None,
    )
