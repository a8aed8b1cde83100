"""Watches all hosts: a thread per host reads its pulse every two seconds, despite broken connections."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from ddpctl.errors import ConnectError, DdpctlError, Interrupted, to_ddpctl_error
from ddpctl.spec.merge import current_runs, merge_runs
from ddpctl.spec.record import NodeReport
from ddpctl.spec.status import RunStatus
from ddpctl.spec.top import HostView, Overview, Pulse
from ddpctl.stages.limits import TOP_ONCE_S, TOP_SILENT_S
from ddpctl.stages.status import with_remembered_end
from ddpctl.transport import limits
from ddpctl.transport.base import Fleet, FleetOutcome, Frame, Transport

log = logging.getLogger(__name__)


@dataclass
class _Host:
    """The state of a host. Only its own thread writes here, and replaces values instead of changing them."""

    reports: Mapping[str, NodeReport] = field(default_factory=dict)  # by run
    pulse: Pulse | None = None
    at: float = 0.0  # monotonic time of the pulse
    error: DdpctlError | None = None
    news: int = 0  # counts changes that may change a run

    def hear(self, frame: Frame) -> None:
        if "run" in frame.data:
            report: NodeReport = frame.data["run"]
            self.reports = {**self.reports, report.run: report}
            self.news += 1
            return
        pulse: Pulse = frame.data["pulse"]
        counted = self.pulse is not None and self.error is None  # before this pulse
        self.pulse, self.at = pulse, time.monotonic()
        if not counted or self.reports.keys() - pulse.runs.keys():
            self.reports = {run: report for run, report in self.reports.items() if run in pulse.runs}
            self.error = None
            self.news += 1

    def fail(self, error: DdpctlError) -> None:
        if self.error is None or self.error.message != error.message:
            self.error = error
            self.news += 1

    def view(self, name: str) -> HostView:
        if self.error is not None:
            return HostView(name, error=" ".join(self.error.message.split()))
        if self.pulse is None:
            return HostView(name, error="connecting")
        silent = time.monotonic() - self.at
        return (
            HostView(name, None, f"silent for {silent:.0f} s") if silent > TOP_SILENT_S else HostView(name, self.pulse)
        )


class HostWatch:
    """The hosts of a fleet, watched from ``start`` to ``stop``."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._hosts = {name: _Host() for name in fleet.hosts}
        self._cancelled = threading.Event()
        self._merging = threading.Lock()
        self._news = -1
        self._runs: tuple[RunStatus, ...] = ()

    def start(self) -> None:
        for name in self._hosts:
            threading.Thread(target=self._read, args=(name,), name=f"top-{name}", daemon=True).start()

    def stop(self) -> None:
        self._cancelled.set()

    def overview(self) -> Overview:
        """Return the present state of all hosts and runs. Any thread may call this."""
        views = tuple(host.view(name) for name, host in self._hosts.items())
        with self._merging:
            news = sum(host.news for host in self._hosts.values())
            if news != self._news:
                self._runs, self._news = _merged(self._hosts), news
            return Overview(views, self._runs)

    def _read(self, name: str) -> None:
        """Read a host's pulses in this thread until ``stop``."""
        host, transport, pause = self._hosts[name], self._fleet.transport(name), limits.RETRY_FIRST_S
        while not self._cancelled.is_set():
            before = host.at
            try:
                transport.call("top", {}, on_frame=host.hear, timeout=None, cancel=self._cancelled.is_set)
                error: DdpctlError = ConnectError("the worker ended", host=name)
            except Interrupted:
                return
            except Exception as raised:  # an error here must not end the watch of other hosts
                error = to_ddpctl_error(raised, name)
                log.debug("%s: cannot be watched", name, exc_info=raised)
            host.fail(error)
            pause = limits.RETRY_FIRST_S if host.at > before else min(limits.RETRY_MOST_S, pause * 2)
            self._cancelled.wait(pause)


def read_overview(fleet: Fleet) -> tuple[Overview, FleetOutcome[None]]:
    """Ask every host for a single pulse; the outcome has the hosts that did not answer."""
    hosts = {name: _Host() for name in fleet.hosts}

    def ask(transport: Transport) -> None:
        transport.call("top", {"once": True}, on_frame=hosts[transport.host].hear, timeout=TOP_ONCE_S)

    outcome = fleet.map(ask)
    for name, error in outcome.errors.items():
        hosts[name].fail(error)
    return Overview(tuple(host.view(name) for name, host in hosts.items()), _merged(hosts)), outcome


def _merged(hosts: Mapping[str, _Host]) -> tuple[RunStatus, ...]:
    """Return the runs, newest first. A host without a first pulse does not count yet."""
    errors = {name: error for name, host in hosts.items() if (error := host.error) is not None}
    answers = {
        name: tuple(host.reports.values())
        for name, host in hosts.items()
        if name not in errors and host.pulse is not None
    }
    runs = current_runs([with_remembered_end(run) for run in merge_runs(answers, errors)])
    return tuple(sorted(runs, key=lambda run: run.run, reverse=True))
