"""What a user does, down to what is shown: these scenes cover every verb of the worker."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ddpctl.code import find_archive
from ddpctl.environment import managed
from ddpctl.environment.direct import deliver
from ddpctl.environment.lock import Lock, Wheel
from ddpctl.environment.platforms import Platform
from ddpctl.environment.spread import Addresses, bring_files
from ddpctl.environment.wheelhouse import Wheelhouse
from ddpctl.errors import DdpctlError, HostsFailed, UsageError
from ddpctl.render.checkpoints import checkpoints_view
from ddpctl.render.console import make_console
from ddpctl.render.doctor import doctor_view
from ddpctl.render.errors import error_lines
from ddpctl.render.html import preflight_html
from ddpctl.render.lines import LinePrinter
from ddpctl.render.preflight import report_view
from ddpctl.render.progress import ProgressView
from ddpctl.render.push import gc_view
from ddpctl.render.report import report_view as run_report_view
from ddpctl.render.report_page import report_html
from ddpctl.render.status import kill_view, removal_view, runs_table, status_view
from ddpctl.spec.event import Line, Tell
from ddpctl.spec.lines import Group
from ddpctl.spec.plan import CodeRef, Facts
from ddpctl.spec.status import RunStatus
from ddpctl.stages.bench import MetricsReader
from ddpctl.stages.checkpoints import fetch_checkpoint, list_checkpoints, set_aside
from ddpctl.stages.doctor import ask_doctor
from ddpctl.stages.fetch import fetch_run
from ddpctl.stages.follow import follow
from ddpctl.stages.gc import collect_garbage
from ddpctl.stages.launch import Launch
from ddpctl.stages.preflight import Options, run_preflight
from ddpctl.stages.rehearse import run_rehearsal
from ddpctl.stages.remove import remove_run
from ddpctl.stages.report import make_report
from ddpctl.stages.restart import receive
from ddpctl.stages.start import start
from ddpctl.stages.status import all_runs, find_run, live_runs
from ddpctl.stages.stop import stop_run
from ddpctl.transport.fleet import SSHFleet
from tests.garble.recording import HOSTS, RUN, SMALL, SOURCE, inventory, plan_of

GOOD = ("a", "c")


class Played:
    """The result of a scene: what the good hosts gave, every host's error, and all that a person would see."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.served: dict[str, Any] = {}
        self.errors: dict[str, DdpctlError] = {}
        self.screen = io.StringIO()
        self.console = make_console(self.screen)
        self.view = ProgressView(self.console)

    @property
    def tell(self) -> Tell:
        return self.view.tell

    def show(self, *views: Any) -> None:
        for view in views:
            self.console.print(view)

    def failed(self, errors: Mapping[str, DdpctlError]) -> None:
        self.errors.update(errors)
        if errors:
            self.show(*error_lines(HostsFailed("some hosts failed", errors)))


def _status(fleet: SSHFleet, played: Played) -> None:
    runs, outcome = all_runs(fleet, everything=True)
    played.failed(outcome.errors)
    played.show(runs_table(runs, "default"))
    _run(find_run(fleet, "train"), played)
    _run(live_runs(fleet, RUN)[0], played)


def _run(run: RunStatus, played: Played) -> None:
    run.to_json()
    played.show(status_view(run, candidates=True))
    nodes = {node.host: node for node in run.nodes}
    played.served |= {host: (nodes[host].state, nodes[host].exit_code, nodes[host].ranks) for host in GOOD}


def _doctor(fleet: SSHFleet, played: Played) -> None:
    found = ask_doctor(fleet, "train")
    found.to_json()
    played.show(doctor_view(found, stacks=True))
    played.failed(found.errors)
    played.served = {host: [look for look in found.looks if look["host"] == host] for host in GOOD}


def _tail(fleet: SSHFleet, played: Played) -> None:
    lines: dict[str, list[Line]] = {host: [] for host in HOSTS}
    printer = LinePrinter(io.BytesIO(), HOSTS, colour=False)

    def show(groups: Sequence[Group]) -> None:
        for line in (line for group in groups for line in group):
            lines[line.host].append(line)
        printer.show(groups)

    played.failed(follow(RUN, HOSTS, fleet, played.tell, show))
    played.served = {host: lines[host] for host in GOOD}


def _stop(fleet: SSHFleet, played: Played) -> None:
    outcome = stop_run("train", RUN, HOSTS, fleet, grace=1.0, by="me")
    played.failed(outcome.errors)
    played.show(kill_view(outcome))
    played.served = {node.host: (node.reachable, node.survivors) for node in outcome.nodes if node.host in GOOD}


def _fetch(fleet: SSHFleet, played: Played) -> None:
    outcome = fetch_run(RUN, HOSTS, played.folder, fleet, played.tell)
    played.failed(outcome.errors)
    inside = [path for path in played.folder.rglob("*") if path.is_file()]
    assert {path.relative_to(played.folder).parts[0] for path in inside} <= {*HOSTS}
    played.served = {host: sorted(outcome.results[host].files) for host in GOOD}


def _checkpoints(fleet: SSHFleet, played: Played) -> None:
    """Each host has written a file of the same name: the newest counts, whichever host is garbled."""
    found = list_checkpoints(fleet, "train", inventory(played.folder))
    found.to_json()
    played.failed(found.errors)
    played.show(checkpoints_view(found))
    for one in found.resumed:
        try:
            fetch_checkpoint(found.job_id, one, played.folder / "checkpoints", fleet, played.tell)
        except HostsFailed as error:
            played.failed(error.errors)
    files = [path for path in played.folder.rglob("*") if path.is_file()]
    assert all(path.read_bytes() == b"weights\n" or "checkpoints" not in path.parts for path in files)
    try:
        set_aside(found.job_id, HOSTS, "20260102T030405Z", fleet, played.tell)
    except HostsFailed as error:
        played.failed(error.errors)
    except UsageError as error:
        played.show(*error_lines(error))
    played.served = dict.fromkeys(GOOD, True)


def _preflight(fleet: SSHFleet, played: Played) -> None:
    where = inventory(played.folder)
    report = run_preflight(Launch(where, None, where.hosts), fleet, played.tell, options=Options(skip=("torch", "gpu")))
    played.show(report_view(report))
    report.to_json()
    page = preflight_html(report)
    assert "\x1b" not in page
    assert "internal error" not in page
    assert not [finding for finding in report.findings if finding.check == "host.worker" and finding.host in GOOD]
    played.served = {host: (report.facts.node(host).cores, report.facts.node(host).gpus) for host in GOOD}


def _firewall(fleet: SSHFleet, played: Played) -> None:
    from ddpctl.checks import firewall
    from ddpctl.stages.preflight import _read_firewall

    outcome = fleet.map(_read_firewall)
    played.failed(outcome.errors)
    played.served = {host: firewall.is_readable(outcome.results[host]) for host in GOOD}


def _rehearse(fleet: SSHFleet, played: Played) -> None:
    from ddpctl.checks import deep, judge
    from ddpctl.checks.base import Requirements, View

    where = inventory(played.folder)
    facts = Facts(plan_facts(played), 29500)
    told = run_rehearsal(Launch(where, None, where.hosts, nproc=1), facts, fleet, played.tell)
    for finding in judge.judge_checks((deep.REHEARSAL,), View((), Requirements(), {}, rehearsal=told)):
        played.show(finding.message)
        assert "internal error" not in finding.message
    played.served = {host: told[host].get("ranks") for host in GOOD}


def plan_facts(played: Played) -> Mapping[str, Any]:
    from ddpctl.spec.plan import NodeFacts

    return {name: NodeFacts(gpus=0, cores=1, fabric_address="127.0.0.1", interface="lo") for name in HOSTS}


def _push(fleet: SSHFleet, played: Played) -> None:
    small = deliver("code", [SMALL], fleet, played.tell, HOSTS)
    big = bring_files("wheels", [SOURCE], fleet, played.tell, HOSTS, Addresses())
    played.failed({**small.errors, **big.errors})
    played.served = {host: (host in small.done, host in big.done) for host in GOOD}


def _code(fleet: SSHFleet, played: Played) -> None:
    """Whatever a host sends in the place of a run's code: it gives no other code."""
    wanted, cache = CodeRef(SMALL.sha256, SMALL.size), played.folder / "code"
    for host in HOSTS:
        try:
            receive(fleet.transport(host), wanted, played.tell, cache=cache)
        except DdpctlError as error:
            played.failed({host: error})
    path = find_archive(SMALL.sha256, cache=cache)
    assert path is not None
    assert [one.name for one in cache.iterdir()] == [path.name]
    played.served = {host: host not in played.errors for host in GOOD}


def _managed(fleet: SSHFleet, played: Played) -> None:
    platforms = managed.ask_platforms(fleet, HOSTS)
    played.failed(platforms.errors)
    lock = Lock(Platform("x86_64", (3, 11), 31), (), "")
    tool = Wheel("uv", "1", "uv-1-py3-none-any.whl", "0" * 64, "")
    house: Any = Wheelhouse
    state = managed._Build(fleet, played.tell, house, Addresses())
    outcome = managed._install(state, lock, tool, HOSTS)
    played.failed(outcome.errors)
    state.nodes.update(outcome.results)
    managed._compare(state)
    played.served = {host: (platforms.results[host], outcome.results[host].versions) for host in GOOD}


def _gc(fleet: SSHFleet, played: Played) -> None:
    where = inventory(played.folder)
    outcome = collect_garbage(where, where.hosts, fleet, played.tell, delete=False)
    played.failed(outcome.errors)
    played.show(gc_view(outcome))
    played.served = {host: outcome.hosts[host] for host in GOOD}


def _remove(fleet: SSHFleet, played: Played) -> None:
    removed = remove_run(find_run(fleet, "train", hosts=GOOD), fleet)
    played.failed({part.host: part.error for part in removed.hosts if part.error is not None})
    played.show(removal_view([removed]))
    removed.to_json()
    played.served = {part.host: part.removed for part in removed.hosts if part.host in GOOD}


def _metrics(fleet: SSHFleet, played: Played) -> None:
    run = find_run(fleet, "train", hosts=GOOD)
    reader = MetricsReader(run, fleet)
    try:
        reader.read()
    except HostsFailed as error:
        played.failed(error.errors)
    played.served = {host: True for host in GOOD if host not in played.errors}


def _report(fleet: SSHFleet, played: Played) -> None:
    made = make_report(fleet, "train")
    played.show(run_report_view(made))
    made.to_json()
    page = report_html(made)
    assert "\x1b" not in page
    assert "<script" not in page
    played.served = {host: made.launches[host] for host in GOOD}


def _start(fleet: SSHFleet, played: Played) -> None:
    played.served = dict.fromkeys(GOOD, True)
    try:
        start(plan_of(inventory(played.folder)), fleet, played.tell, serial=1)
    except HostsFailed as error:
        played.failed(error.errors)


SCENES: Mapping[str, Callable[[SSHFleet, Played], None]] = {
    "status": _status,
    "doctor": _doctor,
    "tail": _tail,
    "stop": _stop,
    "fetch": _fetch,
    "checkpoints": _checkpoints,
    "preflight": _preflight,
    "firewall": _firewall,
    "rehearse": _rehearse,
    "push": _push,
    "code": _code,
    "managed": _managed,
    "gc": _gc,
    "remove": _remove,
    "metrics": _metrics,
    "report": _report,
    "start": _start,
}
