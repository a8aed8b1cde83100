"""Asks the ranks of a run to save a checkpoint, by a signal that only ranks get.

Most signals end a process that does not handle them. So the worker first asks the kernel whether every rank here
handles the signal. If a rank does not, no rank gets the signal. The controller calls ``ask_checkpoint`` twice: first on
every node to ask whether its ranks handle the signal, then, if all do, to send it.
"""

from __future__ import annotations

import signal
from typing import Any, Dict, List, Sequence

from ddpctl_worker.checkpoint.fresh import newest
from ddpctl_worker.machine import fs, notes, proc, processes
from ddpctl_worker.record import ranks
from ddpctl_worker.record.judgement import refuse_elsewhere
from ddpctl_worker.record.paths import base_of, checkpoint_dir, job_id
from ddpctl_worker.record.ranks import RankProcess
from ddpctl_worker.record.record import named_by
from ddpctl_worker.record.runrecord import read_run
from ddpctl_worker.run.keeping import look_soon
from ddpctl_worker.wire.channel import Channel, WorkerError
from ddpctl_worker.wire.contract import BAD_REQUEST


def ask_checkpoint(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """The verb. It sends ``signal`` only with ``send``, and if no rank is deaf or absent.

    Returns:
        "ranks": the ranks that run here; "deaf": [{"rank", "pid"}] of the ranks that do not handle the signal;
        "absent": how many ranks are missing; "sent": whether the signal was sent; "newest": the time of the latest
        checkpoint before that.
    """
    paths, run = named_by(request)
    paths = paths.newest()
    run = read_run(paths) or run
    number = signal_number(request.get("signal"))
    refuse_elsewhere(paths)
    launcher = processes.identity_from_json(fs.read_optional(paths.state).get("launcher"))
    found = (
        ranks.find_ranks_of_run(run, launcher.pid, {}) if launcher is not None and processes.is_alive(launcher) else []
    )
    absent = max(0, int(run["nproc"]) - len(found))
    deaf = ranks_without_handler(found, number)
    folder = checkpoint_dir(base_of(request), job_id(run), run["host"])
    before = newest(folder)
    sent = bool(request.get("send")) and not absent and not deaf
    if sent:
        look_soon(folder)
        deaf = send_signal(found, number)
    return {
        "ranks": [rank.rank for rank in found],
        "deaf": [{"rank": rank.rank, "pid": rank.pid} for rank in deaf],
        "absent": absent,
        "sent": sent,
        "newest": notes.iso(before / 1e9) if before else None,
    }


def signal_number(name: Any) -> int:
    """Return the number of the signal called ``name``.

    Raises:
        WorkerError: BAD_REQUEST, there is no such signal.
    """
    try:
        return int(signal.Signals[name])
    except KeyError:
        raise WorkerError(BAD_REQUEST, "%r is not a signal" % (name,)) from None


def ranks_without_handler(found: Sequence[RankProcess], number: int) -> List[RankProcess]:
    """Return the ranks that do not handle the signal."""
    return [rank for rank in found if not proc.catches(rank.pid, number)]


def send_signal(found: Sequence[RankProcess], number: int) -> List[RankProcess]:
    """Send the signal to each rank that handles it, checked right before; return the ranks that did not get it."""
    boot = proc.boot_id()
    return [
        rank
        for rank in found
        if not proc.catches(rank.pid, number)
        or not processes.send(processes.ProcessId(boot, rank.pid, rank.start), number)
    ]
