"""One plain command on many hosts, as the login or as root."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ddpctl.errors import RemoteError
from ddpctl.spec.command import Ran
from ddpctl.spec.event import StageEnded, StageStarted, Tell, counting
from ddpctl.spec.fold import by
from ddpctl.stages.limits import SUDO_PROBE_S
from ddpctl.transport.base import Fleet, FleetOutcome, Transport
from ddpctl.transport.bootstrap import last_line
from ddpctl.transport.limits import PASSWORD_TRIES

Ask = Callable[[str, Sequence[str]], str | None]
# Says what sudo wants of the login.
_PROBE = (
    'if [ "$(id -u)" = 0 ]; then echo root; elif ! command -v sudo >/dev/null; then echo none; '
    "elif sudo -n true 2>/dev/null; then echo free; else echo asks; fi"
)


class Sudo:
    """How each host runs a command as root.

    The password of a login is asked for once for all hosts where it is needed, and the question names these hosts: only
    they get it. Whose password that is the inventory says, never the host: a host that claimed the name of another
    account would get the password of that one. All passwords are forgotten with this object.
    """

    def __init__(self, ask: Ask) -> None:
        """``ask`` gets the name of the login and its hosts; None when nobody answers."""
        self._ask = ask
        self._wants: dict[str, str] = {}  # host -> root, none, free or asks
        self._passwords: dict[str, str] = {}  # by host

    def prepare(self, fleet: Fleet, hosts: Iterable[str]) -> None:
        """Find out what the hosts want, then ask for the passwords that are not known yet; on the main thread.

        Raises:
            RemoteError: nobody knows the password.
        """
        new = [host for host in hosts if host not in self._wants]
        told = fleet.map(lambda transport: transport.run(["sh", "-c", _PROBE], timeout=SUDO_PROBE_S), new)
        for host, ran in told.results.items():
            self._wants[host] = last_line(ran.stdout.encode()).strip()  # a profile may print before it
        asking = [host for host in new if self._wants.get(host) == "asks"]
        for user, group in by(lambda host: fleet.transport(host).user, asking).items():
            password = self._password(fleet.transport(group[0]), user, group)
            self._passwords.update(dict.fromkeys(group, password))

    def _password(self, transport: Transport, user: str, hosts: Sequence[str]) -> str:
        """Tried on one host before all others, where each wrong one counts against the account."""
        for _ in range(PASSWORD_TRIES):
            password = self._ask(user, hosts)
            if not password:
                raise RemoteError(
                    f"sudo needs the password of {user}, but none was given",
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
        """``argv`` as root.

        Raises:
            ConnectError, RemoteError: see ``Transport.run``; there is no sudo.
        """
        how = self._wants.get(transport.host, "")
        if how == "none":
            raise RemoteError(f"{transport.user} is not root, and sudo is not installed", host=transport.host)
        password = {"root": None, "asks": self._passwords.get(transport.host)}.get(how, "")
        return transport.run(argv, timeout=timeout, password=password)


def execute(
    argv: Sequence[str], hosts: Sequence[str], fleet: Fleet, tell: Tell, *, timeout: float, sudo: Sudo | None = None
) -> FleetOutcome[Ran]:
    """Run ``argv`` on all ``hosts``, with ``timeout`` seconds on each. A host that could not run it is in
    ``errors``."""

    def work(transport: Transport) -> Ran:
        return sudo.run(transport, argv, timeout) if sudo else transport.run(argv, timeout=timeout)

    if sudo is not None:
        sudo.prepare(fleet, hosts)
    tell(StageStarted("exec", len(hosts)))
    outcome = fleet.map(work, hosts, on_done=counting("exec", len(hosts), tell))
    tell(StageEnded("exec", outcome.ok and all(ran.ok for ran in outcome.results.values())))
    return outcome
