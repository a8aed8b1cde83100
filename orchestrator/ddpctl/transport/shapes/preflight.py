"""Answers for a preflight: facts, ports, the mesh, firewalls, the rehearsal."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    with_config,
)
from typing_extensions import NotRequired, TypedDict

from ddpctl.spec.bounds import (
    IP,
    Count,
    Digits,
    Flag,
    Hash,
    Label,
    LinkStatus,
    Name,
    Number,
    Port,
    Short,
    Small,
    Text,
    Unicode,
    Whole,
)
from ddpctl.spec.interpreters import Interpreter
from ddpctl.spec.mesh import Neighbours, Speed
from ddpctl.spec.network import Network
from ddpctl.spec.question import Answer
from ddpctl.transport.shapes.adapters import adapter, asked, first_fault, own_name, shape_of


def _interface(value: AddressDict) -> AddressDict:
    ipaddress.ip_interface(f"{value['address']}/{value['prefix']}")
    return value


class AddressDict(TypedDict):
    address: Unicode
    interface: Label
    family: Literal[4, 6]
    prefix: Small
    up: Flag
    carrier: NotRequired[Flag]
    mtu: NotRequired[Whole | None]
    speed: NotRequired[Whole | None]
    virtual: NotRequired[Flag]
    bridge: NotRequired[Flag]


class NeighboursDict(TypedDict):
    limit: Count
    entries: Count
    overflows: Count


class NetworkDict(TypedDict):
    addresses: list[Annotated[AddressDict, AfterValidator(_interface)]]
    ssh_address: IP | None
    port_range: Annotated[list[Port], Field(min_length=2, max_length=2)]
    hostname: Short
    gpus: Small
    cores: Small | None
    machine: NotRequired[Label]
    uid: Count
    names: dict[Unicode, list[IP]]
    neighbours: NeighboursDict | None


class ModuleDict(TypedDict):
    version: Short | None
    cuda: Short | None
    hip: Short | None
    git: Short | None
    path: Short


class VersionsDict(TypedDict):
    torch: ModuleDict | None
    torchvision: ModuleDict | None
    nccl: Short | None
    has_launch: Flag
    packages: dict[Short, Short]
    folders: list[Short]


class ScriptDict(TypedDict):
    path: Short
    exists: Flag
    sha256: Hash | None
    text: Text | None


class PythonDict(TypedDict):
    version: Short
    info: Annotated[list[Small], Field(min_length=3, max_length=3)]
    executable: Short
    prefix: Short
    venv: Flag
    implementation: Short
    platform: Short
    machine: Short
    libc: Short
    libc_version: Annotated[Unicode, Field(pattern=r"^[0-9.]{0,12}$")]
    kernel: Short


class DriverDict(TypedDict):
    """Devices that the library of CUDA or HIP reports."""

    api: Literal["cuda", "hip"] | None
    code: Whole | None
    error: Short | None
    devices: list[Label]
    visible: dict[Short, Short]


@with_config(ConfigDict(extra="allow"))  # only checks read the rest
class ImportedDict(TypedDict):
    torch: Short | None
    error: Short | None
    devices: NotRequired[Small]
    live: NotRequired[DriverDict | None]


class RanDict(TypedDict):
    code: Whole | None
    stdout: Text
    stderr: Text
    timed_out: Flag
    seconds: Number


class AppDict(TypedDict):
    pid: Count
    user: Short | None
    command: Short | None
    job: Short | None
    run: NotRequired[Short | None]


class NvidiaSmiDict(TypedDict):
    gpu: RanDict
    apps: RanDict | None
    remapped: RanDict | None
    list: RanDict | None
    processes: list[AppDict]
    program: NotRequired[Short | None]


class AmdGpuDict(TypedDict):
    bus: Label
    gfx: Count
    render: Short
    total: Count | None
    used: Count | None


class AmdGpusDict(TypedDict):
    gpus: list[AmdGpuDict]
    pci: list[Label]
    missing: list[Short]
    closed: list[Short]
    user: Short
    driver: Short


# Answers that plans and environments are made from. Only checks read the other answers, which have
# no shape: checks.judge turns an answer that a check cannot read into a finding.
FACTS: Mapping[str, Any] = {
    "network": NetworkDict,
    "versions": VersionsDict,
    "interpreters": shape_of(pythons=Annotated[tuple[Interpreter, ...], Field(max_length=64)], modules=Flag),
    "script": ScriptDict,
    "python": PythonDict,
    "torch_import": ImportedDict,
    "gpu_devices": DriverDict,
    "nvidia_smi": NvidiaSmiDict | None,
    "amd_gpus": AmdGpusDict,
}


def _answers(found: dict[str, Answer], info: ValidationInfo) -> dict[str, Answer]:
    """Check that every question has an answer; drop other answers."""
    wanted = [str(question["id"]) for question in asked(info).get("questions", ())]
    lacking = [name for name in wanted if name not in found]
    if lacking:
        raise ValueError(f"no answer to {lacking[0]!r}")
    return {name: _fact(name, found[name]) for name in wanted}


def _fact(name: str, answer: Answer) -> Answer:
    shape = FACTS.get(name.partition(":")[0])
    if not answer.ok or shape is None:
        return answer
    try:
        return replace(answer, value=adapter(shape).validate_python(answer.value))
    except ValidationError as error:
        raise ValueError(f"{name}: {first_fault(error)}") from None


Answers = Annotated[dict[Unicode, Answer], AfterValidator(_answers)]


def _all_ports(found: list[int], info: ValidationInfo) -> list[int]:
    wanted = asked(info).get("count")
    if wanted is not None and len(found) != wanted:
        raise ValueError(f"{wanted} ports were asked for")
    return found


AllPorts = Annotated[list[Port], AfterValidator(_all_ports)]


class LinkDict(TypedDict):
    peer: Name
    address: Unicode
    port: Port
    status: LinkStatus
    errno: NotRequired[Short | None]
    detail: NotRequired[Short | None]
    local: NotRequired[Short | None]
    interface: NotRequired[Label | None]
    ms: NotRequired[Number | None]


Open = tuple[Name, Unicode, Short | None, Label | None, list[Port]]


class DialsDict(TypedDict):
    open: list[Open]
    links: list[LinkDict]
    speeds: list[Speed]
    neighbours: Neighbours | None


def _dialled(found: DialsDict, info: ValidationInfo) -> DialsDict:
    """Check that every connection was requested, and that every speed belongs to an open connection."""
    targets = asked(info).get("targets", ())
    wanted = {(target["peer"], target["address"], port) for target in targets for port in target["ports"]}
    made = {(peer, address, port) for peer, address, _, _, ports in found["open"] for port in ports}
    seen = made | {(link["peer"], link["address"], link["port"]) for link in found["links"]}
    for speed in found["speeds"]:
        own_name(speed.dialer, info)
    measured = {(speed.peer, speed.address) for speed in found["speeds"]}
    if not seen <= wanted or not measured <= {connection[:2] for connection in made}:
        raise ValueError("it reports a connection that it was not asked for")
    return found


Dialled = Annotated[DialsDict, AfterValidator(_dialled)]


class ReportDict(TypedDict):
    ok: NotRequired[Flag]
    error: NotRequired[Short | None]
    backend: NotRequired[Short | None]
    mb_per_s: NotRequired[Number | None]


class RehearsedRankDict(TypedDict):
    phase: Short | None
    report: ReportDict | None


class SurvivorDict(TypedDict):
    pid: Count
    cmd: Short


class RehearsedDict(TypedDict):
    exit_code: Whole | None
    timed_out: Flag
    seconds: Number
    ranks: dict[Digits, RehearsedRankDict]
    where: NotRequired[dict[Digits, Short]]
    tail: list[Short]
    nccl: list[Short]
    met: Flag
    survivors: list[SurvivorDict]


def _among_its_hosts(found: Network) -> Network:
    if any(max(row[:2]) >= len(found.hosts) for row in found.rows):
        raise ValueError("it has a link of a host that it does not name")
    return found


RecordedNetwork = Annotated[Network, AfterValidator(_among_its_hosts)]
