"""The verbs of the worker: reads a request, does it, answers; then the next one, or it ends."""

from __future__ import annotations

import importlib
import json
import os
import sys
import traceback
from typing import Any, Callable, Dict

from ddpctl_worker.contract import AGAIN, BAD_REQUEST, READY
from ddpctl_worker.link import Channel, WorkerError

Verb = Callable[[Dict[str, Any], Channel], Dict[str, Any]]

# verb -> (module, function, takes a body). A module is imported only when its verb is asked for: a status call on a
# busy node should not pay for the mesh.
VERBS = {
    "echo": ("ddpctl_worker.echo", "echo", True),
    "probe": ("ddpctl_worker.probe", "probe", False),
    "start": ("ddpctl_worker.start", "start", False),
    "status": ("ddpctl_worker.status", "status", False),
    "stop": ("ddpctl_worker.stop", "stop", False),
    "metrics": ("ddpctl_worker.metrics", "metrics", False),
    "tail": ("ddpctl_worker.tail", "tail", False),
    "fetch": ("ddpctl_worker.fetch", "fetch", False),
    "store_has": ("ddpctl_worker.store", "store_has", False),
    "store_put": ("ddpctl_worker.store", "store_put", True),
    "listen": ("ddpctl_worker.network", "listen", False),
    "dial": ("ddpctl_worker.network", "dial", False),
    "free_port": ("ddpctl_worker.network", "free_port", False),
    "firewall": ("ddpctl_worker.firewall", "firewall", False),
    "rehearse": ("ddpctl_worker.rehearse", "rehearse", False),
    "spread": ("ddpctl_worker.spread", "spread", True),
    "build": ("ddpctl_worker.build", "build", False),
    "install": ("ddpctl_worker.install", "install", False),
    "gc": ("ddpctl_worker.gc", "gc", False),
}


def main() -> int:
    """Serve requests on stdin and stdout; 0 when they were answered, even with an error."""
    umask = os.umask(0o077)
    link = Channel(os.dup(0), os.dup(1))
    link.login_umask = umask
    # From here on a stray print or a child's output must not reach the protocol.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    line = link.read_line()
    while line and _again(line):
        child = os.fork()  # what a verb does to its process ends with it
        if not child:
            answer(line, link)
            sys.stderr.flush()
            os._exit(0)
        link.forget()
        link.send({READY: os.waitpid(child, 0)[1]})
        line = link.read_line()
    if line:
        answer(line, link)
    return 0


def _again(line: bytes) -> bool:
    """Whether another request may follow. A line that is no request is for ``answer`` to refuse."""
    try:
        return json.loads(line).get(AGAIN) is True
    except (ValueError, AttributeError):
        return False


def answer(line: bytes, channel: Channel) -> None:
    """Serve one request."""
    try:
        result = serve(json.loads(line), channel)
    except WorkerError as error:
        fail = {"kind": error.kind, "message": error.message, "hint": error.hint}
    except Exception as error:
        traceback.print_exc()  # stderr reaches the orchestrator's debug log
        fail = {"kind": "bug", "message": "%s: %s" % (type(error).__name__, error), "hint": None}
    else:
        channel.send({"ok": True, "result": result})
        return
    channel.send({"ok": False, "error": fail})


def serve(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """Find the verb and run it."""
    name = request.get("verb")
    if name not in VERBS:
        raise WorkerError(BAD_REQUEST, "this worker has no verb %r" % (name,))
    module, function, has_body = VERBS[name]
    if has_body:
        channel.beat()
    else:
        channel.watch()
    verb: Verb = getattr(importlib.import_module(module), function)
    return verb(request, channel)


if __name__ == "__main__":
    sys.exit(main())
