"""The verbs of the mesh: pick free ports, listen as the job would, dial the other nodes and measure."""

from __future__ import annotations

import itertools
import random
import socket
from typing import Any, Dict, Iterator, List, Set

from ddpctl_worker import dialer
from ddpctl_worker.addresses import port_range
from ddpctl_worker.contract import BAD_REQUEST
from ddpctl_worker.link import Channel, WorkerError
from ddpctl_worker.listener import Listener, bind, bind_wanted

USUAL_PORTS = (29500, 29999)
MAX_LISTEN_S = 600.0


def free_port(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """``count`` distinct ports that nothing on this node listens on; ``avoid``: ports not to give out.

    The first free ones from ``prefer`` on among 29500-29999 (the usual ones for torch): the same wish gives the same
    ports again, so that a firewall once opened stays right. Else any outside the range that the kernel gives out by
    itself, where an outgoing connection could take the port between now and the launch.
    ``exactly``: a list of ports; the answer has those of them that are free, and no other.
    """
    if request.get("exactly") is not None:
        return {"ports": [port for port in map(int, request["exactly"]) if _is_free(port)]}
    count = int(request.get("count", 1))
    prefer = int(request.get("prefer", USUAL_PORTS[0]))
    avoid = {int(port) for port in request.get("avoid", ())}
    found = list(itertools.islice(filter(_is_free, _candidates(prefer, avoid)), count))
    if len(found) < count:
        raise WorkerError("no_port", "no free TCP port between 1024 and 65535", "see what listens with: ss -ltnp")
    return {"port": found[0] if found else None, "ports": found}


def _is_free(port: int) -> bool:
    try:
        bind(port).close()
    except OSError:
        return False
    return True


def _candidates(prefer: int, avoid: Set[int]) -> Iterator[int]:
    """Ports in the order of their fitness; the many last ones are only drawn up when none of the usual ones is free."""
    low, high = port_range()
    first, last = USUAL_PORTS
    prefer = min(max(prefer, first), last)
    usual = [port for port in [*range(prefer, last + 1), *range(first, prefer)] if not low <= port <= high]
    yield from (port for port in usual if port not in avoid)
    others = [port for port in range(10000, 65536) if port not in avoid]
    random.shuffle(others)
    yield from sorted(others, key=lambda port: low <= port <= high)  # stable: still shuffled within each part


def listen(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """Bind ``ports`` and ``samples`` ports of the ephemeral range, say so in one frame, and answer dialers.

    The frame: {"listening": [port], "samples": [port], "taken": [{"port", "errno", "error"}], "range": [low, high]}.
    Ends when the orchestrator closes our stdin, or after ``seconds``.
    """
    key = key_of(request)
    wanted = [int(port) for port in request.get("ports", ())]
    sockets, taken = bind_wanted(wanted, float(request.get("wait_s", 2.0)))
    listening = [sock.getsockname()[1] for sock in sockets]
    samples = _bind_samples(int(request.get("samples", 0)), set(listening))
    sampled = sorted(sock.getsockname()[1] for sock in samples)
    server = Listener(key, str(request["host"]), sockets + samples)
    channel.send({"listening": listening, "samples": sampled, "taken": taken, "range": list(port_range())})
    seconds = min(float(request.get("seconds", 120.0)), MAX_LISTEN_S)
    server.serve(channel.closed.is_set, seconds, channel.fileno())
    return {"accepted": server.accepted}


def _bind_samples(count: int, used: Set[int]) -> List[socket.socket]:
    """``count`` free ports spread over the ephemeral range: one somewhere in each equal part of it."""
    low, high = port_range()
    width = max(1, (high - low + 1) // max(1, count))
    sockets = []
    for part in range(count):
        start = low + part * width
        ports = [port for port in range(start, min(start + width, high + 1)) if port not in used]
        random.shuffle(ports)
        for port in ports[:64]:
            try:
                sockets.append(bind(port))
            except OSError:
                continue
            break
    return sockets


def dial(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """Dial every target; see dialer.py for what comes back."""
    return dialer.dial_all(request, key_of(request), channel)


def key_of(request: Dict[str, Any]) -> bytes:
    try:
        key = bytes.fromhex(request["nonce"])
    except (KeyError, TypeError, ValueError):
        raise WorkerError(BAD_REQUEST, "the mesh needs a nonce in hex") from None
    if len(key) < 16:
        raise WorkerError(BAD_REQUEST, "the mesh needs a nonce of at least 16 bytes")
    return key
