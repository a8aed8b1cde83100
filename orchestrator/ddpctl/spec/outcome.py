"""What became of a run: values that come from the nodes' records, and how they add up. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timedelta
from typing import Any

from ddpctl.spec.metrics import Values, of_job
from ddpctl.spec.origin import JobId, Origin
from ddpctl_worker import contract

SLOW = ("host", "rank", "lag_ms", "last_share")  # what the documents say of a slow rank
STRANGERS = ("count", "addresses", "most", "last")  # ... and of connections by strangers
LOST_FOR_RUN = "it takes part in this run no more; the next `ddpctl restart` or `ddpctl up` uses it again"
SAVE_SIGNAL, SAVE_TIMEOUT_S = "SIGUSR1", 120.0  # of a run that was started by a ddpctl without the key checkpoint


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
    peer: str | None = None  # the second host of a link that is lost

    def to_json(self) -> dict[str, Any]:
        """``peer`` is there where there is one."""
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
    note: str | None = None  # why a host that answers cannot tell how its part stands, or whom an attempt waits for
    diagnosis: Mapping[str, Any] | None = None  # why the run is stuck, as this node knows it
    slow: tuple[Mapping[str, Any], ...] = ()  # ranks that are late again and again, of all nodes
    reported: str | None = None  # when the node that decides on both said so
    strangers: Mapping[str, Any] | None = None  # connections to its ports by programs that are not of the run
    lag: Mapping[str, Any] | None = None  # how far its checkpoints are behind the saves of its ranks
    agreed: Mapping[str, Any] | None = None  # what the agents of a run with restarts have agreed on, as it knows that

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


@dataclass(frozen=True)
class Attempt:
    """One attempt of a run, the first one being 1; ``set_aside``: hosts that the next one does without, and why."""

    number: int
    hosts: tuple[str, ...]
    started: str | None = None
    ended: str | None = None
    cause: Cause | None = None
    set_aside: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Attempt:
        cause = data.get("cause")
        aside = tuple((str(one["host"]), str(one["why"])) for one in data.get("set_aside") or ())
        why = Cause.from_json(cause) if cause else None
        return Attempt(data["attempt"], tuple(data["hosts"]), data.get("started"), data.get("ended"), why, aside)

    def to_json(self) -> dict[str, Any]:
        return {
            "attempt": self.number,
            "hosts": list(self.hosts),
            "started": self.started,
            "ended": self.ended,
            "cause": self.cause.to_json() if self.cause else None,
            "set_aside": [{"host": host, "why": why} for host, why in self.set_aside],
        }


# A node that takes part in an elastic run no more. One that is out of reach is lost, or fares as the others do.
_LEFT = frozenset({contract.FAILED, contract.LOST, contract.UNREACHABLE})
_OUT = contract.TERMINAL | {contract.UNREACHABLE}  # of a node that is not known to be at work
SURVIVED = timedelta(minutes=10)  # so long before the last failure of an elastic run, one was survived
# A node that fails for such a reason has lost another one, or never met it.
_MISSES_OTHERS = frozenset({contract.NODE_LOST, contract.RENDEZVOUS_TIMEOUT})


@dataclass(frozen=True)
class Untracked:
    """Files that the script wrote into its working folder on a host and that no declared output covers. ``files``: how
    many, at least if not ``whole``; ``largest``: names below ``folder``, with bytes. ``error``: why it is not known."""

    host: str
    folder: str = ""
    files: int = 0
    bytes: int = 0
    largest: tuple[tuple[str, int], ...] = ()
    whole: bool = True
    error: str | None = None


@dataclass(frozen=True)
class RunStatus:
    """A run on all its nodes. ``record`` is the run.json of any of them, ``seen`` the end that was seen before.

    ``unheard``: other hosts that were asked which run a name means, and did not answer. ``untracked``: as far as
    anybody asked.
    """

    job: str
    run: str
    cluster: str
    nodes: tuple[NodeStatus, ...]
    record: Mapping[str, Any] = field(default_factory=dict)
    seen: End | None = None
    unheard: tuple[str, ...] = ()
    untracked: tuple[Untracked, ...] = ()

    @property
    def project(self) -> str:
        return str(self.record["project"])

    @property
    def job_id(self) -> JobId:
        return JobId(self.cluster, self.project, self.job)

    @property
    def origin(self) -> Origin | None:
        """Where it was started; None where a damaged record does not say."""
        told = self.record.get("origin")
        return Origin.from_json(told) if told else None

    @property
    def user(self) -> str | None:
        """The account that started it."""
        return self.origin.account if self.origin else None

    @property
    def state(self) -> str:
        if self.seen:
            return self.seen.state
        if self._over:
            return str(self._over["state"])
        whole = run_state([self._seen_by(node) for node in self.taking_part])
        if whole not in contract.TERMINAL or not self._may_go_on:
            return whole
        return contract.RUNNING if whole == contract.SUCCEEDED else contract.STARTING  # as between two attempts

    @property
    def _may_go_on(self) -> bool:
        """Whether its hosts may still start another attempt, or have done that: its end is not known to be agreed on,
        and one of them lives, be it a spare, or those that do not answer may go on."""
        if not self.record.get("restart") or self._agreed_over:
            return False
        return any(node.state not in _OUT for node in self.nodes) or self.silent_may_go_on

    @property
    def silent_may_go_on(self) -> bool:
        """Whether the hosts that do not answer may have gone on without the others, of a run with restarts.

        A host that has ended its part, or whose agent is gone, never votes again. So the silent hosts need a majority
        to start another attempt. Half of an even number can keep an attempt that runs on silent hosts alone.
        """
        silent = [node for node in self.nodes if node.state == contract.UNREACHABLE]
        others = [node for node in self.nodes if node.state != contract.UNREACHABLE]
        if len(silent) >= majority_of(len(self.nodes)):
            return True
        known = all(node.agreed for node in others)  # else an attempt may have begun that they do not know
        apart = all(node in silent for node in self.nodes_at_work)
        return 2 * len(silent) >= len(self.nodes) and (apart or not known)

    @property
    def lacks_majority(self) -> bool:
        """Whether too many hosts of a run with restarts are lost for its hosts to start another attempt."""
        lost = sum(node.state == contract.LOST for node in self.nodes)
        return bool(self.record.get("restart")) and len(self.nodes) - lost < majority_of(len(self.nodes))

    @property
    def taking_part(self) -> Sequence[NodeStatus]:
        """The nodes that decide how the run stands: those of the newest attempt, or all of them less those that torch's
        elastic agent does without.

        One that has ended before any other succeeded was done without. One that fails later is a failure as ever.
        """
        least = self.record.get("min_nodes")
        nodes = self.nodes_at_work
        rest = [node for node in nodes if node.state not in _LEFT]
        if least is None or len(rest) < least:
            return nodes
        first = min((node.ended for node in rest if node.state == contract.SUCCEEDED and node.ended), default=None)
        late = [node for node in self.nodes if node.state == contract.FAILED and first and (node.ended or "") >= first]
        return self.nodes if late else rest

    @property
    def left(self) -> Sequence[NodeStatus]:
        """The nodes that an elastic run does without."""
        staying = self.taking_part
        return [node for node in self.nodes_at_work if node not in staying]

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
        if self.seen or (not self._over and any(node.state not in contract.TERMINAL for node in self.nodes)):
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
        if self._over:
            return Cause.from_json(self._over["cause"]) if self._over["cause"] else None
        causes = self._not_survived([node.cause for node in self._deciding if node.cause])
        culprits = [cause for cause in causes if cause.reason != contract.NODE_LOST]
        links = [cause for cause in culprits if cause.reason == contract.LINK_LOST]
        if links and all(cause in links or cause.reason in _MISSES_OTHERS for cause in culprits):
            culprits = links  # a host that others miss has said so itself: it lives
        if culprits:
            return min(culprits, key=lambda cause: cause.time)
        missed = Counter(cause.host for cause in causes)
        return max(causes, key=lambda cause: missed[cause.host], default=None)

    def _not_survived(self, causes: Sequence[Cause]) -> Sequence[Cause]:
        """An elastic run may have lost a node days before it ended: that was not the cause."""
        if self.record.get("min_nodes") is None or not causes:
            return causes
        times = [datetime.fromisoformat(cause.time.replace("Z", "+00:00")) for cause in causes]
        return [cause for cause, time in zip(causes, times, strict=True) if max(times) - time <= SURVIVED]

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """All attempts so far, with those of the run that this one continues."""
        earlier = (self.record.get("continues") or {}).get("attempts") or ()
        return (*(Attempt.from_json(one) for one in earlier), *self.own_attempts)

    @property
    def continues(self) -> str | None:
        """The id of the run that this one continues."""
        return (self.record.get("continues") or {}).get("run")

    @property
    def own_attempts(self) -> tuple[Attempt, ...]:
        """Those of this very run. Without restarts it has one."""
        agreed = self._agreed
        if agreed:
            return tuple(Attempt.from_json(one) for one in agreed["attempts"])
        number = max((node.attempt for node in self.nodes), default=1)
        return (Attempt(number, self.hosts, self.started, self.ended, self.cause),)

    @property
    def _agreed(self) -> Mapping[str, Any] | None:
        """The newest that any host knows of what the agents have agreed on."""
        found = [node.agreed for node in self.nodes if node.agreed]
        return max(found, key=lambda one: (one["term"], one["version"]), default=None)

    @property
    def unfit(self) -> Mapping[str, str]:
        """The hosts that must not be used for it again, and why: their hardware is broken, or they are stuck."""
        return dict((self._agreed or {}).get("aside") or {})

    @property
    def _over(self) -> Mapping[str, Any] | None:
        """How it ended, as the agents agreed, once no host of it is at work any more."""
        return None if any(node.state not in _OUT for node in self.nodes) else self._agreed_over

    @property
    def _agreed_over(self) -> Mapping[str, Any] | None:
        """How it ended, by the word of a majority: one host may have written what the others never heard of."""
        agreed = self._agreed
        marks = [(one["term"], one["version"]) for node in self.nodes if (one := node.agreed)]
        if agreed is None or marks.count((agreed["term"], agreed["version"])) < majority_of(len(self.nodes)):
            return None
        over: Mapping[str, Any] | None = agreed["over"]
        return over

    @property
    def started(self) -> str | None:
        if self._agreed:
            return self.own_attempts[0].started
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
            return self.taking_part
        return [node for node in self.nodes if node.state == self.state] or self.nodes

    @property
    def candidates(self) -> tuple[Cause, ...]:
        """What else may have been the cause, the earliest first; every node reports its own, one reports all."""
        cause = self.cause
        kept = {(cause.host, cause.rank, cause.reason): cause} if cause else {}
        for node in self.nodes:
            own = [node.cause] if node.cause and node in self.left else []
            for one in (*own, *node.candidates):
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
    def lag(self) -> Mapping[str, Any] | None:
        """How far the checkpoints with all of their copies are behind the saves, on the host where that is most: name,
        saved_s, kept_s, behind_s, late, copies. None: no rank has saved in this attempt."""
        told = [node.lag for node in self.nodes_at_work if node.lag is not None]
        return max(told, key=lambda one: (one["behind_s"] or 0.0, one["kept_s"] or 0.0), default=None)

    @property
    def strangers(self) -> list[dict[str, Any]]:
        """The hosts to whose ports programs connect that are not of the run: host, count, addresses, most, last."""
        told = [(node.host, node.strangers) for node in self.nodes if node.strangers]
        return [{"host": host, **{name: found[name] for name in STRANGERS}} for host, found in told]

    @property
    def _doctors_report(self) -> NodeStatus | None:
        """The node with node rank 0 decides who is stuck or slow; where it does not answer, what another heard last."""
        told = [node for node in self.nodes_at_work if node.reported]
        return max(told, key=lambda node: (node is self.nodes_at_work[0], node.reported), default=None)

    @property
    def grace(self) -> float:
        """Seconds from SIGTERM to SIGKILL where a kill names none: the job's ``timeouts.stop``."""
        seconds = (self.record.get("timeouts") or {}).get("stop")
        return contract.STOP_GRACE_S if seconds is None else float(seconds)

    @property
    def save_signal(self) -> str:
        """What asks a rank for a checkpoint: the job's ``checkpoint.signal``."""
        return str((self.record.get("checkpoint") or {}).get("signal") or SAVE_SIGNAL)

    @property
    def save_timeout(self) -> float:
        """Seconds until it has to be there: the job's ``checkpoint.timeout``."""
        return float((self.record.get("checkpoint") or {}).get("timeout") or SAVE_TIMEOUT_S)

    @property
    def copies(self) -> bool:
        """Whether another host gets a copy of each checkpoint."""
        return bool((self.record.get("checkpoint") or {}).get("replicas")) and len(self.nodes_at_work) > 1

    @property
    def world_size(self) -> int:
        if len(self.own_attempts) > 1:
            return sum(len(node.ranks) for node in self.nodes_at_work)
        return int(self.record.get("world_size") or sum(len(node.ranks) for node in self.nodes))

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(node.host for node in self.nodes)

    @property
    def nodes_at_work(self) -> tuple[NodeStatus, ...]:
        """The nodes of the newest attempt in the order of their node ranks: spares and lost hosts are left out."""
        if not self._agreed:
            return self.nodes
        order = {host: rank for rank, host in enumerate(self.attempts[-1].hosts)}
        return tuple(sorted((node for node in self.nodes if node.host in order), key=lambda node: order[node.host]))

    def hosts_of(self, ranks: Collection[int]) -> list[str]:
        """The hosts that may have run one of these ranks; none where there is no such rank.

        After a restart a rank may be on another host. One that is out of reach does not say which ranks it has.
        """
        found = {rank for node in self.nodes for rank in node.ranks}
        most = self.record.get("world_size")  # None: torch's elastic agent decides
        wanted = set(ranks) if most is None else {rank for rank in ranks if rank < most} | found.intersection(ranks)
        if wanted and (self.record.get("restart") or self.record.get("min_nodes") is not None):
            return list(self.hosts)
        unsaid = not wanted <= found
        return [node.host for node in self.nodes if wanted & set(node.ranks) or (unsaid and not node.ranks)]

    def to_json(self) -> dict[str, Any]:
        """As the contract fixes it for `up` and `status`."""
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
            "nodes": [node.to_json() for node in self.nodes_at_work],
            "cause": cause.to_json() if cause else None,
            "candidates": [one.to_json() for one in self.candidates],
            "metrics": self.metrics,
            "slow": [{name: one[name] for name in SLOW} for one in self.slow],
            "strangers": self.strangers,
            "checkpoints": dict(self.lag) if self.lag else None,
            "diagnosis": dict(self.diagnosis) if self.diagnosis else None,
            "attempt": self.attempts[-1].number,
            "attempts": [one.to_json() for one in self.attempts],
            "continues": self.continues,
            "untracked": [asdict(one) for one in self.untracked],
        }


def majority_of(hosts: int) -> int:
    """How many hosts of a run with restarts decide what follows, spares included."""
    return hosts // 2 + 1


def no_majority(left: int, hosts: int) -> str:
    """Why the hosts that are left of a run with restarts start no attempt any more."""
    return f"{left} of the run's {hosts} hosts left, no majority: they start no other attempt"


def end_and_continue(run: str) -> str:
    """What to do then; ``run``: its id or name."""
    return f"end it, then continue it on the hosts that are there: ddpctl kill {run}, then ddpctl restart {run}"


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
