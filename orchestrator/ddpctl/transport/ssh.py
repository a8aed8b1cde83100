"""Hosts behind SSH: connections are opened at first use, shared where they are jump hosts, and opened again if lost."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ddpctl.errors import ConnectError, DdpctlError, LinkLost, RemoteError, Unreachable
from ddpctl.spec.command import Ran
from ddpctl.transport import conversation, known_hosts
from ddpctl.transport.agent import AgentBusy
from ddpctl.transport.bootstrap import last_line, worker_line
from ddpctl.transport.dial import Dropped, Resolver, dial
from ddpctl.transport.identities import KeyRing
from ddpctl.transport.jumps import JumpHosts
from ddpctl.transport.limits import (
    CHANNEL_S,
    DIALS,
    DROPPED_PAUSE_S,
    DROPPED_RETRIES,
    GATE_S,
    LOGINS,
    LOGINS_BEHIND_JUMP,
    PROXIES,
    SESSION_PAUSE_S,
    SESSION_RETRIES,
    TUNNELS,
)
from ddpctl.transport.link import HopLogin
from ddpctl.transport.login import JudgeKey, authenticate, handshake
from ddpctl.transport.master import SSH_FAILED, Master, Masters, needs_openssh, was_refused
from ddpctl.transport.pipe import Pipe
from ddpctl.transport.prompts import Banners, PasswordNeeded, Say, SecondFactor
from ddpctl.transport.quiet import QuietCalls
from ddpctl.transport.route import Hop

if TYPE_CHECKING:
    from ddpctl.spec.inventory import Host
    from ddpctl.transport.node import NodeConnection, OverOpenSSH

T = TypeVar("T")


class Gates:
    """Bounds how many connections are opened at once."""

    def __init__(self) -> None:
        self.dials = threading.BoundedSemaphore(DIALS)
        self.logins = threading.BoundedSemaphore(LOGINS)
        self.proxies = threading.BoundedSemaphore(PROXIES)
        self._logins_near: defaultdict[object, threading.BoundedSemaphore] = defaultdict(
            lambda: threading.BoundedSemaphore(LOGINS_BEHIND_JUMP)
        )
        self._tunnels: defaultdict[Hop, threading.BoundedSemaphore] = defaultdict(
            lambda: threading.BoundedSemaphore(TUNNELS)
        )
        self._lock = threading.Lock()

    def logins_near(self, hop: Hop) -> AbstractContextManager[object]:
        """Bound the logins behind one jump host, or on one server that several hosts of the inventory share."""
        with self._lock:
            return self._logins_near[hop.via or (hop.address, hop.port)]

    def tunnels(self, jump: Hop) -> AbstractContextManager[object]:
        with self._lock:
            return self._tunnels[jump]


class Connector:
    """Opens the connections of a fleet."""

    def __init__(self, ring: KeyRing, masters: Masters, say: Say = lambda _text: None) -> None:
        self._ring, self._masters = ring, masters
        self._banners = Banners(say)
        self._gates = Gates()
        self._names = Resolver()
        self._jumps = JumpHosts(self._connect)
        self.closed = threading.Event()

    def connect(self, hop: Hop) -> HopLogin | Master:
        """Return a new login on ``hop``, through its jump hosts, held by OpenSSH where only OpenSSH can log in.

        Raises:
            ConnectError: with the cause and the next step; the caller adds the host.
        """
        if needs_openssh(hop):
            return self._masters.connect(hop)
        try:
            return self._connect(hop)
        except SecondFactor:
            if any(each.transport == "paramiko" for each in hop.chain):
                raise
            return self._masters.connect(hop)

    def _connect(self, hop: Hop) -> HopLogin:
        """Return a new login on ``hop`` by ddpctl's own client.

        A person may be asked for a password, or by the agent for a confirmation. No connection is open during the
        question, because sshd gives a login two minutes (LoginGraceTime).

        Raises:
            ConnectError: with the cause and the next step; the caller adds the host.
        """
        turn: AbstractContextManager[object] = nullcontext()
        while True:
            try:
                return self._attempt(hop, partial(self._login, hop, turn))
            except PasswordNeeded as needed:
                turn = nullcontext()
                if not self._ring.passwords.ask(hop):
                    raise needed.refusal from None
            except AgentBusy as busy:
                turn = busy.agent.turn

    def ask_key(self, hop: Hop, judge: JudgeKey) -> None:
        """Exchange keys without a login, to see the host key alone. Jump hosts are logged in to."""
        if hop.via is not None and needs_openssh(hop.via):
            hop = self._masters.through_jump(hop)
        try:
            self._show_key(hop, judge)
        except SecondFactor:  # of the jump host
            if hop.via is None or hop.via.transport == "paramiko":
                raise
            self._show_key(self._masters.through_jump(hop), judge)

    def _show_key(self, hop: Hop, judge: JudgeKey) -> None:
        self._attempt(hop, lambda via: self._key_exchange(hop, via, judge))

    def _attempt(self, hop: Hop, once: Callable[[HopLogin | None], T]) -> T:
        said = b""
        for number in range(1 + DROPPED_RETRIES):
            if number:
                self.closed.wait(random.uniform(*DROPPED_PAUSE_S) * 2 ** (number - 1))
            if self.closed.is_set():
                raise LinkLost("the connections are being closed")
            try:
                return once(self._jumps.connection(hop.via) if hop.via is not None else None)
            except Dropped as error:
                said = error.said or said
        words = last_line(said)
        if hop.proxy_command:
            raise Unreachable(
                f"ProxyCommand `{hop.proxy_command}` ended {1 + DROPPED_RETRIES} times before {hop.where} said anything"
                + (f": {words}" if words else ""),
                hint="run it by hand to see why",
            )
        raise Unreachable(
            f"{hop.where} closed the connection {1 + DROPPED_RETRIES} times before SSH began"
            + (f": {words}" if words else ""),
            hint="raise MaxStartups in sshd_config there, and check that it is an SSH server and lets this machine in",
        )

    def _login(self, hop: Hop, agent: AbstractContextManager[object], via: HopLogin | None) -> HopLogin:
        # Take the agent's turn after the jump host is connected: the jump host's login may itself wait for the agent.
        with agent, self._turn(hop, via) as sock:
            connection = handshake(hop, sock, known_hosts.load(hop.known_hosts))
            link = HopLogin(hop, connection)
            try:
                authenticate(hop, connection, self._ring, self._banners.heard)
            except BaseException:
                link.close()
                raise
        return link

    def _key_exchange(self, hop: Hop, via: HopLogin | None, judge: JudgeKey) -> None:
        with self._turn(hop, via) as sock:
            HopLogin(hop, handshake(hop, sock, known_hosts.load(hop.known_hosts), judge)).close()

    @contextmanager
    def _turn(self, hop: Hop, via: HopLogin | None) -> Iterator[Any]:
        """Yield a socket on which the server speaks, when it is this login's turn."""
        if hop.proxy_command:  # a process for each, started only when the turn comes
            with self._gates.proxies:
                yield self._reach(hop, via)
            return
        sock, since = self._reach(hop, via), time.monotonic()
        with self._gates.logins_near(hop), self._gates.logins:
            if time.monotonic() - since > GATE_S:
                sock.close()
                sock = self._reach(hop, via)
            yield sock

    def _reach(self, hop: Hop, via: HopLogin | None) -> Any:
        """Return a socket, a tunnel or a ProxyCommand on which the server speaks."""
        if via is not None:
            with self._gates.tunnels(via.hop):
                return via.tunnel(hop)
        if hop.proxy_command:
            from ddpctl.transport.proxy import ProxySocket  # rarely needed

            return ProxySocket(hop)
        with self._gates.dials:
            return dial(hop, self._names)

    def close(self) -> None:
        """Close the jump hosts and the agent. Connections that are being opened give up."""
        self.closed.set()
        self._jumps.close()
        self._masters.close()
        self._ring.close()


class SSHTransport(conversation.WorkerTransport):
    """A host behind SSH."""

    def __init__(self, host: Host, hop: Hop, connector: Connector, quiet: QuietCalls) -> None:
        super().__init__(host, quiet)
        self._hop, self._connector = hop, connector
        self._link: HopLogin | Master | None = None
        self._line = worker_line(host.python)
        self._node: NodeConnection | OverOpenSSH | None = None

    @property
    def user(self) -> str:
        return self._hop.user

    def prepare(self) -> None:
        self._connected()

    def _connected(self) -> tuple[HopLogin | Master, bool]:
        """Return the connection, and whether it is new."""
        with self._lock:
            if self._link is not None:
                if self._link.alive:
                    return self._link, False
                self._link.close()
            try:
                self._link = self._connector.connect(self._hop)
            except ConnectError as error:
                raise conversation.with_host(self.host, error) from None
            return self._link, True

    def _worker(self, timeout: float | None) -> Pipe:
        """Start the worker's command. A connection that died since its last use is opened again, once."""
        patience = CHANNEL_S if timeout is None else timeout
        link, new = self._connected()
        try:
            return link.start(self._line, patience, self._waiting.end)
        except LinkLost as error:
            link.close()
            if new:
                raise conversation.with_host(self.host, error) from None
        link, _ = self._connected()
        return link.start(self._line, patience, self._waiting.end)

    def run(self, argv: Sequence[str], *, timeout: float | None = 60.0, password: str | None = None) -> Ran:
        try:
            link, _ = self._connected()
            if isinstance(link, Master):
                return self._run_by_openssh(link, argv, timeout, password)
            return self._run(argv, timeout, password)
        except DdpctlError as error:
            raise conversation.with_host(self.host, error) from None

    def _run(self, argv: Sequence[str], timeout: float | None, password: str | None) -> Ran:
        from ddpctl.transport import node  # fabric loads slowly and only `exec` needs it

        with self._lock:
            if not isinstance(self._node, node.NodeConnection):
                self._node = node.NodeConnection(self._hop, self._own_login, self._waiting.end)
        try:
            return node.run(self._node, argv, timeout, password)
        except RemoteError as error:
            link = self._link
            if error.kind == "no_exit_status" and not (link and link.alive):
                raise _lost_meanwhile() from None
            raise

    def _own_login(self) -> HopLogin:
        link, _ = self._connected()
        if isinstance(link, Master):
            raise LinkLost("the connection was lost", hint="repeat the command")
        return link

    def _run_by_openssh(self, link: Master, argv: Sequence[str], timeout: float | None, password: str | None) -> Ran:
        from ddpctl.transport import node  # as above

        with self._lock:
            if not isinstance(self._node, node.OverOpenSSH):
                self._node = node.OverOpenSSH()
            over = self._node
        for again in range(SESSION_RETRIES + 1):
            with link.session(CHANNEL_S, self._waiting.end) as words:
                over.starter = words
                ran = node.run(over, argv, timeout, password)
            if ran.exit_code != SSH_FAILED:
                return ran
            if link.has_died():
                raise _lost_meanwhile()
            if not was_refused(ran.stderr.encode()):
                return ran
            error = link.no_session_error()
            time.sleep(SESSION_PAUSE_S * 2**again)
        raise error

    def close(self) -> None:
        link = self._link
        if link is not None:
            if link.alive:
                if self._node is not None:
                    self._node.close()
                self._waiting.end()
            link.close()


def _lost_meanwhile() -> LinkLost:
    return LinkLost("the connection was lost while the command ran", hint="check the host and the network to it")
