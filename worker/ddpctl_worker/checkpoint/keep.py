"""Which checkpoints are old enough to be removed. Pure.

``keep: 3`` counts within a series: names that differ in their numbers alone, like ``step_10`` and ``step_20``. These
checkpoints stay:

- a checkpoint without a number in its name (``best.pt``, ``snapshot.pt``),
- the newest ``keep`` complete checkpoints of a series,
- an incomplete checkpoint that is newer than the oldest of these: a rank may still be writing it,
- every file of a save with a file that stays. Each rank that saves a file of its own has a series of its own,
- an output of the job: its user wants all of it,
- the newest checkpoint with copies on enough hosts: only that checkpoint outlives the loss of a host.

An older incomplete checkpoint is the rest of a removal: another host has removed its own part first.
"""

from __future__ import annotations

from typing import Dict, Iterable, List, Set

from ddpctl_worker.rules.choice import partial
from ddpctl_worker.rules.entries import save_of, series_of
from ddpctl_worker.rules.unite import Saved


def list_too_old(saved: Iterable[Saved], keep: int, outputs: Iterable[str] = (), holders: int = 1) -> List[str]:
    """Return the entries to be removed.

    ``saved``: newest first, as ``unite`` returns them. ``outputs``: of the job. ``holders``: number of hosts that
    should have each file.
    """
    numbered = [one for one in saved if series_of(one.entry) is not None and not _wanted(one.entry, outputs)]
    partly = partial([one for one in reversed(numbered) if one.complete])
    missing = {save_of(one.entry) for one in numbered if one.complete and one.held < holders}
    left: Dict[str, int] = {}
    secured: Set[str] = set()  # series in which a checkpoint with all copies stays
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
    """Whether ``ddpctl fetch`` brings the entry: it lies at or below a declared output, or may match a pattern."""
    for output in outputs:
        fixed = output.split("*")[0].split("?")[0].split("[")[0]
        plain = fixed[2:] if fixed.startswith("./") else fixed
        if (plain != output and entry.startswith(plain)) or (entry + "/").startswith(plain.rstrip("/") + "/"):
            return True
    return False
