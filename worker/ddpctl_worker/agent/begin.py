"""The verbs begin and line_up: give an agent, or a waiter, the addresses of the others, and wait for its start."""

from __future__ import annotations

import socket
import time
from typing import Any, Dict, List, Mapping, Sequence

from ddpctl_worker.agent.limits import BEGIN_LOOK_S, CONNECT_S, FIND_S, LINE_QUICK_S, MOST_UNREACHED
from ddpctl_worker.agent.talk import at_once
from ddpctl_worker.machine import fs
from ddpctl_worker.record.record import attempt_of, named_by
from ddpctl_worker.record.runrecord import require_restart
from ddpctl_worker.record.status import node_status
from ddpctl_worker.wire.channel import Channel, WorkerError
from ddpctl_worker.wire.contract import BAD_REQUEST, QUEUED, STARTING, TERMINAL, USUAL_PORTS

HINT = "let the nodes reach each other on TCP %d-%d: ddpctl preflight --fix" % USUAL_PORTS


def begin(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """Answer the verb. ``peers``: address and port of every host's agent. The answer is {"status"}; safe to repeat."""
    paths, run = named_by(request)
    peers = request.get("peers")
    if not run.get("restart") or not isinstance(peers, dict):
        raise WorkerError(BAD_REQUEST, "begin needs a run with restarts, and the addresses of its agents")
    if fs.read_json(paths.peers) is None:
        fs.write_json(paths.peers, {"peers": peers})
    first = run["host"] in require_restart(run)["first"]["hosts"]
    until = time.monotonic() + FIND_S
    while True:
        # Before the status, which then shows the start.
        started = fs.read_optional(paths.of_attempt(attempt_of(run)).state).get("supervisor") if first else True
        status = node_status(paths)
        if status["state"] in TERMINAL or started or channel.closed.is_set():
            return {"status": status}
        if time.monotonic() > until:
            text = "the agents did not find each other within %d s" % FIND_S
            missed = list_unreached({host: place for host, place in peers.items() if host != run["host"]})
            raise WorkerError(STARTING, "; ".join([text, *missed]), HINT if missed else None)
        time.sleep(BEGIN_LOOK_S)


def line_up(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """Answer the verb: give a waiter ``peers``, the addresses of all waiters, and the ``order`` of the hosts' claims.

    The answer is {"status"}, once the run has started or its place in line is known. Safe to repeat.
    """
    paths, _ = named_by(request)
    if fs.read_json(paths.line) is None:
        fs.write_json(paths.line, {"peers": request["peers"], "order": request["order"]})
    until = time.monotonic() + LINE_QUICK_S
    while True:
        placed = fs.read_optional(paths.state).get("in_line")  # before the status, which then shows the place
        status = node_status(paths)
        if placed or status["state"] != QUEUED or time.monotonic() > until or channel.closed.is_set():
            return {"status": status}
        time.sleep(BEGIN_LOOK_S)


def list_unreached(peers: Mapping[str, Sequence[Any]]) -> List[str]:
    """Return why this host does not reach the agents of other hosts: a line for each that takes no connection."""
    why: Dict[str, str] = {}

    def look(host: str) -> None:
        try:
            socket.create_connection((str(peers[host][0]), int(peers[host][1])), CONNECT_S).close()
        except OSError as error:
            why[host] = error.strerror or str(error)

    at_once(look, sorted(peers), CONNECT_S + 1.0)
    lines = ["no connection to %s at %s port %s: %s" % (host, *peers[host], why[host]) for host in sorted(why)]
    more = len(lines) - MOST_UNREACHED
    return [*lines[:MOST_UNREACHED], *(["nor to %d other hosts" % more] if more > 0 else [])]
