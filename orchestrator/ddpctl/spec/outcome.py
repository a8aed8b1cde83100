"""The status of a run, computed from the records of its nodes. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from typing import Any

from ddpctl.spec.limits import SAVE_S, SURVIVED
from ddpctl.spec.metrics import Values, job_metrics
from ddpctl.spec.origin import JobId, Origin
from ddpctl_worker.wire import contract

SLOW = ("host", "rank", "lag_ms", "last_share")  # the keys of a slow rank in JSON documents
STRANGERS = ("count", "addresses", "most", "last")  # the keys of connections by strangers in JSON documents
LOST_FOR_RUN = "it takes part in this run no more; the next `ddpctl restart` or `ddpctl up` uses it again"
SAVE_SIGNAL = "SIGUSR1"  # if a damaged record does not have the job's own signal


@dataclass(frozen=True)
class Cause:
    """A failure: the host and rank at fault, the reason, and the time. The cause of a run is its first failure."""

    host: str
    reason: str
    message: str
    time: str
    rank: int | None = None
    exit_code: int | None = None
    signal: str | None = None
    traceback: str | None = None
    peer: str | None = None  # the second host of a lost link

    def to_json(self) -> dict[str, Any]:
        """Return the fields; ``peer`` only where it is set."""
        return {name: value for name, value in asdict(self).items() if name != "peer" or value is not None}

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
            peer=data.get("peer"),
        )


@dataclass(frozen=True)
class NodeStatus:
    """The part of a node in a run: the fields of its record. A node that does not answer has the state unreachable."""

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
    candidates: tuple[Cause, ...] = ()  # the other possible causes in this node's record
    dropped_lines: int = 0
    metrics: Mapping[str, Values] = field(default_factory=dict)  # rank -> its last values
    note: str | None = None  # why an answering host does not know its state, or which hosts an attempt waits for
    diagnosis: Mapping[str, Any] | None = None  # why the run is stuck, as far as this node knows
    slow: tuple[Mapping[str, Any], ...] = ()  # the stragglers of all nodes, as far as this node knows
    reported: str | None = None  # when the first node of the attempt decided on diagnosis and slow
    strangers: Mapping[str, Any] | None = None  # connections to its ports by programs outside the run
    lag: Mapping[str, Any] | None = None  # how far its checkpoints are behind the saves of its ranks
    agreed: Mapping[str, Any] | None = None  # its copy of the document that the agents of a run with restarts agree on

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> NodeStatus:
        names = {each.name for each in fields(NodeStatus)}
        values = {name: value for name, value in data.items() if name in names and value is not None}
        values["ranks"] = tuple(data.get("ranks") or ())
        values["slow"] = tuple(data.get("slow") or ())
        values["attempt"] = data.get("attempt") or 1
        if cause := data.get("cause"):
            values["cause"] = Cause.from_json(cause)
        values["candidates"] = tuple(Cause.from_json(each) for each in data.get("candidates") or ())
        return NodeStatus(**values)

    def cut_off_from(self, host: str | None) -> bool:
        """Return whether this node itself was cut off: the run lost ``host``, and this node lost another host."""
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
    """The end of a run. It is recorded once all nodes have reported it, and stays valid when they cannot be reached."""

    state: str
    ended: str | None = None
    cause: Cause | None = None

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> End:
        cause = data.get("cause")
        return End(str(data["state"]), data.get("ended"), Cause.from_json(cause) if cause else None)


@dataclass(frozen=True)
class Attempt:
    """One attempt of a run, numbered from 1. ``set_aside``: the hosts that the next attempt excludes, each with why."""

    number: int
    hosts: tuple[str, ...]
    started: str | None = None
    ended: str | None = None
    cause: Cause | None = None
    set_aside: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Attempt:
        cause = Cause.from_json(data["cause"]) if data.get("cause") else None
        excluded = tuple((str(each["host"]), str(each["why"])) for each in data.get("set_aside") or ())
        return Attempt(data["attempt"], tuple(data["hosts"]), data.get("started"), data.get("ended"), cause, excluded)

    def to_json(self) -> dict[str, Any]:
        return {
            "attempt": self.number,
            "hosts": list(self.hosts),
            "started": self.started,
            "ended": self.ended,
            "cause": self.cause.to_json() if self.cause else None,
            "set_aside": [{"host": host, "why": why} for host, why in self.set_aside],
        }


# States of a node that has left an elastic run. An unreachable node is lost, or it ends like the rest.
_GONE = frozenset({contract.FAILED, contract.LOST, contract.UNREACHABLE})
_NOT_AT_WORK = contract.TERMINAL | {contract.UNREACHABLE}  # states of a node that is not known to be at work
_PEER_MISSING = frozenset({contract.NODE_LOST, contract.RENDEZVOUS_TIMEOUT})  # the node lost a peer, or never met it


@dataclass(frozen=True)
class Untracked:
    """Files that the script wrote into its working folder on a host and that no declared output covers.

    ``files``: their number; a lower bound if not ``whole``. ``largest``: names below ``folder``, with bytes. ``error``:
    why the files are not known.
    """

    host: str
    folder: str = ""
    files: int = 0
    bytes: int = 0
    largest: tuple[tuple[str, int], ...] = ()
    whole: bool = True
    error: str | None = None


@dataclass(frozen=True)
class RunStatus:
    """A run on all its nodes.

    ``record`` is the run.json of any node. ``seen`` is the end that this machine recorded earlier. ``unheard``: hosts
    that did not answer the question which run a name means. ``untracked``: empty unless the command asked for it.

    There are three kinds of runs:

    - Static, without restarts: every node decides on the state. There is one attempt.
    - Elastic (the record has ``min_nodes``): torch's elastic agent continues without lost nodes, down to that number.
    - With restarts (the record has ``restart``): the agents of the hosts agree on attempts and on the end. A majority
      of all hosts, spares included, commits a decision; ``NodeStatus.agreed`` is a host's copy.
    """

    job: str
    run: str
    cluster: str
    nodes: tuple[NodeStatus, ...]
    record: Mapping[str, Any] = field(default_factory=dict)
    remembered_end: End | None = None
    silent_hosts: tuple[str, ...] = ()
    untracked: tuple[Untracked, ...] = ()

    @property
    def project(self) -> str:
        return str(self.record["project"])

    @property
    def job_id(self) -> JobId:
        return JobId(self.cluster, self.project, self.job)

    @property
    def origin(self) -> Origin | None:
        """Return where the run was started; None: the record is damaged."""
        origin = self.record.get("origin")
        return Origin.from_json(origin) if origin else None

    @property
    def user(self) -> str | None:
        """Return the account that started the run."""
        return self.origin.account if self.origin else None

    @property
    def state(self) -> str:
        if self.remembered_end:
            return self.remembered_end.state
        if self._final_end:
            return str(self._final_end["state"])
        state = run_state([self._state_of(node) for node in self.deciding_nodes])
        if state not in contract.TERMINAL or not self._may_go_on:
            return state
        return contract.RUNNING if state == contract.SUCCEEDED else contract.STARTING  # as between two attempts

    @property
    def _may_go_on(self) -> bool:
        """Return whether another attempt may still start, or may have started already.

        That needs restarts, no committed end, and hosts that can go on: a host at work, even a spare, or silent hosts.
        """
        if not self.record.get("restart") or self._committed_end:
            return False
        return any(node.state not in _NOT_AT_WORK for node in self.nodes) or self.silent_may_go_on

    @property
    def silent_may_go_on(self) -> bool:
        """Return whether the silent (unreachable) hosts of a run with restarts may have gone on by themselves.

        A host that has ended its part, or whose agent is gone, never votes again. So the silent hosts may go on

        - if they are a majority of all hosts: they can agree on another attempt;
        - if they are half of an even number of hosts, and the newest attempt may run on silent hosts alone: they cannot
          start another attempt, but they can finish this attempt.
        """
        silent = [node for node in self.nodes if node.state == contract.UNREACHABLE]
        answering = [node for node in self.nodes if node.state != contract.UNREACHABLE]
        if len(silent) >= majority_of(len(self.nodes)):
            return True
        attempt_is_known = all(node.agreed for node in answering)  # a host without its copy may have missed an attempt
        attempt_is_silent = all(node in silent for node in self.active_nodes)
        return 2 * len(silent) >= len(self.nodes) and (attempt_is_silent or not attempt_is_known)

    @property
    def lacks_majority(self) -> bool:
        """Return whether a run with restarts has lost too many hosts for another attempt."""
        lost = sum(node.state == contract.LOST for node in self.nodes)
        return bool(self.record.get("restart")) and len(self.nodes) - lost < majority_of(len(self.nodes))

    @property
    def deciding_nodes(self) -> Sequence[NodeStatus]:
        """Return the nodes that decide on the state of the run: usually all nodes of the newest attempt.

        In an elastic run with at least ``min_nodes`` nodes left, the nodes that are gone do not count: torch's elastic
        agent continues without them. A node that fails after another node has succeeded does count.
        """
        least = self.record.get("min_nodes")
        nodes = self.active_nodes
        rest = [node for node in nodes if node.state not in _GONE]
        if least is None or len(rest) < least:
            return nodes
        first = min((node.ended for node in rest if node.state == contract.SUCCEEDED and node.ended), default=None)
        late = [node for node in self.nodes if node.state == contract.FAILED and first and (node.ended or "") >= first]
        return self.nodes if late else rest

    @property
    def departed_nodes(self) -> Sequence[NodeStatus]:
        """Return the nodes that have left an elastic run, and that the run continues without."""
        staying = self.deciding_nodes
        return [node for node in self.active_nodes if node not in staying]

    def _state_of(self, node: NodeStatus) -> str:
        """Return the state of a node; killed instead of failed where the node lost its peer to a kill by the user.

        A kill may not reach every host. A host that it missed finds its peers gone later, and fails for that reason.
        """
        cause = node.cause
        if node.state == contract.FAILED and cause is not None and cause.reason in _PEER_MISSING:
            of_peer = [peer.cause for peer in self.nodes if peer.host == cause.host and peer.cause is not None]
            if any(end.reason == contract.KILLED_BY_USER and end.time < cause.time for end in of_peer):
                return contract.KILLED
        return node.state

    @property
    def end(self) -> End | None:
        """Return the end to record on this machine; None: some node has not reported the end yet."""
        if self.remembered_end or (
            not self._final_end and any(node.state not in contract.TERMINAL for node in self.nodes)
        ):
            return self.remembered_end
        return End(self.state, self.ended, self.cause)

    @property
    def terminal(self) -> bool:
        return self.state in contract.TERMINAL

    @property
    def cause(self) -> Cause | None:
        """Return the cause of the run, from the causes that the deciding nodes report:

        1. A lost link, if all other causes are missing peers. Both hosts of the link live, so no host was lost.
        2. Else the earliest cause other than a lost node: a lost node is what the peers of the culprit report.
        3. Else, with lost nodes only, the node that most nodes report. A node that was cut off reports another node.
        """
        if self.remembered_end:
            return self.remembered_end.cause
        if self._final_end:
            return Cause.from_json(self._final_end["cause"]) if self._final_end["cause"] else None
        causes = self._without_survived([node.cause for node in self._deciding if node.cause])
        culprits = [cause for cause in causes if cause.reason != contract.NODE_LOST]
        links = [cause for cause in culprits if cause.reason == contract.LINK_LOST]
        if links and all(cause in links or cause.reason in _PEER_MISSING for cause in culprits):
            culprits = links
        if culprits:
            return min(culprits, key=lambda cause: cause.time)
        reports = Counter(cause.host for cause in causes)
        return max(causes, key=lambda cause: reports[cause.host], default=None)

    def _without_survived(self, causes: Sequence[Cause]) -> Sequence[Cause]:
        """Drop the causes that an elastic run survived: a node that it lost days before the end did not end it."""
        if self.record.get("min_nodes") is None or not causes:
            return causes
        times = [datetime.fromisoformat(cause.time.replace("Z", "+00:00")) for cause in causes]
        return [cause for cause, time in zip(causes, times, strict=True) if max(times) - time <= SURVIVED]

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """Return all attempts so far, beginning with the attempts of the run that this run continues."""
        earlier = (self.record.get("continues") or {}).get("attempts") or ()
        return (*(Attempt.from_json(each) for each in earlier), *self.own_attempts)

    @property
    def continues(self) -> str | None:
        """Return the id of the run that this run continues."""
        return (self.record.get("continues") or {}).get("run")

    @property
    def own_attempts(self) -> tuple[Attempt, ...]:
        """Return the attempts of this run alone: a single attempt if the run has no restarts."""
        agreed = self._agreed
        if agreed:
            return tuple(Attempt.from_json(each) for each in agreed["attempts"])
        number = max((node.attempt for node in self.nodes), default=1)
        return (Attempt(number, self.hosts, self.started, self.ended, self.cause),)

    @property
    def _agreed(self) -> Mapping[str, Any] | None:
        """Return the newest copy of the agents' document that any host has."""
        copies = [node.agreed for node in self.nodes if node.agreed]
        return max(copies, key=_mark, default=None)

    @property
    def excluded_hosts(self) -> Mapping[str, str]:
        """Return the hosts that this run must not use again, each with why: broken hardware, or a stuck host."""
        return dict((self._agreed or {}).get("set_aside") or {})

    @property
    def _final_end(self) -> Mapping[str, Any] | None:
        """Return the committed end, once no host is at work any more."""
        return None if any(node.state not in _NOT_AT_WORK for node in self.nodes) else self._committed_end

    @property
    def _committed_end(self) -> Mapping[str, Any] | None:
        """Return the end in the agents' document, if a majority has it: a single host's copy may not be committed."""
        agreed = self._agreed
        marks = [_mark(node.agreed) for node in self.nodes if node.agreed]
        if agreed is None or marks.count(_mark(agreed)) < majority_of(len(self.nodes)):
            return None
        end: Mapping[str, Any] | None = agreed["over"]
        return end

    @property
    def started(self) -> str | None:
        if self._agreed:
            return self.own_attempts[0].started
        return min((node.started for node in self.nodes if node.started), default=None)

    @property
    def ended(self) -> str | None:
        if self.remembered_end or not self.terminal:
            return self.remembered_end.ended if self.remembered_end else None
        host = self.cause.host if self.cause else None
        # A node that was cut off ends on its own, maybe long after the run.
        ends = (node.ended for node in self._deciding if node.ended and not node.cut_off_from(host))
        return max(ends, default=None)

    @property
    def _deciding(self) -> Sequence[NodeStatus]:
        """Return the nodes whose records tell how the run ended.

        Of a run that failed or was killed, these are the nodes in that state. A node that comes back later, after a
        power loss for example, finds its processes gone. Its record then describes that node alone.
        """
        if self.state not in (contract.FAILED, contract.KILLED):
            return self.deciding_nodes
        return [node for node in self.nodes if node.state == self.state] or self.nodes

    @property
    def candidates(self) -> tuple[Cause, ...]:
        """Return the other possible causes, the earliest first, each of them once even if several nodes report it."""
        cause = self.cause
        kept = {(cause.host, cause.rank, cause.reason): cause} if cause else {}
        for node in self.nodes:
            own = [node.cause] if node.cause and node in self.departed_nodes else []
            for found in (*own, *node.candidates):
                kept.setdefault((found.host, found.rank, found.reason), found)
        return tuple(sorted((found for found in kept.values() if found is not cause), key=lambda found: found.time))

    @property
    def metrics(self) -> dict[str, float]:
        """Return the last values that the job measured of itself."""
        return job_metrics([values for node in self.nodes for values in node.metrics.values()])

    @property
    def diagnosis(self) -> Mapping[str, Any] | None:
        """Return why the run is stuck, or was stuck when it ended: verdict, suspects, since, time. None: not stuck."""
        if self.state == contract.SUCCEEDED:
            return None
        return self._doctors_report.diagnosis if self._doctors_report else None

    @property
    def slow(self) -> list[Mapping[str, Any]]:
        """Return the stragglers, for which all ranks wait again and again: host, rank, lag_ms, last_share."""
        return sorted(self._doctors_report.slow, key=lambda rank: rank["rank"]) if self._doctors_report else []

    @property
    def lag(self) -> Mapping[str, Any] | None:
        """Return how far the fully copied checkpoints are behind the saves, on the host where the gap is widest.

        Keys: name, saved_s, kept_s, behind_s, late, copies. None: no rank has saved in this attempt.
        """
        lags = [node.lag for node in self.active_nodes if node.lag is not None]
        return max(lags, key=lambda lag: (lag["behind_s"] or 0.0, lag["kept_s"] or 0.0), default=None)

    @property
    def strangers(self) -> list[dict[str, Any]]:
        """Return the hosts with connections by strangers: host, count, addresses, most, last."""
        reports = [(node.host, node.strangers) for node in self.nodes if node.strangers]
        return [{"host": host, **{name: report[name] for name in STRANGERS}} for host, report in reports]

    @property
    def _doctors_report(self) -> NodeStatus | None:
        """Return the node whose ``diagnosis`` and ``slow`` count.

        That is the node with node rank 0, which decides on both. If it does not answer, it is the node that has its
        newest report.
        """
        reporting = [node for node in self.active_nodes if node.reported]
        return max(reporting, key=lambda node: (node is self.active_nodes[0], node.reported), default=None)

    @property
    def grace(self) -> float:
        """Return the default seconds from SIGTERM to SIGKILL in a kill: the job's ``timeouts.stop``."""
        seconds = (self.record.get("timeouts") or {}).get("stop")
        return contract.STOP_GRACE_S if seconds is None else float(seconds)

    @property
    def save_signal(self) -> str:
        """Return the signal that asks a rank for a checkpoint: the job's ``checkpoint.signal``."""
        return str((self.record.get("checkpoint") or {}).get("signal") or SAVE_SIGNAL)

    @property
    def save_timeout(self) -> float:
        """Return the seconds that a requested checkpoint may take: the job's ``checkpoint.timeout``."""
        return float((self.record.get("checkpoint") or {}).get("timeout") or SAVE_S)

    @property
    def copies(self) -> bool:
        """Return whether another host gets a copy of each checkpoint."""
        return bool((self.record.get("checkpoint") or {}).get("replicas")) and len(self.active_nodes) > 1

    @property
    def world_size(self) -> int:
        if len(self.own_attempts) > 1:
            return sum(len(node.ranks) for node in self.active_nodes)
        return int(self.record.get("world_size") or sum(len(node.ranks) for node in self.nodes))

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(node.host for node in self.nodes)

    @property
    def active_nodes(self) -> tuple[NodeStatus, ...]:
        """Return the nodes of the newest attempt in the order of their node ranks, without spares and lost hosts."""
        if not self._agreed:
            return self.nodes
        order = {host: rank for rank, host in enumerate(self.attempts[-1].hosts)}
        return tuple(sorted((node for node in self.nodes if node.host in order), key=lambda node: order[node.host]))

    def hosts_of(self, ranks: Collection[int]) -> list[str]:
        """Return the hosts that may have run any of these ranks; an empty list if the run has no such rank.

        - With restarts or torch's elastic agent: all hosts, since a rank may move to another host.
        - Else the hosts that report such a rank. If no host reports a rank, also the unreachable hosts, which report no
          ranks at all: that rank may be theirs.
        """
        reported = {rank for node in self.nodes for rank in node.ranks}
        most = self.record.get("world_size")  # None: torch's elastic agent decides
        wanted = set(ranks) if most is None else {rank for rank in ranks if rank < most} | reported.intersection(ranks)
        if wanted and (self.record.get("restart") or self.record.get("min_nodes") is not None):
            return list(self.hosts)
        missing = not wanted <= reported
        return [node.host for node in self.nodes if wanted & set(node.ranks) or (missing and not node.ranks)]

    def to_json(self) -> dict[str, Any]:
        """Return the document of `up --json` and `status --json`, as the contract fixes it."""
        cause = self.cause
        return {
            "schema": contract.SCHEMA,
            "job": self.job,
            "run": self.run,
            "cluster": self.cluster,
            "project": self.project,
            "state": self.state,
            "started": self.started,
            "ended": self.ended,
            "world_size": self.world_size,
            "nodes": [node.to_json() for node in self.active_nodes],
            "cause": cause.to_json() if cause else None,
            "candidates": [candidate.to_json() for candidate in self.candidates],
            "metrics": self.metrics,
            "slow": [{name: rank[name] for name in SLOW} for rank in self.slow],
            "strangers": self.strangers,
            "checkpoints": dict(self.lag) if self.lag else None,
            "diagnosis": dict(self.diagnosis) if self.diagnosis else None,
            "attempt": self.attempts[-1].number,
            "attempts": [attempt.to_json() for attempt in self.attempts],
            "continues": self.continues,
            "untracked": [asdict(files) for files in self.untracked],
        }


def _mark(agreed: Mapping[str, Any]) -> tuple[int, int]:
    return agreed["term"], agreed["version"]


def majority_of(hosts: int) -> int:
    """Return the quorum of a run with restarts on that many hosts, spares included."""
    return hosts // 2 + 1


def no_majority(left: int, hosts: int) -> str:
    """Return the sentence that says why the remaining hosts of a run with restarts start no other attempt."""
    return f"{left} of the run's {hosts} hosts left, no majority: they start no other attempt"


def end_and_continue(run: str) -> str:
    """Return the hint for a run without a majority; ``run`` is its id or name."""
    return f"end it, then continue it on the hosts that are there: ddpctl kill {run}, then ddpctl restart {run}"


def run_state(states: Sequence[str]) -> str:
    """Return the state of a run from the states of its nodes. The first rule that holds decides:

    1. No nodes: lost.
    2. All nodes are over: failed, killed or lost if any node is, in this order; else succeeded.
    3. A node failed, and every other node is over or unreachable: failed. No later report can make that better.
    4. A node is over without success, or is stopping: stopping.
    5. All nodes are pending: pending. Any node is pending or starting: starting.
    6. Else running: also if a node is unreachable or has a stale heartbeat, and all other nodes have succeeded.
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
