"""The begin verb: tells the agent of a run where the others are, and waits until the first attempt stands here."""

from __future__ import annotations

import time
from typing import Any, Dict

from ddpctl_worker import fs
from ddpctl_worker.channel import Channel, WorkerError
from ddpctl_worker.contract import BAD_REQUEST, STARTING, TERMINAL
from ddpctl_worker.run.record import attempt_of, named_by
from ddpctl_worker.run.status import node_status

BEGIN_S = 60.0


def begin(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """The verb: ``peers`` are address and port of every host's agent. {"status"}; safe to repeat."""
    paths, run = named_by(request)
    peers = request.get("peers")
    if not run.get("restart") or not isinstance(peers, dict):
        raise WorkerError(BAD_REQUEST, "begin needs a run with restarts, and the addresses of its agents")
    if fs.read_json(paths.peers) is None:
        fs.write_json(paths.peers, {"peers": peers})
    first = run["host"] in run["restart"]["first"]["hosts"]
    until = time.monotonic() + BEGIN_S
    while True:
        status = node_status(paths)
        stands = fs.read_optional(paths.of_attempt(attempt_of(run)).state).get("supervisor") if first else True
        if status["state"] in TERMINAL or stands or channel.closed.is_set():
            return {"status": status}
        if time.monotonic() > until:
            raise WorkerError(STARTING, "the agents did not find each other within %d s" % BEGIN_S)
        time.sleep(0.05)
