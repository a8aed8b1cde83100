"""The entry of the worker: reads a request, serves it, and answers; then reads the next request, or ends."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import traceback
from typing import Any, Callable, Dict

from ddpctl_worker.machine.core_files import refuse_core_files
from ddpctl_worker.wire.channel import Channel, WorkerError
from ddpctl_worker.wire.contract import AGAIN, BAD_REQUEST, BUG, READY

Verb = Callable[[Dict[str, Any], Channel], Dict[str, Any]]

# verb -> its module; the function has the verb's name. A module is imported only for its verb: a status call on a busy
# node should not pay for the mesh.
VERBS = {
    "begin": "agent.begin",
    "ask_checkpoint": "run.ask_to_save",
    "build": "store.build",
    "checkpoints": "checkpoint.listing",
    "data_missing": "store.data",
    "data_place": "store.data",
    "dial": "mesh.dialer",
    "doctor": "doctor.service",
    "echo": "wire.channel",
    "fetch": "verbs.fetch",
    "fetch_checkpoint": "verbs.fetch",
    "firewall": "mesh.firewall",
    "free_port": "run.ports",
    "gc": "verbs.gc",
    "history": "verbs.history",
    "install": "store.install",
    "line_up": "agent.begin",
    "listen": "mesh.listener",
    "metrics": "record.metrics",
    "probe": "facts.probe",
    "rehearse": "mesh.rehearse",
    "remove": "store.remove",
    "restore": "checkpoint.restore",
    "set_aside": "checkpoint.listing",
    "slots": "slots.listing",
    "spread": "store.spread",
    "start": "run.start",
    "status": "record.status",
    "untracked": "verbs.untracked",
    "stop": "run.stop",
    "store_get": "store.blobs",
    "store_has": "checkpoint.holdings",
    "store_put": "store.blobs",
    "tail": "verbs.tail",
    "top": "verbs.top",
}
# Verbs with a body after the request; they read it from the channel.
TAKE_A_BODY = {"echo", "restore", "spread", "store_put"}


def main() -> int:
    """Serve requests on stdin and stdout. Returns 0 if they were answered, even with an error."""
    umask = os.umask(0o077)
    refuse_core_files()  # requests hold keys
    channel = Channel(os.dup(0), os.dup(1))
    channel.login_umask = umask
    # From here on a stray print or a child's output cannot reach the protocol.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    line = channel.read_line()
    while line and _again(line):
        _import_module(line)  # here, so that the children for later requests have its modules, too
        child = os.fork()  # a verb may change its process, so each has its own
        if not child:
            answer(line, channel)
            sys.stderr.flush()
            os._exit(0)
        channel.forget()
        channel.send({READY: os.waitpid(child, 0)[1]})
        line = channel.read_line()
    if line:
        answer(line, channel)
    return 0


def _again(line: bytes) -> bool:
    """Return whether another request may follow. ``answer`` refuses a line that is not a request."""
    try:
        return json.loads(line).get(AGAIN) is True
    except (ValueError, AttributeError):
        return False


def _import_module(line: bytes) -> None:
    """Import the module of the request's verb. Where that fails, the child that serves the request says why."""
    with contextlib.suppress(Exception):
        find_verb(json.loads(line)["verb"])


def answer(line: bytes, channel: Channel) -> None:
    """Serve a request and send its result or error."""
    try:
        result = serve(json.loads(line), channel)
    except WorkerError as error:
        fail = {"kind": error.kind, "message": error.message, "hint": error.hint}
    except Exception as error:
        traceback.print_exc()  # stderr reaches the orchestrator's debug log
        fail = {"kind": BUG, "message": "%s: %s" % (type(error).__name__, error), "hint": None}
    else:
        channel.send({"ok": True, "result": result})
        return
    channel.send({"ok": False, "error": fail})


def serve(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """Find the verb and run it. Raises WorkerError."""
    name = request.get("verb")
    if name not in VERBS:
        raise WorkerError(BAD_REQUEST, "this worker has no verb %r" % (name,))
    if name in TAKE_A_BODY:
        channel.keep_alive()
    else:
        channel.watch()
    return find_verb(name)(request, channel)


def find_verb(name: str) -> Verb:
    """Return the function of a verb. Raises KeyError: there is no such verb."""
    found: Verb = getattr(importlib.import_module("ddpctl_worker." + VERBS[name]), name)
    return found


if __name__ == "__main__":
    sys.exit(main())
