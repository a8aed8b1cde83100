"""Step, epoch and loss in the output of well-known programs."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.rules.progress import NAMES, find_progress


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("{'loss': 2.3125, 'grad_norm': 0.81, 'learning_rate': 5e-05, 'epoch': 0.52}", {"loss": 2.3125, "epoch": 0.52}),
        (
            "Epoch 3:  45%|####5     | 45/100 [00:10<00:12,  4.41it/s, v_num=0, train_loss=0.430]",
            {"epoch": 3, "step": 45, "loss": 0.43},
        ),
        (" 12%|#2        | 120/1000 [01:02<07:30,  1.95it/s]", {"step": 120}),
        ("epoch 3 step 120 loss 4.1e-01", {"epoch": 3, "step": 120, "loss": 0.41}),
        ("Epoch: [3][120/500]  Time 0.2 (0.3)  Loss 4.1 (4.4)", {"epoch": 3, "step": 120, "loss": 4.1}),
        ("iter 500: loss 2.9, time 131.01ms, mfu 18.05%", {"step": 500, "loss": 2.9}),
        ("[GPU0] Epoch 7 | Batchsize: 32 | Steps: 32", {"epoch": 7}),
        ("loss: nan", {}),
        ("a lossless epoch of 3 steps", {}),
        ("", {}),
    ],
)
def test_known_forms(line: str, values: dict[str, float]) -> None:
    assert find_progress(line) == values


@given(st.text() | st.from_regex(r"(epoch|step|loss)[ :=]*[-+]?[0-9]{1,400}(e[0-9]{1,4})?"))
def test_any_line_gives_finite_numbers(line: str) -> None:
    found = find_progress(line)
    assert set(found) <= set(NAMES)
    assert all(map(math.isfinite, found.values()))
