"""Asks the ranks of a run to save a checkpoint: by a signal, to ranks only.

Most signals end a process that does not handle them. So before one is sent, the kernel is asked whether every rank here
handles it; if one does not, none of them gets it. ``ask_checkpoint`` is asked twice: first every node whether its ranks
handle the signal, then, if all do, to send it.
"""

from __future__ import annotations

import signal
from typing import Any, Dict, List, Sequence

from ddpctl_worker.checkpoint.fresh import newest
from ddpctl_worker.machine import fs, notes, proc, processes
from ddpctl_worker.record import ranks
from ddpctl_worker.record.paths import base_of, checkpoint_dir, job_id
from ddpctl_worker.record.ranks import RankProcess
from ddpctl_worker.record.record import named_by
from ddpctl_worker.record.status import refuse_elsewhere
from ddpctl_worker.run.keeping import hurry
from ddpctl_worker.wire.channel import Channel, WorkerError
from ddpctl_worker.wire.contract import BAD_REQUEST


def ask_checkpoint(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """The verb: {"ranks": the ranks that run here, "deaf": [{"rank", "pid"}] that do not handle ``signal``, "absent":
    how many more there are to be, "sent": whether they were asked, "newest": when the latest checkpoint was written
    before that}. Without ``send`` it only looks."""
    paths, run = named_by(request)
    paths = paths.newest()
    run = fs.read_json(paths.run) or run
    number = number_of(request.get("signal"))
    refuse_elsewhere(paths)
    launcher = processes.from_json(fs.read_optional(paths.state).get("launcher"))
    found = ranks.of_run(run, launcher.pid, {}) if launcher is not None and processes.is_alive(launcher) else []
    absent = max(0, int(run["nproc"]) - len(found))
    deaf = deaf_of(found, number)
    folder = checkpoint_dir(base_of(request), job_id(run), run["host"])
    before = newest(folder)
    sent = bool(request.get("send")) and not absent and not deaf
    if sent:
        hurry(folder)
        deaf = send(found, number)
    told = [{"rank": one.rank, "pid": one.pid} for one in deaf]
    return {
        "ranks": [one.rank for one in found],
        "deaf": told,
        "absent": absent,
        "sent": sent,
        "newest": notes.iso(before / 1e9) if before else None,
    }


def number_of(name: Any) -> int:
    """The number of a signal by its name.

    Raises:
        WorkerError: BAD_REQUEST.
    """
    try:
        return int(signal.Signals[name])
    except KeyError:
        raise WorkerError(BAD_REQUEST, "%r is not a signal" % (name,)) from None


def deaf_of(found: Sequence[RankProcess], number: int) -> List[RankProcess]:
    """Those that do not handle the signal."""
    return [one for one in found if not proc.catches(one.pid, number)]


def send(found: Sequence[RankProcess], number: int) -> List[RankProcess]:
    """Send it to those that handle it, each looked at right before; the ranks that did not get it."""
    boot = proc.boot_id()
    return [
        one
        for one in found
        if not proc.catches(one.pid, number)
        or not processes.send(processes.ProcessId(boot, one.pid, one.start), number)
    ]
