"""Arrivals at collectives that wait for a judgement of speed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpctl_worker.doctor.arrivals import Unjudged
from ddpctl_worker.doctor.limits import KEPT_COLLECTIVES, MOST_GROUPS
from ddpctl_worker.doctor.steps import Collectives

pytestmark = pytest.mark.slow
REPORTS = st.lists(
    st.dictionaries(st.integers(0, 2), st.dictionaries(st.sampled_from("01"), st.integers(1, 400), min_size=1)),
    max_size=8,
)


@settings(deadline=None, max_examples=50)
@given(rounds=st.lists(REPORTS, max_size=3))
def test_what_is_dropped_before_it_is_judged_would_not_have_counted(rounds: list[Any]) -> None:
    """``rounds`` of glances: rank -> group -> how many collectives are new. Each round is judged at once."""
    short, whole, seqs = Collectives(), Collectives(), dict.fromkeys(((r, g) for r in range(3) for g in "01"), 0)
    for glances in rounds:
        kept, all_of_it = Unjudged(), dict[int, dict[str, list[tuple[int, float]]]]()
        for glance in glances:
            for rank, groups in glance.items():
                new = {}
                for name, count in groups.items():
                    begin = seqs[rank, name]
                    seqs[rank, name] += count
                    new[name] = [(seq, seq * 0.01 + rank * 1e-3) for seq in range(begin, begin + count)]
                    all_of_it.setdefault(rank, {}).setdefault(name, []).extend(new[name])
                kept.add(rank, new, 0.0)
        short.add(kept.ranks)
        whole.add(all_of_it)
        assert [vars(one) for one in short.groups()] == [vars(one) for one in whole.groups()]


def test_what_waits_for_a_judgement_is_bounded() -> None:
    unjudged = Unjudged()
    for at in range(100):
        new = [(100 * at + i, float(100 * at + i)) for i in range(100)]
        unjudged.add(0, {"0": new, f"new {at}": new}, 0.5)
    groups = unjudged.ranks[0]
    assert list(groups["0"]) == [(seq, seq - 0.5) for seq in range(10_000 - KEPT_COLLECTIVES, 10_000)]
    assert set(groups) == {"0", *(f"new {at}" for at in range(101 - MOST_GROUPS, 100))}
