"""Finds step, epoch and loss in a line of output, by the forms that well-known programs print. Pure.

- transformers' Trainer: ``{'loss': 2.31, 'grad_norm': 0.8, 'epoch': 0.52}``
- Lightning: ``Epoch 3:  45%|####5     | 45/100 [00:10<00:12, 4.41it/s, train_loss=0.43]``
- tqdm: ``45%|####5     | 45/100 [00:10<00:12, 4.41it/s]``
- by hand: ``epoch 3 step 120 loss 0.43``, ``Epoch: [3][120/500] Loss 4.1e-01``
"""

from __future__ import annotations

import math
import re
from typing import Dict

from ddpctl_worker.rules.limits import PROGRESS_LINE_LETTERS

_NUMBER = r"(?P<value>[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)"
_FORMS = {
    "epoch": (re.compile(r"\bepoch\b['\"]?[\s:=#\[]*" + _NUMBER, re.I),),
    "step": (
        re.compile(r"\b(?:global[_ ]?step|step|iter(?:ation)?)\b['\"]?[\s:=#\[]*" + _NUMBER, re.I),
        re.compile(r"\|\s*(?P<value>\d+)/\d+ \[\d+:\d\d"),
        re.compile(r"\bepoch:? \[\d+\]\s*\[\s*(?P<value>\d+)/", re.I),
    ),
    "loss": (re.compile(r"(?:\b|_)loss\b['\"]?[\s:=]*" + _NUMBER, re.I),),
}
NAMES = tuple(_FORMS)


def find_progress(line: str) -> Dict[str, float]:
    """Return the values of ``line`` by name (see NAMES); a value that is no finite number is left out."""
    found: Dict[str, float] = {}
    if len(line) > PROGRESS_LINE_LETTERS:
        return found
    for name, forms in _FORMS.items():
        match = next(filter(None, (form.search(line) for form in forms)), None)
        value = float(match["value"]) if match else math.nan
        if math.isfinite(value):
            found[name] = value
    return found
