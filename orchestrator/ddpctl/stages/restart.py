"""Turns an ended run into the launch of a new run that continues it, with the same code and settings.

Code, settings and hosts come from the record of the ended run. Addresses, environment and secrets come from the
inventory. The launch then starts like any other (up.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ddpctl.code import CodeArchive, find_archive, receive_archive
from ddpctl.environment.direct import ask_holdings
from ddpctl.errors import ConnectError, DdpctlError, HostsFailed, NoSuchJob, ProvisionError, UsageError
from ddpctl.files.env_file import read_env_file
from ddpctl.spec.event import Note, Progress, StageEnded, StageStarted, Tell
from ddpctl.spec.inventory import Inventory
from ddpctl.spec.job import JobSpec
from ddpctl.spec.names import how_to_go_on
from ddpctl.spec.outcome import Attempt, ExcludedHost
from ddpctl.spec.plan import CodeRef, RunIdentity
from ddpctl.spec.ranges import fold_names
from ddpctl.spec.record import NodeReport
from ddpctl.spec.restart import (
    ChosenHosts,
    Earlier,
    Settings,
    choose_hosts,
    least_hosts,
    recorded_attempts,
    without_hosts,
)
from ddpctl.spec.status import RunStatus
from ddpctl.spec.values import plural
from ddpctl.spec.verdict import end_and_continue, no_majority
from ddpctl.stages.launch import Launch, notifiers_of, pack_code
from ddpctl.stages.limits import FETCH_S
from ddpctl.stages.status import ask_runs
from ddpctl.transport.base import Fleet, FleetOutcome, Frame, Transport
from ddpctl.transport.pipe import garbled
from ddpctl.transport.progress_clock import ProgressClock
from ddpctl_worker.wire import contract

STAGE = "code"
NEW_RUN = "`ddpctl up` starts a new run, which finds the same checkpoints"


def launch_again(fleet: Fleet, inventory: Inventory, run: RunStatus, identity: RunIdentity, tell: Tell) -> Launch:
    """Return the launch that continues ``run``. ``fleet``: all hosts of the inventory.

    Raises:
        UsageError: the run is live, its record has no settings, or secrets are missing on this machine.
        NoSuchJob: no record of the run is left.
        ConnectError, HostsFailed: too few hosts are left.
        ProvisionError: no machine has the code any more.
    """
    require_ended(run)
    if identity.run <= run.run:
        raise DdpctlError(
            f"the clock of this machine is behind: the new run would count as older than {run.run}",
            hint="set the clock, then run it again",
        )
    heard = ask_runs(fleet, run.run)
    recorded, code_ref = _recorded(run, heard)
    settings = without_hosts(recorded, run.verdict.excluded_hosts)
    own = run.job_id == inventory.job_id(run.job)
    job_now = inventory.jobs.get(settings.job) if own else None
    inventory = inventory.model_copy(update={"cluster": run.cluster, "project": run.project})
    archive = None
    if code_ref is not None:
        archive = _code(run, code_ref, _pack_here(inventory, job_now), fleet, list(heard.results), tell)
    same = job_now is not None and archive is not None and bool(archive.names)
    code = job_now.code if same and job_now is not None else "." if archive else None
    job = settings.as_job(run.job, code)
    missing = _unusable(run, settings, inventory, heard)
    chosen = _chosen_hosts(run, settings, job, inventory.names, heard.results.keys() - missing.keys(), missing)
    _tell_changes(settings, job_now, chosen, same or archive is None, inventory, tell)
    secrets, notify = _secrets(run, settings, job_now, inventory)
    return Launch(
        inventory=inventory,
        job=job,
        hosts=tuple(inventory.host(name) for name in chosen.hosts),
        spares=chosen.spares,
        nproc=settings.nproc,
        identity=identity,
        archive=archive,
        secrets=secrets,
        notify=notify,
        alone=True,
        settings=settings,
        earlier=Earlier(run.run, _attempts(run, missing)),
    )


def require_ended(run: RunStatus) -> None:
    """Raises UsageError: the run is live. ConnectError: silent hosts may still run it."""
    if run.verdict.terminal:
        return
    restarts = run.record.restart is not None
    silent = [node.host for node in run.nodes if node.state == contract.UNREACHABLE]
    heard = {node.state for node in run.nodes if node.host not in silent}
    if silent and heard <= contract.TERMINAL:
        if restarts and not run.verdict.silent_may_go_on:
            return
        gone = "; if they are gone for good, `ddpctl up` starts a new run on other hosts, from the same checkpoints"
        raise ConnectError(
            f"whether {run.job} (run {run.run}) has ended on {fold_names(silent)} is not known: no answer"
            + ("; they may have continued it" if restarts else ""),
            hint=f"once {'enough of them answer' if restarts else 'it answers'} again: ddpctl restart {run.run}"
            + (gone if restarts else ""),
        )
    if run.verdict.lacks_majority:
        left = sum(node.state != contract.LOST for node in run.nodes)
        raise UsageError(
            f"{run.job} is {run.verdict.state} (run {run.run}): {no_majority(left, len(run.nodes))}",
            hint=end_and_continue(run.run),
        )
    by_itself = "its hosts restart it by themselves when it fails or a host is lost"
    what = by_itself if restarts else "only a run that has ended can be restarted"
    raise UsageError(
        f"{run.job} is {run.verdict.state} (run {run.run} on {fold_names(run.hosts)}); {what}",
        hint=how_to_go_on(run.run),
    )


def _recorded(run: RunStatus, heard: FleetOutcome[dict[str, Any]]) -> tuple[Settings, CodeRef | None]:
    """Return settings and code of the run from the records of the hosts that answered.

    Raises:
        NoSuchJob: no host has a record. UsageError: the record has no settings. DdpctlError: the records differ.
    """
    reports: Mapping[str, Sequence[NodeReport]] = {host: answer["runs"] for host, answer in heard.results.items()}
    found = {
        host: (report.record.settings, report.record.code)
        for host, own in reports.items()
        for report in own
        if report.run == run.run
    }
    if not found:
        raise NoSuchJob(f"no host that answers has a record of {run.run} any more", hint=NEW_RUN)
    (first, record), *others = found.items()
    odd = [host for host, other in others if other != record]
    if odd:
        raise DdpctlError(
            f"{fold_names(odd)} and {first} have different records of what {run.run} ran", hint=f"look there; {NEW_RUN}"
        )
    settings, code = record
    if settings is None:
        raise UsageError(
            f"the record of {run.run} does not hold its settings: an older ddpctl started it", hint=NEW_RUN
        )
    return settings, code


def _unusable(
    run: RunStatus, settings: Settings, inventory: Inventory, heard: FleetOutcome[dict[str, Any]]
) -> dict[str, DdpctlError]:
    """Return the hosts of the run that cannot take part any more, each with the reason."""
    found: dict[str, DdpctlError] = {}
    for host in dict.fromkeys((*run.hosts, *settings.hosts)):
        if host in run.verdict.excluded_hosts:
            found[host] = DdpctlError(f"it was set aside: {run.verdict.excluded_hosts[host]}", host=host)
        elif host in heard.errors:
            found[host] = heard.errors[host]
        elif host not in inventory.names:
            found[host] = DdpctlError("it is not in the inventory any more", host=host)
    return found


def _chosen_hosts(
    run: RunStatus,
    settings: Settings,
    job: JobSpec,
    listed: Sequence[str],
    usable: Collection[str],
    missing: Mapping[str, DdpctlError],
) -> ChosenHosts:
    """Raises HostsFailed: there are too few hosts; the error has the reason for each missing host."""
    chosen = choose_hosts(settings, job, listed, usable)
    if chosen is not None:
        return chosen
    need, have = least_hosts(settings, job), len([host for host in settings.hosts if host in usable])
    error = HostsFailed(f"{run.job} needs {plural(need, 'host')}, and {have} can be used; nothing was started", missing)
    error.exit_code = ConnectError.exit_code
    raise error


def _attempts(run: RunStatus, missing: Mapping[str, DdpctlError]) -> tuple[Attempt, ...]:
    """Return the attempts of the ended run.

    A last attempt without an end gets the end of the run: its hosts could not agree on another end. The hosts that
    cannot be used now count as excluded from it.
    """
    *others, last = run.verdict.attempts
    excluded = {entry.host for entry in last.set_aside}
    absent = [host for host in last.hosts if host in missing and host not in excluded]
    last = replace(
        last,
        ended=last.ended or run.verdict.ended,
        cause=last.cause or run.verdict.cause,
        set_aside=(*last.set_aside, *(ExcludedHost(host, " ".join(missing[host].message.split())) for host in absent)),
    )
    return recorded_attempts([*others, last])


def _tell_changes(
    settings: Settings, job_now: JobSpec | None, chosen: ChosenHosts, same_code: bool, inventory: Inventory, tell: Tell
) -> None:
    """Note each difference that may surprise: the new run takes the ended run's settings, not the inventory's."""
    changed = settings.changed(job_now) if job_now is not None else []
    words = [*changed, *([] if same_code else ["code"])] if job_now is not None else []
    if words:
        what = f"{', '.join(words)}: it continues with the run's own, not with what job {settings.job} has now"
        tell(Note(f"{what}; `ddpctl up` takes that", level="warning"))
    if job_now is None and settings.notified:
        what = f"{inventory.file} has no job {settings.job}"
        tell(Note(f"{what}, so nobody will be notified of this run", level="warning"))
    if len(chosen.active) < settings.nodes:
        where = f"on {fold_names(chosen.active)}"
        tell(Note(f"{len(chosen.active)} of {settings.nodes} hosts can be used: it continues {where}", level="warning"))


def _secrets(
    run: RunStatus, settings: Settings, job_now: JobSpec | None, inventory: Inventory
) -> tuple[Mapping[str, str], tuple[Mapping[str, Any], ...]]:
    """Return the run's secret variables and the job's notifiers from the inventory: neither is in the record.

    Raises:
        UsageError: a secret is missing on this machine, or the env_file cannot be read.
    """
    variables = read_env_file(Path(job_now.env_file)) if job_now is not None and job_now.env_file else {}
    lacking = [name for name in settings.secrets if name not in variables]
    if lacking:
        raise UsageError(
            f"{run.run} was started with secrets that no record holds, and the env_file of job {settings.job} in "
            f"{inventory.file} does not name {', '.join(lacking)}",
            hint="add them to the file that env_file names; the job must be in the inventory",
        )
    notify = notifiers_of(job_now, variables) if job_now is not None else ()
    return {name: variables[name] for name in settings.secrets}, notify


# --- the code --------------------------------------------------------------------------------------------------------
def _code(
    run: RunStatus, wanted: CodeRef, here: CodeArchive | None, fleet: Fleet, hosts: Sequence[str], tell: Tell
) -> CodeArchive:
    """Return the archive that the ended run had.

    The sources are, in this order: ``here``, the archive of the job's folder, if it has the same hash; this machine's
    cache; the hosts.

    Raises:
        ProvisionError: no host has it.
    """
    if here is not None and here.sha256 == wanted.sha256:
        return here
    path = find_archive(wanted.sha256) or from_a_host(run.run, wanted, fleet, hosts, tell)
    return CodeArchive(path, wanted.sha256, wanted.size, files=0, git_commit=wanted.git_commit, dirty=wanted.dirty)


def _pack_here(inventory: Inventory, job: JobSpec | None) -> CodeArchive | None:
    with contextlib.suppress(DdpctlError):  # the folder may have moved, or be on another machine
        return pack_code(inventory, job) if job is not None else None
    return None


def from_a_host(run: str, wanted: CodeRef, fleet: Fleet, hosts: Sequence[str], tell: Tell) -> Path:
    """Copy the archive of ``run`` from a host into this machine's cache; return its path.

    Raises:
        ProvisionError: no host has it. HostsFailed: no host that may have it could send it.
    """
    held = fleet.map(lambda transport: ask_holdings(transport, [wanted.sha256]), hosts)
    having = [host for host in hosts if host in held.results and wanted.sha256 in held.results[host].have]
    errors: dict[str, DdpctlError] = dict(held.errors)
    tell(StageStarted(STAGE, wanted.size, "bytes"))
    for host in having:
        try:
            receive(fleet.transport(host), wanted, tell)
        except DdpctlError as error:
            errors[host] = error
            continue
        tell(StageEnded(STAGE, True, f"that of {run}, from {host}"))
        found = find_archive(wanted.sha256)
        assert found is not None
        return found
    tell(StageEnded(STAGE, False))
    if errors:
        raise HostsFailed(f"the code of {run} could not be had", errors)
    raise ProvisionError(
        f"the code of {run} is not on {fold_names(hosts)} any more, and the code on this machine is different",
        hint=NEW_RUN,
    )


def receive(transport: Transport, wanted: CodeRef, tell: Tell, *, cache: Path | None = None) -> None:
    """Write the archive of a host into the cache.

    Raises:
        DdpctlError: the host did not send it, or sent other bytes.
    """
    done = 0
    with receive_archive(wanted.sha256, cache=cache) as file:

        def take(frame: Frame) -> None:
            nonlocal done
            done += len(frame.raw)
            if done > wanted.size:
                raise garbled("more bytes of the code came than it has")
            file.write(frame.raw)
            tell(Progress(STAGE, done, wanted.size, transport.host))

        transport.call("store_get", {"hash": wanted.sha256}, on_frame=take, timeout=FETCH_S, clock=ProgressClock())
