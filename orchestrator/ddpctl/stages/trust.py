"""Finds unknown host keys, and writes the confirmed keys to known_hosts."""

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
from ddpctl.transport.fleet import fan_out, open_connector, routes
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
    """The host key that a server showed."""

    host: str  # its name in the inventory, or the jump host's in ssh_config
    address: str
    port: int
    key_type: str
    sha256: str
    state: str  # known | unknown | changed | unreachable
    error: DdpctlError | None = None
    name: str = ""  # the server's name in known_hosts
    blob: bytes = b""
    known: tuple[str, ...] = ()  # file:line of each other key of the server
    alias: bool = False  # the name is a HostKeyAlias, which known_hosts has without the port
    file: str = ""  # the known_hosts file for its key

    @property
    def forget(self) -> tuple[str, ...]:
        """The commands that remove the other keys."""
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
    """Ask every host and every jump host for its key, with a key exchange but without a login.

    A host behind a jump host can be asked only once the jump host's key is known. Until then the host is reported as
    unreachable with that error: trust the jump host, then survey again.

    Raises:
        UsageError: ssh_config cannot be read, or jump hosts form a circle.
    """
    hops = routes(inventory, [host.name for host in inventory.hosts if not host.local], say)
    servers = {each.label: each for hop in hops.values() for each in reversed(hop.chain)}
    tell(StageStarted(STAGE, len(servers)))
    connector = open_connector(list(hops.values()), inventory, prompter, say)
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
    verdict, entries = known_hosts.load(hop.known_hosts).judge_key(hop.key_name, hop.key_port, key)
    state = {Verdict.KNOWN: KNOWN, Verdict.UNKNOWN: UNKNOWN}.get(verdict, CHANGED)
    places = () if state == KNOWN else tuple(entry.place for entry in entries)
    file = next((file for file in hop.user_known_hosts if file != os.devnull), "")
    server = (hop.label, hop.address, hop.port, key.type, key.sha256, state, None, hop.key_name, key.blob, places)
    return KeyReport(*server, alias=hop.key_port != hop.port, file=file)


def new_lines(reports: Sequence[KeyReport]) -> list[str]:
    """Return the known_hosts lines of the unknown keys without duplicates. A changed key gets no line."""
    lines = [
        line_for(report.name, report.key_port, Key(report.key_type, report.blob))
        for report in reports
        if report.state == UNKNOWN
    ]
    return list(dict.fromkeys(lines))


def add(reports: Sequence[KeyReport], known_hosts_path: str | Path) -> list[str]:
    """Append the unknown keys to ``known_hosts_path``; return the new lines.

    A missing file is created with mode 0600. A lock keeps two calls apart. A key is not written if the file has got a
    key of its server since the survey.

    Raises:
        UsageError: the file cannot be written, or another ddpctl holds its lock for KNOWN_HOSTS_LOCK_S.
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
    verdict, _ = there.judge_key(report.name, report.key_port, Key(report.key_type, report.blob))
    return verdict is Verdict.UNKNOWN


def _append(path: Path, text: str) -> None:
    """Append ``text`` in a single write, on a new line even if the file's last line has no end."""
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
