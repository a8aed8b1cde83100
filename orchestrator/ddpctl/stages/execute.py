"""Runs a plain command on many hosts, as the login user or as root."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ddpctl.errors import RemoteError
from ddpctl.spec.command import Ran
from ddpctl.spec.event import StageEnded, StageStarted, Tell, counting
from ddpctl.spec.fold import group_by
from ddpctl.stages.limits import SUDO_PROBE_S
from ddpctl.transport.base import Fleet, FleetOutcome, Transport
from ddpctl.transport.bootstrap import last_line
from ddpctl.transport.limits import PASSWORD_TRIES

Ask = Callable[[str, Sequence[str]], str | None]
# Prints whether the login is root, has no sudo, may use sudo freely, or must give a password.
_PROBE = (
    'if [ "$(id -u)" = 0 ]; then echo root; elif ! command -v sudo >/dev/null; then echo none; '
    "elif sudo -n true 2>/dev/null; then echo free; else echo asks; fi"
)


class Sudo:
    """How each host runs a command as root.

    The password of a login is asked for once, for all hosts that need it. The question names these hosts, and only they
    get the password. The inventory decides which account the password is for, never the host: a host could name another
    account to get its password. All passwords are forgotten with this object.
    """

    def __init__(self, ask: Ask) -> None:
        """``ask`` gets the login and its hosts, and returns the password; ``None`` without an answer."""
        self._ask = ask
        self._sudo_kind: dict[str, str] = {}  # by host: ``root``, ``none``, ``free`` or ``asks``
        self._passwords: dict[str, str] = {}  # by host

    def prepare(self, fleet: Fleet, hosts: Iterable[str]) -> None:
        """Find out how sudo works on the hosts, then ask for the missing passwords. To be called on the main thread.

        Raises:
            RemoteError: no valid password was given.
        """
        new = [host for host in hosts if host not in self._sudo_kind]
        outcome = fleet.map(lambda transport: transport.run(["sh", "-c", _PROBE], timeout=SUDO_PROBE_S), new)
        for host, ran in outcome.results.items():
            self._sudo_kind[host] = last_line(ran.stdout.encode()).strip()  # a shell profile may print lines before it
        asking = [host for host in new if self._sudo_kind.get(host) == "asks"]
        for user, group in group_by(lambda host: fleet.transport(host).user, asking).items():
            password = self._password(fleet.transport(group[0]), user, group)
            self._passwords.update(dict.fromkeys(group, password))

    def _password(self, transport: Transport, user: str, hosts: Sequence[str]) -> str:
        """Ask for the password of a login, and try it on the first host: each failure counts against the account."""
        for _ in range(PASSWORD_TRIES):
            password = self._ask(user, hosts)
            if not password:
                raise RemoteError(
                    f"sudo needs the password of {user}, but no password was given",
                    hint="run ddpctl on a terminal, or allow this user sudo without a password (NOPASSWD)",
                    host=transport.host,
                )
            try:
                transport.run(["true"], timeout=SUDO_PROBE_S, password=password)
            except RemoteError as error:
                if error.kind != "sudo_password":
                    raise
            else:
                return password
        raise RemoteError(f"sudo rejected {PASSWORD_TRIES} passwords of {user}", host=transport.host)

    def run(self, transport: Transport, argv: Sequence[str], timeout: float) -> Ran:
        """Run ``argv`` as root.

        Raises:
            ConnectError, RemoteError: see ``Transport.run``; also where the host has no sudo.
        """
        how = self._sudo_kind.get(transport.host, "")
        if how == "none":
            raise RemoteError(f"{transport.user} is not root, and sudo is not installed", host=transport.host)
        password = {"root": None, "asks": self._passwords.get(transport.host)}.get(how, "")
        return transport.run(argv, timeout=timeout, password=password)


def execute(
    argv: Sequence[str], hosts: Sequence[str], fleet: Fleet, tell: Tell, *, timeout: float, sudo: Sudo | None = None
) -> FleetOutcome[Ran]:
    """Run ``argv`` on all ``hosts``, with ``timeout`` seconds on each. ``errors`` has the hosts that could not."""

    def work(transport: Transport) -> Ran:
        return sudo.run(transport, argv, timeout) if sudo else transport.run(argv, timeout=timeout)

    if sudo is not None:
        sudo.prepare(fleet, hosts)
    tell(StageStarted("exec", len(hosts)))
    outcome = fleet.map(work, hosts, on_done=counting("exec", len(hosts), tell))
    tell(StageEnded("exec", outcome.ok and all(ran.ok for ran in outcome.results.values())))
    return outcome
