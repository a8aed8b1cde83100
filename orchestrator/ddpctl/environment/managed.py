"""Makes a managed environment: from the requirements to a tested interpreter on every node."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

from ddpctl.environment.backend import candidates
from ddpctl.environment.build import Builder
from ddpctl.environment.direct import FileSource, as_provision_error, ask_holdings
from ddpctl.environment.limits import INSTALL_S, PLATFORM_S
from ddpctl.environment.lock import Lock, Wheel
from ddpctl.environment.origins import origins, pip_settings
from ddpctl.environment.platforms import QUESTIONS, NodePlatform, Platform, read_platform, same_python, targets
from ddpctl.environment.resolve import FAMILY, LockRequest, backend_note, keep_built, lock_folder, locks_for, tool_for
from ddpctl.environment.spread import Addresses, bring_files
from ddpctl.environment.tools import UV
from ddpctl.environment.wheelhouse import Counter, Wheelhouse
from ddpctl.errors import DdpctlError, FileDamaged, ProvisionError, RemoteError
from ddpctl.files.records import state_dir
from ddpctl.spec.event import Note, Progress, StageEnded, StageStarted, Tell, counting
from ddpctl.spec.fold import group_by
from ddpctl.spec.inventory import Host, Inventory
from ddpctl.spec.plan import Facts
from ddpctl.spec.push import EnvironmentOutcome, NodeEnvironment, Traffic
from ddpctl.spec.question import probe_questions
from ddpctl.transport.base import Fleet, FleetOutcome, Transport

STAGE = "environment"
OLDEST = ((3, 8), 17)  # Python, and the minor version of glibc 2


@dataclass
class _Build:
    """The progress of a managed environment."""

    fleet: Fleet
    tell: Tell
    wheelhouse: Wheelhouse
    addresses: Addresses
    nodes: dict[str, NodeEnvironment] = field(default_factory=dict)
    errors: dict[str, DdpctlError] = field(default_factory=dict)
    traffic: Traffic = field(default_factory=Traffic)


def build_environment(
    inventory: Inventory,
    hosts: Sequence[Host],
    facts: Facts,
    fleet: Fleet,
    tell: Tell,
    *,
    locked: bool,
    open_ports: Mapping[str, Sequence[int]],
) -> EnvironmentOutcome:
    """Do ``stages.provision`` for a managed environment."""
    names = [host.name for host in hosts]
    cache = platformdirs.user_cache_path("ddpctl")
    asked = ask_platforms(fleet, names)
    request = _request(inventory)
    state = _Build(
        fleet,
        tell,
        Wheelhouse(cache / "wheels", request.origins),
        _addresses(hosts, facts, open_ports),
        errors=dict(asked.errors),
    )
    locks: dict[str, str] = {}
    if asked.results:
        tell(StageStarted("lock", None))
        folder = _lock_folder(inventory)
        made = locks_for(request, asked.results, folder, locked=locked)
        tell(StageEnded("lock", True, ", ".join(_described(lock) for lock in made.values())))
        groups = targets(asked.results)
        for sentence in (same_python(groups), backend_note(made, asked.results)):
            if sentence:
                tell(Note(sentence, "warning"))
        backends = candidates(inventory.environment.torch_backend, asked.results.values())
        cluster = f"{inventory.cluster} {Path(inventory.file).resolve()}"
        builder = Builder(request, backends, fleet, tell, state.wheelhouse, cache / "builds", cluster, locked)
        for target, members in groups.items():
            tool = tool_for(UV, target, request, folder)
            lock = builder.complete(made[target], tool, members)
            if lock is not made[target]:
                keep_built(folder, lock)
            locks[target.label] = lock.text
            _provide(state, lock, tool, members)
        state.traffic += builder.traffic
        _compare(state)
    return EnvironmentOutcome("managed", state.nodes, state.errors, state.traffic, locks)


def _request(inventory: Inventory) -> LockRequest:
    sources = origins(inventory.environment, os.environ, pip_settings(os.environ))
    return LockRequest(inventory.environment, sources, Path(inventory.file).resolve().parent)


def _lock_folder(inventory: Inventory) -> Path:
    return lock_folder(inventory, state_dir() / "locks")


def fetch_tool(name: str, machine: str, inventory: Inventory) -> FileSource:
    """Return a tool that is a static program, for nodes of a machine type.

    It comes from the tool's wheel for the oldest supported C library and Python.

    Raises:
        ProvisionError: there is no such wheel, or it cannot be downloaded.
    """
    request = _request(inventory)
    wheel = tool_for(name, Platform(machine, *OLDEST), request, _lock_folder(inventory))
    return Wheelhouse(platformdirs.user_cache_path("ddpctl") / "wheels", request.origins).fetch([wheel])[wheel.sha256]


def ask_platforms(fleet: Fleet, names: Sequence[str]) -> FleetOutcome[NodePlatform]:
    """Ask every node for its platform."""

    def ask(transport: Transport) -> NodePlatform:
        reply = transport.call("probe", {"questions": probe_questions(QUESTIONS)}, timeout=PLATFORM_S)
        return read_platform(transport.host, reply["answers"])

    return fleet.map(ask, names)


def _addresses(hosts: Sequence[Host], facts: Facts, open_ports: Mapping[str, Sequence[int]]) -> Addresses:
    """Return the nodes' addresses for each other: from preflight and inventory; for local hosts also loopback."""
    preferred = {}
    for host in hosts:
        known = [facts.node(host.name).fabric_address, host.fabric_address, "127.0.0.1" if host.local else None]
        preferred[host.name] = [address for address in known if address]
    return Addresses(preferred, open_ports)


def _described(lock: Lock) -> str:
    torch = lock.version("torch")
    return f"{len(lock.wheels) + len(lock.sources)} packages" + (f", torch {torch}" if torch else "")


# --- files, then installation -----------------------------------------------------------------------------------------
def _provide(state: _Build, lock: Lock, tool: Wheel, hosts: Sequence[str]) -> None:
    """Bring one lock to its nodes. A damaged file is found, replaced, and tried once more."""
    damaged = _try(state, lock, tool, hosts, last=False)
    if not damaged:
        return
    for host, error in damaged.items():
        state.tell(Note(f"{error.message}: trying once more", "warning", host))
    bad = state.wheelhouse.verify(lock.wheels)
    if bad:
        state.tell(Note(f"changed on this machine since the lock was made: {', '.join(bad)}", "warning"))
    hashes = _hashes(lock, tool)
    state.fleet.map(lambda transport: ask_holdings(transport, hashes, verify=True), list(damaged))
    _try(state, lock, tool, list(damaged), last=True)


def _try(state: _Build, lock: Lock, tool: Wheel, hosts: Sequence[str], *, last: bool) -> dict[str, FileDamaged]:
    """Bring and install. Errors go to ``state.errors``; except in the ``last`` try damaged files are returned."""
    ready, errors = _bring(state, lock, tool, hosts)
    state.tell(StageStarted("install", len(ready)))
    installed = _install(state, lock, tool, ready)
    state.tell(StageEnded("install", installed.ok))
    state.nodes.update(installed.results)
    errors = {**errors, **installed.errors}
    damaged = {} if last else {host: error for host, error in errors.items() if isinstance(error, FileDamaged)}
    state.errors.update({host: error for host, error in errors.items() if host not in damaged})
    return damaged


def _hashes(lock: Lock, tool: Wheel) -> list[str]:
    return [tool.sha256, *(wheel.sha256 for wheel in lock.wheels)]


def _bring(state: _Build, lock: Lock, tool: Wheel, hosts: Sequence[str]) -> tuple[list[str], dict[str, DdpctlError]]:
    """Bring every file to every host. A file that every host has is not even looked for on this machine."""
    hashes = _hashes(lock, tool)
    known = state.fleet.map(lambda transport: ask_holdings(transport, hashes), hosts)
    lacking = {sha256 for answer in known.results.values() for sha256 in hashes if sha256 not in answer.have}
    everywhere = sum(
        size for answer in known.results.values() for name, size in answer.have.items() if name not in lacking
    )
    state.traffic += Traffic(everywhere, 0, 0, everywhere)
    if not lacking:
        state.tell(StageStarted(STAGE, 0, "bytes"))
        state.tell(StageEnded(STAGE, True, f"{everywhere / 1e6:.0f} MB needed: all of it is on the nodes already"))
        return [host for host in hosts if host in known.results], dict(known.errors)
    files = _files(state, lock, tool, lacking)
    state.tell(StageStarted(STAGE, sum(file.size for file in files), "bytes"))
    delivery = bring_files(STAGE, files, state.fleet, state.tell, hosts, state.addresses, known)
    state.traffic += delivery.traffic
    state.tell(StageEnded(STAGE, delivery.ok, _sentence(delivery.traffic)))
    return list(delivery.done), dict(delivery.errors)


def _sentence(traffic: Traffic) -> str:
    return (
        f"{traffic.needed / 1e6:.0f} MB needed: {traffic.sent_by_controller / 1e6:.0f} sent from here, "
        f"{traffic.relayed / 1e6:.0f} from node to node, {traffic.reused / 1e6:.0f} already there"
    )


def _files(state: _Build, lock: Lock, tool: Wheel, lacking: set[str]) -> list[FileSource]:
    """Return the files that a node lacks, biggest first: small files at the end keep every connection busy."""
    wheels = [wheel for wheel in (*lock.wheels, tool) if wheel.sha256 in lacking]
    size = sum(wheel.size or 0 for wheel in wheels)
    state.tell(StageStarted("wheels", size or None, "bytes"))
    counter = Counter(lambda total: state.tell(Progress("wheels", total, size or None)))
    files = list(state.wheelhouse.fetch(wheels, counter).values())
    state.tell(StageEnded("wheels", True, f"{counter.total / 1e6:.0f} MB downloaded"))
    return sorted(files, key=lambda file: -file.size)


def _install(state: _Build, lock: Lock, tool: Wheel, hosts: Sequence[str]) -> FleetOutcome[NodeEnvironment]:
    # The installation imports these: a torchvision of another build than its torch fails when it is imported.
    request = {**lock.request(tool), "imports": [name for name in FAMILY if lock.version(name)]}

    def work(transport: Transport) -> NodeEnvironment:
        try:
            answer = transport.call("install", request, timeout=INSTALL_S)
        except RemoteError as error:
            raise as_provision_error(error, transport.host) from error
        return NodeEnvironment(
            transport.host, answer["python"], answer["versions"], answer["env"], float(answer["seconds"])
        )

    return state.fleet.map(work, hosts, on_done=counting("install", len(hosts), state.tell))


def _compare(state: _Build) -> None:
    """Compare torch, CUDA build and NCCL of all nodes, as reported after importing torch."""
    for name in ("torch", "cuda", "nccl"):
        versions = {host: node.versions.get(name) for host, node in state.nodes.items()}
        found = group_by(versions.__getitem__, versions)
        # Builds for two machine types may differ in the local version (2.13.0 and 2.13.0+cpu).
        if len({str(version).partition("+")[0] for version in found}) < 2:
            continue
        said = "; ".join(f"{version or 'none'} on {' '.join(members)}" for version, members in found.items())
        most = max(found, key=lambda version: len(found[version]))
        for version, members in found.items():
            for host in members if version != most else ():
                state.errors[host] = ProvisionError(
                    f"{name} differs between the nodes ({said})",
                    hint="pin it in environment.packages, or set torch_backend",
                    host=host,
                )
                del state.nodes[host]
