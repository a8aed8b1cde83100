"""Removes runs that have ended from a node: the remove verb, and ``keep_runs`` of a job.

A rename hides the run from all readers at once; its files are deleted after that. Checkpoints belong to the job and
stay.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
from typing import Any, Dict, List, Set, Tuple

from ddpctl_worker.machine import child, fs, notes
from ddpctl_worker.record.judgement import (
    HERE,
    find_other_place,
    find_remaining_processes,
    read_owner_record,
    refuse_elsewhere,
)
from ddpctl_worker.record.paths import RunPaths, base_of, job_id, known_runs, run_paths
from ddpctl_worker.record.runrecord import RunRecord
from ddpctl_worker.record.status import node_status
from ddpctl_worker.wire.channel import Channel, WorkerError
from ddpctl_worker.wire.contract import LIVE, OS_ERROR, TERMINAL


def remove(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """``{"run"}`` -> ``{"removed": bool}``: False if this node has no files of the run.

    Raises:
        WorkerError: LIVE or OTHER_MACHINE, the run is not over; OS_ERROR, the disk refuses the removal.
    """
    paths = run_paths(base_of(request), request["run"], request["host"])
    if not os.path.lexists(paths.node):
        return {"removed": False}
    refuse_elsewhere(paths)
    if not is_over(paths, paths.host):
        raise WorkerError(LIVE, "run %s is live here" % request["run"], "end it: ddpctl kill %s" % request["run"])
    left = ", ".join(map(str, find_leftovers(paths)))
    if left:
        raise WorkerError(
            LIVE,
            "processes of run %s are left here (pid %s)" % (request["run"], left),
            "end them: ddpctl kill %s" % request["run"],
        )
    try:
        return {"removed": _take_part(paths)}
    except OSError as error:
        raise WorkerError(OS_ERROR, "not all files of run %s could be removed: %s" % (request["run"], error)) from None


def is_over(paths: RunPaths, host: str) -> bool:
    """Whether the run is over on ``paths.host``. Another host's part needs an exit record: its processes cannot be seen
    from here."""
    if os.path.exists(paths.exit):
        return True
    if paths.host != host:
        return False
    try:
        return node_status(paths)["state"] in TERMINAL
    except (WorkerError, OSError):
        return False


def find_leftovers(paths: RunPaths) -> List[int]:
    """Return the processes that outlived a run. Only the records of the run and its attempts lead to them."""
    found: Set[int] = set()
    for part in (paths, *paths.attempts()):
        state = read_owner_record(part)
        if find_other_place(part, state) == HERE:
            found.update(find_remaining_processes(part, state))
    return sorted(found)


def remove_folder(folder: str) -> bool:
    """Remove a folder that readers see whole or not at all; False if another process has removed it.

    gc removes the rest after an interruption. Raises OSError.
    """
    parent, name = os.path.split(folder)
    hidden = os.path.join(parent, ".%s.%s" % (name, secrets.token_hex(6)))
    try:
        os.rename(folder, hidden)
    except FileNotFoundError:
        return False
    fs.remove_tree(hidden)
    return True


def _take_part(paths: RunPaths) -> bool:
    taken = remove_folder(paths.node)
    with contextlib.suppress(OSError):  # a shared base_dir has the parts of other hosts too
        os.rmdir(os.path.dirname(paths.node))
    return taken


def prune_later(base: str, run: RunRecord, log: str) -> None:
    """Start a process for ``prune``, so that the new run does not wait for it. Errors go to ``log``, and do not end the
    run."""
    argv = child.command(__name__, base, run["host"], job_id(run), str(run["keep_runs"]))
    null = subprocess.DEVNULL
    try:
        with open(log, "ab") as output:
            subprocess.Popen(argv, stdin=null, stdout=null, stderr=output, start_new_session=True, cwd="/")
    except OSError as error:
        notes.note("old runs of %s stay: %s" % (run["job"], error))


def main(base: str, host: str, job: str, keep: str) -> None:
    """Run the process that ``prune_later`` starts."""
    os.nice(19)
    prune(base, host, job, int(keep))


def prune(base: str, host: str, job: str, keep: int) -> None:
    """Remove the runs of ``job`` (a ``job_id``) that have ended on ``host``, beyond the ``keep`` newest.

    The newest run is the run that this host recorded last: the clocks of the controllers may differ.
    """
    ended: List[Tuple[int, str, RunPaths]] = []
    for paths in known_runs(base, host):
        run = fs.read_optional(paths.run)
        if job_id(run) == job and run.get("host") == host and is_over(paths, host):
            with contextlib.suppress(OSError):  # a run without a readable record stays
                ended.append((os.stat(paths.run).st_mtime_ns, str(run.get("run")), paths))
    ended.sort(key=lambda entry: entry[:2], reverse=True)
    for _, _, paths in ended[keep:]:
        try:
            if not find_leftovers(paths):
                _take_part(paths)
        except OSError as error:
            notes.note("not all files of %s could be removed: %s" % (paths.node, error))
