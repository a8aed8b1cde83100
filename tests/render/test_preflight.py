"""A preflight's report as text and as a page: what is alike is said once, nothing in it is ever markup."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ddpctl.render import groups
from ddpctl.render.console import make_console
from ddpctl.render.html import heat, preflight_html
from ddpctl.render.preflight import report_view
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.mesh import Dial, Link, Mesh, Speed
from ddpctl.spec.preflight import PreflightReport, sorted_findings
from tests.examples import few, fewest

ERROR, WARNING, INFO, OK, SKIPPED = (
    Severity.ERROR,
    Severity.WARNING,
    Severity.INFO,
    Severity.OK,
    Severity.SKIPPED,
)


def names(count: int) -> tuple[str, ...]:
    return tuple(f"node{index}" for index in range(count))


def report(count: int, *findings: Finding, **keys: Any) -> PreflightReport:
    hosts = names(count)
    return PreflightReport("lab", hosts, sorted_findings(findings, hosts), 1.25, **keys)


def mesh(count: int, broken: dict[tuple[str, str], str] | None = None, slow: str | None = None) -> Mesh:
    hosts, broken = names(count), broken or {}
    pairs = [(a, b) for a in hosts for b in hosts if a != b]
    dials = tuple(Dial(*pair, "10.0.0.1", 29500, broken.get(pair, "ok")) for pair in pairs)
    rates = {pair: 80.0 if slow in pair else 940.0 for pair in pairs}
    speeds = tuple(Speed(*pair, 0.2, rates[pair], rates[pair]) for pair in pairs if pair not in broken)
    return Mesh(hosts=hosts, dials=dials, speeds=speeds)


def text(one: PreflightReport, **how: bool) -> str:
    stream = io.StringIO()
    make_console(stream).print(report_view(one, **how))
    return stream.getvalue()


# --- what is alike is said once --------------------------------------------------------------------------------------


def test_500_hosts_that_refuse_are_one_line() -> None:
    refused = [
        Finding("ssh.connect", ERROR, f"port 22 of 10.0.{i // 250}.{i % 250} refuses", name, fix=f"ssh -v {name}")
        for i, name in enumerate(names(500))
    ]
    shown = text(report(500, *refused, unreachable=names(500)))
    assert len([line for line in shown.splitlines() if line.startswith("error")]) == 1
    assert "node[0-499] (500 hosts)" in shown
    assert "ssh -v HOST" in shown
    assert len(shown.splitlines()) < 15


def test_few_hosts_get_a_fix_each() -> None:
    found = [Finding("host.shm", WARNING, "small", name, fix=f"ssh {name} mount") for name in names(3)]
    (group,) = groups.group_problems(found)
    assert group.fixes == ("ssh node0 mount", "ssh node1 mount", "ssh node2 mount")
    assert group.where == "node[0-2] (3 hosts)"


def test_a_command_is_shown_as_it_is_typed_here() -> None:
    found = [
        Finding("host.shm", WARNING, "small", name, command="sudo mount -o 'size=50%' /dev/shm", fix="until the reboot")
        for name in names(5)
    ]
    (group,) = groups.group_problems(found[:1])
    assert group.fixes == ("ddpctl exec --sudo --host node0 -- mount -o size=50% /dev/shm", "until the reboot")
    (group,) = groups.group_problems(found)
    line = "ddpctl exec --sudo --host 'node[0-4]' -- mount -o size=50% /dev/shm"
    assert group.fixes[0] == line
    assert line in text(report(5, *found))


def test_commands_that_differ_on_many_hosts_are_one_line_with_a_mark() -> None:
    found = [Finding("host.x", WARNING, "odd", name, command=f"hostname {name}") for name in names(5)]
    (group,) = groups.group_problems(found)
    assert group.fixes == ("ddpctl exec --host HOST -- sh -c 'hostname HOST'",)


def test_the_page_names_the_inventory_in_its_commands() -> None:
    found = Finding("port.x", ERROR, "taken", "node0", command="kill 7", fix="`ddpctl kill r1`, or another port")
    page = preflight_html(report(1, found), "-i 'a&b.yaml' ")
    assert "<pre>ddpctl -i &#x27;a&amp;b.yaml&#x27; exec --host node0 -- sh -c &#x27;kill 7&#x27;</pre>" in page
    assert "`ddpctl -i &#x27;a&amp;b.yaml&#x27; kill r1`" in page
    assert '<p class="what">ddpctl preflight</p>' in page


def test_what_was_not_looked_at_is_told_and_not_among_what_passed() -> None:
    closed = Finding("gpu.xid", Severity.UNKNOWN, "not checked: the kernel log is for root only", "node1")
    one = report(2, closed, Finding("host.shm", OK, "fine"))
    assert "unknown gpu.xid  node1: not checked" in text(one)
    mesh = [Finding(f"mesh.{name}", Severity.UNKNOWN, "not checked: nobody answers") for name in ("mtu", "route")]
    assert "unknown gpu.xid, mesh  all: not checked: nobody" in text(
        report(2, Finding("gpu.xid", Severity.UNKNOWN, mesh[0].message), *mesh)
    )
    assert "1 checks ok (host)" in text(one)
    assert "Not checked" in preflight_html(one)
    assert one.ok


def test_hosts_worst_first_and_the_healthy_in_one_row() -> None:
    found = [
        Finding("a.a", WARNING, "w", "node5"),
        Finding("b.b", ERROR, "e", "node3"),
        Finding("c.c", ERROR, "pair", "node3", "node6"),
    ]
    rows = groups.host_rows(names(8), found)
    assert [row.hosts for row in rows] == [
        ("node3",),
        ("node6",),
        ("node5",),
        ("node0", "node1", "node2", "node4", "node7"),
    ]
    assert rows[0].result == "2 errors"
    assert rows[-1].result == "ok"


@given(
    st.lists(
        st.builds(
            Finding,
            st.sampled_from(["a.a", "b.b"]),
            st.sampled_from(list(Severity)),
            st.text(min_size=1),
            st.sampled_from([None, "node0", "node1"]),
            st.sampled_from([None, "node2"]),
            st.one_of(st.none(), st.text()),
        )
    )
)
@fewest
def test_grouping_loses_no_finding(found: list[Finding]) -> None:
    made = groups.group_findings(found)
    assert sorted(map(repr, found)) == sorted(repr(one) for group in made for one in group.findings)
    order = [group.first.severity.order for group in made]
    assert order == sorted(order)
    rows = groups.host_rows(names(4), found)
    assert sorted(host for row in rows for host in row.hosts) == list(names(4))


# --- the terminal ----------------------------------------------------------------------------------------------------

HOSTILE = '[bold]x[/bold] [/] <script>alert(1)</script> :smile: \x1b[31m {host} & "quoted"'


def test_text_is_never_markup() -> None:
    shown = text(report(2, Finding("a.b", ERROR, HOSTILE, "node0", fix=HOSTILE)))
    assert "[bold]x[/bold] [/] <script>" in shown
    assert ":smile:" in shown
    assert "\x1b" not in shown


@given(st.text(), st.text())
@few
def test_any_text_can_be_drawn_by_any_console(message: str, fix: str) -> None:
    one = report(2, Finding("a.b", ERROR, message, "node0", "node1", fix), Finding("c.d", INFO, message, "node1"))
    Console(file=io.StringIO()).print(report_view(one))
    make_console(io.StringIO()).print(report_view(one))
    preflight_html(one)


def test_without_colour_every_word_is_there() -> None:
    found = (
        Finding("a.b", ERROR, "broken", "node0", fix="repair it"),
        Finding("c.d", WARNING, "odd", "node1"),
        Finding("e.f", INFO, "harmless", "node1"),
        Finding("g.h", OK, "fine"),
        Finding("i.j", SKIPPED, "title: left out on request", on_request=True),
        Finding("g.k", SKIPPED, "not applicable: no GPU found", "node2"),
    )
    shown = text(report(3, *found, mesh=mesh(3, {("node0", "node1"): "no_route"})))
    assert "\x1b" not in shown
    for words in ("1 error, 1 warning", "error   a.b  node0: broken", "info    e.f", "repair it", "no route", "940M"):
        assert words in shown
    for words in ("1 checks ok (g)", "left out on request: i.j", "not applicable: no GPU found on node2: g.k"):
        assert words in shown


def test_a_refused_start_names_no_check_that_does_not_apply() -> None:
    one = report(2, Finding("a.b", ERROR, "broken", "node0"), Finding("g.k", SKIPPED, "not applicable: no GPU found"))
    assert "not applicable" not in text(one, skipped=False)


def test_a_healthy_cluster_is_short() -> None:
    shown = text(report(2, Finding("a.b", OK, "fine")))
    assert shown.splitlines()[0] == "preflight of lab: 2 hosts, 1.2s: all checks passed"
    assert len(shown.splitlines()) == 3


def test_a_big_mesh_shows_the_hosts_in_trouble() -> None:
    shown = text(report(40, mesh=mesh(40, {("node7", "node31"): "dropped"}, slow="node12")))
    assert "1 broken" in shown
    row = next(line for line in shown.splitlines() if line.startswith("node7 "))
    assert "dropped" in row
    assert any(line.startswith("node12 ") and "80M" in line for line in shown.splitlines())
    assert "24 more hosts" in shown


def test_a_big_mesh_without_a_blemish_is_one_line() -> None:
    shown = text(report(40, mesh=mesh(40)))
    assert "1560 links, all connect, median 940 Mbit/s, round trip 0.20 ms" in shown
    assert "node7" not in shown


# --- the page --------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Tags and their attributes, and that each is closed."""

    VOID = frozenset({"meta", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def parsed(one: PreflightReport) -> Page:
    page = Page()
    page.feed(preflight_html(one))
    page.close()
    assert page.open == []
    return page


def test_the_page_needs_nothing_else() -> None:
    found = Finding("a.b", ERROR, HOSTILE, "node0", fix=HOSTILE)
    page = parsed(report(4, found, mesh=mesh(4, {("node1", "node0"): "dropped"})))
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "link", "img", "iframe", "object", "embed", "base"}
    assert not {name for _, given in page.tags for name in given} & {"src", "href", "onclick", "style"}
    assert not re.search(r"url\(|@import|https?:", preflight_html(report(2)))
    assert any("<script>alert(1)</script>" in words for words in page.words)


@given(st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"])))
def test_no_text_makes_a_tag(message: str, cluster: str) -> None:
    plain = parsed(report(2, Finding("a.b", ERROR, "x", "node0", fix="y")))
    hosts = names(2)
    hostile = PreflightReport(cluster, hosts, (Finding("a.b", ERROR, message, "node0", fix=message or "y"),), 1.25)
    assert [tag for tag, _ in parsed(hostile).tags] == [tag for tag, _ in plain.tags]


@pytest.mark.parametrize(
    ("link", "kind"),
    [
        (Link("a", "b", "dropped"), "broken"),
        (Link("a", "b", "ok", 0.2, 1000.0), "h5"),
        (Link("a", "b", "ok", 0.2, 600.0), "h3"),
        (Link("a", "b", "ok", 0.2, 10.0), "h1"),
        (Link("a", "b", "ok"), "h5"),
    ],
)
def test_heat(link: Link, kind: str) -> None:
    assert heat(link, 1000.0) == kind


def test_the_mesh_as_a_heat_map_with_words() -> None:
    page = parsed(report(3, mesh=mesh(3, {("node1", "node0"): "no_route"})))
    cells = [given for tag, given in page.tags if tag == "td" and "title" in given]
    assert len(cells) == 6
    assert {"class": "broken", "title": "node1 to node0: no route"} in cells
    assert "no route" in page.words


def test_a_host_that_was_not_asked_is_not_called_ok() -> None:
    one = report(
        2, Finding("ssh.connect", ERROR, "refused", "node1"), Finding("gpu.xid", OK, "f"), unreachable=("node1",)
    )
    cells = [given.get("class") for tag, given in parsed(one).tags if tag == "td" and "class" in given]
    assert cells == ["cell error", "cell none", "cell ok", "cell ok"]
