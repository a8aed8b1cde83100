"""The way to a host: inventory and ssh_config turned into a chain of hops. Opens no connection."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from ddpctl.errors import UsageError
from ddpctl.spec.host import TransportKind
from ddpctl.spec.values import whole_number
from ddpctl.transport.known_hosts import SSH_PORT, entry_name
from ddpctl.transport.ssh_config import Options, expand_hostname
from ddpctl.transport.ssh_words import expand, expand_path, first_value, variable

if TYPE_CHECKING:
    from ddpctl.spec.inventory import Host, Inventory

USER_CONFIG = "~/.ssh/config"
USER_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
GLOBAL_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
METHODS = {
    "publickey": "pubkeyauthentication",
    "password": "passwordauthentication",
    "keyboard-interactive": "kbdinteractiveauthentication",
}
# Options that change the way and that only OpenSSH supports, with their harmless values.
_OPENSSH_OPTIONS = {
    "KnownHostsCommand": "none",
    "CanonicalizeHostname": "no",
    "RevokedHostKeys": "none",
    "PKCS11Provider": "none",
    "BindAddress": "none",
    "BindInterface": "none",
    "ProxyUseFdpass": "no",
    "HostbasedAuthentication": "no",
}
_JUMP = re.compile(
    r"(?:(?P<user>[^@]+)@)?(?P<host>\[[^\]]+\]|[^:@]+|[0-9A-Fa-f:]*:[0-9A-Fa-f:]*:[0-9A-Fa-f:]*)(?::(?P<port>\d+))?"
)


class ConfigReader(Protocol):
    """A reading of ssh_config."""

    def lookup(self, *names: str, given: Mapping[str, str] | None = None) -> Options:
        """Return every option for a host: see ``SSHConfig.lookup``."""
        ...


@dataclass(frozen=True)
class Hop:
    """An SSH server on the way. Equal hops share one connection where they are jump hosts."""

    label: str  # its name in messages
    address: str
    port: int
    user: str
    key_name: str  # its name in known_hosts
    key_port: int  # 22 where that name is an alias: known_hosts then has no port
    user_known_hosts: tuple[str, ...]  # new keys go to the first
    global_known_hosts: tuple[str, ...]
    identities: tuple[str, ...]  # key files that the configuration names
    certificates: tuple[str, ...] = ()  # CertificateFile
    fallback_identities: tuple[str, ...] = ()  # tried last
    identities_only: bool = False
    agent: str | None = None  # the agent's socket
    methods: tuple[str, ...] = tuple(METHODS)  # login methods that ssh_config allows
    family: str = "any"
    proxy_command: str | None = None
    via: Hop | None = None
    transport: TransportKind = "auto"
    # options that are set and that only OpenSSH supports
    openssh_options: tuple[str, ...] = field(default=(), compare=False)

    @property
    def where(self) -> str:
        """``address:port``, for messages."""
        address = f"[{self.address}]" if ":" in self.address else self.address
        return f"{address}:{self.port}"

    @property
    def login(self) -> str:
        """``user@address``, with the port where it is not 22."""
        return f"{self.user}@{self.where if self.port != SSH_PORT else self.address}"

    @property
    def known_hosts(self) -> tuple[str, ...]:
        return self.user_known_hosts + self.global_known_hosts

    @property
    def chain(self) -> list[Hop]:
        """This server and every jump host before it."""
        return [self, *(self.via.chain if self.via is not None else [])]

    @property
    def known_as(self) -> str:
        """The spelling of the server in known_hosts."""
        return entry_name(self.key_name, self.key_port)


def resolve(host: Host, inventory: Inventory, config: ConfigReader) -> Hop:
    """Return the way to ``host``: the inventory's keys count first, then ssh_config's options.

    Raises:
        UsageError: the jump hosts form a circle, or an option has no valid value.
    """
    options = _options_of(host, config)
    fallback = (expand_path(host.identity_file, options, host.name),) if host.identity_file else ()
    return _Resolver(inventory, config, fallback).hop(host.name, options, (host.name,))


def _options_of(host: Host, config: ConfigReader) -> Options:
    """Return the options of a host of the inventory, whose keys count like options on ssh's command line."""
    given = {"user": host.user, "port": host.port, "identityfile": host.identity_file, "proxyjump": host.jump}
    if host.address != host.name:
        given["hostname"] = host.address.replace("%", "%%")
    names = dict.fromkeys((host.name, host.address))
    return config.lookup(*names, given={key: str(value) for key, value in given.items() if value})


@dataclass(frozen=True)
class _Resolver:
    inventory: Inventory
    config: ConfigReader
    fallback: tuple[str, ...]  # key files of the target, for a jump host without key files

    def hop(self, label: str, options: Options, seen: tuple[str, ...]) -> Hop:
        address = expand_hostname(options, label).lower()  # as ssh does, and as known_hosts spells it
        options = {**options, "hostname": [address]}
        command, via = self._proxy(label, options, seen)
        alias = first_value(options, "hostkeyalias", "")
        port = _port(first_value(options, "port", str(SSH_PORT)), label)
        return Hop(
            label=label,
            address=address,
            port=port,
            user=first_value(options, "user", getpass.getuser()),
            key_name=alias.lower() or address,
            key_port=SSH_PORT if alias else port,
            user_known_hosts=_files(options, "userknownhostsfile", USER_KNOWN_HOSTS, self.inventory.known_hosts, label),
            global_known_hosts=_files(options, "globalknownhostsfile", GLOBAL_KNOWN_HOSTS, None, label),
            identities=_paths(options, "identityfile", label),
            certificates=_paths(options, "certificatefile", label),
            fallback_identities=self.fallback if len(seen) > 1 else (),
            identities_only=_is(options, "identitiesonly", "no"),
            agent=_agent(options, label),
            methods=_methods(options),
            family=first_value(options, "addressfamily", "any").lower(),
            proxy_command=command,
            via=via,
            transport=self._transport(label),
            openssh_options=tuple(
                key
                for key, harmless in _OPENSSH_OPTIONS.items()
                if first_value(options, key.lower(), harmless).lower() != harmless
            ),
        )

    def _proxy(self, label: str, options: Options, seen: tuple[str, ...]) -> tuple[str | None, Hop | None]:
        """Return ProxyCommand and ProxyJump; SSHConfig has kept at most one of the two."""
        jump, command = first_value(options, "proxyjump", "none"), first_value(options, "proxycommand", "none").strip()
        if jump.lower() != "none":
            return None, self._jump(expand(jump, options, label), seen)
        return (None if command.lower() == "none" else expand(command, options, label)), None

    def _jump(self, value: str, seen: tuple[str, ...]) -> Hop | None:
        """Return the last hop of ``[user@]host[:port],...``, which is the nearest to the target."""
        via: Hop | None = None
        for word in value.split(","):
            found = _JUMP.fullmatch(word.strip().removeprefix("ssh://"))
            if not found:
                raise UsageError(f"{seen[-1]}: not a jump host: {word.strip()!r}", hint="write [user@]host[:port]")
            name = found["host"].strip("[]")
            if name in seen:
                raise UsageError(f"{' -> '.join((*seen, name))}: the jump hosts form a circle")
            options = self._options(name)
            if found["user"]:
                options["user"] = [found["user"]]
            if found["port"]:
                options["port"] = [found["port"]]
            if via is not None:  # in a chain the previous hop is the way, whatever ProxyJump the host has itself
                options = {key: val for key, val in options.items() if key not in ("proxyjump", "proxycommand")}
            hop = self.hop(name, options, (*seen, name))
            via = hop if via is None else replace(hop, via=via)
        return via

    def _transport(self, name: str) -> TransportKind:
        return next((host.transport for host in self.inventory.hosts if host.name == name), "auto")

    def _options(self, name: str) -> Options:
        """Return a jump host's options; a jump host in the inventory has the options of its entry."""
        for host in self.inventory.hosts:
            if host.name == name and not host.local:
                return _options_of(host, self.config)
        return self.config.lookup(name)


def _files(options: Options, key: str, default: tuple[str, ...], named: str | None, label: str) -> tuple[str, ...]:
    """Return the known_hosts files: the inventory's, else ssh_config's, else the default files."""
    value = options.get(key)
    files = [named] if named else value[0].split("\n") if value else default
    return tuple(expand_path(file, options, label) for file in files if file.lower() != "none")


def _paths(options: Options, key: str, label: str) -> tuple[str, ...]:
    found = (expand_path(file, options, label) for file in options.get(key, []) if file.lower() != "none")
    return tuple(dict.fromkeys(found))


def _agent(options: Options, label: str) -> str | None:
    """Return the socket of the agent that ssh would use."""
    value = first_value(options, "identityagent", "SSH_AUTH_SOCK")
    if value.lower() == "none":
        return None
    if value == "SSH_AUTH_SOCK":
        return os.environ.get(value) or None
    if value.startswith("$") and not value.startswith("${"):
        return variable(value[1:], label)
    return expand_path(value, options, label)


def _methods(options: Options) -> tuple[str, ...]:
    wanted = first_value(options, "preferredauthentications", ",".join(METHODS)).split(",")
    return tuple(name for name, switch in METHODS.items() if name in wanted and _is(options, switch, "yes"))


def _is(options: Options, key: str, default: str) -> bool:
    return first_value(options, key, default).lower() not in ("no", "false")


def _port(text: str, label: str) -> int:
    port = whole_number(text, 1, 65535)
    if port is None:
        raise UsageError(f"{label}: not a port: {text[:40]!r}")
    return port
