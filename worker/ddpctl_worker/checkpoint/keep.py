"""Which checkpoints are old enough to be removed. Pure.

``keep: 3`` counts within a series: names that differ in their numbers alone, like ``step_10`` and ``step_20``. What has
no number (``best.pt``, ``snapshot.pt``) stands for itself and stays. Of a series the newest ``keep`` complete ones
stay, and whatever is not complete: it may be in the making. Each rank that saves a file of its own has its own series,
but the files of one save go together: none of them goes as long as one of them stays. What is also an output of the job
stays: its user wants all of it.
"""

from __future__ import annotations

from typing import Dict, Iterable, List

from ddpctl_worker.checkpoint.entries import save_of, series_of
from ddpctl_worker.checkpoint.unite import Saved


def too_old(saved: Iterable[Saved], keep: int, outputs: Iterable[str] = ()) -> List[str]:
    """The entries to be removed. ``saved``: newest first, as ``unite`` gives them; ``outputs``: the job's."""
    left: Dict[str, int] = {}
    found = []
    staying = set()
    for one in saved:
        series = series_of(one.entry)
        if series is None or not one.complete or _wanted(one.entry, outputs):
            continue
        left[series] = left.get(series, keep) - 1
        if left[series] < 0:
            found.append(one.entry)
        else:
            staying.add(save_of(one.entry))
    return [entry for entry in found if save_of(entry) not in staying]


def _wanted(entry: str, outputs: Iterable[str]) -> bool:
    """Whether ``ddpctl fetch`` is to bring it: it is at or below a declared output, or may be what a pattern means."""
    for output in outputs:
        fixed = output.split("*")[0].split("?")[0].split("[")[0]
        plain = fixed[2:] if fixed.startswith("./") else fixed
        if (plain != output and entry.startswith(plain)) or (entry + "/").startswith(plain.rstrip("/") + "/"):
            return True
    return False
