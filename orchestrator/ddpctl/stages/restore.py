"""Before a start: the newest complete checkpoints onto every host, from those that have them.

Each host runs the worker's ``restore`` verb: it says what it has and serves it to the others. What each of them lacks
is decided here, by the same rules as on the nodes (``ddpctl_worker.checkpoint.choice``). Files go from host to host.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ddpctl.environment.spread import Addresses, Feed, new_credentials
from ddpctl.errors import DdpctlError, ProvisionError, RemoteError
from ddpctl.spec.event import Progress, StageEnded, StageStarted, Tell
from ddpctl.stages.launch import Launch
from ddpctl.transport.base import Fleet, Frame, Transport
from ddpctl.transport.pipe import garbled
from ddpctl_worker import contract
from ddpctl_worker.checkpoint.choice import Kept, Restore, all_have, restoring

STAGE = "checkpoints"
MOST_MANIFESTS = 10_000
FRESH = "`ddpctl up --fresh` starts without the checkpoints of earlier runs"


def restore(
    launch: Launch, known: Mapping[str, Sequence[Sequence[str]]], fleet: Fleet, tell: Tell, addresses: Addresses
) -> Mapping[str, DdpctlError]:
    """Every host that could not get what the others have, with its error.

    ``known``: what the hosts have said already, in short. Where that is enough to see that nothing is missing, nobody
    is asked.
    """
    if launch.job is None or launch.own_checkpoints:
        return {}
    if known.keys() >= set(launch.names) and all_have(known):
        return {}
    return Restoring(launch.job.name, launch.names, tell, addresses).run(fleet)


@dataclass
class _Node:
    feed: Feed = field(default_factory=lambda: Feed({}))
    manifests: list[Mapping[str, Any]] = field(default_factory=list)
    listening: Mapping[str, Any] | None = None
    complete: bool = False


class Restoring:
    """One restore on all ``hosts`` of a job. Used once."""

    def __init__(self, job: str, hosts: Sequence[str], tell: Tell, addresses: Addresses) -> None:
        self._job, self._tell, self._addresses = job, tell, addresses
        self._nodes = {host: _Node() for host in hosts}
        self._credentials = new_credentials()
        self._lock = threading.Lock()
        self._plan: list[Restore] = []
        self._stopped: set[str] = set()  # because of another host

    def run(self, fleet: Fleet) -> Mapping[str, DdpctlError]:
        """The hosts that failed. One that fails ends it for all: they would not have the same."""
        self._tell(StageStarted(STAGE, len(self._nodes)))  # before the hosts hash what has no manifest yet
        outcome = fleet.together(self._work, list(self._nodes))
        names = ", ".join(one.chosen.entry for one in self._plan)
        count = sum(result["bytes"] for result in outcome.results.values())
        note = f"{names}: {count} bytes from host to host" if self._plan else "every host has the newest"
        self._tell(StageEnded(STAGE, outcome.ok, note if self._plan or outcome.ok else ""))
        causes = {host: error for host, error in outcome.errors.items() if host not in self._stopped}
        return causes or outcome.errors

    def _work(self, transport: Transport) -> dict[str, Any]:
        node = self._nodes[transport.host]
        request = {
            "job": self._job,
            "certificate": self._credentials.certificate,
            "key": self._credentials.key,
            "ports": list(self._addresses.ports.get(transport.host, ())),
        }
        try:
            heard = partial(self._heard, transport.host, node)
            return transport.call("restore", request, body=node.feed, on_frame=heard, timeout=None)
        except RemoteError as error:
            if error.kind == contract.INTERRUPTED:
                self._stopped.add(transport.host)
            raise ProvisionError(error.message, hint=error.hint or FRESH, host=transport.host) from error
        finally:
            node.feed.close()
            if not node.complete:
                self._give_up()

    def _heard(self, host: str, node: _Node, frame: Frame) -> None:
        if "manifest" in frame.data:
            if len(node.manifests) >= MOST_MANIFESTS:
                raise garbled("restore: it has too many checkpoints")
            node.manifests.append(frame.data["manifest"])
            return
        with self._lock:
            if "moved" in frame.data:
                self._tell(self._progress(f"{host}: {frame.data['moved']:,} bytes"))
            elif "listening" in frame.data:
                node.listening = frame.data
                if all(one.listening for one in self._nodes.values()):
                    self._order()
            else:
                node.complete = True
                self._tell(self._progress())
                if all(one.complete for one in self._nodes.values()):
                    self._say_all(cmd="end")

    def _progress(self, note: str = "") -> Progress:
        return Progress(STAGE, sum(one.complete for one in self._nodes.values()), len(self._nodes), note=note)

    def _order(self) -> None:
        """All have said what they have: tell each what it lacks."""
        held = [Kept(host, dict(one)) for host, node in self._nodes.items() for one in node.manifests]
        self._plan = restoring(held, list(self._nodes))
        for host, node in self._nodes.items():
            orders = [one.order() for one in self._plan if host in one.hosts]
            node.feed.order(
                cmd="go", peers=[self._peer(other) for other in self._nodes if other != host], orders=orders
            )

    def _peer(self, host: str) -> dict[str, Any]:
        listening = self._nodes[host].listening or {}
        known = [*self._addresses.preferred.get(host, ()), *listening["addresses"]]
        return {"host": host, "addresses": list(dict.fromkeys(known)), "port": listening["listening"]}

    def _give_up(self) -> None:
        with self._lock:
            self._say_all(cmd="stop")

    def _say_all(self, **word: Any) -> None:
        for node in self._nodes.values():
            node.feed.order(**word)
            node.feed.close()
