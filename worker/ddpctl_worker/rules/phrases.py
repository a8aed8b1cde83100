"""The sentences of a verdict: ranks, their places, and the reasons why they wait there. Pure."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterable, List, Sequence, Tuple

from ddpctl_worker.rules import flight, frames
from ddpctl_worker.rules.limits import NAMED_RANKS
from ddpctl_worker.rules.rank_view import DEFAULT_GROUPS, RankView


def numbers(ranks: Sequence[int]) -> str:
    """Return ``0-2, 5`` for [0, 1, 2, 5]."""
    found: List[List[int]] = []
    for rank in sorted(ranks):
        if found and found[-1][1] == rank - 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return ", ".join(str(first) if first == last else "%d-%d" % (first, last) for first, last in found)


def who(ranks: Sequence[RankView]) -> str:
    """Return ``rank 3 on node1``, or ``ranks 0-2, 5``."""
    if len(ranks) == 1:
        return "rank %d on %s" % (ranks[0].rank, ranks[0].host)
    return "ranks %s" % numbers([rank.rank for rank in ranks])


def are(ranks: Sequence[RankView]) -> str:
    return "%s %s" % (who(ranks), "is" if len(ranks) == 1 else "are")


def have(ranks: Sequence[RankView]) -> str:
    return "%s %s" % (who(ranks), "has" if len(ranks) == 1 else "have")


def of(ranks: Sequence[Any], text: str) -> str:
    """Return ``text``, which is about one rank, for all ranks: ``its data loader`` becomes ``their data loaders``."""
    return text if len(ranks) == 1 else re.sub(r"\bits (data loader|GPU|stack)\b", r"their \1s", text)


def count(some: int, world: int) -> str:
    """Return ``15 of 16 ranks``, ``all 4 ranks``, or ``the only rank``."""
    if some < world:
        return "%d of %d ranks" % (some, world)
    return "all %d ranks" % some if some > 1 else "the only rank"


def in_brackets(text: str) -> str:
    return " (%s)" % text if text else ""


def rank_label(rank: RankView) -> str:
    """Return the rank's operation: ``all_reduce #1203``, with the group's name if it is not the default group."""
    if rank.pending is None:
        peers = rank.look.get("peers") or {}
        if "src" in peers:
            return "%s from rank %d" % (rank.operation, peers["src"])
        return "%s to rank %d" % (rank.operation, peers["dst"]) if "dst" in peers else str(rank.operation)
    return call_text(rank.pending.op, rank.pending.seq, rank.pending.group)


def call_text(op: str, seq: int, group: str) -> str:
    """Return ``all_reduce #1203``, or ``all_reduce #3 of group 2``."""
    name = group[len(flight.NCCL) :] if group.startswith(flight.NCCL) else group
    return "%s #%d%s" % (op, seq, "" if group in DEFAULT_GROUPS else " of group %s" % name)


def place_text(rank: RankView) -> str:
    """Return ``in all_reduce #7 (train.py:88 in step)``, or ``at data.py:41 in read, waiting for its data loader``."""
    if rank.operation is not None:
        return "in %s%s" % (rank_label(rank), in_brackets(rank.place))
    words = ["at %s" % rank.place] if rank.place else []
    words += [each for each in (reason_text(rank), _worker(rank)) if each]
    return ", ".join(words) or "elsewhere (its stack could not be read)"


def standing_text(ranks: Sequence[RankView]) -> str:
    """Return the place of each rank, equal places together.

    For example ``rank 13 on node6 is at data.py:41 in blocked_read, waiting for its data loader``.
    """
    together: Dict[str, List[RankView]] = {}
    for rank in ranks:
        together.setdefault(place_text(rank), []).append(rank)
    parts = ["%s %s" % (are(some), of(some, text)) for text, some in together.items()]
    more = len(parts) - NAMED_RANKS
    return "; ".join(parts[:NAMED_RANKS]) + ("; and %d more elsewhere" % more if more > 0 else "")


def reason_text(rank: RankView) -> str:
    """Return why the rank does not move, by its stack or by the kernel."""
    if rank.state == "blocked":
        return "waiting for a disk or a network file system"
    if rank.spins:
        return "in a loop that takes a whole core"
    if rank.look.get("sleep_s") is not None:
        return sleep_text(float(rank.look["sleep_s"]), rank.polls)
    found = frames.reason(rank.stack)
    if found:
        return found
    waits = str(rank.look.get("waits_in") or "")
    if "pipe" in waits or "fifo" in waits or waits == "wait_for_partner":
        return "reading from a pipe"
    return "waiting for a lock" if waits.startswith("futex") else ""


def sleep_text(seconds: float, polls: bool) -> str:
    return "where it sleeps and looks again" if polls else "asleep for another %d s" % round(seconds)


def _worker(rank: RankView) -> str:
    """Return the place of the data loader's worker, if the rank waits for it."""
    if "loader" not in reason_text(rank):
        return ""
    places = [frames.place(child.get("stack")) for child in rank.look.get("children") or ()]
    found = next((place for place in places if place), "")
    return "whose worker is at %s" % found if found else ""


def group_ranks(ranks: Sequence[RankView]) -> List[Dict[str, Any]]:
    """Return the ranks by place, the largest group first."""
    found: Dict[str, List[int]] = {}
    for rank in ranks:
        if rank.operation is not None:
            text = rank_label(rank) + in_brackets(rank.place)
        else:
            text = ", ".join(
                word for word in (rank.place, reason_text(rank) or ("" if rank.place else rank.state)) if word
            )
        found.setdefault(text, []).append(rank.rank)
    return [{"ranks": found[text], "where": text} for text in sorted(found, key=lambda text: (-len(found[text]), text))]


def evidence_text(rank: RankView) -> List[str]:
    """Return the lines about a suspect: its state, its stack, and its children."""
    look = rank.look
    words = [rank.state]
    if look.get("cpu") is not None:
        words.append("%d %% of a core" % round(float(look["cpu"])))
    if look.get("below"):
        words.append("its children %d %%" % round(float(look["below"])))
    if look.get("waits_in"):
        words.append("in the kernel at %s" % look["waits_in"])
    if look.get("swap_mb"):
        words.append("%d MB in swap" % round(float(look["swap_mb"])))
    pid = ", pid %s" % look["pid"] if look.get("pid") is not None else ""
    lines = ["rank %d on %s%s: %s" % (rank.rank, rank.host, pid, ", ".join(words))]
    lines += ["    %s:%s in %s" % tuple(frame) for frame in (rank.stack or [])[:8]]
    for child in (look.get("children") or [])[:2]:
        lines.append("  its child %s: %s" % (child.get("pid"), child.get("state")))
        lines += ["    %s:%s in %s" % tuple(frame) for frame in (child.get("stack") or [])[:4]]
    return lines


def same_words(pairs: Iterable[Tuple[int, str]]) -> List[str]:
    """Return each sentence once, with the ranks that it is about."""
    found: Dict[str, List[int]] = {}
    for rank, text in pairs:
        found.setdefault(text, []).append(rank)
    return ["rank%s %s: %s" % ("" if len(which) == 1 else "s", numbers(which), text) for text, which in found.items()]
