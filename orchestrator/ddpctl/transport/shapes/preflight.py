"""Answers for a preflight: facts, ports, the mesh, firewalls, the rehearsal."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
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
    Name,
    Number,
    Plain,
    Port,
    Real,
    Short,
    Small,
    Text,
    Unicode,
    Whole,
    one_of,
)
from ddpctl.transport.shapes.adapters import adapter, asked, first_fault
from ddpctl.transport.shapes.runs import SurvivorDict
from ddpctl_worker.wire import contract


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


class InterpreterDict(TypedDict):
    path: Annotated[Unicode, Field(pattern=r"^(~/|/)[^\x00-\x1f]{1,4000}$")]
    version: Annotated[Unicode, Field(pattern=r"^3\.[0-9]{1,3}$")]
    torch: Annotated[Unicode, Field(pattern=r"^[!-~]{1,64}$")] | None
    default: Flag


class InterpretersDict(TypedDict):
    pythons: Annotated[list[InterpreterDict], Field(max_length=64)]
    modules: Flag


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
    "interpreters": InterpretersDict,
    "script": ScriptDict,
    "python": PythonDict,
    "torch_import": ImportedDict,
    "gpu_devices": DriverDict,
    "nvidia_smi": NvidiaSmiDict | None,
    "amd_gpus": AmdGpusDict,
}


class AnswerDict(TypedDict):
    ok: Flag
    value: Plain
    error: Short | None
    timed_out: Flag
    seconds: Number


def _answers(found: dict[str, AnswerDict], info: ValidationInfo) -> dict[str, AnswerDict]:
    """Check that every question has an answer; drop other answers."""
    wanted = [str(question["id"]) for question in asked(info).get("questions", ())]
    lacking = [name for name in wanted if name not in found]
    if lacking:
        raise ValueError(f"no answer to {lacking[0]!r}")
    return {name: _fact(name, found[name]) for name in wanted}


def _fact(name: str, answer: AnswerDict) -> AnswerDict:
    shape = FACTS.get(name.partition(":")[0])
    if not answer["ok"] or shape is None:
        return answer
    try:
        return {**answer, "value": adapter(shape).validate_python(answer["value"])}
    except ValidationError as error:
        raise ValueError(f"{name}: {first_fault(error)}") from None


class ProbedDict(TypedDict):
    answers: Annotated[dict[Unicode, AnswerDict], AfterValidator(_answers)]
    received: Number
    sent: Number


def _all_ports(found: list[int], info: ValidationInfo) -> list[int]:
    wanted = asked(info).get("count")
    if wanted is not None and len(found) != wanted:
        raise ValueError(f"{wanted} ports were asked for")
    return found


class FreePortsDict(TypedDict):
    ports: Annotated[list[Port], AfterValidator(_all_ports)]


class TakenDict(TypedDict):
    port: Port


class ListeningDict(TypedDict):
    listening: list[Port]
    samples: list[Port]
    taken: list[TakenDict]


class LinkDict(TypedDict):
    peer: Name
    address: Unicode
    port: Port
    status: Annotated[Unicode, Field(pattern="^[a-z_]{1,20}$")]
    errno: NotRequired[Short | None]
    detail: NotRequired[Short | None]
    local: NotRequired[Short | None]
    interface: NotRequired[Label | None]
    ms: NotRequired[Number | None]


Transfer = Annotated[Unicode, Field(pattern=one_of(contract.OK, contract.SLOW, contract.STALLED, contract.BROKEN))]
Rate = Annotated[Real, Field(ge=0, le=1e12)]


class SpeedDict(TypedDict):
    peer: Name
    address: Unicode
    rtt_ms: NotRequired[Rate | None]
    push_mbit: NotRequired[Rate | None]
    pull_mbit: NotRequired[Rate | None]
    push: NotRequired[Transfer]
    pull: NotRequired[Transfer]
    mtu: NotRequired[Count | None]


Open = tuple[Name, Unicode, Short | None, Label | None, list[Port]]


class DialsDict(TypedDict):
    open: list[Open]
    links: list[LinkDict]
    speeds: list[SpeedDict]
    neighbours: NeighboursDict | None


def _dialled(found: DialsDict, info: ValidationInfo) -> DialsDict:
    """Check that every connection was requested, and that every speed belongs to an open connection."""
    targets = asked(info).get("targets", ())
    wanted = {(target["peer"], target["address"], port) for target in targets for port in target["ports"]}
    made = {(peer, address, port) for peer, address, _, _, ports in found["open"] for port in ports}
    seen = made | {(link["peer"], link["address"], link["port"]) for link in found["links"]}
    measured = {(speed["peer"], speed["address"]) for speed in found["speeds"]}
    if not seen <= wanted or not measured <= {connection[:2] for connection in made}:
        raise ValueError("it reports a connection that it was not asked for")
    return found


Dialled = Annotated[DialsDict, AfterValidator(_dialled)]


class RulesDict(TypedDict):
    """The text of the rules follows as raw bytes."""

    tool: Literal["nft", "iptables", "ip6tables"]


class FirewallDict(TypedDict):
    uid: Count
    ufw: Flag
    firewalld: Flag
    errors: dict[Short, Short]


class ReportDict(TypedDict):
    ok: NotRequired[Flag]
    error: NotRequired[Short | None]
    backend: NotRequired[Short | None]
    mb_per_s: NotRequired[Number | None]


class RehearsedRankDict(TypedDict):
    phase: Short | None
    report: ReportDict | None


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
