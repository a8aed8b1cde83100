"""A node below torch's own elastic agent watches its ranks' connections to the other nodes.

Such a run has no gang. torch's agents learn of a lost host from their own ranks only, and those wait in a collective
for as long as it may last: 30 minutes with gloo. So ranks whose peer's host answers no more are ended here, and the
agent does with a failed rank what it always does: it starts again with the nodes that are left, or gives up.

An agent whose c10d store is on the lost host does neither: after its own deadline of 60 s it waits for an answer to its
goodbye, for a quarter of an hour. So that run is ended here.
"""

from __future__ import annotations

import signal
from typing import Any, Dict, Optional

from ddpctl_worker import outcome as outcomes
from ddpctl_worker import proc
from ddpctl_worker.contract import NODE_LOST
from ddpctl_worker.gang.cutwatch import SUSPECT_S, CutWatch
from ddpctl_worker.notes import note
from ddpctl_worker.outcome import Outcome
from ddpctl_worker.run import processes
from ddpctl_worker.run.ranks import Roster
from ddpctl_worker.run.rendezvous import store_keeper, store_lost

STORE_S = 60.0  # as long as torch itself waits for its store


class Partners:
    """The other nodes, as far as the ranks here are connected to them by TCP."""

    def __init__(self, run: Dict[str, Any], roster: Roster) -> None:
        self._run, self._keeper = run, store_keeper(run)
        self._host: str = run["host"]
        self._roster = roster
        self._lost: Optional[Outcome] = None
        self._attempt = 0  # that the loss has ended
        self._store_lost: Optional[Outcome] = None
        self._watch = CutWatch(int(run.get("master_port") or 0), self.hear, lambda: True)
        for host, address in (run.get("addresses") or {}).items():
            if host != self._host:
                self._watch.meet(host, [address])

    def start(self) -> None:
        self._watch.start()

    def stop(self) -> None:
        self._watch.stop()

    def end(self, status: Optional[int]) -> Optional[Outcome]:
        """How the run ends here because of a lost node, if it does; ``status``: the launcher's, once it has ended."""
        if self._store_lost is not None:
            return self._store_lost
        return self._lost if status and self._roster.attempt() == self._attempt else None

    def hear(self, link: Dict[str, Any]) -> None:
        """What was found of the link to another node. In the thread of the watch."""
        if not link["silent"] or link["for"] < SUSPECT_S:
            return
        host, seconds = link["to"], link["for"]
        if host == self._keeper and seconds >= STORE_S:
            why = store_lost(self._run, host)
            self._store_lost = outcomes.failed(outcomes.cause(why.host, why.reason, why.message))
        elif self._roster.living():
            text = "%s does not answer %s for %.0f s: it is down or cut off" % (host, self._host, seconds)
            self._lost = outcomes.failed(outcomes.cause(host, NODE_LOST, text))
            self._attempt = self._roster.attempt()
            note("%s; the ranks here are ended, and torch's elastic agent decides what comes next" % text)
            for one in self._roster.alive():
                processes.send(processes.ProcessId(proc.boot_id(), one.pid, one.start), signal.SIGKILL)


def partners_of(run: Dict[str, Any], roster: Roster) -> Optional[Partners]:
    """None for a run whose nodes are watched by a gang, or that has one node only."""
    return Partners(run, roster) if run.get("addresses") else None
