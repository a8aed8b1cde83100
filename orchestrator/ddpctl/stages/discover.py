"""Asks the hosts for `ddpctl init`: their Pythons, the torch of each, and the number of GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddpctl.errors import DdpctlError
from ddpctl.spec.event import StageEnded, StageStarted, Tell, counting
from ddpctl.spec.interpreters import Interpreter
from ddpctl.spec.question import Question
from ddpctl.stages.limits import INTERPRETERS_S
from ddpctl.stages.probe import probe
from ddpctl.transport.base import Fleet

STAGE = "hosts"
INTERPRETERS = Question("interpreters", deadline=INTERPRETERS_S)
NETWORK = Question("network")


@dataclass(frozen=True)
class Discovered:
    """The answers by host. A host that did not answer is in ``errors``.

    ``modules``: hosts with environment modules. ``unread``: why a host could not list its Pythons.
    """

    pythons: Mapping[str, Sequence[Interpreter]]
    gpus: Mapping[str, int]
    modules: tuple[str, ...]
    errors: Mapping[str, DdpctlError]
    unread: Mapping[str, str]


def discover(fleet: Fleet, tell: Tell) -> Discovered:
    """Ask every host. A host with a file system too slow to search has no Pythons and is in ``unread``."""
    tell(StageStarted(STAGE, len(fleet.hosts)))
    questions = {host: [INTERPRETERS, NETWORK] for host in fleet.hosts}
    probed = probe(questions, fleet, on_done=counting(STAGE, len(fleet.hosts), tell))
    tell(StageEnded(STAGE, not probed.errors))
    pythons: dict[str, Sequence[Interpreter]] = {}
    gpus: dict[str, int] = {}
    unread: dict[str, str] = {}
    modules = []
    for host, answers in probed.answers.items():
        found = answers[INTERPRETERS.key]
        if not found.ok:
            unread[host] = found.error or "no answer"
        value: Mapping[str, Any] = found.value if found.ok else {"pythons": [], "modules": False}
        pythons[host] = value["pythons"]
        modules += [host] if value["modules"] else []
        network = answers[NETWORK.key]
        if network.ok:
            gpus[host] = network.value["gpus"]
    return Discovered(pythons, gpus, tuple(modules), probed.errors, unread)
