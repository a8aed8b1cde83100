"""A verb that only exercises the pipe: it takes a body, answers with frames, waits. For tests and measurements."""

from __future__ import annotations

import hashlib
import time
from typing import Any, Dict

from ddpctl_worker.link import Channel, WorkerError


def echo(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """Take ``size`` bytes of body, send ``frames`` frames of ``raw`` bytes ``every`` seconds; says what arrived.

    With ``fail`` it ends in an error of that kind. The stream ends early when the other side is gone.
    """
    digest, got = hashlib.sha256(), 0
    for piece in channel.body(int(request.get("size", 0))):
        digest.update(piece)
        got += len(piece)
    channel.watch_end()
    raw, sent = bytes(int(request.get("raw", 0))), 0
    for number in range(int(request.get("frames", 0))):
        if channel.closed.wait(float(request.get("every", 0))):
            break
        channel.send({"n": number, "time": time.time()}, raw)
        sent += 1
    if request.get("fail"):
        raise WorkerError(str(request["fail"]), "asked to fail", "do not ask")
    return {"got": got, "sha256": digest.hexdigest(), "sent": sent, "text": request.get("text")}
