"""Read what the ranks of a run wrote to their DDPCTL_METRICS, line by line, while it runs."""

from __future__ import annotations

from typing import Any

from ddpctl.errors import HostsFailed
from ddpctl.spec.metrics import Values
from ddpctl.spec.outcome import RunStatus
from ddpctl.transport.base import Fleet, Transport

READ_TIMEOUT_S = 30.0
MOST_LINES = 100_000  # of a rank: a job that writes more in a benchmark writes a line a step of a microsecond


class MetricsReader:
    """``lines`` grows with each ``read``: the lines of every rank so far, by host and rank."""

    def __init__(self, run: RunStatus, fleet: Fleet) -> None:
        self._run, self._fleet = run, fleet
        self._offsets: dict[str, dict[str, int]] = {}
        self.lines: dict[tuple[str, str], list[Values]] = {}

    def read(self) -> bool:
        """Take in what was written since the last time; whether there was anything.

        Raises:
            HostsFailed: a node did not answer.
        """

        def ask(transport: Transport) -> dict[str, Any]:
            request = {"run": self._run.run, "offsets": self._offsets.get(transport.host, {})}
            found: dict[str, Any] = transport.call("metrics", request, timeout=READ_TIMEOUT_S)["ranks"]
            return found

        outcome = self._fleet.map(ask, self._run.hosts)
        if outcome.errors:
            raise HostsFailed(f"the metrics of {self._run.run} could not be read", outcome.errors)
        came = [self._take(host, ranks) for host, ranks in outcome.results.items()]
        return any(came)

    def _take(self, host: str, ranks: dict[str, Any]) -> bool:
        for rank, found in ranks.items():
            self._offsets.setdefault(host, {})[rank] = int(found["offset"])
            if found["lines"]:
                kept = self.lines.setdefault((host, rank), [])
                kept.extend(found["lines"][: MOST_LINES - len(kept)])
        return any(found["lines"] for found in ranks.values())
