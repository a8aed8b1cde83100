"""Puts the newest complete checkpoints on every host before a start.

Each host runs the worker's ``restore`` verb: it lists its checkpoints, and serves them to the other hosts. This machine
decides which files each host lacks, by the same rules as the nodes (``ddpctl_worker.rules.choice``). The files go from
host to host. Hosts of the inventory outside the launch serve checkpoints, too: an earlier run of the job may have been
there.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import partial
from typing import Any

from ddpctl.environment.direct import ask_holdings
from ddpctl.environment.spread import Addresses, Feed, new_credentials
from ddpctl.errors import DdpctlError, HostsFailed, ProvisionError, RemoteError, UsageError
from ddpctl.spec.event import Note, Progress, StageEnded, StageStarted, Tell
from ddpctl.spec.origin import JobId
from ddpctl.spec.ranges import fold_names
from ddpctl.spec.resuming import Holdings, Resumed, Start, newest_resumed, start_of
from ddpctl.stages.launch import Launch
from ddpctl.stages.limits import RESTORE_MANIFESTS, RESTORE_S
from ddpctl.transport.base import Fleet, FleetOutcome, Frame, Transport
from ddpctl.transport.pipe import garbled
from ddpctl.transport.progress_clock import ProgressClock
from ddpctl_worker.rules.choice import Kept, Restore, all_have, newest_of_series, plan_restore
from ddpctl_worker.rules.complete import Chosen, Manifest
from ddpctl_worker.wire import contract

STAGE = "checkpoints"
LEFT = "stays as it is: a live run of the job may be writing it"
FRESH = "`ddpctl up --fresh` starts without the checkpoints of earlier runs"


def ask_held(launch: Launch, fleet: Fleet, hosts: Sequence[str]) -> FleetOutcome[Holdings]:
    """Ask these hosts for the job's checkpoints, in short. A launch that resumes from no checkpoint asks no host."""
    if launch.job is None or launch.own_checkpoints:
        return FleetOutcome()
    return fleet.map(lambda transport: ask_holdings(transport, [], job=launch.job_id), hosts)


def refuse_others(launch: Launch, held: FleetOutcome[Holdings]) -> None:
    """Refuse to resume from the checkpoint of a run that was started from another folder.

    Raises:
        UsageError: the newest checkpoint is of such a run.
    """
    if launch.own_checkpoints:
        return
    found = newest_resumed({host: answer.checkpoints for host, answer in held.results.items()}, _starts(held))
    assert launch.identity is not None or found is None
    if found is None or found.start is None or found.start.origin is None or launch.identity is None:
        return
    here, there = launch.identity.origin, found.start.origin
    if not there.is_same_folder(here):
        raise UsageError(
            f"{launch.job_id.job} would resume from {found.entry}, which run {found.start.run} saved: it was started "
            f"from {there}, not from {here}; nothing was started",
            hint=f"give this folder a project of its own (`project: NAME` in {launch.inventory.file}), or take the "
            "checkpoint all the same: --any-project",
        )


def _starts(held: FleetOutcome[Holdings]) -> dict[str, Sequence[Start]]:
    return {host: answer.starts for host, answer in held.results.items()}


def restore(
    launch: Launch,
    fleet: Fleet,
    tell: Tell,
    addresses: Addresses,
    held: FleetOutcome[Holdings],
    *,
    wait: bool = False,
) -> Mapping[str, DdpctlError]:
    """Give every host the newest checkpoints; return the error of each host that could not get them.

    ``held``: the answers of all hosts of the inventory. Where these show that no host lacks a file, no host is asked.
    ``wait``: the start waits in line. Without it a checkpoint that a live run may be writing is an error of its host:
    the hosts would resume from different checkpoints. A note says from which checkpoint the start resumes.
    """
    if launch.job is None or launch.own_checkpoints:
        return {}
    silent = [host for host in held.errors if host not in launch.names]
    if silent:
        text = f"{fold_names(silent)} could not be asked for checkpoints of {launch.job.name}: newer ones may lie there"
        tell(Note(text, "warning"))
    listed = {host: found.checkpoints for host, found in held.results.items() if host in launch.names}
    others = {host: found.checkpoints for host, found in held.results.items() if host not in launch.names}
    having = {host: rows for host, rows in others.items() if rows}
    foreign = [
        {**row, "writer": ""} for rows in having.values() for row in rows
    ]  # their writers take no part in this run
    if listed.keys() >= set(launch.names) and all_have({host: [*listed[host], *foreign] for host in launch.names}):
        _tell_resumed(newest_resumed(listed, _starts(held)), tell)
        return {}
    restoring = Restoring(launch.job_id, launch.names, tell, addresses, tuple(having), wait=wait)
    errors = restoring.run(fleet)
    if not errors:
        _tell_resumed(restoring.resumed(_starts(held)), tell)
    return errors


def _tell_resumed(found: Resumed | None, tell: Tell) -> None:
    if found is not None:
        tell(Note(found.line(datetime.now(timezone.utc))))


def next_serial(launch: Launch, held: FleetOutcome[Holdings], fleet: Fleet) -> int:
    """Return the number of this start of the job: the highest number that any host has seen, plus 1.

    The numbers give the order of the job's runs (``ddpctl_worker.rules.attempts``). ``held``: the answers so far.
    Hosts of the launch without an answer are asked again.

    Raises:
        HostsFailed: a host of the launch did not report its number.
    """
    if launch.job is None:
        return 1
    asked = fleet.map(
        lambda transport: ask_holdings(transport, [], job=launch.job_id), set(launch.names) - held.results.keys()
    )
    if asked.errors:
        text = f"the earlier runs of {launch.job.name} are not known; nothing was started"
        raise HostsFailed(text, asked.errors)
    found = (*asked.results.values(), *held.results.values())
    return 1 + max((answer.serial for answer in found), default=0)


@dataclass
class _Node:
    feed: Feed = field(default_factory=lambda: Feed({}))
    manifests: list[Manifest] = field(default_factory=list)
    listening: Mapping[str, Any] | None = None
    moved: int = 0  # bytes that the host says it has hashed or fetched
    clock: ProgressClock = field(default_factory=ProgressClock)
    complete: bool = False


class Restoring:
    """A restore on all ``hosts`` of a job; ``sources`` are further hosts, which only serve. An object is used once."""

    def __init__(
        self,
        job: JobId,
        hosts: Sequence[str],
        tell: Tell,
        addresses: Addresses,
        sources: Sequence[str] = (),
        *,
        wait: bool = False,
    ) -> None:
        self._wait = wait
        self._job, self._tell, self._addresses = job, tell, addresses
        self._hosts = tuple(hosts)
        self._nodes = {host: _Node() for host in (*hosts, *sources)}
        self._credentials = new_credentials()
        self._lock = threading.Lock()
        self._plan: list[Restore] = []
        self._chosen: Chosen | None = None  # the newest checkpoint, which every host gets
        self._ordered = self._given_up = False
        self._stopped: set[str] = set()  # because of another host

    def run(self, fleet: Fleet) -> Mapping[str, DdpctlError]:
        """Run the restore; return the error of each failed host.

        A failed host ends the restore on every host: all hosts must have the same checkpoints.
        """
        self._tell(StageStarted(STAGE, len(self._nodes)))  # early: the hosts first hash their files without a manifest
        outcome = fleet.together(self._work, list(self._nodes))
        errors = {host: error for host, error in outcome.errors.items() if host in self._hosts}
        errors |= self._refuse_left(outcome)
        names = ", ".join(step.chosen.entry for step in self._plan)
        count = sum(result["bytes"] for result in outcome.results.values())
        note = f"{names}: {count} bytes from host to host" if self._plan else "every host has the newest"
        self._tell(StageEnded(STAGE, not errors, note if self._plan or not errors else ""))
        self._tell_rest(outcome)
        causes = {host: error for host, error in errors.items() if host not in self._stopped}
        return causes or errors

    def resumed(self, starts: Mapping[str, Sequence[Start]]) -> Resumed | None:
        """Return the checkpoint from which the hosts resume; to be called after ``run``. ``starts``: by host."""
        if self._chosen is None:
            return None
        return Resumed(self._chosen.entry, self._chosen.time, start_of(self._chosen.run, starts))

    def _refuse_left(self, outcome: FleetOutcome[dict[str, Any]]) -> dict[str, DdpctlError]:
        """Return the error of each host that left a checkpoint as it is. A start in line only gets a warning."""
        if self._wait:
            return {}
        hint = f"end it: ddpctl kill {self._job.job}; or choose another --name"
        return {
            host: ProvisionError(f"{', '.join(result['left'])} {LEFT}", hint=hint, host=host)
            for host, result in outcome.results.items()
            if host in self._hosts and result["left"]
        }

    def _tell_rest(self, outcome: FleetOutcome[dict[str, Any]]) -> None:
        """Warn of renamed checkpoints, of checkpoints that stay, and of sources that failed. The restore goes on."""
        for host, result in outcome.results.items():
            for entry in result["left"] if self._wait else ():
                self._tell(Note(f"{entry} {LEFT}", "warning", host))
            for moved in result["aside"]:
                text = f"{moved['entry']} is now {moved['name']}: it is not complete, or not what the run resumes from"
                self._tell(Note(text, "warning", host))
        for host, error in outcome.errors.items():
            if host not in self._hosts and host not in self._stopped:
                text = f"its checkpoints of {self._job.job} were left out: {error.message}; newer ones may lie there"
                self._tell(Note(text, "warning", host))

    def _work(self, transport: Transport) -> Any:
        node = self._nodes[transport.host]
        request = {
            "job_id": str(self._job),
            "certificate": self._credentials.certificate,
            "key": self._credentials.key,
            "ports": list(self._addresses.ports.get(transport.host, ())),
        }
        try:
            on_frame = partial(self._on_frame, transport.host, node)
            return transport.call(
                "restore", request, body=node.feed, on_frame=on_frame, timeout=RESTORE_S, clock=node.clock
            )
        except RemoteError as error:
            if error.kind == contract.INTERRUPTED:
                self._stopped.add(transport.host)
            raise ProvisionError(error.message, hint=error.hint or FRESH, host=transport.host) from error
        finally:
            self._ended(transport.host, node)

    def _ended(self, host: str, node: _Node) -> None:
        """Handle the end of a host. After a failed source the restore continues; after another failed host it stops."""
        node.feed.close()
        if node.complete:
            return
        with self._lock:
            if host not in self._hosts:
                del self._nodes[host]
                self._go_on()
            else:
                self._given_up = True
                self._say_all(cmd="stop")

    def _on_frame(self, host: str, node: _Node, frame: Frame) -> None:
        if "manifest" in frame.data:
            if len(node.manifests) >= RESTORE_MANIFESTS:
                raise garbled("restore: it has too many checkpoints")
            node.manifests.append(frame.data["manifest"])
            return
        with self._lock:
            if "moved" in frame.data:
                node.clock.moved(max(frame.data["moved"] - node.moved, 0))
                node.moved = max(frame.data["moved"], node.moved)
                self._tell(self._progress(f"{host}: {frame.data['moved']:,} bytes"))
            elif "listening" in frame.data:
                node.listening = frame.data
                node.clock.pause()  # it waits for the other hosts
            else:
                node.clock.pause()  # it serves the other hosts
                node.complete = True
                self._tell(self._progress())
            self._go_on()

    def _go_on(self) -> None:
        """Send the orders once every host has listed its checkpoints, and the end once every host is complete."""
        nodes = self._nodes.values()
        if not self._ordered and not self._given_up and all(node.listening for node in nodes):
            self._ordered = True
            self._order()
        if all(node.complete for node in nodes):
            self._say_all(cmd="end")

    def _progress(self, note: str = "") -> Progress:
        return Progress(STAGE, sum(node.complete for node in self._nodes.values()), len(self._nodes), note=note)

    def _order(self) -> None:
        """Decide which files each host lacks, and send it the list."""
        held = [Kept(host, manifest) for host, node in self._nodes.items() for manifest in node.manifests]
        self._plan = plan_restore(held, self._hosts)
        self._chosen = next(iter(newest_of_series(kept.manifest for kept in held)), None)
        for host, node in self._nodes.items():
            orders = [step.order() for step in self._plan if host in step.hosts] if host in self._hosts else None
            node.clock.resume()
            node.feed.order(
                cmd="go", peers=[self._peer(other) for other in self._nodes if other != host], orders=orders
            )

    def _peer(self, host: str) -> dict[str, Any]:
        listening = self._nodes[host].listening or {}
        addresses = [*self._addresses.preferred.get(host, ()), *listening["addresses"]]
        return {"host": host, "addresses": list(dict.fromkeys(addresses)), "port": listening["listening"]}

    def _say_all(self, **command: Any) -> None:
        for node in self._nodes.values():
            node.clock.resume()
            node.feed.order(**command)
            node.feed.close()
