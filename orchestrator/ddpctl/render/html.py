"""A preflight's report as an HTML page without scripts and requests, in light and dark."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from ddpctl.render import groups
from ddpctl.render.groups import Group, Matrix
from ddpctl.render.page import page
from ddpctl.spec.command import name_inventory
from ddpctl.spec.finding import Severity
from ddpctl.spec.fold import name_hosts
from ddpctl.spec.mesh import OK, Link, Mesh
from ddpctl.spec.preflight import PreflightReport
from ddpctl.spec.values import plural

HEAT_HOSTS = 64
WORDY_HOSTS = 20  # with more hosts a cell has no room for a number: colour and tooltip show it
# Shares of the median speed; a link below the first is in the lowest class, h1.
_HEAT = ((0.9, "h5"), (0.7, "h4"), (0.5, "h3"), (0.25, "h2"))


def preflight_html(report: PreflightReport, option: str = "") -> str:
    """Return the page. Every text of the report is escaped, so that it cannot become markup.

    ``option`` names the inventory in the commands of ddpctl; see ``spec.command.name_inventory``.
    """
    parts = [
        _head(report),
        _findings("What is wrong, and how to fix it", groups.group_problems(report.findings), option),
        _findings("Not checked", groups.of_severity(report.findings, Severity.UNKNOWN), option),
        _hosts(report),
        _mesh(report.mesh) if report.mesh is not None and len(report.mesh.hosts) > 1 else "",
        _findings("Worth knowing", groups.of_severity(report.findings, Severity.INFO), option),
        _rest(report),
    ]
    return page(f"preflight of {report.cluster}", parts)


def _head(report: PreflightReport) -> str:
    errors, warnings = report.count(Severity.ERROR), report.count(Severity.WARNING)
    kind = "error" if errors else "warning" if warnings else "ok"
    verdict = groups.count_text(errors, warnings) or "all checks passed"
    passed = len({f.check for f in report.findings if f.severity is Severity.OK})
    facts = f"{plural(len(report.hosts), 'host')} · {report.duration_s:.1f} s · {passed} checks ok"
    return (
        f'<header><p class="what">ddpctl preflight</p><h1>{escape(report.cluster)}</h1>'
        f'<p><span class="badge {kind}">{escape(verdict)}</span> <span class="soft">{escape(facts)}</span></p></header>'
    )


# --- findings --------------------------------------------------------------------------------------------------------


def _findings(title: str, found: Iterable[Group], option: str) -> str:
    cards = [_card(group, option) for group in found]
    return f"<section><h2>{escape(title)}</h2>{''.join(cards)}</section>" if cards else ""


def _card(group: Group, option: str) -> str:
    kind = group.first.severity.value
    fixes = "".join(f"<pre>{escape(name_inventory(fix, option))}</pre>" for fix in group.fixes)
    check, where = escape(group.first.check), escape(group.where)
    message = escape(name_inventory(group.message, option))
    return (
        f'<article class="{kind}"><h3><span class="badge {kind}">{kind}</span> <code>{check}</code> '
        f'<span class="where">{where}</span></h3><p>{message}</p>{fixes}</article>'
    )


# --- hosts -----------------------------------------------------------------------------------------------------------


def _hosts(report: PreflightReport) -> str:
    """Return a row for the hosts with the same problems, worst first, and a column for each subject of checks."""
    subjects = list(dict.fromkeys(groups.subject_of(f.check) for f in report.findings))
    worst: dict[tuple[str, str], Severity] = {}
    for finding in report.findings:
        subject = groups.subject_of(finding.check)
        for host in (*finding.hosts, finding.peer):
            if host is not None:
                known = worst.get((host, subject), Severity.OK)
                worst[host, subject] = min(known, finding.severity, key=lambda severity: severity.order)
    unreachable = set(report.unreachable)
    head = "".join(f"<th>{escape(subject)}</th>" for subject in subjects)
    rows = []
    for row in groups.host_rows(report.hosts, report.findings):
        cells = "".join(_subject(row.hosts, subject, worst, unreachable) for subject in subjects)
        rows.append(f"<tr><th>{escape(name_hosts(row.hosts))}</th><td>{escape(row.result)}</td>{cells}</tr>")
    return (
        '<section><h2>Hosts</h2><div class="wide"><table class="hosts"><thead><tr><th>host</th><th>result</th>'
        f"{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></section>"
    )


def _subject(
    hosts: tuple[str, ...], subject: str, worst: dict[tuple[str, str], Severity], unreachable: set[str]
) -> str:
    found = [worst[host, subject] for host in hosts if (host, subject) in worst]
    if found:
        kind = min(found, key=lambda severity: severity.order).value
        return f'<td class="cell {kind}">{kind}</td>'
    if unreachable.issuperset(hosts):
        return '<td class="cell none" title="could not be asked">-</td>'
    return '<td class="cell ok">ok</td>'


# --- the mesh --------------------------------------------------------------------------------------------------------


def _mesh(mesh: Mesh) -> str:
    note = f'<p class="soft">{escape(mesh.note)}</p>' if mesh.note else ""
    return f"<section><h2>Mesh</h2>{note}{heat_map(groups.matrix(mesh, HEAT_HOSTS))}</section>"


def heat_map(shown: Matrix) -> str:
    """Return the summary, the legend and the table."""
    note = ""
    if shown.left_out:
        note = f'<p class="soft">{shown.left_out} more hosts, whose links are no worse, are not shown.</p>'
    head = "".join(f'<th scope="col"><span>{escape(host)}</span></th>' for host in shown.hosts)
    rows = "".join(_heat_row(row, shown) for row in shown.hosts)
    small = " small" if len(shown.hosts) > WORDY_HOSTS else ""
    summary = escape(groups.matrix_summary(shown))
    return (
        f"<p>{summary}. Rows dial columns; a cell is the speed of that direction.</p>"
        f'{note}{_legend(shown)}<div class="wide"><table class="heat{small}"><thead><tr><td></td>{head}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _heat_row(row: str, shown: Matrix) -> str:
    cells = "".join(_heat_cell(row, column, shown) for column in shown.hosts)
    return f'<tr><th scope="row">{escape(row)}</th>{cells}</tr>'


def _heat_cell(row: str, column: str, shown: Matrix) -> str:
    if row == column:
        return '<td class="self"></td>'
    link = shown.links.get((row, column))
    if link is None:
        return f'<td class="untried" title="{escape(f"{row} to {column}: not tried", quote=True)}"></td>'
    kind = heat(link, shown.median_mbit)
    text = groups.cell_text(link)
    if len(shown.hosts) > WORDY_HOSTS:
        text = "" if link.status == OK else "×"
    return f'<td class="{kind}" title="{escape(_tip(link), quote=True)}">{escape(text)}</td>'


def heat(link: Link, median: float | None) -> str:
    """Return the class of a link's cell: ``broken``, or ``h1`` (slowest) to ``h5`` by its share of the median."""
    if link.status != OK:
        return "broken"
    if link.mbit is None or not median:
        return "h5"
    share = link.mbit / median
    return next((name for least, name in _HEAT if share >= least), "h1")


def _tip(link: Link) -> str:
    if link.status != OK:
        return f"{link.dialer} to {link.peer}: {link.status.replace('_', ' ')}"
    speed = "" if link.mbit is None else f", {link.mbit:.0f} Mbit/s"
    trip = "" if link.rtt_ms is None else f", round trip {link.rtt_ms:.2f} ms"
    return f"{link.dialer} to {link.peer}{speed}{trip}"


def _legend(shown: Matrix) -> str:
    words = (
        ("h5", "as the median or faster"),
        ("h4", "70-90 %"),
        ("h3", "50-70 %"),
        ("h2", "25-50 %"),
        ("h1", "under 25 %"),
        ("broken", "no connection"),
    )
    used = {heat(link, shown.median_mbit) for link in shown.links.values()}
    items = "".join(f'<li><i class="{kind}"></i>{escape(text)}</li>' for kind, text in words if kind in used)
    return f'<ul class="legend">{items}</ul>'


# --- all the rest ----------------------------------------------------------------------------------------------------


def _rest(report: PreflightReport) -> str:
    """Return the checks that passed, do not apply or were left out, folded."""
    parts = []
    for severity, title in ((Severity.OK, "Passed"), (Severity.SKIPPED, "Not applicable or left out")):
        found = [f for f in report.findings if f.severity is severity]
        if found:
            items = "".join(f"<li><code>{escape(f.check)}</code> {escape(f.message)}</li>" for f in found)
            parts.append(f"<details><summary>{title}: {len(found)}</summary><ul>{items}</ul></details>")
    return f"<section>{''.join(parts)}</section>" if parts else ""
