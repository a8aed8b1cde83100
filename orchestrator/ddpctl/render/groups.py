"""Groups findings: a text that many hosts share appears once. For the terminal and the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ddpctl.spec.autofix import exec_line
from ddpctl.spec.finding import LEFT_OUT, Finding, Severity
from ddpctl.spec.fold import group_by, join_steps, name_hosts, one_line
from ddpctl.spec.mesh import OK, Link, Mesh, worst_hosts
from ddpctl.spec.network import Network
from ddpctl.spec.values import plural

PROBLEMS = (Severity.ERROR, Severity.WARNING)
EACH_FIX = 3  # up to this number of hosts each get a fix to copy; more hosts share a fix with HOST in it
MATRIX_HOSTS = 16


@dataclass(frozen=True)
class Group:
    """Findings of a check with the same text; ``alike`` if names of hosts or numbers in the texts differ."""

    findings: tuple[Finding, ...]
    alike: bool = False

    @property
    def first(self) -> Finding:
        return self.findings[0]

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(host for f in self.findings for host in f.hosts))

    @property
    def peers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(f.peer for f in self.findings if f.peer))

    @property
    def where(self) -> str:
        """``node3``, ``node[0-499] (500 hosts)``, ``node1 - node0``, or ``all`` for the whole cluster."""
        where = name_hosts(self.hosts) or "all"
        return f"{where} - {name_hosts(self.peers)}" if self.peers else where

    @property
    def message(self) -> str:
        """The common text. If numbers or names differ, the first finding's text stands for all."""
        text = one_line(self.first.message)
        if not self.alike:
            return text
        said = self.first.host is None or self.first.host in text
        return f"{text} ({'' if said else f'{self.first.host}; '}the others are similar)"

    @property
    def fixes(self) -> tuple[str, ...]:
        """The fixes to copy: one for each finding, or for many findings a fix with the word HOST, or all fixes joined.

        Commands come first, as lines that are typed on the controller.
        """
        same = group_by(lambda finding: finding.command, self.findings)
        commands = [(found[0], _typed(command, found)) for command, found in same.items() if command]
        return (*_shared(commands), *_shared((f, f.fix) for f in self.findings if f.fix))


def _typed(command: str, findings: Iterable[Finding]) -> str:
    """Return the line that runs the command on the hosts of the findings."""
    hosts = tuple(dict.fromkeys(finding.host for finding in findings if finding.host))
    return exec_line(hosts, command) if hosts else command


def _shared(fixes: Iterable[tuple[Finding, str]]) -> tuple[str, ...]:
    texts = [(finding, one_line(text)) for finding, text in fixes]
    each = tuple(dict.fromkeys(text for _, text in texts))
    if len(each) <= EACH_FIX:
        return each
    shared = tuple(dict.fromkeys(finding.nameless(text) for finding, text in texts))
    if len(shared) == 1:
        return shared
    joined = join_steps(each)
    return (joined,) if joined is not None else shared


@dataclass(frozen=True)
class HostRow:
    """Hosts with the same problems: the number of errors and warnings of each host, and the checks."""

    hosts: tuple[str, ...]
    errors: int
    warnings: int
    checks: tuple[str, ...]

    @property
    def result(self) -> str:
        return count_text(self.errors, self.warnings) or "ok"


def count_text(errors: int, warnings: int) -> str:
    """Return ``2 errors, 1 warning``; empty without either."""
    return ", ".join(plural(count, word) for count, word in ((errors, "error"), (warnings, "warning")) if count)


def group_findings(findings: Iterable[Finding]) -> tuple[Group, ...]:
    """Return the findings, worst first; findings of a check with equal texts (except numbers) are a group."""
    same = group_by(lambda finding: (finding.severity, finding.check, finding.group_key), findings)
    made = []
    for members in same.values():
        texts = {one_line(finding.message) for finding in members}
        made.append(Group(tuple(members), alike=len(texts) > 1))
    return tuple(sorted(made, key=lambda group: group.first.severity.order))


def group_problems(findings: Iterable[Finding]) -> tuple[Group, ...]:
    """Return the errors and warnings, grouped."""
    return group_findings(f for f in findings if f.severity in PROBLEMS)


def of_severity(findings: Iterable[Finding], severity: Severity) -> tuple[Group, ...]:
    return group_findings(f for f in findings if f.severity is severity)


def host_rows(hosts: Sequence[str], findings: Iterable[Finding]) -> tuple[HostRow, ...]:
    """Return every host in exactly one row, hosts with the same problems together, worst first."""
    mine: dict[str, list[Finding]] = {host: [] for host in hosts}
    for finding in findings:
        if finding.severity in PROBLEMS:
            for host in dict.fromkeys((*finding.hosts, finding.peer)):
                if host in mine:
                    mine[host].append(finding)
    rows: dict[tuple[int, int, tuple[str, ...]], list[str]] = {}
    for host, own in mine.items():
        errors = sum(f.severity is Severity.ERROR for f in own)
        checks = tuple(dict.fromkeys(f.check for f in sorted(own, key=lambda f: f.severity.order)))
        rows.setdefault((errors, len(own) - errors, checks), []).append(host)
    ordered = sorted(rows.items(), key=lambda row: (-row[0][0], -row[0][1]))
    return tuple(HostRow(tuple(names), *key) for key, names in ordered)


@dataclass(frozen=True)
class LeftOut:
    """Checks without a result on these hosts, for the same reason. A subject stands for all of its checks."""

    why: str
    checks: tuple[str, ...]
    hosts: tuple[str, ...]


def list_left_out(findings: Sequence[Finding], severity: Severity) -> tuple[LeftOut, ...]:
    """Return the skipped or unknown checks by reason and hosts, in the order of the findings."""
    every: dict[str, set[str]] = {}
    for finding in findings:
        every.setdefault(subject_of(finding.check), set()).add(finding.check)
    found: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for finding in findings:
        if finding.severity is severity:
            why = LEFT_OUT if finding.on_request else finding.message
            found.setdefault((why, finding.hosts), []).append(finding.check)
    made = []
    for (why, hosts), checks in found.items():
        whole = {subject for subject, ids in every.items() if len(ids) > 1 and ids <= set(checks)}
        names = dict.fromkeys(subject_of(check) if subject_of(check) in whole else check for check in checks)
        made.append(LeftOut(why, tuple(names), hosts))
    return tuple(made)


def subject_of(check: str) -> str:
    """Return the first part of a check's id."""
    return check.split(".")[0]


# --- the mesh --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Matrix:
    """The links among ``hosts``. ``left_out``: hosts of the mesh that are not shown, because their links are fine."""

    hosts: tuple[str, ...]
    links: dict[tuple[str, str], Link] = field(default_factory=dict)
    left_out: int = 0
    total: int = 0
    broken: int = 0
    median_mbit: float | None = None
    median_rtt: float | None = None


def matrix(mesh: Mesh | Network, most: int = MATRIX_HOSTS) -> Matrix:
    """Return the mesh as a table; of a big mesh, the hosts with broken or slow links first."""
    links = {(link.dialer, link.peer): link for link in mesh.links()}
    rates = sorted(link.mbit for link in links.values() if link.mbit is not None)
    trips = sorted(link.rtt_ms for link in links.values() if link.rtt_ms is not None)
    shown = worst_hosts(mesh.hosts, links.values(), most)
    return Matrix(
        hosts=shown,
        links=links,
        left_out=len(mesh.hosts) - len(shown) + mesh.left_out,
        total=len(links),
        broken=sum(link.status != OK for link in links.values()),
        median_mbit=rates[len(rates) // 2] if rates else None,
        median_rtt=trips[len(trips) // 2] if trips else None,
    )


def rate_text(mbit: float) -> str:
    """Return ``940M``, ``9.4G`` (bits a second)."""
    return f"{mbit / 1000:.1f}G" if mbit >= 1000 else f"{mbit:.0f}M" if mbit >= 10 else f"{mbit:.1f}M"


def speed_text(mbit: float) -> str:
    """Return ``926 Mbit/s``, ``9.4 Gbit/s``."""
    short = rate_text(mbit)
    return f"{short[:-1]} {short[-1]}bit/s"


def cell_text(link: Link | None) -> str:
    """Return a link in a few characters: its speed, or its fault; ``.`` if it was not tried."""
    if link is None:
        return "."
    if link.status != OK:
        return link.status.replace("_", " ")
    return rate_text(link.mbit) if link.mbit is not None else "ok"


def matrix_summary(shown: Matrix) -> str:
    """Return ``56 links, 2 broken, median 940 Mbit/s, round trip 0.20 ms``."""
    parts = [f"{shown.total} links, {f'{shown.broken} broken' if shown.broken else 'all connect'}"]
    if shown.median_mbit is not None:
        parts.append(f"median {speed_text(shown.median_mbit)}")
    if shown.median_rtt is not None:
        parts.append(f"round trip {shown.median_rtt:.2f} ms")
    return ", ".join(parts)
