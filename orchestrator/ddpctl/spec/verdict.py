"""Judges a run from the records of its nodes: state, cause, attempts, and which nodes count. Pure.

There are three kinds of runs:

- Static, without restarts: every node decides on the state. There is one attempt.
- Elastic (the record has ``min_nodes``): torch's elastic agent continues without lost nodes, down to that number.
- With restarts (the record has ``restart``): the agents of the hosts agree on attempts and on the end. A majority of
  all hosts, spares included, commits a decision; ``NodeStatus.agreed`` is a host's copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ddpctl.spec.limits import SURVIVED
from ddpctl.spec.outcome import AgreedRun, Attempt, Cause, End, NodeStatus
from ddpctl.spec.record import RecordedRun
from ddpctl_worker.wire import contract

Nodes = Sequence[NodeStatus]

# States of a node that has left an elastic run. An unreachable node is lost, or it ends like the rest.
_GONE = frozenset({contract.FAILED, contract.LOST, contract.UNREACHABLE})
_NOT_AT_WORK = contract.TERMINAL | {contract.UNREACHABLE}  # states of a node that is not known to be at work
_PEER_MISSING = frozenset({contract.NODE_LOST, contract.RENDEZVOUS_TIMEOUT})  # the node lost a peer, or never met it


@dataclass(frozen=True)
class RunVerdict:
    """What the records of the nodes say about the run as a whole."""

    state: str
    cause: Cause | None
    candidates: tuple[Cause, ...]  # the other possible causes, the earliest first
    started: str | None
    ended: str | None
    end: End | None  # the end to record on this machine; None: some node has not reported the end yet
    attempts: tuple[Attempt, ...]  # with those of the run that this run continues; the oldest may be missing
    own_attempts: tuple[Attempt, ...]  # the attempts of this run alone: a single attempt if the run has no restarts
    active_nodes: tuple[NodeStatus, ...]  # the newest attempt's, in the order of their ranks: no spares, no lost hosts
    deciding_nodes: tuple[NodeStatus, ...]  # the nodes that decide on the state
    departed_nodes: tuple[NodeStatus, ...]  # the nodes that have left an elastic run, which continues without them
    excluded_hosts: Mapping[str, str]  # the hosts that this run must not use again, each with why
    silent_may_go_on: bool  # whether the unreachable hosts of a run with restarts may have gone on by themselves
    lacks_majority: bool  # whether a run with restarts has lost too many hosts for another attempt

    @property
    def terminal(self) -> bool:
        return self.state in contract.TERMINAL


def judge_run(nodes: Nodes, record: RecordedRun, remembered: End | None = None) -> RunVerdict:
    """Judge a run.

    ``nodes`` has all nodes in the order of their ranks, ``record`` is the run.json of any of them. ``remembered`` is
    the end that this machine recorded earlier: it holds even if no node can be reached any more.
    """
    agreed = _newest_agreed(nodes)
    active = _active_nodes(nodes, agreed)
    deciding = _deciding_nodes(nodes, active, record)
    departed = tuple(node for node in active if node not in deciding)
    silent_may_go_on = _silent_may_go_on(nodes, active)
    end = remembered or _committed_end_at_rest(nodes, agreed)
    if end is not None:
        state, cause = end.state, end.cause
    else:
        may_go_on = _may_go_on(nodes, record, _committed_end(nodes, agreed), silent_may_go_on)
        state = _judge_state(nodes, deciding, may_go_on)
        cause = _first_hand(_find_cause(_reporting_nodes(nodes, deciding, state), record), nodes)
    ended = remembered.ended if remembered else _last_end(_reporting_nodes(nodes, deciding, state), state, cause)
    if agreed:
        own = agreed.attempts
        started = own[0].started
    else:
        started = min((node.started for node in nodes if node.started), default=None)
        number = max((node.attempt for node in nodes), default=1)
        own = (Attempt(number, tuple(node.host for node in nodes), started, ended, cause),)
    everyone_ended = end is not None or all(node.state in contract.TERMINAL for node in nodes)
    return RunVerdict(
        state=state,
        cause=cause,
        candidates=_other_causes(nodes, departed, cause),
        started=started,
        ended=ended,
        end=End(state, ended, cause) if everyone_ended else None,
        attempts=(*(record.continues.attempts if record.continues else ()), *own),
        own_attempts=own,
        active_nodes=active,
        deciding_nodes=deciding,
        departed_nodes=departed,
        excluded_hosts=agreed.set_aside if agreed else {},
        silent_may_go_on=silent_may_go_on,
        lacks_majority=_lacks_majority(nodes, record),
    )


def _newest_agreed(nodes: Nodes) -> AgreedRun | None:
    return max([node.agreed for node in nodes if node.agreed], key=_mark, default=None)


def _active_nodes(nodes: Nodes, agreed: AgreedRun | None) -> tuple[NodeStatus, ...]:
    if not agreed:
        return tuple(nodes)
    order = {host: rank for rank, host in enumerate(agreed.attempts[-1].hosts)}
    return tuple(sorted((node for node in nodes if node.host in order), key=lambda node: order[node.host]))


def _deciding_nodes(nodes: Nodes, active: Nodes, record: RecordedRun) -> tuple[NodeStatus, ...]:
    """Return the nodes that decide on the state: usually all nodes of the newest attempt.

    In an elastic run with at least ``min_nodes`` nodes left, the nodes that are gone do not count: torch's elastic
    agent continues without them. A node that fails after another node has succeeded does count.
    """
    least = record.min_nodes
    rest = [node for node in active if node.state not in _GONE]
    if least is None or len(rest) < least:
        return tuple(active)
    first = min((node.ended for node in rest if node.state == contract.SUCCEEDED and node.ended), default=None)
    late = [node for node in nodes if node.state == contract.FAILED and first and (node.ended or "") >= first]
    return tuple(nodes if late else rest)


def _silent_may_go_on(nodes: Nodes, active: Nodes) -> bool:
    """Return whether the silent (unreachable) hosts of a run with restarts may have gone on by themselves.

    A host that has ended its part, or whose agent is gone, never votes again. So the silent hosts may go on

    - if they are a majority of all hosts: they can agree on another attempt;
    - if they are half of an even number of hosts, and the newest attempt may run on silent hosts alone: they cannot
      start another attempt, but they can finish this attempt.
    """
    silent = [node for node in nodes if node.state == contract.UNREACHABLE]
    answering = [node for node in nodes if node.state != contract.UNREACHABLE]
    if len(silent) >= majority_of(len(nodes)):
        return True
    attempt_is_known = all(node.agreed for node in answering)  # a host without its copy may have missed an attempt
    attempt_is_silent = all(node in silent for node in active)
    return 2 * len(silent) >= len(nodes) and (attempt_is_silent or not attempt_is_known)


def _committed_end(nodes: Nodes, agreed: AgreedRun | None) -> End | None:
    """Return the end in the agents' document, if a majority has it: a single host's copy may not be committed."""
    marks = [_mark(node.agreed) for node in nodes if node.agreed]
    if agreed is None or marks.count(_mark(agreed)) < majority_of(len(nodes)):
        return None
    return agreed.over


def _committed_end_at_rest(nodes: Nodes, agreed: AgreedRun | None) -> End | None:
    """Return the committed end, once no host is at work any more."""
    return None if any(node.state not in _NOT_AT_WORK for node in nodes) else _committed_end(nodes, agreed)


def _may_go_on(nodes: Nodes, record: RecordedRun, committed_end: End | None, silent_may_go_on: bool) -> bool:
    """Return whether another attempt may still start, or may have started already.

    That needs restarts, no committed end, and hosts that can go on: a host at work, even a spare, or silent hosts.
    """
    if record.restart is None or committed_end:
        return False
    return any(node.state not in _NOT_AT_WORK for node in nodes) or silent_may_go_on


def _judge_state(nodes: Nodes, deciding: Nodes, may_go_on: bool) -> str:
    state = run_state([_state_of(node, nodes) for node in deciding])
    if state not in contract.TERMINAL or not may_go_on:
        return state
    return contract.RUNNING if state == contract.SUCCEEDED else contract.STARTING  # as between two attempts


def _state_of(node: NodeStatus, nodes: Nodes) -> str:
    """Return the state of a node; killed instead of failed where the node lost its peer to a kill by the user.

    A kill may not reach every host. A host that it missed finds its peers gone later, and fails for that reason.
    """
    cause = node.cause
    if node.state == contract.FAILED and cause is not None and cause.reason in _PEER_MISSING:
        of_peer = [peer.cause for peer in nodes if peer.host == cause.host and peer.cause is not None]
        if any(end.reason == contract.KILLED_BY_USER and end.time < cause.time for end in of_peer):
            return contract.KILLED
    return node.state


def _reporting_nodes(nodes: Nodes, deciding: Nodes, state: str) -> Nodes:
    """Return the nodes whose records tell how the run ended.

    Of a run that failed or was killed, these are the nodes in that state. A node that comes back later, after a power
    loss for example, finds its processes gone. Its record then describes that node alone.
    """
    if state not in (contract.FAILED, contract.KILLED):
        return deciding
    return [node for node in nodes if node.state == state] or nodes


def _find_cause(reporting: Nodes, record: RecordedRun) -> Cause | None:
    """Return the cause of the run, from the causes that the nodes report:

    1. A lost link, if all other causes are missing peers. Both hosts of the link live, so no host was lost.
    2. Else the earliest cause other than a lost node: a lost node is what the peers of the culprit report.
    3. Else, with lost nodes only, the node that most nodes report. A node that was cut off reports another node.
    """
    causes = _without_survived([node.cause for node in reporting if node.cause], record)
    culprits = [cause for cause in causes if cause.reason != contract.NODE_LOST]
    links = [cause for cause in culprits if cause.reason == contract.LINK_LOST]
    if links and all(cause in links or cause.reason in _PEER_MISSING for cause in culprits):
        culprits = links
    if culprits:
        return min(culprits, key=lambda cause: cause.time)
    reports = Counter(cause.host for cause in causes)
    return max(causes, key=lambda cause: reports[cause.host], default=None)


def _first_hand(cause: Cause | None, nodes: Nodes) -> Cause | None:
    """Return a host's own report of its lost supervisor, which may say why; a peer knows only that it is gone."""
    if cause is None or cause.reason != contract.SUPERVISOR_LOST:
        return cause
    own = (node.cause for node in nodes if node.host == cause.host and node.state == contract.LOST)
    return next((known for known in own if known is not None and known.reason == cause.reason), cause)


def _without_survived(causes: Sequence[Cause], record: RecordedRun) -> Sequence[Cause]:
    """Drop the causes that an elastic run survived: a node that it lost days before the end did not end it."""
    if record.min_nodes is None or not causes:
        return causes
    times = [datetime.fromisoformat(cause.time.replace("Z", "+00:00")) for cause in causes]
    return [cause for cause, time in zip(causes, times, strict=True) if max(times) - time <= SURVIVED]


def _last_end(reporting: Nodes, state: str, cause: Cause | None) -> str | None:
    if state not in contract.TERMINAL:
        return None
    host = cause.host if cause else None
    # A node that was cut off ends on its own, maybe long after the run.
    return max((node.ended for node in reporting if node.ended and not node.cut_off_from(host)), default=None)


def _other_causes(nodes: Nodes, departed: Nodes, cause: Cause | None) -> tuple[Cause, ...]:
    """Return the other possible causes, the earliest first, each of them once even if several nodes report it."""
    kept = {(cause.host, cause.rank, cause.reason): cause} if cause else {}
    for node in nodes:
        own = [node.cause] if node.cause and node in departed else []
        for found in (*own, *node.candidates):
            kept.setdefault((found.host, found.rank, found.reason), found)
    return tuple(sorted((found for found in kept.values() if found is not cause), key=lambda found: found.time))


def _lacks_majority(nodes: Nodes, record: RecordedRun) -> bool:
    lost = sum(node.state == contract.LOST for node in nodes)
    return record.restart is not None and len(nodes) - lost < majority_of(len(nodes))


def _mark(agreed: AgreedRun) -> tuple[int, int]:
    return agreed.term, agreed.version


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
    5. Any node is queued: queued.
    6. All nodes are pending: pending. Any node is pending or starting: starting.
    7. Else running: also if a node is unreachable or has a stale heartbeat, and all other nodes have succeeded.
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
    if contract.QUEUED in states:
        return contract.QUEUED
    if all(state == contract.PENDING for state in states):
        return contract.PENDING
    if any(state in (contract.PENDING, contract.STARTING) for state in states):
        return contract.STARTING
    return contract.RUNNING
