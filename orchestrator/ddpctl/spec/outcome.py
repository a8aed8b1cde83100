"""What became of a run: values that come from the nodes' records, and how they add up. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from ddpctl.errors import DdpctlError
from ddpctl.spec.metrics import Values, of_job
from ddpctl_worker import contract

SLOW = ("host", "rank", "lag_ms", "last_share")  # what the documents say of a slow rank


@dataclass(frozen=True)
class Cause:
    """Why a run failed: the first failure, with the host and rank that had it."""

    host: str
    reason: str
    message: str
    time: str
    rank: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    traceback: str | None = None

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Cause:
        return Cause(
            host=str(data.get("host", "?")),
            reason=str(data.get("reason", contract.EXITED)),
            message=str(data.get("message", "")),
            time=str(data.get("time", "")),
            rank=data.get("rank"),
            exit_code=data.get("exit_code"),
            signal=data.get("signal"),
            traceback=data.get("traceback"),
        )


@dataclass(frozen=True)
class NodeStatus:
    """One node's part of a run, as its record tells (or as unreachable)."""

    host: str
    node_rank: int
    state: str
    pid: int | None = None
    ranks: tuple[int, ...] = ()
    exit_code: int | None = None
    heartbeat_age_s: float | None = None
    attempt: int = 1
    started: str | None = None
    ended: str | None = None
    cause: Cause | None = None
    candidates: tuple[Cause, ...] = ()  # what else may have been the cause, by this node's record
    dropped_lines: int = 0
    metrics: Mapping[str, Values] = field(default_factory=dict)  # the last values by rank
    note: str | None = None  # why a host that answers cannot tell how its part stands
    diagnosis: Mapping[str, Any] | None = None  # why the run is stuck, as this node knows it
    slow: tuple[Mapping[str, Any], ...] = ()  # ranks that are late again and again, of all nodes
    reported: str | None = None  # when the node that decides on both said so

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> NodeStatus:
        own = {one.name for one in fields(NodeStatus)}
        told = {name: value for name, value in data.items() if name in own and value is not None}
        told["ranks"] = tuple(data.get("ranks") or ())
        told["slow"] = tuple(data.get("slow") or ())
        told["attempt"] = data.get("attempt") or 1
        if cause := data.get("cause"):
            told["cause"] = Cause.from_json(cause)
        told["candidates"] = tuple(Cause.from_json(one) for one in data.get("candidates") or ())
        return NodeStatus(**told)

    def cut_off_from(self, host: str | None) -> bool:
        """It misses another host than ``host``, which the others miss: it was cut off itself."""
        return self.cause is not None and self.cause.reason == contract.NODE_LOST and self.cause.host != host

    def to_json(self) -> dict[str, Any]:
        return {
            "host": self.host,
            "node_rank": self.node_rank,
            "state": self.state,
            "pid": self.pid,
            "ranks": list(self.ranks),
            "exit_code": self.exit_code,
            "heartbeat_age_s": self.heartbeat_age_s,
            "attempt": self.attempt,
        }


@dataclass(frozen=True)
class End:
    """How a run ended, by the word of all its nodes: a fact that later holds without them."""

    state: str
    ended: str | None = None
    cause: Cause | None = None

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> End:
        cause = data.get("cause")
        return End(str(data["state"]), data.get("ended"), Cause.from_json(cause) if cause else None)


# A node that fails for such a reason has lost another one, or never met it.
_MISSES_OTHERS = frozenset({contract.NODE_LOST, contract.RENDEZVOUS_TIMEOUT})


@dataclass(frozen=True)
class RunStatus:
    """A run on all its nodes. ``record`` is the run.json of any of them, ``seen`` the end that was seen before."""

    job: str
    run: str
    cluster: str
    nodes: tuple[NodeStatus, ...]
    record: Mapping[str, Any] = field(default_factory=dict)
    seen: End | None = None

    @property
    def state(self) -> str:
        return self.seen.state if self.seen else run_state([self._seen_by(node) for node in self.nodes])

    def _seen_by(self, node: NodeStatus) -> str:
        """The node's state; one that was out of reach when a user killed the others lost them to that kill."""
        why = node.cause
        if node.state == contract.FAILED and why is not None and why.reason in _MISSES_OTHERS:
            ends = [one.cause for one in self.nodes if one.host == why.host and one.cause is not None]
            if any(end.reason == contract.KILLED_BY_USER and end.time < why.time for end in ends):
                return contract.KILLED
        return node.state

    @property
    def end(self) -> End | None:
        """What to remember: the end, once every node reports it."""
        if self.seen or any(node.state not in contract.TERMINAL for node in self.nodes):
            return self.seen
        return End(self.state, self.ended, self.cause)

    @property
    def terminal(self) -> bool:
        return self.state in contract.TERMINAL

    @property
    def cause(self) -> Cause | None:
        """The first failure in time, preferring a culprit over those who only lost their peer.

        Where there is none but lost nodes, the one that most hosts miss: who was cut off itself misses another.
        """
        if self.seen:
            return self.seen.cause
        causes = [node.cause for node in self._deciding if node.cause]
        culprits = [cause for cause in causes if cause.reason != contract.NODE_LOST]
        if culprits:
            return min(culprits, key=lambda cause: cause.time)
        missed = Counter(cause.host for cause in causes)
        return max(causes, key=lambda cause: missed[cause.host], default=None)

    @property
    def started(self) -> str | None:
        return min((node.started for node in self.nodes if node.started), default=None)

    @property
    def ended(self) -> str | None:
        if self.seen or not self.terminal:
            return self.seen.ended if self.seen else None
        host = self.cause.host if self.cause else None
        ends = (node.ended for node in self._deciding if node.ended and not node.cut_off_from(host))
        return max(ends, default=None)

    @property
    def _deciding(self) -> Sequence[NodeStatus]:
        """The nodes that say how the run ended: those that saw it fail or be killed, where there are any.

        One that comes back after that finds its processes gone, and can only speak for itself.
        """
        if self.state not in (contract.FAILED, contract.KILLED):
            return self.nodes
        return [node for node in self.nodes if node.state == self.state] or self.nodes

    @property
    def candidates(self) -> tuple[Cause, ...]:
        """What else may have been the cause, the earliest first; every node reports its own, one reports all."""
        cause = self.cause
        kept = {(cause.host, cause.rank, cause.reason): cause} if cause else {}
        for node in self.nodes:
            for one in node.candidates:
                kept.setdefault((one.host, one.rank, one.reason), one)
        return tuple(sorted((one for one in kept.values() if one is not cause), key=lambda one: one.time))

    @property
    def metrics(self) -> dict[str, float]:
        """The last values that the job wrote of itself."""
        return of_job([values for node in self.nodes for values in node.metrics.values()])

    @property
    def diagnosis(self) -> Mapping[str, Any] | None:
        """Why the run is stuck, or was when it ended: verdict, suspects, since, time. None when it is not."""
        if self.state == contract.SUCCEEDED:
            return None
        return self._doctors_report.diagnosis if self._doctors_report else None

    @property
    def slow(self) -> list[Mapping[str, Any]]:
        """The ranks that all others wait for again and again: host, rank, lag_ms, last_share."""
        return sorted(self._doctors_report.slow, key=lambda one: one["rank"]) if self._doctors_report else []

    @property
    def _doctors_report(self) -> NodeStatus | None:
        """The node with node rank 0 decides who is stuck or slow; where it does not answer, what another heard last."""
        told = [node for node in self.nodes if node.reported]
        return max(told, key=lambda node: (node is self.nodes[0], node.reported), default=None)

    @property
    def grace(self) -> float:
        """Seconds from SIGTERM to SIGKILL where a kill names none: the job's ``timeouts.stop``."""
        return float((self.record.get("timeouts") or {}).get("stop") or contract.STOP_GRACE_S)

    @property
    def world_size(self) -> int:
        return int(self.record.get("world_size") or sum(len(node.ranks) for node in self.nodes))

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(node.host for node in self.nodes)

    def to_json(self) -> dict[str, Any]:
        """As the contract fixes it for `up` and `status`."""
        cause = self.cause
        return {
            "schema": contract.SCHEMA,
            "job": self.job,
            "run": self.run,
            "cluster": self.cluster,
            "state": self.state,
            "started": self.started,
            "ended": self.ended,
            "world_size": self.world_size,
            "nodes": [node.to_json() for node in self.nodes],
            "cause": asdict(cause) if cause else None,
            "candidates": [asdict(one) for one in self.candidates],
            "metrics": self.metrics,
            "slow": [{name: one[name] for name in SLOW} for one in self.slow],
            "diagnosis": dict(self.diagnosis) if self.diagnosis else None,
        }


def run_state(states: Sequence[str]) -> str:
    """The state of a run from those of its nodes.

    A run is over only when every node is: one that cannot be asked, or whose heartbeat is old, keeps it from being
    called a success. While some are over and some are not, a failure shows as `stopping`; one stands when all that
    can be asked are over, since whatever the others say one day makes it no better.
    """
    if not states:
        return contract.LOST
    over = [state for state in states if state in contract.TERMINAL]
    if len(over) == len(states):
        for verdict in (contract.FAILED, contract.KILLED, contract.LOST):
            if verdict in over:
                return verdict
        return contract.SUCCEEDED
    if contract.FAILED in over and all(state in contract.TERMINAL or state == contract.UNREACHABLE for state in states):
        return contract.FAILED
    if any(state != contract.SUCCEEDED for state in over) or contract.STOPPING in states:
        return contract.STOPPING
    if all(state == contract.PENDING for state in states):
        return contract.PENDING
    if any(state in (contract.PENDING, contract.STARTING) for state in states):
        return contract.STARTING
    return contract.RUNNING


def merge_runs(
    answers: Mapping[str, Iterable[Mapping[str, Any]]], errors: Mapping[str, DdpctlError] | None = None
) -> list[RunStatus]:
    """Runs from every host's node statuses (each with its run.json under ``record``), oldest first.

    A host that a record names but that did not answer (or that is not in the inventory any more) is `unreachable`, and
    its entry in ``errors`` says why; one that answered without knowing the run was never started, or its disk is new:
    `lost`.
    """
    by_run: dict[str, dict[str, Mapping[str, Any]]] = {}
    for host, statuses in answers.items():
        for status in statuses:
            by_run.setdefault(status["run"], {})[host] = status
    return [_merge(by_run[run], set(answers), errors or {}) for run in sorted(by_run)]


def _merge(parts: Mapping[str, Mapping[str, Any]], answered: set[str], errors: Mapping[str, DdpctlError]) -> RunStatus:
    first = _most_told(parts)
    record = first["record"]
    # A host that reports the run takes part in it, whatever the record of another leaves out.
    hosts = list(dict.fromkeys((*(record.get("hosts") or ()), *parts)))
    nodes = []
    for node_rank, host in enumerate(hosts):
        if host in parts:
            nodes.append(NodeStatus.from_json(parts[host]))
        else:
            state = contract.LOST if host in answered else contract.UNREACHABLE
            note = " ".join(errors[host].message.split()) if host in errors else None
            nodes.append(NodeStatus(host=host, node_rank=node_rank, state=state, note=note))
    return RunStatus(first["job"], first["run"], first["cluster"], tuple(nodes), record)


def _most_told(parts: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """The part whose job and hosts most others confirm: one damaged record decides nothing."""

    def told(part: Mapping[str, Any]) -> tuple[Any, ...]:
        return (part["job"], part["cluster"], *(part["record"].get("hosts") or ()))

    count = Counter(map(told, parts.values()))
    return max(parts.values(), key=lambda part: count[told(part)])


def current(runs: Sequence[RunStatus]) -> list[RunStatus]:
    """The runs that are not over, and the newest of every job.

    Of the others a host tells only when it took part in no newer run of the job: what was merged of those is in parts.
    """
    last = {run.job: max(one.run for one in runs if one.job == run.job) for run in runs}
    return [run for run in runs if not run.terminal or run.run == last[run.job]]


@dataclass(frozen=True)
class StoppedNode:
    """What was done on one node to end a run, and what is left of it."""

    host: str
    signalled: int = 0
    forced: int = 0
    survivors: tuple[tuple[int, str], ...] = ()
    reachable: bool = True
    error: DdpctlError | None = None  # why there is no proof of this node

    def to_json(self) -> dict[str, Any]:
        return {
            "host": self.host,
            "signalled": self.signalled,
            "forced": self.forced,
            "survivors": [{"pid": pid, "cmd": cmd} for pid, cmd in self.survivors],
            "reachable": self.reachable,
        }


@dataclass(frozen=True)
class KillOutcome:
    """The end of a run, with proof: every node without an error was scanned until nothing was found twice."""

    job: str
    run: str
    state: str
    duration_s: float
    nodes: tuple[StoppedNode, ...]

    @property
    def survivors(self) -> tuple[tuple[str, int, str], ...]:
        return tuple((node.host, pid, cmd) for node in self.nodes for pid, cmd in node.survivors)

    @property
    def errors(self) -> dict[str, DdpctlError]:
        """The nodes that gave no proof although they are in the inventory, each with its error."""
        return {node.host: node.error for node in self.nodes if node.error is not None}

    @property
    def unreachable(self) -> tuple[str, ...]:
        return tuple(node.host for node in self.nodes if not node.reachable)

    def to_json(self) -> dict[str, Any]:
        return {"schema": contract.SCHEMA, **vars(self), "nodes": [node.to_json() for node in self.nodes]}
