"""Which checkpoints are old enough to be removed. Pure.

``keep: 3`` counts within a series: names that differ in their numbers alone, like ``step_10`` and ``step_20``. What has
no number (``best.pt``, ``snapshot.pt``) stands for itself and stays. Of a series the newest ``keep`` complete ones
stay, and whatever is not complete and newer than the oldest of them: it may be in the making. What is older is what
another host has left of a checkpoint by removing its own part first. Each rank that saves a file of its own has its own
series, but the files of one save go together: none of them goes as long as one of them stays. What is also an output of
the job stays: its user wants all of it.

With copies on other hosts the newest one that has all of its copies stays too: until a newer one has them, it is the
only one that outlives the loss of a host.
"""

from __future__ import annotations

from typing import Dict, Iterable, List, Set

from ddpctl_worker.rules.choice import partial
from ddpctl_worker.rules.entries import save_of, series_of
from ddpctl_worker.rules.unite import Saved


def too_old(saved: Iterable[Saved], keep: int, outputs: Iterable[str] = (), holders: int = 1) -> List[str]:
    """The entries to be removed. ``saved``: newest first, as ``unite`` gives them; ``outputs``: the job's; ``holders``:
    on how many hosts each file is to lie."""
    numbered = [one for one in saved if series_of(one.entry) is not None and not _wanted(one.entry, outputs)]
    partly = partial([one for one in reversed(numbered) if one.complete])
    missing = {save_of(one.entry) for one in numbered if one.complete and one.held < holders}
    left: Dict[str, int] = {}
    secured: Set[str] = set()  # series with one that stays and has all its copies
    found = []
    staying = set()
    for one in numbered:
        series, save = str(series_of(one.entry)), save_of(one.entry)
        enough, copied = left.get(series, keep) <= 0, save not in missing
        if not one.complete or one.entry in partly:
            found += [one.entry] if enough and series in secured else []
            continue
        left[series] = left.get(series, keep) - 1
        if enough and (series in secured or not copied):
            found.append(one.entry)
            continue
        staying.add(save)
        secured.update([series] if copied else [])
    return [entry for entry in found if save_of(entry) not in staying]


def _wanted(entry: str, outputs: Iterable[str]) -> bool:
    """Whether ``ddpctl fetch`` is to bring it: it is at or below a declared output, or may be what a pattern means."""
    for output in outputs:
        fixed = output.split("*")[0].split("?")[0].split("[")[0]
        plain = fixed[2:] if fixed.startswith("./") else fixed
        if (plain != output and entry.startswith(plain)) or (entry + "/").startswith(plain.rstrip("/") + "/"):
            return True
    return False
