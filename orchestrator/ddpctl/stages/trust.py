"""Host keys: show those of the hosts that are not known, and write the confirmed ones down."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from ddpctl.errors import DdpctlError, Unreachable, UsageError
from ddpctl.spec.event import StageEnded, StageStarted, Tell, counting
from ddpctl.stages.limits import KNOWN_HOSTS_LOCK_S
from ddpctl.transport import known_hosts
from ddpctl.transport.fleet import fan_out, open_connector, routes, with_jumps
from ddpctl.transport.known_hosts import SSH_PORT, Key, Verdict, entry_name, line_for
from ddpctl.transport.limits import DIALS
from ddpctl.transport.prompts import Prompter, Say
from ddpctl.transport.route import Hop
from ddpctl.transport.ssh import Connector

if TYPE_CHECKING:
    from ddpctl.spec.inventory import Inventory

STAGE = "trust"
KNOWN, UNKNOWN, CHANGED, UNREACHABLE = "known", "unknown", "changed", "unreachable"


@dataclass(frozen=True)
class KeyReport:
    """One server's host key, as it was shown to us."""

    host: str  # its name in the inventory, or the jump host's in ssh_config
    address: str
    port: int
    key_type: str
    sha256: str
    state: str  # known | unknown | changed | unreachable
    error: DdpctlError | None = None
    name: str = ""  # what known_hosts calls the server
    blob: bytes = b""
    known: tuple[str, ...] = ()  # where another key of it is written down: file:line
    alias: bool = False  # its name is a HostKeyAlias: written down without the port
    file: str = ""  # where its key is to be written down

    @property
    def forget(self) -> tuple[str, ...]:
        """The commands that take the other keys out."""
        return known_hosts.forget(entry_name(self.name, self.key_port), self.known)

    @property
    def key_port(self) -> int:
        return SSH_PORT if self.alias else self.port


def survey(
    inventory: Inventory,
    *,
    prompter: Prompter | None = None,
    say: Say = lambda _text: None,
    tell: Tell = lambda _event: None,
) -> list[KeyReport]:
    """Ask every host and every jump host for its key, by a key exchange without a login.

    A host behind a jump host can only be asked when the jump host's own key is known: until then it is reported as
    unreachable, with that as its error. Trust the jump host, then survey again.

    Raises:
        UsageError: an unreadable ssh_config, jump hosts in a circle.
    """
    hops = routes(inventory, [host.name for host in inventory.hosts if not host.local], say)
    servers = {each.label: each for hop in hops.values() for each in reversed(with_jumps(hop))}
    tell(StageStarted(STAGE, len(servers)))
    connector = open_connector(list(hops.values()), prompter, say)
    try:
        jobs = {label: partial(_shown_key, connector, hop) for label, hop in servers.items()}
        outcome = fan_out(jobs, DIALS, counting(STAGE, len(servers), tell))
    finally:
        connector.close()
    tell(StageEnded(STAGE, outcome.ok))
    return [_report(hop, outcome.results.get(label), outcome.errors.get(label)) for label, hop in servers.items()]


def _shown_key(connector: Connector, hop: Hop) -> Key:
    shown: list[Key] = []
    connector.ask_key(hop, lambda _hop, key: shown.append(key))
    return shown[0]


def _report(hop: Hop, key: Key | None, error: DdpctlError | None) -> KeyReport:
    if key is None:
        problem = error or Unreachable("shows no key", host=hop.label)
        return KeyReport(hop.label, hop.address, hop.port, "", "", UNREACHABLE, problem, hop.key_name)
    verdict, entries = known_hosts.load(hop.known_hosts).judge(hop.key_name, hop.key_port, key)
    state = {Verdict.KNOWN: KNOWN, Verdict.UNKNOWN: UNKNOWN}.get(verdict, CHANGED)
    places = () if state == KNOWN else tuple(entry.place for entry in entries)
    file = next((file for file in hop.user_known_hosts if file != os.devnull), "")
    server = (hop.label, hop.address, hop.port, key.type, key.sha256, state, None, hop.key_name, key.blob, places)
    return KeyReport(*server, alias=hop.key_port != hop.port, file=file)


def new_lines(reports: Sequence[KeyReport]) -> list[str]:
    """The lines for the unknown keys, each once. A changed key is never among them."""
    lines = [
        line_for(report.name, report.key_port, Key(report.key_type, report.blob))
        for report in reports
        if report.state == UNKNOWN
    ]
    return list(dict.fromkeys(lines))


def add(reports: Sequence[KeyReport], known_hosts_path: str | Path) -> list[str]:
    """Write the unknown keys down, at the end of ``known_hosts_path``; returns the lines that were added.

    The file is made with mode 0600 where it is missing. Two at once do not disturb each other, and a key that became
    known (or another) since the survey is not written.

    Raises:
        UsageError: the file cannot be written, or is locked by somebody for 10 s.
    """
    path = Path(known_hosts_path).expanduser()
    hint = "set `known_hosts:` in the inventory to another file"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(f"{path}.ddpctl-lock", timeout=KNOWN_HOSTS_LOCK_S, mode=0o600):
            there = known_hosts.load([str(path)])
            fresh = [report for report in reports if _still_unknown(there, report)]
            lines = new_lines(fresh)
            if lines:
                _append(path, "".join(f"{line}\n" for line in lines))
            return lines
    except Timeout:
        raise UsageError(
            f"{path} has been locked by another ddpctl for {KNOWN_HOSTS_LOCK_S:g} s", hint="try again"
        ) from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", hint=hint) from None


def _still_unknown(there: known_hosts.KnownHosts, report: KeyReport) -> bool:
    if report.state != UNKNOWN:
        return False
    verdict, _ = there.judge(report.name, report.key_port, Key(report.key_type, report.blob))
    return verdict is Verdict.UNKNOWN


def _append(path: Path, text: str) -> None:
    """In one write, on a line of its own even where the file's last line was not ended."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            text = "\n" + text
        data = text.encode("utf-8")
        if os.write(handle, data) != len(data):
            os.ftruncate(handle, size)
            raise OSError(28, "No space left on device", str(path))
        os.fsync(handle)
    finally:
        os.close(handle)
