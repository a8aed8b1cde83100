"""Where a host really is and how to get there: inventory and ssh_config made into a chain of hops. No connection."""

from __future__ import annotations

import getpass
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ddpctl.errors import UsageError
from ddpctl.transport.ssh_config import Options, SSHConfig, expand, split_paths

if TYPE_CHECKING:
    from ddpctl.spec.inventory import Host, Inventory

SYSTEM_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts"
DEFAULT_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
_JUMP = re.compile(
    r"(?:(?P<user>[^@]+)@)?(?P<host>\[[^\]]+\]|[^:@]+|[0-9A-Fa-f:]*:[0-9A-Fa-f:]*:[0-9A-Fa-f:]*)(?::(?P<port>\d+))?"
)


@dataclass(frozen=True)
class Hop:
    """One SSH server on the way. Equal hops share one connection where they are jump hosts."""

    label: str  # what messages call it
    address: str
    port: int
    user: str
    key_name: str  # its name in known_hosts
    known_hosts: tuple[str, ...]
    identities: tuple[str, ...]  # key files somebody asked for, in order
    fallback_identities: tuple[str, ...] = ()  # tried last
    identities_only: bool = False
    family: str = "any"
    proxy_command: str | None = None
    via: Hop | None = None

    @property
    def where(self) -> str:
        """``address:port`` for messages."""
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{address}:{self.port}"


def resolve(host: Host, inventory: Inventory, config: SSHConfig) -> Hop:
    """The way to ``host``: the inventory's keys first, then ssh_config's.

    Raises:
        UsageError: the jump hosts go round in circles, or an option makes no sense.
    """
    names = tuple(dict.fromkeys((host.name, host.address)))
    options = config.lookup(*names)
    if host.address != host.name:
        options["hostname"] = [host.address]
    if host.user:
        options["user"] = [host.user]
    if host.port:
        options["port"] = [str(host.port)]
    if host.identity_file:
        options["identityfile"] = [host.identity_file, *options.get("identityfile", [])]
    if host.jump:
        options.pop("proxycommand", None)
        options = {"proxyjump": [host.jump], **{key: value for key, value in options.items() if key != "proxyjump"}}
    fallback = (_path(host.identity_file, options, host.name),) if host.identity_file else ()
    return _Resolver(inventory, config, fallback).hop(host.name, options, (host.name,))


@dataclass(frozen=True)
class _Resolver:
    inventory: Inventory
    config: SSHConfig
    fallback: tuple[str, ...]  # a jump host that has no key of its own may take the target's

    def hop(self, label: str, options: Options, seen: tuple[str, ...]) -> Hop:
        address = expand(_first(options, "hostname", label), {}, label)
        options = {**options, "hostname": [address]}
        command, via = self._proxy(label, options, seen)
        return Hop(
            label=label,
            address=address,
            port=_port(_first(options, "port", "22"), label),
            user=_first(options, "user", getpass.getuser()),
            key_name=_first(options, "hostkeyalias", address).lower(),
            known_hosts=self._known_hosts(options, label),
            identities=tuple(
                dict.fromkeys(_path(file, options, label) for file in options.get("identityfile", []) if file != "none")
            ),
            fallback_identities=self.fallback if len(seen) > 1 else (),
            identities_only=_first(options, "identitiesonly", "no").lower() in ("yes", "true"),
            family=_first(options, "addressfamily", "any").lower(),
            proxy_command=command,
            via=via,
        )

    def _proxy(self, label: str, options: Options, seen: tuple[str, ...]) -> tuple[str | None, Hop | None]:
        """ProxyCommand or ProxyJump: whichever is said first."""
        for key, values in options.items():
            if key == "proxycommand":
                command = values[0].strip()
                return (None if command.lower() == "none" else expand(command, options, label)), None
            if key == "proxyjump":
                return None, self._jump(expand(values[0], options, label), seen)
        return None, None

    def _jump(self, value: str, seen: tuple[str, ...]) -> Hop | None:
        """``[user@]host[:port],...``: the last one is the nearest to the target."""
        if value.lower() == "none":
            return None
        via: Hop | None = None
        for word in value.split(","):
            found = _JUMP.fullmatch(word.strip().removeprefix("ssh://"))
            if not found:
                raise UsageError(f"{seen[-1]}: not a jump host: {word.strip()!r}", hint="write [user@]host[:port]")
            name = found["host"].strip("[]")
            if name in seen:
                raise UsageError(f"{' -> '.join((*seen, name))}: the jump hosts go round in a circle")
            options = self._options(name)
            if found["user"]:
                options["user"] = [found["user"]]
            if found["port"]:
                options["port"] = [found["port"]]
            if via is not None:  # a chain: the hop before it is the way, whatever its own ProxyJump says
                options = {key: val for key, val in options.items() if key not in ("proxyjump", "proxycommand")}
            hop = self.hop(name, options, (*seen, name))
            via = hop if via is None else _behind(hop, via)
        return via

    def _options(self, name: str) -> Options:
        """A jump host's own options; one that is in the inventory too is meant as it is described there."""
        for host in self.inventory.hosts:
            if host.name == name and not host.local:
                options = self.config.lookup(*dict.fromkeys((name, host.address)))
                given = {
                    "user": host.user,
                    "port": host.port,
                    "identityfile": host.identity_file,
                    "proxyjump": host.jump,
                }
                if host.address != host.name:
                    given["hostname"] = host.address
                return {**options, **{key: [str(value)] for key, value in given.items() if value}}
        return self.config.lookup(name)

    def _known_hosts(self, options: Options, label: str) -> tuple[str, ...]:
        files = [self.inventory.known_hosts]
        for value in options.get("userknownhostsfile", []):
            files += [expand(path, options, label) for path in split_paths(value) if path.lower() != "none"]
        return tuple(dict.fromkeys((*(str(Path(file).expanduser()) for file in files), SYSTEM_KNOWN_HOSTS)))


def _behind(hop: Hop, via: Hop) -> Hop:
    return Hop(**{**hop.__dict__, "via": via})


def _first(options: Options, key: str, default: str) -> str:
    values = options.get(key)
    return values[0] if values else default


def _port(text: str, label: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 65536:
        raise UsageError(f"{label}: not a port: {text!r}")
    return int(text)


def _path(file: str, options: Options, label: str) -> str:
    return str(Path(expand(file, options, label)).expanduser())
