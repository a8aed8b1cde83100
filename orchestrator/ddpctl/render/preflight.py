"""A preflight's report on a terminal: hosts worst first, findings, the mesh as a matrix, fixes to copy."""

from __future__ import annotations

from rich.console import Group as Lines
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ddpctl.render import groups
from ddpctl.render.console import columns
from ddpctl.render.groups import Group, LeftOut, Matrix
from ddpctl.spec.finding import Severity
from ddpctl.spec.fold import name_hosts
from ddpctl.spec.mesh import OK, Mesh, slow_links
from ddpctl.spec.preflight import PreflightReport
from ddpctl.spec.values import plural

STYLE = {
    Severity.ERROR: "bold red",
    Severity.WARNING: "yellow",
    Severity.UNKNOWN: "magenta",
    Severity.INFO: "cyan",
    Severity.SKIPPED: "dim",
    Severity.OK: "green",
}


def report_view(report: PreflightReport, *, skipped: bool = True) -> RenderableType:
    """Return the report. Its texts are never read as markup. ``skipped``: also the checks that do not apply."""
    parts: list[RenderableType] = [_head(report)]
    found = groups.group_problems(report.findings)
    if found:
        parts += [Text(), _hosts(report), Text(), *(_finding(group) for group in found)]
    unknown = groups.list_left_out(report.findings, Severity.UNKNOWN)
    if unknown:
        parts += [Text(), *(_unknown(left) for left in unknown)]
    infos = groups.of_severity(report.findings, Severity.INFO)
    if infos:
        parts += [Text(), *(_finding(group) for group in infos)]
    if report.mesh is not None and len(report.mesh.hosts) > 1:
        parts += [Text(), *_mesh(report.mesh)]
    fixes = [(group, fix) for group in found for fix in group.fixes]
    if fixes:
        parts += [Text(), Text("fixes", style="bold"), *_fixes(fixes)]
    return Lines(*parts, Text(), _passed(report), *(_skipped(report) if skipped else ()))


def _head(report: PreflightReport) -> Text:
    errors, warnings = report.count(Severity.ERROR), report.count(Severity.WARNING)
    verdict = groups.count_text(errors, warnings) or "all checks passed"
    style = "bold red" if errors else "yellow" if warnings else "bold green"
    again = f", measured {report.age_s:.0f} s ago" if report.age_s is not None else ""
    hosts = plural(len(report.hosts), "host")
    head = Text(f"preflight of {report.cluster}: {hosts}, {report.duration_s:.1f}s{again}: ")
    return head.append(verdict, style=style)


def _hosts(report: PreflightReport) -> Table:
    """Return a row for the hosts with the same problems; all healthy hosts share the last row."""
    table = columns("HOST", "RESULT", "CHECKS", overflow="fold")
    for row in groups.host_rows(report.hosts, report.findings):
        style = STYLE[Severity.ERROR if row.errors else Severity.WARNING if row.warnings else Severity.OK]
        result = row.result if len(row.hosts) == 1 or row.result == "ok" else f"{row.result} each"
        table.add_row(Text(name_hosts(row.hosts)), Text(result, style=style), Text(", ".join(row.checks) or "-"))
    return table


def _finding(group: Group) -> RenderableType:
    severity = group.first.severity
    head = (f"{severity.value:<8}", STYLE[severity]), (f"{group.first.check}  ", "bold")
    return Text.assemble(*head, f"{group.where}: {group.message}")


def _unknown(left: LeftOut) -> RenderableType:
    """Return a reason that keeps checks from examining hosts, once for all of these checks."""
    style = STYLE[Severity.UNKNOWN]
    where = name_hosts(left.hosts) or "all"
    return Text.assemble((f"{'unknown':<8}", style), (f"{', '.join(left.checks)}  ", "bold"), f"{where}: {left.why}")


def _fixes(fixes: list[tuple[Group, str]]) -> list[RenderableType]:
    """Return each fix on a line of its own, so that it can be copied whole."""
    lines: list[RenderableType] = []
    for number, (group, fix) in enumerate(fixes, 1):
        lines.append(Text(f"{number:>3}. {name_hosts(group.hosts) or 'all'} ({group.first.check})", style="dim"))
        lines.append(Text(f"     {fix}"))
    return lines


def _passed(report: PreflightReport) -> Text:
    ok = [f.check for f in report.findings if f.severity is Severity.OK]
    line = Text(f"{len(set(ok))} checks ok", style="green")
    subjects = list(dict.fromkeys(map(groups.subject_of, ok)))
    if subjects:
        line.append(f" ({', '.join(subjects)})", style="dim")
    return line


def _skipped(report: PreflightReport) -> list[Text]:
    """Return a line for each reason why checks were skipped."""
    lines = []
    for left in groups.list_left_out(report.findings, Severity.SKIPPED):
        where = f" on {name_hosts(left.hosts)}" if left.hosts and len(left.hosts) < len(report.hosts) else ""
        lines.append(Text(f"{left.why}{where}: {', '.join(left.checks)}", style="dim"))
    return lines


# --- the mesh --------------------------------------------------------------------------------------------------------


def _mesh(mesh: Mesh) -> list[RenderableType]:
    shown = groups.matrix(mesh)
    parts: list[RenderableType] = [Text.assemble(("mesh  ", "bold"), groups.matrix_summary(shown))]
    if mesh.note:
        parts.append(Text(f"      {mesh.note}", style="dim"))
    if shown.left_out and not shown.broken and not slow_links(mesh):
        return parts  # a big mesh without a fault needs no table
    parts.append(_matrix(shown, mesh))
    if shown.left_out:
        parts.append(Text(f"      {shown.left_out} more hosts, whose links are no worse, are not shown", style="dim"))
    return parts


def _matrix(shown: Matrix, mesh: Mesh) -> Table:
    """Return the table: rows dial columns; a cell is the link's speed, or its fault."""
    slow = slow_links(mesh)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    table.add_column("from \\ to")
    for host in shown.hosts:
        table.add_column(Text(host), justify="right")
    for row in shown.hosts:
        cells = [Text(row, style="bold")]
        for column in shown.hosts:
            link = shown.links.get((row, column))
            broken = link is not None and link.status != OK
            style = "bold red" if broken else "yellow" if (row, column) in slow else "green" if link else "dim"
            cells.append(Text("-", style="dim") if row == column else Text(groups.cell_text(link), style=style))
        table.add_row(*cells)
    return table
