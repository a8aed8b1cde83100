"""Sends the job's code and py-spy to the nodes, and asks for the job's checkpoints in the same call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ddpctl.environment.direct import FileSource, Source, ask_holdings
from ddpctl.environment.spread import bring_files
from ddpctl.environment.tools import PY_SPY, as_tool
from ddpctl.errors import DdpctlError, ProvisionError
from ddpctl.spec.event import Note, StageEnded, StageStarted, Tell
from ddpctl.spec.fold import group_by
from ddpctl.spec.plan import Facts
from ddpctl.spec.push import Delivery
from ddpctl.spec.resuming import Holdings
from ddpctl.stages.launch import Launch
from ddpctl.stages.py_spy import py_spy_for
from ddpctl.transport.base import Fleet, FleetOutcome

CODE = "code"


@dataclass(frozen=True)
class Sent:
    """The results by host."""

    errors: Mapping[str, DdpctlError] = field(default_factory=dict)  # hosts without the code
    py_spy: Mapping[str, Mapping[str, str]] = field(
        default_factory=dict
    )  # hosts with py-spy, and its file (``as_tool``)
    held: FleetOutcome[Holdings] = field(default_factory=FleetOutcome)  # with the job's checkpoints and last starts


def send(launch: Launch, facts: Facts, fleet: Fleet, tell: Tell) -> Sent:
    """Put code and py-spy into the store of every host. A host gets only files that its store lacks.

    Every host finishes, then every host is reported. A host without py-spy is a warning, not an error.
    """
    archive = launch.archive
    tools = py_spy_for(launch, facts, tell)
    if archive is None and not tools:
        held = _ask_held(launch, [], fleet, launch.names)
        return Sent(held.errors, held=held)
    stage = CODE if archive is not None else PY_SPY
    files = ([archive] if archive is not None else []) + list({tool.sha256: tool for tool in tools.values()}.values())
    tell(StageStarted(stage, sum(file.size for file in files), "bytes"))
    errors: dict[str, DdpctlError] = {}
    py_spy: dict[str, Mapping[str, str]] = {}
    answers: dict[str, Holdings] = {}
    silent: dict[str, DdpctlError] = {}
    count = 0
    for tool, hosts in group_by(tools.get, launch.names).items():
        sources: list[Source] = [source for source in (archive, tool) if source is not None]
        held = _ask_held(launch, sources, fleet, hosts)
        answers.update(held.results)
        silent.update(held.errors)
        delivery, without = _send(stage, archive, tool, fleet, tell, hosts, held)
        errors.update(delivery.errors)
        count += delivery.traffic.sent_by_controller
        if tool is not None:
            named = as_tool(tool.sha256, tool.name)
            py_spy.update({host: named for host in delivery.done if host not in without})
    tell(StageEnded(stage, not errors, f"{count} bytes sent"))
    return Sent(errors, py_spy, FleetOutcome(answers, silent))


def _ask_held(launch: Launch, sources: Sequence[Source], fleet: Fleet, hosts: Sequence[str]) -> FleetOutcome[Holdings]:
    """Ask the hosts for these files and for the job's checkpoints in the same call, which saves a round trip."""
    job = launch.job_id if launch.job is not None else None
    hashes = [source.sha256 for source in sources]
    return fleet.map(lambda transport: ask_holdings(transport, hashes, job=job), hosts)


def _send(
    stage: str,
    archive: Source | None,
    tool: FileSource | None,
    fleet: Fleet,
    tell: Tell,
    hosts: Sequence[str],
    known: FleetOutcome[Holdings],
) -> tuple[Delivery, frozenset[str]]:
    """Return the delivery of the code, and the hosts without py-spy.

    A host that could not take both files gets the code alone: py-spy may have been too large for its disk.
    """
    sources: list[Source] = [source for source in (archive, tool) if source is not None]
    if not sources:
        return Delivery(done=tuple(hosts)), frozenset()
    both = bring_files(stage, sources, fleet, tell, hosts, known=known)
    if tool is None:
        return both, frozenset()
    failed = [host for host, error in both.errors.items() if archive is None or isinstance(error, ProvisionError)]
    if not failed:
        return both, frozenset()
    for host in failed:
        tell(Note(f"no py-spy: {both.errors[host].message}", "warning", host))
    again = bring_files(stage, [archive], fleet, tell, failed) if archive is not None else Delivery(done=tuple(failed))
    return _replaced(both, again), frozenset(failed)


def _replaced(first: Delivery, again: Delivery) -> Delivery:
    """Return ``first`` with the results of ``again`` for the hosts of ``again``."""
    errors = {host: error for host, error in first.errors.items() if host not in again.done}
    return Delivery(first.traffic + again.traffic, (*first.done, *again.done), {**errors, **again.errors})
