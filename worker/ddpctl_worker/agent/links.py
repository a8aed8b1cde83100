"""Checks which hosts of a run reach each other, and finds free ports for the next attempt, as the leader asks."""

from __future__ import annotations

from typing import Any, Dict, FrozenSet, Optional, Sequence, Set, Tuple

from ddpctl_worker.agent.limits import ANSWER_S, CHECK_S, ROUNDS
from ddpctl_worker.agent.talk import PeerLine, Unanswered, at_once, reachable
from ddpctl_worker.run.ports import free_port
from ddpctl_worker.wire.channel import WorkerError

_NO_CHANNEL: Any = None  # a verb's channel to ddpctl; there is no ddpctl here


def find_cut_links(line: PeerLine, me: str, hosts: Sequence[str]) -> FrozenSet[FrozenSet[str]]:
    """Return the pairs of ``hosts`` that had no connection in any round.

    A host that does not answer is in a pair only if the other host of the pair reports the failure.
    """
    cut = _look_once(line, me, hosts)
    for _ in range(ROUNDS - 1):
        cut = cut & _look_once(line, me, hosts) if cut else cut
    return frozenset(cut)


def look_from_here(line: PeerLine, hosts: Sequence[str]) -> Dict[str, Optional[str]]:
    """Return for each of ``hosts`` why it does not answer from here; ``None`` if it does."""
    return reachable(line, [host for host in hosts if host in line.peers], CHECK_S)


def find_ports(line: PeerLine, me: str, host: str, question: Dict[str, Any]) -> Optional[Tuple[int, int]]:
    """Return two free ports on ``host``, for torch and for the gang; ``None`` if it gives no ports.

    ``question``: as for own_ports.
    """
    try:
        answer = own_ports(question) if host == me else line.ask(host, {"k": "ports", "prefer": question["prefer"]})
        return int(answer["ports"][0]), int(answer["ports"][1])
    except (Unanswered, WorkerError, KeyError):
        return None


def own_ports(question: Dict[str, Any]) -> Dict[str, Any]:
    """Return two free ports of this host: {"ports"}.

    ``question``: {"base_dir", "host", "own": the run, "prefer": a port that is taken if it is free}.

    Raises: WorkerError: this host has no two free ports.
    """
    return free_port(dict(question, count=2), _NO_CHANNEL)


def _look_once(line: PeerLine, me: str, hosts: Sequence[str]) -> Set[FrozenSet[str]]:
    found: Set[FrozenSet[str]] = set()

    def look(host: str) -> None:
        others = [peer for peer in hosts if peer != host]
        try:
            reasons = (
                look_from_here(line, others)
                if host == me
                else line.ask(host, {"k": "check", "hosts": others}, CHECK_S + ANSWER_S)["found"]
            )
        except Unanswered:
            return
        found.update(frozenset((host, other)) for other, why in reasons.items() if why is not None)

    at_once(look, hosts, CHECK_S + ANSWER_S + 1.0)
    return set(found)
