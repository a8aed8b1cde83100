"""Which checkpoint every host gets: whole saves only, never two of them mixed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.checkpoint import choice, copy
from ddpctl_worker.checkpoint.choice import Kept, all_have, newest, restoring
from ddpctl_worker.checkpoint.complete import best, content
from ddpctl_worker.checkpoint.entries import save_of
from ddpctl_worker.checkpoint.manifest import version_of

HOSTS = ["a", "b", "c"]
START = 1_800_000_000
Content = dict[str, dict[str, Any]]


def file(text: str, at: float) -> dict[str, Any]:
    return {"size": 10, "sha256": hashlib.sha256(text.encode()).hexdigest(), "mtime_ns": int(at * 1e9)}


def described(host: str, entry: str, files: Content, references: dict[str, int] | None = None) -> dict[str, Any]:
    newest_file = max(one["mtime_ns"] for one in files.values()) / 1e9
    return {
        "schema": 1,
        "entry": entry,
        "host": host,
        "step": None,
        "time": datetime.fromtimestamp(newest_file, timezone.utc).isoformat(),
        "size": sum(one["size"] for one in files.values()),
        "files": dict(files),
        "references": references,
        "version": version_of(files),
    }


class World:
    """The folders of three hosts, as saves, copies and losses leave them. A hash says which save a file is of."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str, str], dict[str, Any]] = {}  # (host, writer, entry) -> manifest
        self.whole: list[dict[str, str]] = []  # the content of every save that came to its end
        self.now = START
        self.since = int(START * 1e9)  # when the run began

    @property
    def held(self) -> list[Kept]:
        return [Kept(host, found) for (host, _, _), found in self.kept.items()]

    def write(self, host: str, entry: str, files: Content, references: dict[str, int] | None) -> None:
        old = self.kept.get((host, host, entry))
        there = {**(old["files"] if old else {}), **files}
        made = described(host, entry, there, references or (old["references"] if old else None))
        made["previous"] = choice.previous(old, made, self.since)
        self.kept[host, host, entry] = made

    def save(self, entry: str, writing: Sequence[str], ends: bool, skew: float) -> None:
        """A save in place, by torch.distributed.checkpoint: every host its shard, then the first one the index."""
        self.now += 100
        text = f"{entry} {self.now} "
        shards = {host: f"__{rank}_0.distcp" for rank, host in enumerate(HOSTS)}
        for rank, host in enumerate(writing):
            self.write(host, entry, {shards[host]: file(text + shards[host], self.now + rank + skew * rank)}, None)
        if ends and set(writing) == set(HOSTS):
            index = {".metadata": file(text + "index", self.now + 5)}
            self.write(HOSTS[0], entry, index, dict.fromkeys(shards.values(), 10))
            self.whole.append(content({**index, **{path: file(text + path, 0) for path in shards.values()}}))

    def copy(self, writer: str, to: str) -> None:
        for (host, of, entry), found in list(self.kept.items()):
            if (host, of) == (writer, writer) != (to, to):
                self.kept[to, writer, entry] = found

    def lose(self, host: str) -> None:
        self.kept = {key: found for key, found in self.kept.items() if key[0] != host}
        self.since = int((self.now + 50) * 1e9)

    def restore(self) -> None:
        for one in restoring(self.held, HOSTS):
            for path, sources in one.sources.items():
                assert sources
                for at, writer in sources:
                    found = self.kept[at, writer, one.chosen.entry]["files"]
                    assert found[path]["sha256"] == one.chosen.files[path]["sha256"]
            for host in one.hosts:
                self.kept[host, host, one.chosen.entry] = copy.own_manifest(one.chosen, host)


SAVES = st.tuples(
    st.just("save"),
    st.sampled_from(["checkpoint", "other", "step_1", "step_2"]),
    st.sampled_from([["a"], ["a", "b"], ["a", "c"], HOSTS]),  # one that fails had begun on the host of rank 0
    st.booleans(),
    st.floats(0.0, 2.0),
)
WHOLE = st.tuples(st.just("save"), st.sampled_from(["checkpoint", "step_1"]), st.just(HOSTS), st.just(True), st.just(0))
COPIES = st.tuples(st.just("copy"), st.sampled_from(HOSTS), st.sampled_from(HOSTS))
LOSSES = st.tuples(st.just("lose"), st.sampled_from(HOSTS))
EVENTS = st.lists(st.one_of(SAVES, WHOLE, COPIES, COPIES, LOSSES, st.just(("restore",))), max_size=14)


@given(events=EVENTS)
def test_every_host_gets_the_newest_whole_save_and_never_two_mixed(events: list[tuple[Any, ...]]) -> None:
    world = World()
    for name, *args in events:
        getattr(world, name)(*args)
    found = newest(one.manifest for one in world.held)
    for one in found:
        assert content(one.files) in world.whole
    world.restore()
    for one in found:
        for host in HOSTS:
            own = world.kept[host, host, one.entry]
            assert content(own["files"]) == content(one.files)
            assert own["version"] == version_of(one.files)
    assert restoring(world.held, HOSTS) == []


@pytest.mark.slow
@given(events=EVENTS)
def test_a_save_that_every_host_still_has_in_whole_is_found(events: list[tuple[Any, ...]]) -> None:
    world = World()
    for name, *args in events:
        getattr(world, name)(*args)
    world.save("checkpoint", HOSTS, True, 0.0)
    world.copy("a", "b")
    world.copy("b", "c")
    world.copy("c", "a")
    for lost in HOSTS:
        left = [one for one in world.held if one.host != lost]
        assert content(newest(one.manifest for one in left)[0].files) == world.whole[-1]


def test_a_file_of_one_host_is_for_every_host() -> None:
    held = [Kept("b", described("a", "snapshot.pt", {"": file("new", START + 10)}))]
    held.append(Kept("c", described("c", "snapshot.pt", {"": file("old", START)})))
    (one,) = restoring(held, HOSTS)
    assert one.hosts == HOSTS
    assert one.sources == {"": [("b", "a")]}


def test_what_a_script_saves_in_several_files_comes_back_together_and_of_a_series_the_last() -> None:
    names = ["model.pt", "optimizer.pt", "epoch_1.pt", "epoch_2.pt"]
    held = [Kept("a", described("a", name, {"": file(name, START + at)})) for at, name in enumerate(names)]
    assert [one.chosen.entry for one in restoring(held, HOSTS)] == ["epoch_2.pt", "optimizer.pt", "model.pt"]


def test_files_of_all_ranks_of_the_newest_save_come_back_together() -> None:
    saves = [("step_1_rank_0.pt", 0), ("step_1_rank_1.pt", 1), ("step_2_rank_0.pt", 5), ("step_2_rank_1.pt", 6)]
    ones = [described("a", name, {"": file(name, START + at)}) for name, at in saves]
    assert {one.entry for one in newest(ones)} == {"step_2_rank_0.pt", "step_2_rank_1.pt"}
    assert {one.entry for one in newest(ones[:3])} == {name for name, _ in saves[:2]}, "the second save is not whole"
    assert {one.entry for one in newest(ones[2:3])} == {saves[2][0]}, "there is no save before it to compare with"


def test_a_folder_without_the_file_of_a_lost_hosts_rank_is_not_resumed() -> None:
    ones = [
        described(host, f"step_{step}", {f"rank_{rank}.pt": file(f"{step} {rank}", START + step + rank)})
        for step in (10, 20)
        for rank, host in enumerate("ab")
    ]
    assert [one.entry for one in newest(ones)] == ["step_20"]
    assert [one.entry for one in newest(ones[:3])] == ["step_10"]
    assert sorted(newest(ones[:3])[0].files) == ["rank_0.pt", "rank_1.pt"]


def of_ranks(*counts: int) -> list[dict[str, Any]]:
    """Saves of so many ranks each."""
    names = [(at, f"step_{at}_rank_{rank}.pt") for at, count in enumerate(counts) for rank in range(count)]
    return [described("a", name, {"": file(name, START + at)}) for at, name in names]


@pytest.mark.parametrize(
    ("counts", "resumed"), [((4, 2), 0), ((4, 2, 2), 2), ((2, 4), 1), ((4, 2, 4), 2), ((2, 1), 0), ((3,), 0)]
)
def test_of_a_training_with_fewer_ranks_than_before_the_second_save_counts(counts: list[int], resumed: int) -> None:
    found = sorted(one.entry for one in newest(of_ranks(*counts)))
    assert found == [f"step_{resumed}_rank_{rank}.pt" for rank in range(counts[resumed])]


@given(counts=st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_never_more_than_the_last_save_is_left_out(counts: list[int]) -> None:
    found = {save_of(one.entry) for one in newest(of_ranks(*counts))}
    assert found <= {f"step_{at}_*.pt" for at in range(len(counts))[-2:]}


def test_other_names_in_a_folder_do_not_matter() -> None:
    ones = [
        described("a", f"step_{step}", {"model.pt": file("m", START + step), f"loss_0.{step}.bin": file("l", START)})
        for step in (10, 20)
    ]
    assert [one.entry for one in newest(ones)] == ["step_20"]


def test_a_host_that_lacks_a_rank_of_the_newest_save_lacks_something() -> None:
    rows = [["a", f"step_1_rank_{rank}.pt", "v", "2027-01-01T00:00:00+00:00"] for rank in range(2)]
    assert all_have({"a": rows})
    assert not all_have({"a": rows, "b": [["b", *row[1:]] for row in rows[:1]]})


def in_short(world: World, hosts: Sequence[str]) -> dict[str, list[list[str]]]:
    """As ``listing.summary`` has it."""
    rows: dict[str, list[list[str]]] = {host: [] for host in hosts}
    for (host, writer, entry), one in world.kept.items():
        if host in rows:
            rows[host].append([writer, entry, one["version"] if best([one]) else "", one["time"]])
    return rows


@given(events=EVENTS, left=st.lists(st.sampled_from(HOSTS), min_size=1, unique=True))
def test_nobody_is_passed_over_where_something_is_to_be_restored(
    events: list[tuple[Any, ...]], left: list[str]
) -> None:
    world = World()
    for name, *args in events:
        getattr(world, name)(*args)
    held = [one for one in world.held if one.host in left]
    if all_have(in_short(world, left)):
        assert restoring(held, left) == []
        assert all(best([one.manifest]) for one in held), "what is not complete is to be set aside"


def test_two_versions_of_one_entry_may_be_parts_that_nobody_has_put_together() -> None:
    rows = [["a", "step_1", "of a", "2027-01-01T00:00:01+00:00"], ["b", "step_1", "of b", "2027-01-01T00:00:00+00:00"]]
    assert not all_have({"a": rows})
    assert all_have({"a": rows[:1]})
    older = ["b", "step_0", "of b", "2026-01-01T00:00:00+00:00"]
    assert all_have({"a": [*rows[:1], older, ["a", "step_0", "of a", older[3]]]})


def test_of_a_plain_folder_the_files_of_all_hosts_are_put_together() -> None:
    held = [
        Kept(
            host, described(host, "checkpoint-5", {"model.bin": file("same", START), f"rng_{host}.pth": file(host, 0)})
        )
        for host in ("a", "b")
    ]
    (one,) = restoring(held, ["a", "b"])
    assert sorted(one.chosen.files) == ["model.bin", "rng_a.pth", "rng_b.pth"]
    assert one.sources["model.bin"] == [("a", "a"), ("b", "b")]


def test_shards_without_an_index_and_an_index_without_its_shards_are_nothing() -> None:
    shard = described("a", "step_1", {"__0_0.distcp": file("shard", START)})
    index = described("a", "step_1", {".metadata": file("index", START + 1)}, {"__0_0.distcp": 11})
    assert newest([shard]) == []
    assert newest([index]) == []
    assert newest([shard, index]) == []  # it is shorter than the index says


def test_what_follows_after_the_index_belongs_to_the_checkpoint() -> None:
    files = {"__0_0.distcp": file("shard", START), ".metadata": file("index", START + 1)}
    index = described("a", "step_1", {**files, "whole.json": file("ours", START + 500)}, {"__0_0.distcp": 10})
    assert sorted(newest([index])[0].files) == [".metadata", "__0_0.distcp", "whole.json"]
