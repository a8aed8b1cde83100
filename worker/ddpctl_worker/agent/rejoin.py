"""How a host takes part in a live run again when its agent is gone: it lost power, or the agent was killed.

What an agent needs is in the run's folder there, but for the secrets, which are on no disk. ``admit`` asks the agent of
another host for these, the controller carries them over, and ``rejoin`` starts the agent. That continues with the vote
and the paper that its host had on disk (quorum.py); without them it could promise the opposite of what it had promised,
so it does not take part.
"""

from __future__ import annotations

import os
import time
from typing import Any, Dict

from ddpctl_worker import fs
from ddpctl_worker.channel import Channel, WorkerError
from ddpctl_worker.contract import BAD_REQUEST, BUSY, CORRUPT, OS_ERROR
from ddpctl_worker.paths import RunPaths, base_of
from ddpctl_worker.run import detached
from ddpctl_worker.run.desk import ask
from ddpctl_worker.run.record import named_by
from ddpctl_worker.run.status import holders, node_status, refuse_elsewhere, watchers
from ddpctl_worker.run.stop import let_go

OTHER_S = 10.0  # for an agent that was started at the same time to say who it is
ADMITTED = ("gang_key", "copying", "secrets", "notify", "peers", "moved")


def admit(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """The verb, where an agent is at work: {"over": whether the run is} and, where it is not, what ``rejoin`` takes."""
    paths, _ = named_by(request)
    found = ask(paths.agent_socket)
    if found is None:
        raise WorkerError(BUSY, "the agent of run %s does not answer here" % request["run"], "try again in a moment")
    return found


def rejoin(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """The verb, on a host that is back: {"status"}; safe to repeat. Where the run has ended, or its agent is there, it
    does nothing.

    Raises:
        WorkerError: CORRUPT, its record is not whole. BUSY, what is left of the last attempt has not ended.
    """
    paths, run = named_by(request)
    if not run.get("restart") or any(name not in request for name in ADMITTED):
        raise WorkerError(BAD_REQUEST, "rejoin needs a run with restarts, and what admit answers")
    refuse_elsewhere(paths)
    if not _is_settled(paths):
        start = _order(paths, run, request, channel)
        for attempt in paths.attempts():
            let_go(attempt)
        said = detached.launch("ddpctl_worker.agent.agent", start, ["ddpctl-agent", paths.host, run["run"]])
        until = time.monotonic() + OTHER_S
        while said["refused"] is not None and not _is_settled(paths):  # another one may be on its way
            if time.monotonic() > until:
                raise WorkerError(OS_ERROR, str(said["refused"]), "see supervisor.log in the run's folder")
            time.sleep(0.05)
    return {"status": node_status(paths)}


def _is_settled(paths: RunPaths) -> bool:
    """Whether the run has ended here, or has an agent."""
    return os.path.lexists(paths.exit) or bool(watchers(holders(paths)))


def _order(paths: RunPaths, run: Dict[str, Any], request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """What the agent is given: its part of the start request from disk, the rest as another agent has it."""
    launch = _kept(paths.launch)
    _kept(paths.agreed)
    if not os.path.isdir(launch["code_path"]):
        raise WorkerError(CORRUPT, "the worker that the run was started with is not there any more", _NEXT)
    admitted = {name: request[name] for name in ADMITTED}
    secrets = admitted["secrets"] or {}
    lacking = [name for name in launch["secret_names"] if name not in secrets]
    if lacking:
        raise WorkerError(BAD_REQUEST, "the other host has no %s of env_file" % ", ".join(lacking))
    again = {name: admitted[name] for name in ("gang_key", "copying", "notify")}
    again.update(launch, run=run, host=run["host"], secrets={name: secrets[name] for name in launch["secret_names"]})
    return {
        "request": again,
        "base": base_of(request),
        "top": paths.top,
        "umask": channel.login_umask,
        "admitted": {"peers": admitted["peers"], "moved": admitted["moved"]},
        "code_path": launch["code_path"],
    }


_NEXT = "the run continues without this host; start a new one to use it"


def _kept(path: str) -> Dict[str, Any]:
    try:
        found = fs.read_json(path)
    except WorkerError as error:
        raise WorkerError(error.kind, "its record of the run is damaged: %s" % error.message, _NEXT) from None
    if found is None:
        text = "its record of the run is not whole: %s is missing" % os.path.basename(path)
        raise WorkerError(CORRUPT, text, _NEXT)
    return found
