"""The keys of a host in the file, and the complete host, with ranges expanded and defaults merged in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from ddpctl.spec.limits import MAX_HOSTS
from ddpctl.spec.ranges import RangeFault, expand, is_range
from ddpctl.spec.values import (
    NAME_RULE,
    Address,
    AutoCount,
    Env,
    Fault,
    Filled,
    Jump,
    Labels,
    Login,
    Name,
    PathText,
    Port,
    Strict,
    Word,
    is_name,
)

DEFAULT_BASE_DIR = "~/.local/state/ddpctl"
DEFAULT_PYTHON = "python3"

_DESTINATION = re.compile(r"((?P<user>[^\s@:/'\"]+)@)?(?P<host>[A-Za-z0-9\[][A-Za-z0-9._,\[\]-]*)(:(?P<port>\d{1,5}))?")

Connection = Literal["ssh", "local"]
TransportKind = Literal["auto", "openssh", "paramiko"]
RangeText = Annotated[Filled, WithJsonSchema({"type": "string", "pattern": r"^[A-Za-z0-9\[][A-Za-z0-9._,/\[\]-]*$"})]


class HostKeys(Strict):
    """The keys of a host, as in ``defaults``; None: the file does not have the key."""

    address: Address | None = Field(default=None, description="Where SSH goes; default: the name, through ssh_config.")
    fabric_address: Address | None = Field(
        default=None, description="What the other nodes use: MASTER_ADDR and the mesh; default: found by preflight."
    )
    interface: Word | None = Field(
        default=None, description="NCCL_/GLOO_SOCKET_IFNAME; default: the interface that owns fabric_address."
    )
    port: Port | None = Field(default=None, description="SSH port; default: from ssh_config, else 22.")
    user: Login | None = Field(default=None, description="Login name; default: from ssh_config, else yours.")
    identity_file: PathText | None = Field(
        default=None, description="Private key; default: ssh_config's, or the agent's."
    )
    jump: Jump | None = Field(default=None, description="Jump host, in the syntax of ProxyJump.")
    slots: AutoCount | None = Field(
        default=None,
        description="What the host runs at once: a process takes a slot; auto (default): its GPUs, or 1 without one.",
    )
    connection: Connection | None = Field(default=None, description="ssh (the default) or local: this machine, no SSH.")
    transport: TransportKind | None = Field(
        default=None,
        description="Who carries the connection: ddpctl's own client (paramiko), the ssh program of OpenSSH (openssh), "
        "or auto (the default): OpenSSH where ddpctl's own client cannot do what ssh_config or the server wants.",
    )
    python: PathText | None = Field(
        default=None,
        description="The interpreter that runs the worker and, in existing mode, the job; default: python3. "
        "A relative path is allowed for local hosts only and counts from the inventory file.",
    )
    base_dir: PathText | None = Field(
        default=None, description=f"ddpctl's folder on the node, absolute or below ~; default: {DEFAULT_BASE_DIR}."
    )
    env: Env = Field(default={}, description="Environment of every job's processes on this host.", repr=False)
    labels: Labels = Field(default={}, description="Free names and values, for your own use.")


class HostEntry(HostKeys):
    """An item of ``hosts`` in its long form; ``name`` may be a range."""

    name: RangeText = Field(description="The host's name, or a range: node[01-16], node[1-3,7].")


class Host(HostKeys):
    """A machine with all defaults merged in; None: ssh_config or preflight decides."""

    name: Name
    address: Address
    slots: AutoCount = "auto"
    connection: Connection = "ssh"
    transport: TransportKind = "auto"
    python: PathText = DEFAULT_PYTHON
    base_dir: PathText = DEFAULT_BASE_DIR

    @property
    def local(self) -> bool:
        """Return whether the host is this machine, used without SSH."""
        return self.connection == "local"


def expand_hosts(defaults: HostKeys, entries: tuple[HostEntry, ...]) -> tuple[list[Host], list[Fault]]:
    """Return all hosts of the file in order, and all faults in them."""
    hosts: list[Host] = []
    faults: list[Fault] = []
    first_at: dict[str, int] = {}
    for index, entry in enumerate(entries):
        where = ("hosts", index, "name")
        try:
            expanded = list(_expand_entry(defaults, entry))
        except RangeFault as error:
            faults.append(Fault(where, str(error), _written_out(entry.name)))
            continue
        for host in expanded:
            if host.name in first_at:
                faults.append(Fault(where, f"host {host.name} is listed twice", "remove one of the two"))
                break
            first_at[host.name] = index
            hosts.append(host)
        if len(hosts) > MAX_HOSTS:
            return hosts, [*faults, Fault(where, f"more than {MAX_HOSTS} hosts")]
    return hosts, faults


def _written_out(name: str) -> str | None:
    """Return the hint for a name such as ``alice@gpu1:2201``, as ssh and scp accept it; None: another kind of name."""
    match = _DESTINATION.fullmatch(name)
    if match is None or (match["user"] is None and match["port"] is None):
        return None
    host = f"'{match['host']}'" if is_range(name) else match["host"]
    keys = [f"{key}: {match[key]}" for key in ("user", "port") if match[key] is not None]
    return f"write {{name: {host}, {', '.join(keys)}}}"


def _expand_entry(defaults: HostKeys, entry: HostEntry) -> Iterator[Host]:
    names = expand(entry.name)
    for name in names:
        if not is_name(name):
            raise RangeFault(f"is not a valid host name: {NAME_RULE}")
    merged = _merge(defaults, entry)
    addresses = _spread(entry.address, names, "address")
    fabrics = _spread(entry.fabric_address, names, "fabric_address")
    for name, address, fabric in zip(names, addresses, fabrics, strict=True):
        fallback = "localhost" if merged.get("connection") == "local" else name
        own: dict[str, Any] = {
            "name": name,
            "address": address or defaults.address or fallback,
            "fabric_address": fabric or defaults.fabric_address,
        }
        yield Host(**merged | own)


def _spread(value: str | None, names: tuple[str, ...], key: str) -> tuple[str | None, ...]:
    """Return an address for every name; ``value`` is a range of as many addresses, or an address for all names."""
    if value is None or not is_range(value) or value.startswith("["):
        return (value,) * len(names)
    addresses = expand(value)
    if len(addresses) != len(names):
        raise RangeFault(f"{len(names)} hosts, but {key} expands to {len(addresses)}")
    return addresses


def _merge(defaults: HostKeys, entry: HostEntry) -> dict[str, Any]:
    """Merge the host's keys over the defaults; ``env`` and ``labels`` are merged entry by entry."""
    merged = {key: value for keys in (defaults, entry) for key, value in keys if value is not None}
    return merged | {"env": {**defaults.env, **entry.env}, "labels": {**defaults.labels, **entry.labels}}
