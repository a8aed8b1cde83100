"""The lines between two nodes on a port of the mesh. Both ends prove that they know the key of this preflight.

    dialer    DDPCTL-MESH <challenge>
    listener  DDPCTL-MESH <host, hex> <challenge> <proof of the listener>
    dialer    auth <proof of the dialer>            only if it wants more than the name
    dialer    echo | push <n> | pull <n>            any number of times; the dialer closes first
    listener  echo | got <n>  | <n raw bytes>

Each line ends with a line feed. The proofs are HMAC-SHA256 over both challenges, so a recorded proof is worthless. A
foreign program that listens on the port is never taken for a node, nor a wrong node for the right node.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from typing import Any, Dict, NamedTuple, Optional

from ddpctl_worker.wire.channel import WorkerError
from ddpctl_worker.wire.contract import BAD_REQUEST

MAGIC = "DDPCTL-MESH"


class Hello(NamedTuple):
    """A listener's answer, with a valid proof."""

    host: str
    challenge: str


def new_challenge() -> str:
    return os.urandom(16).hex()


def greeting(challenge: str) -> bytes:
    return ("%s %s\n" % (MAGIC, challenge)).encode("ascii")


def read_greeting(line: bytes) -> Optional[str]:
    """Return the dialer's challenge, or ``None`` if the line is no greeting."""
    words = line.decode("ascii", "replace").split()
    if len(words) == 2 and words[0] == MAGIC and len(words[1]) == 32:
        return words[1]
    return None


def answer(key: bytes, host: str, theirs: str, mine: str) -> bytes:
    name = host.encode("utf-8").hex()
    return ("%s %s %s %s\n" % (MAGIC, name, mine, _proof(key, "listen", name, theirs, mine))).encode("ascii")


def read_answer(key: bytes, line: bytes, challenge: str) -> Optional[Hello]:
    """Return the listener's name and challenge; ``None`` if the proof is wrong.

    Raises: ValueError: the line is no answer of a listener.
    """
    words = line.decode("ascii", "replace").split()
    if len(words) != 4 or words[0] != MAGIC:
        raise ValueError("not a mesh listener")
    _, name, theirs, proof = words
    if not hmac.compare_digest(proof.encode(), _proof(key, "listen", name, challenge, theirs).encode()):
        return None
    return Hello(bytes.fromhex(name).decode("utf-8", "replace"), theirs)


def dialer_auth(key: bytes, challenge: str, theirs: str) -> bytes:
    return ("auth %s\n" % _proof(key, "dial", "", challenge, theirs)).encode("ascii")


def auth_is_right(key: bytes, line: bytes, challenge: str, mine: str) -> bool:
    return hmac.compare_digest(line + b"\n", dialer_auth(key, challenge, mine))


def _proof(key: bytes, side: str, name: str, first: str, second: str) -> str:
    text = " ".join((side, name, first, second))
    return hmac.new(key, text.encode("utf-8"), hashlib.sha256).hexdigest()


def key_of(request: Dict[str, Any]) -> bytes:
    try:
        key = bytes.fromhex(request["nonce"])
    except (KeyError, TypeError, ValueError):
        raise WorkerError(BAD_REQUEST, "the mesh needs a nonce in hex") from None
    if len(key) < 16:
        raise WorkerError(BAD_REQUEST, "the mesh needs a nonce of at least 16 bytes")
    return key
