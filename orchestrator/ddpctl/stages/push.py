"""Put the environment and the code of a job on every node, and start nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ddpctl.environment.direct import Source
from ddpctl.environment.spread import bring_files
from ddpctl.errors import DdpctlError
from ddpctl.spec.event import StageEnded, StageStarted, Tell
from ddpctl.spec.inventory import Host
from ddpctl.spec.plan import Facts
from ddpctl.spec.push import Delivery, EnvironmentOutcome, NodeEnvironment, PushedNode, PushOutcome
from ddpctl.spec.question import Question
from ddpctl.stages.launch import Launch
from ddpctl.stages.probe import probe
from ddpctl.transport.base import Fleet

VERSIONS = Question("versions")


def push(launch: Launch, fleet: Fleet, tell: Tell, *, locked: bool = False) -> PushOutcome:
    """Put the inventory's environment, and the launch's code if it has any, on its hosts.

    Every host finishes, then every host is reported.

    Raises:
        ProvisionError: there is no environment that fits these hosts.
    """
    begun = time.monotonic()
    archive = launch.archive
    environment = provision(launch, Facts(), fleet, tell, locked=locked)
    ready = [host for host in launch.names if host not in environment.errors]
    code = push_code(archive, fleet, tell, ready) if archive is not None and ready else Delivery()
    if environment.mode == "existing":
        environment = _with_versions(environment, fleet, [name for name in ready if name not in code.errors])
    return PushOutcome(
        cluster=launch.inventory.cluster,
        duration_s=time.monotonic() - begun,
        traffic=environment.traffic + code.traffic,
        nodes=tuple(_node(host, environment, code, archive) for host in launch.hosts),
    )


def provision(
    launch: Launch,
    facts: Facts,
    fleet: Fleet,
    tell: Tell,
    *,
    locked: bool = False,
    open_ports: Mapping[str, Sequence[int]] | None = None,
) -> EnvironmentOutcome:
    """Put the inventory's environment on the hosts. In existing mode no host is asked or changed.

    ``facts`` gives the addresses that the nodes use among themselves. ``open_ports`` lists for each host the ports that
    preflight proved open. With ``locked`` the lock of the last push is used as it is.

    Raises:
        ProvisionError: uv found no packages that fit these nodes; the error has uv's explanation. The failure of a
        single host is in the outcome's ``errors`` instead.
    """
    if not launch.managed:
        nodes = {host.name: NodeEnvironment(host.name, host.python) for host in launch.hosts}
        return EnvironmentOutcome("existing", nodes)
    # Only a managed environment pays for the resolver's and the downloader's libraries.
    from ddpctl.environment.managed import build_environment

    return build_environment(
        launch.inventory, launch.hosts, facts, fleet, tell, locked=locked, open_ports=open_ports or {}
    )


def _with_versions(environment: EnvironmentOutcome, fleet: Fleet, hosts: Sequence[str]) -> EnvironmentOutcome:
    """Add the versions of torch, torchvision, CUDA and NCCL on ``hosts``, read from files without importing torch."""
    found = probe({host: [VERSIONS] for host in hosts}, fleet)
    nodes = dict(environment.nodes)
    for host, answers in found.answers.items():
        answer = answers[VERSIONS.key]
        nodes[host] = replace(nodes[host], versions=ask_installed(answer.value) if answer.ok else {})
    return replace(environment, nodes=nodes, errors={**environment.errors, **found.errors})


def ask_installed(value: Mapping[str, Any]) -> dict[str, str]:
    """Return package versions of a worker's answer, under the names that a managed environment uses."""
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


def push_code(archive: Source, fleet: Fleet, tell: Tell, hosts: Sequence[str]) -> Delivery:
    """Put the job's code into the store of every host. A host that has this archive already gets nothing.

    The Delivery has an error for each host without the code. On every other host the code is complete and verified.
    """
    tell(StageStarted("code", archive.size, "bytes"))
    delivery = bring_files("code", [archive], fleet, tell, hosts)
    tell(StageEnded("code", delivery.ok, f"{delivery.traffic.sent_by_controller} bytes sent"))
    return delivery
