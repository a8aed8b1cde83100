"""Notifies of the start after a wait in line, of a restart, of a lost connection, and of the end of a run.

The module has the choice of the node, the message, and the start of the process.

One node notifies, in a process of its own (notifier.py), and no process waits for it. The run's end is on record before
the notifiers start.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any, Dict, Optional, Sequence

from ddpctl_worker.machine import child, fs, notes
from ddpctl_worker.record.paths import RunPaths
from ddpctl_worker.record.runrecord import RunRecord, read_run
from ddpctl_worker.run.limits import NOTIFIERS_S, VARIABLE_CHARACTERS
from ddpctl_worker.run.order import NotifyOrder
from ddpctl_worker.wire.contract import (
    ENV_HOST,
    ENV_JOB,
    ENV_RUN,
    ENV_RUN_DIR,
    NODE_LOST,
    NODE_REBOOTED,
    SCHEMA,
    SUPERVISOR_LOST,
)

ENDED, RESTART, CUT_OFF, STARTED = "ended", "restart", "cut_off", "started"
_GONE = (NODE_LOST, NODE_REBOOTED, SUPERVISOR_LOST)


def notifying_host(hosts: Sequence[str], cause: Optional[Dict[str, Any]]) -> str:
    """Return the host that notifies: the lowest node rank that is not lost. ``cause``: the verdict of all nodes."""
    gone = cause["host"] if cause is not None and cause["reason"] in _GONE else None
    return next((host for host in hosts if host != gone), hosts[0])


def message_text(run: RunRecord, event: Dict[str, Any]) -> Dict[str, Any]:
    """Return the message. ``run``: run.json. ``event``: its name, and the run's state, attempt and cause."""
    made = {
        "schema": SCHEMA,
        "event": event["event"],
        "job": run["job"],
        "run": run["run"],
        "cluster": run["cluster"],
        "project": run["project"],
        "host": run["host"],
        "hosts": list(run["hosts"]),
        "state": event["state"],
        "attempt": event["attempt"],
        "started": event.get("started"),
        "ended": event.get("ended"),
        "cause": event.get("cause"),
    }
    return dict(made, text=_sentence(made))


def _sentence(said: Dict[str, Any]) -> str:
    """``train failed on lab: node1 rank 3: exited: ValueError: no data (run 20261121T233155Z-6c0c5d)``."""
    cause, happened = (
        said["cause"],
        {ENDED: said["state"], RESTART: "restarts", CUT_OFF: "waits", STARTED: "starts"}[said["event"]],
    )
    why = ""
    if cause is not None:
        rank = "" if cause.get("rank") is None else " rank %s" % cause["rank"]
        why = ": %s%s: %s: %s" % (cause["host"], rank, cause["reason"], cause["message"])
    return "%s %s on %s%s (run %s)" % (said["job"], happened, said["cluster"], why, said["run"])


def message_variables(said: Dict[str, Any], folder: str) -> Dict[str, str]:
    """Return the message as environment variables; a missing value is empty. ``folder``: the run's."""
    cause = said["cause"] or {}
    found = {
        ENV_JOB: said["job"],
        ENV_RUN: said["run"],
        ENV_RUN_DIR: folder,
        ENV_HOST: said["host"],
        "DDPCTL_EVENT": said["event"],
        "DDPCTL_STATE": said["state"],
        "DDPCTL_TEXT": said["text"],
        "DDPCTL_CAUSE_HOST": cause.get("host"),
        "DDPCTL_CAUSE_RANK": cause.get("rank"),
        "DDPCTL_CAUSE_REASON": cause.get("reason"),
        "DDPCTL_CAUSE_MESSAGE": cause.get("message"),
    }
    return {name: "" if value is None else _passable(str(value)) for name, value in found.items()}


def _passable(text: str) -> str:
    """Return ``text`` as an environment can hold it: a cause's message comes from a script and may hold any bytes."""
    return text[:VARIABLE_CHARACTERS].replace("\0", "").encode("utf-8", "replace").decode("utf-8")


def notify(
    paths: RunPaths, run: RunRecord, how: NotifyOrder, event: Dict[str, Any], seconds: float = NOTIFIERS_S
) -> int:
    """Start the process that runs every notifier of ``how`` (start.py) for at most ``seconds``; return its pid.

    The process and its children do not belong to the job: a caller that lives on must spare them.

    Raises:
        OSError: the process cannot be started.
    """
    order = dict(how, node=paths.node, message=message_text(run, event), seconds=seconds)
    argv = child.command("ddpctl_worker.run.notifier", options=("-X", "utf8"))
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True, close_fds=True, cwd="/"
    )
    process.returncode = 0  # no code here waits for it
    assert process.stdin is not None
    with process.stdin as pipe:  # it holds secrets: neither a file nor argv may
        pipe.write(json.dumps(order).encode("ascii"))
    return process.pid


def at_end(paths: RunPaths, how: Optional[NotifyOrder]) -> None:
    """Notify of the run's end if this node is the speaker. Called once the exit record is on the disk."""
    if how is None:
        return
    try:
        run, end = read_run(paths), fs.read_json(paths.exit)
        if run is None or end is None or notifying_host(run["hosts"], end["cause"]) != paths.host:
            return
        started = fs.read_optional(paths.state).get("started")
        event = {name: end[name] for name in ("state", "attempt", "ended", "cause")}
        event["attempt"] = max(int(event["attempt"]), int(run.get("attempt") or 1))
        notify(paths, run, how, dict(event, event=ENDED, started=started))
    except Exception as error:
        notes.note("notify: nobody was notified: %s" % notes.trace(error))
