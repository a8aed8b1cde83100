"""Which checkpoints are removed: old checkpoints of a series, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.checkpoint.keep import list_too_old
from ddpctl_worker.rules.complete import Manifest
from ddpctl_worker.rules.entries import series_of
from ddpctl_worker.rules.order import When, moment_of
from ddpctl_worker.rules.unite import Saved, unite
from tests.worker.checkpoints import NOW
from tests.worker.rules.test_unite import manifest


def saved(entry: str, *, complete: bool = True) -> Saved:
    time = "2026-01-01T00:00:00.000+00:00"
    return Saved(entry, None, time, 1, (), When(NOW, "a", moment_of(time), entry), () if complete else (".metadata",))


def series(*steps: int, name: str = "step_%d") -> list[Saved]:
    return [saved(name % step) for step in steps]


def test_the_newest_of_a_series_stay() -> None:
    assert list_too_old(series(50, 40, 30, 20, 10), 3) == ["step_20", "step_10"]
    assert list_too_old(series(50, 40), 3) == []


def test_the_newest_by_time_stay_whatever_their_numbers() -> None:
    assert list_too_old(series(1, 2, 900, 800), 2) == ["step_900", "step_800"]


def test_each_series_counts_for_itself() -> None:
    mixed = [one for pair in zip(series(3, 2, 1), series(3, 2, 1, name="a/model_%d.pt"), strict=True) for one in pair]
    assert list_too_old(mixed, 2) == ["step_1", "a/model_1.pt"]


def test_files_of_all_ranks_of_the_only_save_stay() -> None:
    for name in ("step_100_rank_%d.pt", "fold_%d_epoch_9.pt", "step100-shard-0000%d-of-00008.safetensors"):
        assert list_too_old(series(*range(8), name=name), 3) == [], name


def test_files_of_one_save_are_removed_together() -> None:
    ranks = [saved(f"step_{step}_rank_{rank}.pt") for step in (30, 20, 10) for rank in range(2)]
    assert list_too_old(ranks, 2) == ["step_10_rank_0.pt", "step_10_rank_1.pt"]
    behind = [one for one in ranks if one.entry != "step_30_rank_1.pt"]  # it is still being written
    assert list_too_old(behind, 2) == []
    assert list_too_old(behind, 1) == ["step_10_rank_0.pt", "step_10_rank_1.pt"]


def test_a_name_without_a_number_stays() -> None:
    assert list_too_old([saved("best.pt"), saved("last.pt"), saved("snapshot.pt"), saved("final")], 1) == []


def test_what_may_be_in_the_making_neither_goes_nor_counts() -> None:
    assert list_too_old([saved("step_4", complete=False), *series(3, 2)], 1) == ["step_2"]
    assert list_too_old([saved("step_4", complete=False), *series(3), saved("step_2", complete=False)], 2) == []


def test_a_part_of_which_another_host_has_removed_its_own_goes_once_enough_newer_ones_are_complete() -> None:
    assert list_too_old([*series(4, 3), saved("step_2", complete=False)], 2) == ["step_2"]


def test_outputs_stay() -> None:
    ones = series(3, 2, 1, name="saved_models/epoch_%d.pt")
    for output in ("saved_models", "./saved_models/", "saved_models/*.pt", "saved_models/epoch_?.pt", "*"):
        assert list_too_old(ones, 1, [output]) == [], output
    for output in ("saved", "other", "saved_models/best.pt", "logs/*"):
        assert list_too_old(ones, 1, [output]) == ["saved_models/epoch_2.pt", "saved_models/epoch_1.pt"], output


names = st.sampled_from([*(f"step_{at}" for at in range(9)), *(f"m/e{at}.pt" for at in range(9)), "best.pt", "x"])
lists = st.lists(st.tuples(names, st.booleans()), unique_by=lambda pair: pair[0])


@given(lists, st.integers(1, 4))
def test_of_every_series_the_newest_complete_ones_are_left(found: list[tuple[str, bool]], keep: int) -> None:
    ones = [saved(name, complete=complete) for name, complete in found]
    gone = list_too_old(ones, keep)
    for name in {series_of(one.entry) for one in ones}:
        complete = [one.entry for one in ones if series_of(one.entry) == name and one.complete]
        stay = complete if name is None else complete[:keep]
        assert [entry for entry in complete if entry not in gone] == stay
        newest = ones[: [one.entry for one in ones].index(complete[keep - 1])] if len(complete) >= keep else ones
        assert not {one.entry for one in newest if series_of(one.entry) == name} & set(gone)


class Pair:
    """Two hosts with shards of each save. Each hashes its own, keeps copies of the other's, and removes what is old."""

    def __init__(self, keep: int) -> None:
        self.keep, self.saves, self.copied_once = keep, 0, False
        self.written: dict[str, dict[str, Manifest]] = {"a": {}, "b": {}}  # not hashed yet
        self.own: dict[str, dict[str, Manifest]] = {"a": {}, "b": {}}
        self.copies: dict[str, dict[str, Manifest]] = {"a": {}, "b": {}}
        self.removed: dict[str, set[str]] = {"a": set(), "b": set()}

    def has(self, *hosts: str) -> list[Saved]:
        return unite({host: [*self.own[host].values(), *self.copies[host].values()] for host in hosts})

    def save(self) -> None:
        self.saves += 1
        entry, age = f"step_{self.saves}", 3000 - self.saves
        references = {"__0_0.distcp": 10, "__1_0.distcp": 7}
        index = manifest(
            "a", {"__0_0.distcp": 10, ".metadata": 3}, references=references, entry=entry, age=age, version=f"a{age}"
        )
        self.written["a"][entry] = index
        self.written["b"][entry] = manifest("b", {"__1_0.distcp": 7}, entry=entry, age=age, version=f"b{age}")

    def look(self, host: str) -> None:
        new, self.written[host] = self.written[host], {}
        self.own[host].update(new)
        for entry in list_too_old(self.has("a", "b"), self.keep, holders=2) if new else ():
            if self.own[host].pop(entry, None):
                self.removed[host].add(entry)

    def copy(self, host: str) -> None:
        """Copy the newest of the other host's checkpoints that have no copy here.

        Before, the copies of checkpoints that the other host has removed go, except the newest copy.
        """
        other, copies = {"a": "b", "b": "a"}[host], self.copies[host]
        newest = max((moment_of(one["time"]) for one in copies.values()), default=0.0)
        for entry in [entry for entry in copies if entry in self.removed[other]]:
            if moment_of(copies[entry]["time"]) < newest:
                del copies[entry]
        lacking = [one for entry, one in self.own[other].items() if entry not in copies]
        for one in sorted(lacking, key=lambda one: moment_of(one["time"]))[-1:]:
            copies[one["entry"]] = one


PAIR = st.lists(st.sampled_from(["save", "look a", "look b", "copy a", "copy b"]), max_size=60)
SETTLED = ["save", "look a", "look b", *["copy a", "copy b"] * 9] * 4


@pytest.mark.slow
@given(events=PAIR, keep=st.integers(1, 3))
def test_a_checkpoint_that_outlives_the_loss_of_a_host_stays_until_a_newer_one_does(
    events: list[str], keep: int
) -> None:
    pair = Pair(keep)
    safe = 0
    for event in [*events, *SETTLED]:
        name, *host = event.split()
        getattr(pair, name)(*host)
        alone = [[one.entry for one in pair.has(host) if one.complete] for host in "ab"]
        both = [int(entry[5:]) for entry in alone[0] if entry in alone[1]]
        assert max(both, default=0) >= safe, event
        safe = max(safe, *both, 0)
    assert safe == pair.saves
    for own in (*pair.own.values(), *pair.copies.values()):
        assert len(own) <= keep + 2, (
            "the newest, one that has its copies, and one of which the other host has just heard"
        )


def of_one_host(*held: Sequence[str]) -> list[Saved]:
    """Files of host a, the newest first; ``held``: on which hosts each lies."""
    hosts: dict[str, list[Manifest]] = {}
    for at, holders in enumerate(held):
        for host in holders:
            hosts.setdefault(host, []).append(manifest("a", {"": 1}, entry=f"step_{9 - at}", age=at, version=str(at)))
    return unite(hosts)


@pytest.mark.parametrize(
    ("held", "gone"),
    [
        (["ab", "ab", "ab"], ["step_8", "step_7"]),
        (["a", "ab", "ab"], ["step_7"]),
        (["a", "a", "ab", "ab"], ["step_8", "step_6"]),
        (["a", "a", "a"], ["step_8", "step_7"]),
    ],
)
def test_at_most_one_more_is_kept_for_the_loss_of_a_host(held: list[str], gone: list[str]) -> None:
    assert list_too_old(of_one_host(*held), 1, holders=2) == gone
    assert list_too_old(of_one_host(*held), 1) == [f"step_{8 - at}" for at in range(len(held) - 1)]


def test_files_of_all_ranks_of_one_save_have_their_copies_together() -> None:
    ranks = [manifest("a", {"": 1}, entry=f"step_{s}_rank_{r}.pt", age=90 - s) for s in (30, 20, 10) for r in range(2)]
    copies = [ranks[1], ranks[2], ranks[4], ranks[5]]  # of each of the two newest saves one file
    assert list_too_old(unite({"a": ranks, "b": copies}), 1, holders=2) == ["step_20_rank_1.pt", "step_20_rank_0.pt"]
