"""Lists the checkpoints of a job on its hosts, copies them to this machine, or sets them aside."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ddpctl.errors import DdpctlError, FileDamaged, HostsFailed, NoSuchJob, UsageError
from ddpctl.spec.checkpoints import JobCheckpoints, job_checkpoints
from ddpctl.spec.event import Note, Progress, StageEnded, StageStarted, Tell
from ddpctl.spec.inventory import Inventory
from ddpctl.spec.names import ambiguous
from ddpctl.spec.origin import JobId
from ddpctl.spec.values import is_name, plural
from ddpctl.stages.fetch import Receiver
from ddpctl.stages.limits import CHECKPOINTS_S, COPY_LATE_S, FETCH_S, HASH_BLOCK_BYTES
from ddpctl.stages.status import ask_runs, hint_for_name, live_runs_of, merge_statuses, only_other_projects
from ddpctl.transport.base import Fleet, Transport
from ddpctl_worker.rules.order import moment_of
from ddpctl_worker.rules.unite import Saved, SavedPart
from ddpctl_worker.wire import contract


def list_checkpoints(fleet: Fleet, name: str, of: Inventory) -> JobCheckpoints:
    """Return the checkpoints of the job that ``name`` means.

    ``name`` is a run id, the beginning of a run id, or a job of the project ``of`` an inventory. The job needs no
    remaining run.

    Raises:
        UsageError: several run ids begin with ``name``, and no job of that name has checkpoints.
        NoSuchJob: every host answered, and no host has a run or a checkpoint of the job.
        HostsFailed: no host that answered has a run or a checkpoint of the job, and further hosts did not answer.
    """
    reported = merge_statuses(ask_runs(fleet, name))
    begun = [run for run in reported if contract.begins(run.run, name)]
    alike = [run for run in reported if run.job == name]
    named = [run for run in reported if run.run == name] or [run for run in alike if run.job_id == of.job_id(name)]
    runs = named or (begun if len(begun) == 1 else [])
    job = runs[-1].job_id if runs else of.job_id(name)
    found = read_checkpoints(fleet, job) if is_name(job.job) else JobCheckpoints(job, ())
    if runs:
        found = replace(found, lag=runs[-1].lag)
    if runs and runs[-1].copies and not found.errors:
        found = replace(found, uncopied=_uncopied(found))
    if runs or found.saved:
        return found
    if begun:
        raise ambiguous(name, [run.run for run in begun])
    if found.errors:
        message = (
            f"no host that answered has a checkpoint of {job.job!r}, and {plural(len(found.errors), 'host')} did not"
        )
        raise HostsFailed(f"{message} answer", found.errors)
    if alike:
        raise only_other_projects(name, of, alike)
    raise NoSuchJob(
        f"no job, run or checkpoint of {job.job!r} on {plural(len(fleet.hosts), 'host')}",
        hint=hint_for_name(name, of),
    )


def _uncopied(found: JobCheckpoints) -> tuple[str, ...]:
    late = time.time() - COPY_LATE_S
    return tuple(saved.entry for saved in found.resumed if saved.held < 2 and moment_of(saved.time) < late)


def read_checkpoints(fleet: Fleet, job: JobId, hosts: Collection[str] | None = None) -> JobCheckpoints:
    """Ask the hosts for the checkpoints of a job; ``hosts``: ask only these."""

    def ask(transport: Transport) -> Any:
        return transport.call("checkpoints", {"job_id": str(job)}, timeout=CHECKPOINTS_S)

    outcome = fleet.map(ask, hosts)
    return job_checkpoints(job, outcome.results, outcome.errors)


def fetch_checkpoint(job: JobId, saved: Saved, dest: Path, fleet: Fleet, tell: Tell) -> int:
    """Copy a complete checkpoint to ``dest/<its name>``; return the number of its files.

    Each file comes from a host that has it. If its hash is wrong, the next host sends it again. Once all files are here
    and verified, the whole entry takes the place of an earlier copy.

    Raises:
        HostsFailed: no host could send a file whole. DdpctlError: a file cannot be written on this machine.
    """
    tell(StageStarted("fetch", len(saved.hosts)))
    unique = secrets.token_hex(8)
    incoming = dest / f".{unique}.part"
    try:
        verified = _bring(job, saved, incoming, fleet, tell)
        entry = _assemble(verified, incoming / ".entry")
        earlier = _replace(dest / saved.entry, entry, aside=dest / f".{unique}.old")
        if earlier is not None:
            tell(Note(f"the earlier copy cannot be removed: {earlier}", "warning"))
    except OSError as error:
        raise _unwritable(dest / saved.entry, error) from None
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(incoming)
    tell(StageEnded("fetch", ok=True))
    return len(verified)


def set_aside(job: JobId, hosts: Collection[str], when: str, fleet: Fleet, tell: Tell) -> str | None:
    """Rename the folder of the job's checkpoints on all hosts; return its new name, ``None`` if no host has a folder.

    Raises:
        UsageError: a live run uses the folder. HostsFailed: a host could not rename it.
    """
    live, _ = live_runs_of(fleet, job)
    if live:
        raise UsageError(
            f"the checkpoints of {job.job} cannot be set aside: its run {live[0].run} is {live[0].verdict.state}",
            hint=f"ddpctl kill {live[0].run}, or start without --fresh",
        )

    def rename(transport: Transport) -> str | None:
        name: str | None = transport.call("set_aside", {"job_id": str(job), "when": when}, timeout=CHECKPOINTS_S)[
            "name"
        ]
        return name

    outcome = fleet.map(rename, hosts)
    if outcome.errors:
        raise HostsFailed(f"the checkpoints of {job.job} could not be set aside; nothing was started", outcome.errors)
    name = next((name for name in outcome.results.values() if name is not None), None)
    where = "/".join(("checkpoints", job.cluster, job.project, str(name)))
    what = f"earlier checkpoints of {job.job} are now in {where}" if name else f"{job.job} had no checkpoints"
    tell(Note(f"{what} on {plural(len(outcome.results), 'host')}"))
    return name


def _sources(saved: Saved) -> dict[str, list[tuple[str, SavedPart]]]:
    """Return for each path within the entry the hosts that have the right file, each with its part of the checkpoint.

    The host that wrote the file comes first.
    """
    found: dict[str, list[tuple[str, SavedPart]]] = {}
    for name, file in saved.files.items():
        parts = [part for part in saved.parts if _has(part, name, file["sha256"])]
        holders = [(host, part) for part in parts for host in part.holders]
        found[name] = sorted(holders, key=lambda holder: holder[0] != holder[1].manifest["host"])
    return found


def _has(part: SavedPart, name: str, sha256: str) -> bool:
    return name in part.manifest["files"] and part.manifest["files"][name]["sha256"] == sha256


def _bring(job: JobId, saved: Saved, incoming: Path, fleet: Fleet, tell: Tell) -> dict[str, Path]:
    """Copy every file of the checkpoint below ``incoming``; return for each name the place of the verified copy.

    Each host has a folder of its own there, so no host can replace a verified file of another host.
    """
    left = _sources(saved)
    errors: dict[str, DdpctlError] = {}
    verified: dict[str, Path] = {}
    while left:
        wanted: dict[str, dict[str, SavedPart]] = {}
        for name, sources in left.items():
            while sources and sources[0][0] in errors:
                sources.pop(0)
            if not sources:
                lost = errors or {saved.entry: FileDamaged(f"{name or saved.entry} has other bytes than its hash says")}
                raise HostsFailed(f"no host could send all of {saved.entry}; nothing was written", lost)
            host, part = sources.pop(0)
            wanted.setdefault(host, {})[name] = part
        outcome = fleet.map(partial(_from, job=job, wanted=wanted, incoming=incoming), wanted)
        errors |= outcome.errors
        for host, names in outcome.results.items():
            for name in names:
                del left[name]
                verified[name] = _place(incoming / host, name, saved.entry)
            tell(Progress("fetch", len(verified), None, host))
    return verified


def _assemble(verified: Mapping[str, Path], entry: Path) -> Path:
    """Move the verified copies to their places in the new ``entry``; return it."""
    for name, copy in verified.items():
        path = entry / name if name else entry
        path.parent.mkdir(parents=True, exist_ok=True)
        copy.rename(path)
    return entry


def _replace(target: Path, new: Path, *, aside: Path) -> Path | None:
    """Move ``new`` to ``target`` and remove the earlier entry; return its place if it cannot be removed.

    Ctrl-C or an error at any step leaves the old entry or the new entry there whole. Until the new entry is there, the
    old entry is never in a folder that is removed.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with contextlib.suppress(FileNotFoundError):
            target.rename(aside)
        new.rename(target)
    finally:
        if os.path.lexists(aside) and not os.path.lexists(target):
            aside.rename(target)
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
    return aside if os.path.lexists(aside) else None


def _place(folder: Path, name: str, entry: str) -> Path:
    """Return the place below ``folder`` of a file of the entry; an entry that is a file has the name ``""``."""
    return folder / (name or entry.rpartition("/")[2])


def _from(
    transport: Transport, *, job: JobId, wanted: Mapping[str, Mapping[str, SavedPart]], incoming: Path
) -> list[str]:
    """Ask a host for its share of the files; return the names of the files that came with the right hash."""
    mine, folder = wanted[transport.host], incoming / transport.host
    for part in {id(part): part for part in mine.values()}.values():
        names = [name for name, part_of in mine.items() if part_of is part]
        manifest = part.manifest
        paths = {str(_place(folder, name, manifest["entry"]).relative_to(folder)) for name in names}
        receiver = Receiver(folder, lambda done: None, names=paths)
        request = {
            "job_id": str(job),
            **{key: manifest[key] for key in ("entry", "version")},
            "writer": manifest["host"],
        }
        try:
            transport.call(
                "fetch_checkpoint",
                {**request, "paths": names},
                on_frame=receiver.frame,
                timeout=FETCH_S,
                clock=receiver.clock,
            )
            receiver.end()
        except OSError as error:  # from a file on this machine: the transport raises other errors
            raise _unwritable(receiver.place, error) from None
        finally:
            receiver.close()
    return [name for name, part in mine.items() if _is_right(folder, name, part.manifest)]


def _unwritable(path: Path, error: OSError) -> DdpctlError:
    what = f"{path} cannot be written on this machine: {error.strerror}"
    return DdpctlError(what, hint="fix that, or name another folder")


def _is_right(folder: Path, name: str, manifest: Mapping[str, Any]) -> bool:
    path = _place(folder, name, manifest["entry"])
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(HASH_BLOCK_BYTES):
                digest.update(block)
    except FileNotFoundError:
        return False
    return bool(digest.hexdigest() == manifest["files"][name]["sha256"])
