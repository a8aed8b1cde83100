"""Many hosts at once: every host finishes, then every host is reported."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from ddpctl.errors import DdpctlError, Interrupted, UsageError
from ddpctl.transport import ssh_config
from ddpctl.transport.base import FleetOutcome, Transport
from ddpctl.transport.fan import fan_out
from ddpctl.transport.identities import KeyRing
from ddpctl.transport.limits import CLOSE_S, DIALS, WORKERS
from ddpctl.transport.local import LocalTransport
from ddpctl.transport.prompts import Prompter, Say
from ddpctl.transport.route import Hop, resolve
from ddpctl.transport.ssh import Connector, SSHTransport

if TYPE_CHECKING:
    from ddpctl.spec.inventory import Inventory

T = TypeVar("T")
_FILES_PROXIED = 4  # of a host behind a ProxyCommand: two while it starts, two that stay
USER_CONFIG = "~/.ssh/config"
_SPARE_FILES = 64  # descriptors besides the connections


class Preparable(Transport, Protocol):
    """A transport that can connect before it is used."""

    def prepare(self) -> None: ...


class SSHFleet:
    """The hosts of an inventory, behind SSH or on this machine."""

    def __init__(self, transports: Mapping[str, Preparable], close: Callable[[], None] = lambda: None) -> None:
        self._transports = dict(transports)
        self._close = close

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(self._transports)

    def transport(self, host: str) -> Transport:
        return self._preparable(host)

    def _preparable(self, host: str) -> Preparable:
        if host not in self._transports:
            raise UsageError(f"no host is named {host}", hint=f"there is: {', '.join(self.hosts)}")
        return self._transports[host]

    def map(
        self,
        work: Callable[[Transport], T],
        hosts: Iterable[str] | None = None,
        *,
        on_done: Callable[[str, T | DdpctlError], None] | None = None,
    ) -> FleetOutcome[T]:
        """Connects to all (hundreds at once where they only wait), works on 32 at a time.

        A host that cannot be connected to has that as its error; ``work`` does not run for it. ``on_done`` is called
        on the calling thread.
        """
        return self._all(work, hosts, WORKERS, on_done)

    def together(self, work: Callable[[Transport], T], hosts: Iterable[str] | None = None) -> FleetOutcome[T]:
        return self._all(work, hosts, None, None)

    def _all(
        self,
        work: Callable[[Transport], T],
        hosts: Iterable[str] | None,
        at_once: int | None,
        on_done: Callable[[str, T | DdpctlError], None] | None,
    ) -> FleetOutcome[T]:
        chosen = [self._preparable(name) for name in dict.fromkeys(self.hosts if hosts is None else hosts)]
        turn = threading.BoundedSemaphore(at_once) if at_once else nullcontext()
        interrupted = threading.Event()

        def job(transport: Preparable) -> T:
            transport.prepare()
            with turn:
                if interrupted.is_set():  # nothing is begun after Ctrl-C
                    raise Interrupted("interrupted")
                return work(transport)

        jobs = {transport.host: partial(job, transport) for transport in chosen}
        try:
            return fan_out(jobs, len(jobs) if at_once is None else DIALS, on_done)
        except KeyboardInterrupt:
            interrupted.set()
            self._hang_up()  # ends what the threads are waiting for; the fleet connects again when it is used
            raise

    def close(self) -> None:
        """Close every connection for good; never takes longer than a few seconds."""
        self._hang_up()
        self._close()

    def _hang_up(self) -> None:
        """Close every connection, side by side."""
        closers = [
            threading.Thread(target=transport.close, daemon=True, name=f"ddpctl-close-{name}")
            for name, transport in self._transports.items()
        ]
        for closer in closers:
            closer.start()
        until = time.monotonic() + CLOSE_S
        for closer in closers:
            closer.join(max(0.0, until - time.monotonic()))


def open_fleet(
    inventory: Inventory,
    hosts: Iterable[str] | None = None,
    prompter: Prompter | None = None,
    say: Say = lambda _text: None,
) -> SSHFleet:
    """The fleet of an inventory, or of the named hosts of it. Nothing is connected yet.

    ``prompter`` is asked for passphrases here, for a password when a server wants one. ``say`` gets warnings and the
    banners of servers, on any thread.

    Raises:
        UsageError: a host that is not there, an unreadable ssh_config, jump hosts in a circle.
    """
    names = inventory.names if hosts is None else tuple(dict.fromkeys(hosts))
    chosen = [inventory.host(name) for name in names]
    hops = routes(inventory, [host.name for host in chosen if not host.local], say)
    connector = open_connector(hops.values(), prompter, say)
    transports: dict[str, Preparable] = {
        host.name: LocalTransport(host) if host.local else SSHTransport(host, hops[host.name], connector)
        for host in chosen
    }
    return SSHFleet(transports, connector.close)


def open_connector(hops: Collection[Hop], prompter: Prompter | None = None, say: Say = lambda _text: None) -> Connector:
    """What makes the connections to ``hops``: its keys are loaded and unlocked, nothing is connected yet."""
    ring = KeyRing(prompter)
    ring.unlock(each for hop in hops for each in with_jumps(hop))
    _allow_files(sum(_FILES_PROXIED if hop.proxy_command else 1 for hop in hops))
    return Connector(ring, say)


def routes(inventory: Inventory, names: Collection[str], say: Say = lambda _text: None) -> dict[str, Hop]:
    """The way to each host; ssh_config is read once for all, and warned about once."""
    if not names:
        return {}
    named = inventory.ssh_config
    if named is None or Path(named).expanduser() == Path(USER_CONFIG).expanduser():
        config = ssh_config.load(USER_CONFIG, system=ssh_config.SYSTEM_CONFIG)
    else:
        config = ssh_config.load(named)
    hops = {name: resolve(inventory.host(name), inventory, config) for name in names}
    ignored = [key for hop in hops.values() for each in with_jumps(hop) for key in each.ignored]
    if left := list(dict.fromkeys((*ignored, *config.unknown))):
        say(f"ssh_config sets what ddpctl does not follow: {', '.join(left)}; docs/ssh.md says what it does")
    return hops


def with_jumps(hop: Hop) -> list[Hop]:
    """A hop and every jump host before it."""
    chain = [hop]
    while chain[-1].via is not None:
        chain.append(chain[-1].via)
    return chain


def _allow_files(connections: int) -> None:
    """Room for the descriptors of the connections: the usual soft limit is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + _SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
