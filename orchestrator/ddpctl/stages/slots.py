"""Asks the hosts who holds their slots, and whether a plan fits beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from ddpctl.checks.base import Target
from ddpctl.errors import HostsFailed, HostsInUse, RemoteError
from ddpctl.spec.event import Note, Tell
from ddpctl.spec.plan import NodePlan, Plan
from ddpctl.spec.planning import slots_of
from ddpctl.spec.ranges import fold_names
from ddpctl.spec.slots import Claim, HostSlots, SlotWish, describe_holders, others_text
from ddpctl.stages.launch import Launch
from ddpctl.stages.limits import SLOTS_S
from ddpctl.transport.base import Fleet, FleetOutcome, Transport
from ddpctl_worker.wire.contract import UNSAFE_PATH

_CHOICES = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER")


def refuse_in_use(plan: Plan, fleet: Fleet) -> None:
    """Refuse a plan for which a node has no slots now. A host that cannot be asked is left to the start.

    Raises:
        HostsInUse: the slots of a node are not free.
        HostsFailed: the folder of the slots or its configuration is not safe on a node.
    """
    outcome = _ask_nodes(plan, fleet, plan.hosts)
    unsafe = {
        host: error
        for host, error in outcome.errors.items()
        if isinstance(error, RemoteError) and error.kind == UNSAFE_PATH
    }
    if unsafe:
        what = f"the folder of the slots or its configuration is not safe on {fold_names(list(unsafe))}"
        raise HostsFailed(f"{what}; nothing was started", unsafe)
    full = {host: answer for host, answer in outcome.results.items() if answer.fits is False}
    if full:
        raise _in_use(full)


def start_refused(plan: Plan, fleet: Fleet, hosts: Sequence[str]) -> HostsInUse:
    """Return the error of a start that these hosts refused because their slots are in use."""
    answers = _ask_nodes(plan, fleet, hosts).results
    return _in_use({host: answers.get(host, HostSlots()) for host in hosts})


def _ask_nodes(plan: Plan, fleet: Fleet, hosts: Sequence[str]) -> FleetOutcome[HostSlots]:
    return fleet.map(lambda transport: _ask_node(transport, plan.node(transport.host)), hosts)


def _ask_node(transport: Transport, node: NodePlan) -> HostSlots:
    return _ask(transport, {"run": _wish(node.slots, node.nproc, node.command.env)})


def ask_slots(transport: Transport, launch: Launch) -> HostSlots:
    """Return the slots of a host, and whether the launch's job, if it has a job, fits there now."""
    host = launch.inventory.host(transport.host)
    if launch.job is None:
        return _ask(transport, {})
    target = Target.all([host], launch.job, launch.nproc)[0]
    return _ask(transport, {"run": _wish(slots_of(host, launch.inventory), target.nproc, target.env)})


def _wish(slots: SlotWish, nproc: int | None, env: Mapping[str, str]) -> dict[str, Any]:
    chosen = {name: env[name] for name in _CHOICES if name in env}
    return {"slots": asdict(slots), "nproc": nproc, "env": chosen}


def _ask(transport: Transport, request: Mapping[str, Any]) -> HostSlots:
    found: HostSlots = transport.call("slots", request, timeout=SLOTS_S)
    return found


def _in_use(answers: Mapping[str, HostSlots]) -> HostsInUse:
    """Return the error for the hosts with these answers, with a line for each holder."""
    lines = [f"{host}: {text}" for host, answer in answers.items() for text in describe_holders(answer)]
    verb = "is" if len(answers) == 1 else "are"
    return HostsInUse(
        f"{fold_names(list(answers))} {verb} in use; nothing was started",
        lines,
        hint="wait in line for them: ddpctl up --wait; `ddpctl ps` shows the runs of all accounts",
    )


def ask_claims(fleet: Fleet) -> tuple[list[Claim], FleetOutcome[HostSlots]]:
    """Return the claims of all accounts on the hosts of the fleet, and the outcome."""
    outcome = fleet.map(lambda transport: _ask(transport, {}))
    return [claim for answer in outcome.results.values() for claim in answer.claims], outcome


def warn_other_runs(fleet: Fleet, hosts: Sequence[str], tell: Tell) -> None:
    """Name the runs of other accounts on ``hosts``, before a command changes these hosts as root.

    A host that cannot be asked is left out: the command itself says why.
    """
    outcome = fleet.map(lambda transport: _ask(transport, {}), hosts)
    for host, answer in outcome.results.items():
        for claim in answer.claims:
            if claim.slots and not claim.mine:
                tell(Note(others_text(claim), "warning", host))


def unknown_claims(outcome: FleetOutcome[HostSlots]) -> dict[str, str]:
    """Return host -> why its claims are not known."""
    troubles = {host: answer.trouble for host, answer in outcome.results.items() if answer.trouble}
    return {**troubles, **{host: error.message for host, error in outcome.errors.items()}}


def warn_unclaimed(answers: Mapping[str, Mapping[str, Any]], hosts: Iterable[str], tell: Tell) -> None:
    """Warn of hosts on which the run could not claim its slots: other accounts do not see it there."""
    for host in hosts:
        why = answers[host].get("unclaimed")
        if why:
            text = f"no slot could be claimed ({why}): other accounts do not see this run, and may start beside it"
            tell(Note(text, "warning", host))
