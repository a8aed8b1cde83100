"""Work on many hosts at once: every host finishes, then every host is reported."""

from __future__ import annotations

import logging
import queue
import resource
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ddpctl.errors import DdpctlError, InternalFault, Interrupted, UsageError, to_ddpctl_error
from ddpctl.spec.command import Ran
from ddpctl.spec.ranges import fold_names
from ddpctl.transport import ssh_config
from ddpctl.transport.asked_config import AskedConfig
from ddpctl.transport.base import FleetOutcome, Transport
from ddpctl.transport.identities import KeyRing
from ddpctl.transport.limits import (
    CLOSE_S,
    CONNECT_NEWS_S,
    DIALS,
    OPENSSH_FILES,
    PROXY_FILES,
    RESULT_LOOK_S,
    SPARE_FILES,
    WORKERS,
)
from ddpctl.transport.local import LocalTransport
from ddpctl.transport.master import Masters, needs_openssh
from ddpctl.transport.openssh import config_file
from ddpctl.transport.prompts import OneQuestion, Prompter, Say
from ddpctl.transport.quiet import QuietCalls
from ddpctl.transport.route import USER_CONFIG, ConfigReader, Hop, resolve
from ddpctl.transport.ssh import Connector, SSHTransport

if TYPE_CHECKING:
    from ddpctl.spec.inventory import Inventory

_log = logging.getLogger(__name__)

T = TypeVar("T")
OnDone = Callable[[str, T | DdpctlError], None]
_Done = tuple[str, T | None, DdpctlError | None]


class _UntilInterrupt:
    """A host for one work. After Ctrl-C its calls fail, or the work would do the rest on a new connection."""

    def __init__(self, transport: Transport, interrupted: threading.Event) -> None:
        self._transport, self._interrupted = transport, interrupted

    @property
    def host(self) -> str:
        return self._transport.host

    @property
    def user(self) -> str:
        return self._transport.user

    def check(self) -> None:
        if self._interrupted.is_set():
            raise Interrupted("interrupted")

    def prepare(self) -> None:
        self.check()
        self._transport.prepare()

    def call(self, *args: Any, **how: Any) -> Any:
        self.check()
        return self._transport.call(*args, **how)

    def run(self, *args: Any, **how: Any) -> Ran:
        self.check()
        return self._transport.run(*args, **how)

    def close(self) -> None:
        self._transport.close()


class SSHFleet:
    """The hosts of an inventory, behind SSH or on this machine."""

    def __init__(
        self,
        transports: Mapping[str, Transport],
        close: Callable[[], None] = lambda: None,
        say: Say = lambda _text: None,
    ) -> None:
        self._transports = dict(transports)
        self._close, self._say = close, say

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(self._transports)

    def transport(self, host: str) -> Transport:
        if host not in self._transports:
            raise UsageError(f"no host is named {host}", hint=f"valid: {', '.join(self.hosts)}")
        return self._transports[host]

    def map(
        self,
        work: Callable[[Transport], T],
        hosts: Iterable[str] | None = None,
        *,
        on_done: OnDone[T] | None = None,
    ) -> FleetOutcome[T]:
        """Connect to all hosts (hundreds at once, because connecting is mostly waiting), and work on 32 at a time.

        A host that cannot be connected has the ConnectError as its error, and ``work`` does not run for it. ``on_done``
        is called on the calling thread.
        """
        return self._all(work, hosts, WORKERS, on_done)

    def together(self, work: Callable[[Transport], T], hosts: Iterable[str] | None = None) -> FleetOutcome[T]:
        return self._all(work, hosts, None, None)

    def _all(
        self,
        work: Callable[[Transport], T],
        hosts: Iterable[str] | None,
        at_once: int | None,
        on_done: OnDone[T] | None,
    ) -> FleetOutcome[T]:
        chosen = [self.transport(name) for name in dict.fromkeys(self.hosts if hosts is None else hosts)]
        turn = threading.BoundedSemaphore(at_once) if at_once else nullcontext()
        interrupted = threading.Event()
        connecting = {transport.host for transport in chosen}

        def say_who_is_awaited() -> None:
            if connecting:
                self._say(f"waiting for {fold_names(sorted(connecting))}: no connection yet")

        def job(transport: Transport) -> T:
            try:
                transport.prepare()
            finally:
                connecting.discard(transport.host)
            with turn:
                host = _UntilInterrupt(transport, interrupted)
                host.check()  # no work starts after Ctrl-C
                return work(host)

        jobs = {transport.host: partial(job, transport) for transport in chosen}
        news = threading.Timer(CONNECT_NEWS_S, say_who_is_awaited)
        news.daemon = True
        news.start()
        try:
            return fan_out(jobs, len(jobs) if at_once is None else DIALS, on_done)
        except KeyboardInterrupt:
            interrupted.set()
            self._hang_up()  # ends the waiting of the threads; the fleet connects again when it is next used
            raise
        finally:
            news.cancel()

    def close(self) -> None:
        """Close every connection for good, within CLOSE_S."""
        self._hang_up()
        self._close()

    def _hang_up(self) -> None:
        """Close every connection, all at the same time."""
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
    """Return the fleet of an inventory, or of some of its hosts. Nothing is connected yet.

    ``prompter`` is asked for passphrases now, and for a password when a server wants it. ``say`` gets warnings and the
    banners of servers, on any thread.

    Raises:
        UsageError: a host that is not in the inventory, an unreadable ssh_config, or jump hosts in a circle.
    """
    names = inventory.names if hosts is None else tuple(dict.fromkeys(hosts))
    chosen = [inventory.host(name) for name in names]
    hops = routes(inventory, [host.name for host in chosen if not host.local], say)
    connector = open_connector(hops.values(), inventory, prompter, say)
    quiet = QuietCalls(say)
    transports: dict[str, Transport] = {
        host.name: LocalTransport(host, quiet) if host.local else SSHTransport(host, hops[host.name], connector, quiet)
        for host in chosen
    }
    return SSHFleet(transports, connector.close, say)


def open_connector(
    hops: Collection[Hop], inventory: Inventory, prompter: Prompter | None = None, say: Say = lambda _text: None
) -> Connector:
    """Return a Connector for ``hops``. Its keys are loaded and unlocked; nothing is connected yet."""
    prompter = OneQuestion(prompter) if prompter is not None else None
    ring = KeyRing(prompter)
    own = [hop for hop in hops if not needs_openssh(hop)]
    ring.unlock(each for hop in own for each in hop.chain)
    _allow_files(sum(PROXY_FILES if hop.transport == "paramiko" else OPENSSH_FILES for hop in hops))
    return Connector(ring, Masters(config_file(inventory), prompter, say), say)


def routes(inventory: Inventory, names: Collection[str], say: Say = lambda _text: None) -> dict[str, Hop]:
    """Return the way to each host. ssh_config is read once for all hosts, and warnings about it appear once.

    Raises:
        UsageError: an unreadable ssh_config, or jump hosts in a circle.
    """
    if not names:
        return {}
    config = _read_config(inventory)
    hops = {name: resolve(inventory.host(name), inventory, config) for name in names}
    own = [each for hop in hops.values() if not needs_openssh(hop) for each in hop.chain]
    left = dict.fromkeys(option for each in own for option in each.openssh_options)
    if left:
        text = ", ".join(left)
        say(f"ssh_config sets options that `transport: paramiko` does not follow: {text}; see docs/ssh.md")
    return hops


def _read_config(inventory: Inventory) -> ConfigReader:
    named = inventory.ssh_config
    if named is None or Path(named).expanduser() == Path(USER_CONFIG).expanduser():
        config = ssh_config.load(USER_CONFIG, system=ssh_config.SYSTEM_CONFIG)
    else:
        config = ssh_config.load(named)
    return AskedConfig(config_file(inventory)) if config.unknown else config


def config_names() -> tuple[str, ...]:
    """Return the names without wildcards of the Host lines in the user's ssh_config.

    Raises:
        UsageError: the file cannot be read.
    """
    return ssh_config.load(USER_CONFIG).names


def _allow_files(connections: int) -> None:
    """Raise the soft limit of open files to fit the connections; it usually is 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


# --- work for many hosts, side by side --------------------------------------------------------------------------------
def fan_out(jobs: Mapping[str, Callable[[], T]], threads: int, on_done: OnDone[T] | None = None) -> FleetOutcome[T]:
    """Run every job (host -> work) on at most ``threads`` threads; ``on_done`` is called on the calling thread.

    An exception of a job is the error of its host alone. An exception other than DdpctlError becomes an InternalFault,
    with its traceback in the debug log. On Ctrl-C the call returns at once and starts no further job; the threads are
    daemons, and the owner of their connections closes them.
    """
    waiting: queue.SimpleQueue[tuple[str, Callable[[], T]]] = queue.SimpleQueue()
    for item in jobs.items():
        waiting.put(item)
    done: queue.SimpleQueue[_Done[T]] = queue.SimpleQueue()
    for number in range(min(threads, len(jobs))):
        threading.Thread(target=_work, args=(waiting, done), daemon=True, name=f"ddpctl-{number}").start()
    try:
        return _collect(tuple(jobs), done, on_done)
    finally:  # after Ctrl-C no further job starts
        with suppress(queue.Empty):
            while True:
                waiting.get_nowait()


def _work(
    waiting: queue.SimpleQueue[tuple[str, Callable[[], T]]],
    done: queue.SimpleQueue[_Done[T]],
) -> None:
    while True:
        try:
            host, job = waiting.get_nowait()
        except queue.Empty:
            return
        error: DdpctlError | None = InternalFault("its thread was ended", host=host)
        result = None
        try:
            result, error = job(), None
        except Exception as raised:
            error = to_ddpctl_error(raised, host)
            if isinstance(error, InternalFault):
                _log.debug("%s: internal error", host, exc_info=raised)
        finally:  # however this thread ends, nothing waits for the host
            done.put((host, result, error))


def _next(done: queue.SimpleQueue[_Done[T]]) -> _Done[T]:
    """Return the next finished host. Wait in short steps: the signal of Ctrl-C may go to another thread."""
    while True:
        with suppress(queue.Empty):
            return done.get(timeout=RESULT_LOOK_S)


def _collect(hosts: tuple[str, ...], done: queue.SimpleQueue[_Done[T]], on_done: OnDone[T] | None) -> FleetOutcome[T]:
    """Wait for every host; return results and errors in the order of ``hosts``."""
    results: dict[str, T] = {}
    errors: dict[str, DdpctlError] = {}
    for _ in hosts:
        host, result, error = _next(done)
        if error is not None:
            errors[host] = error
        else:
            results[host] = result  # type: ignore[assignment]  # None can be a value of T
        if on_done is not None:
            on_done(host, errors[host] if host in errors else results[host])
    return FleetOutcome(
        {host: results[host] for host in hosts if host in results},
        {host: errors[host] for host in hosts if host in errors},
    )
