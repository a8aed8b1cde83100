"""The checkpoints of a job on its hosts: listed, brought here, or set aside."""

from __future__ import annotations

import contextlib
import hashlib
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
from ddpctl.stages.status import ask_runs, live_runs_of, merged, others_alone
from ddpctl.transport.base import Fleet, Transport
from ddpctl_worker.rules.entries import METADATA
from ddpctl_worker.rules.order import moment
from ddpctl_worker.rules.unite import Saved, SavedPart
from ddpctl_worker.wire import contract


def list_checkpoints(fleet: Fleet, name: str, of: Inventory) -> JobCheckpoints:
    """Those of the job that ``name`` means: a run's, also by the beginning of its id, or a job's of the project ``of``
    an inventory, of which no run need be left.

    Raises:
        UsageError: it is the beginning of several ids, and no such job has checkpoints.
        NoSuchJob: every host answered, and none has a run or a checkpoint of it.
        HostsFailed: none that answered has, and some did not.
    """
    known = merged(ask_runs(fleet, name))
    begun = [run for run in known if contract.begins(run.run, name)]
    alike = [run for run in known if run.job == name]
    named = [run for run in known if run.run == name] or [run for run in alike if run.job_id == of.job_id(name)]
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
        raise others_alone(name, of, alike)
    raise NoSuchJob(
        f"no job, run or checkpoint of {job.job!r} on {plural(len(fleet.hosts), 'host')}",
        hint="`ddpctl ps --all` lists every run",
    )


def _uncopied(found: JobCheckpoints) -> tuple[str, ...]:
    late = time.time() - COPY_LATE_S
    return tuple(one.entry for one in found.resumed if one.held < 2 and moment(one.time) < late)


def read_checkpoints(fleet: Fleet, job: JobId, hosts: Collection[str] | None = None) -> JobCheckpoints:
    """What the hosts have of a job; ``hosts``: ask only these."""

    def ask(transport: Transport) -> dict[str, Any]:
        return transport.call("checkpoints", {"job_id": str(job)}, timeout=CHECKPOINTS_S)

    outcome = fleet.map(ask, hosts)
    return job_checkpoints(job, outcome.results, outcome.errors)


def fetch_checkpoint(job: JobId, saved: Saved, dest: Path, fleet: Fleet, tell: Tell) -> int:
    """Bring a complete checkpoint to ``dest/<its name>``; how many files it has.

    Each file comes from a host that has it, and from the next one where its hash is wrong. Nothing appears under its
    name before all are here and verified.

    Raises:
        HostsFailed: a file is on no host that could send it whole. DdpctlError: it cannot be written here.
    """
    tell(StageStarted("fetch", len(saved.hosts)))
    aside = dest / f".{secrets.token_hex(8)}.part"
    try:
        _bring(job, saved, aside, fleet, tell)
        target = dest / saved.entry
        names = sorted(_sources(saved), key=lambda name: (name.rpartition("/")[2] == METADATA, name))
        for name in names:  # the index comes last
            path = target / name if name else target
            path.parent.mkdir(parents=True, exist_ok=True)
            (aside / (name or target.name)).replace(path)
    except OSError as error:
        raise _unwritable(dest / saved.entry, error) from None
    finally:
        with contextlib.suppress(OSError):
            shutil.rmtree(aside)
    tell(StageEnded("fetch", ok=True))
    return len(names)


def set_aside(job: JobId, hosts: Collection[str], when: str, fleet: Fleet, tell: Tell) -> str | None:
    """Rename the folder of the job's checkpoints on all hosts; its new name, or None where no host has one.

    Raises:
        UsageError: a run of the job is live, and uses it. HostsFailed: a host could not do it.
    """
    live, _ = live_runs_of(fleet, job)
    if live:
        raise UsageError(
            f"the checkpoints of {job.job} cannot be set aside: its run {live[0].run} is {live[0].state}",
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
    """Path within the entry -> each host with the very file that belongs to it, in the part of which writer: who wrote
    it first."""
    found: dict[str, list[tuple[str, SavedPart]]] = {}
    for name, file in saved.files.items():
        parts = [part for part in saved.parts if _has(part, name, file["sha256"])]
        known = [(host, part) for part in parts for host in part.holders]
        found[name] = sorted(known, key=lambda one: one[0] != one[1].manifest["host"])
    return found


def _has(part: SavedPart, name: str, sha256: str) -> bool:
    return name in part.manifest["files"] and part.manifest["files"][name]["sha256"] == sha256


def _bring(job: JobId, saved: Saved, aside: Path, fleet: Fleet, tell: Tell) -> None:
    """Every file of the checkpoint, verified, below ``aside``."""
    left = _sources(saved)
    errors: dict[str, DdpctlError] = {}
    done = 0
    while left:
        wanted: dict[str, dict[str, SavedPart]] = {}
        for name, known in left.items():
            while known and known[0][0] in errors:
                known.pop(0)
            if not known:
                lost = errors or {saved.entry: FileDamaged(f"{name or saved.entry} has other bytes than its hash says")}
                raise HostsFailed(f"no host could send all of {saved.entry}; nothing was written", lost)
            host, part = known.pop(0)
            wanted.setdefault(host, {})[name] = part
        outcome = fleet.map(partial(_from, job=job, wanted=wanted, aside=aside), wanted)
        errors |= outcome.errors
        for host, names in outcome.results.items():
            for name in names:
                del left[name]
            done += len(names)
            tell(Progress("fetch", done, None, host))


def _from(transport: Transport, *, job: JobId, wanted: Mapping[str, Mapping[str, SavedPart]], aside: Path) -> list[str]:
    """Ask one host for its share; the names of the files that came as their hashes say."""
    mine = wanted[transport.host]
    for part in {id(part): part for part in mine.values()}.values():
        names = [name for name, one in mine.items() if one is part]
        receiver = Receiver(aside, lambda done: None)
        manifest = part.manifest
        request = {
            "job_id": str(job),
            **{key: manifest[key] for key in ("entry", "version")},
            "writer": manifest["host"],
        }
        try:
            transport.call("fetch_checkpoint", {**request, "paths": names}, on_frame=receiver.frame, timeout=FETCH_S)
            receiver.end()
        except OSError as error:  # of a file here: the transport has errors of its own
            raise _unwritable(receiver.place, error) from None
        finally:
            receiver.close()
    return [name for name, part in mine.items() if _is_right(aside, name, part.manifest)]


def _unwritable(path: Path, error: OSError) -> DdpctlError:
    what = f"{path} cannot be written on this machine: {error.strerror}"
    return DdpctlError(what, hint="fix that, or name another folder")


def _is_right(aside: Path, name: str, manifest: Mapping[str, Any]) -> bool:
    path = aside / (name or manifest["entry"].rpartition("/")[2])
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(HASH_BLOCK_BYTES):
                digest.update(block)
    except FileNotFoundError:
        return False
    return bool(digest.hexdigest() == manifest["files"][name]["sha256"])
