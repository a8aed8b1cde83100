"""Environment and code onto every node, nothing started."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ddpctl.environment.blobs import Source
from ddpctl.environment.spread import Addresses, bring
from ddpctl.errors import DdpctlError
from ddpctl.spec.event import StageEnded, StageStarted, Tell
from ddpctl.spec.inventory import Host, Inventory
from ddpctl.spec.plan import Facts
from ddpctl.spec.push import Delivery, EnvironmentOutcome, PushedNode, PushOutcome
from ddpctl.spec.question import Question, as_answers, as_request
from ddpctl.stages.provision import provision
from ddpctl.transport.base import Fleet, Transport

VERSIONS = Question("versions")
SLACK_S = 10.0


def push(
    inventory: Inventory,
    hosts: Sequence[Host],
    archive: Source | None,
    fleet: Fleet,
    tell: Tell,
    *,
    locked: bool = False,
) -> PushOutcome:
    """The inventory's environment and, where there is one, the code ``archive`` onto ``hosts``.

    Every host finishes, then every host is reported.

    Raises:
        ProvisionError: no environment can be made for these hosts at all.
    """
    begun = time.monotonic()
    environment = provision(inventory, hosts, Facts(), fleet, tell, locked=locked)
    ready = [host.name for host in hosts if host.name not in environment.errors]
    code = push_code(archive, fleet, tell, ready) if archive is not None and ready else Delivery()
    if environment.mode == "existing":
        environment = _with_versions(environment, fleet, [name for name in ready if name not in code.errors])
    return PushOutcome(
        cluster=inventory.cluster,
        duration_s=time.monotonic() - begun,
        traffic=environment.traffic + code.traffic,
        nodes=tuple(_node(host, environment, code, archive) for host in hosts),
    )


def _with_versions(environment: EnvironmentOutcome, fleet: Fleet, hosts: Sequence[str]) -> EnvironmentOutcome:
    """What lies on ``hosts`` already, read and not imported: torch, torchvision, CUDA and NCCL where there are any."""

    def ask(transport: Transport) -> dict[str, str]:
        request = {"questions": as_request([VERSIONS])}
        answer = as_answers(transport.call("probe", request, timeout=VERSIONS.deadline + SLACK_S))[VERSIONS.key]
        return installed(answer.value) if answer.ok else {}

    found = fleet.map(ask, hosts)
    nodes = dict(environment.nodes)
    for host, versions in found.results.items():
        nodes[host] = replace(nodes[host], versions=versions)
    return replace(environment, nodes=nodes, errors={**environment.errors, **found.errors})


def installed(value: Mapping[str, Any]) -> dict[str, str]:
    """The versions that count, under the names that a managed environment has for them."""
    packages = {name: value[name]["version"] for name in ("torch", "torchvision") if value.get(name)}
    cuda = (value.get("torch") or {}).get("cuda")
    return packages | {name: str(v) for name, v in (("cuda", cuda), ("nccl", value.get("nccl"))) if v}


def _node(host: Host, environment: EnvironmentOutcome, code: Delivery, archive: Source | None) -> PushedNode:
    error: DdpctlError | None = environment.errors.get(host.name) or code.errors.get(host.name)
    node = environment.nodes.get(host.name)
    return PushedNode(
        host=host.name,
        python=node.python if node else host.python,
        environment=node.env_hash if node else None,
        code=archive.sha256 if archive is not None and host.name in code.done else None,
        versions=node.versions if node else {},
        install_s=node.install_s if node else 0.0,
        error=error,
    )


def push_code(
    archive: Source, fleet: Fleet, tell: Tell, hosts: Sequence[str], addresses: Addresses | None = None
) -> Delivery:
    """The job's code into the store of every host; hosts that have this very archive get nothing.

    The Delivery holds an error for each host that it did not reach; every other host is complete and verified.
    """
    tell(StageStarted("code", archive.size, "bytes"))
    delivery = bring("code", [archive], fleet, tell, hosts, addresses)
    tell(StageEnded("code", delivery.ok, f"{delivery.traffic.sent_by_controller} bytes sent"))
    return delivery
