"""The words of a verdict: ranks, where they are, and what keeps them there. Pure."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterable, List, Sequence, Tuple

from ddpctl_worker.rules import flight, frames
from ddpctl_worker.rules.limits import NAMED_RANKS
from ddpctl_worker.rules.seen import DEFAULT_GROUPS, SeenRank


def numbers(ranks: Sequence[int]) -> str:
    """``0-2, 5`` for [0, 1, 2, 5]."""
    found: List[List[int]] = []
    for rank in sorted(ranks):
        if found and found[-1][1] == rank - 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return ", ".join(str(first) if first == last else "%d-%d" % (first, last) for first, last in found)


def who(ranks: Sequence[SeenRank]) -> str:
    """``rank 3 on node1``, ``ranks 0-2, 5``."""
    if len(ranks) == 1:
        return "rank %d on %s" % (ranks[0].rank, ranks[0].host)
    return "ranks %s" % numbers([one.rank for one in ranks])


def are(ranks: Sequence[SeenRank]) -> str:
    return "%s %s" % (who(ranks), "is" if len(ranks) == 1 else "are")


def have(ranks: Sequence[SeenRank]) -> str:
    return "%s %s" % (who(ranks), "has" if len(ranks) == 1 else "have")


def of(ranks: Sequence[Any], text: str) -> str:
    """``text`` is about one rank: ``waiting for its data loader``; of more it is ``their data loaders``."""
    return text if len(ranks) == 1 else re.sub(r"\bits (data loader|GPU|stack)\b", r"their \1s", text)


def count(some: int, world: int) -> str:
    """``15 of 16 ranks``, ``all 4 ranks``, ``the only rank``."""
    if some < world:
        return "%d of %d ranks" % (some, world)
    return "all %d ranks" % some if some > 1 else "the only rank"


def in_brackets(text: str) -> str:
    return " (%s)" % text if text else ""


def label(one: SeenRank) -> str:
    """What it is in: ``all_reduce #1203``, of a group that is not the default one with its name."""
    if one.pending is None:
        peers = one.look.get("peers") or {}
        if "src" in peers:
            return "%s from rank %d" % (one.operation, peers["src"])
        return "%s to rank %d" % (one.operation, peers["dst"]) if "dst" in peers else str(one.operation)
    return called(one.pending.op, one.pending.seq, one.pending.group)


def called(op: str, seq: int, group: str) -> str:
    """``all_reduce #1203``, ``all_reduce #3 of group 2``."""
    name = group[len(flight.NCCL) :] if group.startswith(flight.NCCL) else group
    return "%s #%d%s" % (op, seq, "" if group in DEFAULT_GROUPS else " of group %s" % name)


def where(one: SeenRank) -> str:
    """``in all_reduce #7 (train.py:88 in step)``, ``at data.py:41 in read, waiting for its data loader``."""
    if one.operation is not None:
        return "in %s%s" % (label(one), in_brackets(one.place))
    words = ["at %s" % one.place] if one.place else []
    words += [each for each in (reason(one), _worker(one)) if each]
    return ", ".join(words) or "elsewhere (its stack could not be read)"


def standing(ranks: Sequence[SeenRank]) -> str:
    """``rank 13 on node6 is at data.py:41 in blocked_read, waiting for its data loader``; equal ones together."""
    together: Dict[str, List[SeenRank]] = {}
    for one in ranks:
        together.setdefault(where(one), []).append(one)
    parts = ["%s %s" % (are(some), of(some, text)) for text, some in together.items()]
    more = len(parts) - NAMED_RANKS
    return "; ".join(parts[:NAMED_RANKS]) + ("; and %d more elsewhere" % more if more > 0 else "")


def reason(one: SeenRank) -> str:
    """What keeps it, by its stack or by the kernel."""
    if one.state == "blocked":
        return "waiting for a disk or a network file system"
    if one.spins:
        return "in a loop that takes a whole core"
    if one.look.get("sleep_s") is not None:
        return asleep(float(one.look["sleep_s"]), one.polls)
    found = frames.reason(one.stack)
    if found:
        return found
    waits = str(one.look.get("waits_in") or "")
    if "pipe" in waits or "fifo" in waits or waits == "wait_for_partner":
        return "reading from a pipe"
    return "waiting for a lock" if waits.startswith("futex") else ""


def asleep(seconds: float, polls: bool) -> str:
    return "where it sleeps and looks again" if polls else "asleep for another %d s" % round(seconds)


def _worker(one: SeenRank) -> str:
    """Where the worker of its data loader is, if it waits for that."""
    if "loader" not in reason(one):
        return ""
    places = [frames.place(child.get("stack")) for child in one.look.get("children") or ()]
    found = next((place for place in places if place), "")
    return "whose worker is at %s" % found if found else ""


def grouped(ranks: Sequence[SeenRank]) -> List[Dict[str, Any]]:
    """By where they are, the largest group first."""
    found: Dict[str, List[int]] = {}
    for one in ranks:
        if one.operation is not None:
            text = label(one) + in_brackets(one.place)
        else:
            text = ", ".join(word for word in (one.place, reason(one) or ("" if one.place else one.state)) if word)
        found.setdefault(text, []).append(one.rank)
    return [{"ranks": found[text], "where": text} for text in sorted(found, key=lambda text: (-len(found[text]), text))]


def evidence(one: SeenRank) -> List[str]:
    """What was seen of a suspect."""
    look = one.look
    words = [one.state]
    if look.get("cpu") is not None:
        words.append("%d %% of a core" % round(float(look["cpu"])))
    if look.get("below"):
        words.append("its children %d %%" % round(float(look["below"])))
    if look.get("waits_in"):
        words.append("in the kernel at %s" % look["waits_in"])
    if look.get("swap_mb"):
        words.append("%d MB in swap" % round(float(look["swap_mb"])))
    pid = ", pid %s" % look["pid"] if look.get("pid") is not None else ""
    lines = ["rank %d on %s%s: %s" % (one.rank, one.host, pid, ", ".join(words))]
    lines += ["    %s:%s in %s" % tuple(frame) for frame in (one.stack or [])[:8]]
    for child in (look.get("children") or [])[:2]:
        lines.append("  its child %s: %s" % (child.get("pid"), child.get("state")))
        lines += ["    %s:%s in %s" % tuple(frame) for frame in (child.get("stack") or [])[:4]]
    return lines


def same_words(pairs: Iterable[Tuple[int, str]]) -> List[str]:
    """Each sentence once, with the ranks that it is about."""
    found: Dict[str, List[int]] = {}
    for rank, text in pairs:
        found.setdefault(text, []).append(rank)
    return ["rank%s %s: %s" % ("" if len(which) == 1 else "s", numbers(which), text) for text, which in found.items()]
