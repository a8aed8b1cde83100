"""Which checkpoints are removed: old ones of a series, and nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.checkpoint.entries import series_of
from ddpctl_worker.checkpoint.keep import too_old
from ddpctl_worker.checkpoint.unite import Saved


def saved(entry: str, *, complete: bool = True) -> Saved:
    return Saved(entry, None, "2026-01-01T00:00:00.000+00:00", 1, (), () if complete else (".metadata",))


def series(*steps: int, name: str = "step_%d") -> list[Saved]:
    return [saved(name % step) for step in steps]


def test_the_newest_of_a_series_stay() -> None:
    assert too_old(series(50, 40, 30, 20, 10), 3) == ["step_20", "step_10"]
    assert too_old(series(50, 40), 3) == []


def test_the_newest_by_time_stay_whatever_their_numbers() -> None:
    assert too_old(series(1, 2, 900, 800), 2) == ["step_900", "step_800"]


def test_each_series_counts_for_itself() -> None:
    mixed = [one for pair in zip(series(3, 2, 1), series(3, 2, 1, name="a/model_%d.pt"), strict=True) for one in pair]
    assert too_old(mixed, 2) == ["step_1", "a/model_1.pt"]


def test_files_of_all_ranks_of_the_only_save_stay() -> None:
    for name in ("step_100_rank_%d.pt", "fold_%d_epoch_9.pt", "step100-shard-0000%d-of-00008.safetensors"):
        assert too_old(series(*range(8), name=name), 3) == [], name


def test_files_of_one_save_are_removed_together() -> None:
    ranks = [saved(f"step_{step}_rank_{rank}.pt") for step in (30, 20, 10) for rank in range(2)]
    assert too_old(ranks, 2) == ["step_10_rank_0.pt", "step_10_rank_1.pt"]
    behind = [one for one in ranks if one.entry != "step_30_rank_1.pt"]  # it is still being written
    assert too_old(behind, 2) == []
    assert too_old(behind, 1) == ["step_10_rank_0.pt", "step_10_rank_1.pt"]


def test_a_name_without_a_number_stays() -> None:
    assert too_old([saved("best.pt"), saved("last.pt"), saved("snapshot.pt"), saved("final")], 1) == []


def test_what_is_not_complete_neither_goes_nor_counts() -> None:
    assert too_old([saved("step_4", complete=False), *series(3, 2), saved("step_1", complete=False)], 1) == ["step_2"]


def test_outputs_stay() -> None:
    ones = series(3, 2, 1, name="saved_models/epoch_%d.pt")
    for output in ("saved_models", "./saved_models/", "saved_models/*.pt", "saved_models/epoch_?.pt", "*"):
        assert too_old(ones, 1, [output]) == [], output
    for output in ("saved", "other", "saved_models/best.pt", "logs/*"):
        assert too_old(ones, 1, [output]) == ["saved_models/epoch_2.pt", "saved_models/epoch_1.pt"], output


names = st.sampled_from([*(f"step_{at}" for at in range(9)), *(f"m/e{at}.pt" for at in range(9)), "best.pt", "x"])
lists = st.lists(st.tuples(names, st.booleans()), unique_by=lambda pair: pair[0])


@given(lists, st.integers(1, 4))
def test_of_every_series_the_newest_complete_ones_are_left(found: list[tuple[str, bool]], keep: int) -> None:
    ones = [saved(name, complete=complete) for name, complete in found]
    gone = too_old(ones, keep)
    for name in {series_of(one.entry) for one in ones}:
        complete = [one.entry for one in ones if series_of(one.entry) == name and one.complete]
        stay = complete if name is None else complete[:keep]
        assert [entry for entry in complete if entry not in gone] == stay
    assert all(one.complete for one in ones if one.entry in gone)
