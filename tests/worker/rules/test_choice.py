"""Which checkpoint every host gets: whole saves only, never a mixture of two saves."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ddpctl_worker.checkpoint import manifest
from ddpctl_worker.checkpoint.manifest import version_of
from ddpctl_worker.rules.choice import Kept, all_have, newest_of_series, plan_restore
from ddpctl_worker.rules.complete import (
    Chosen,
    Manifest,
    SavedFile,
    choose_newest_complete,
    content,
    is_whole,
    list_missing,
)
from ddpctl_worker.rules.entries import save_of, step_of
from ddpctl_worker.rules.saves import find_left_behind

HOSTS = ["a", "b", "c"]
START = 1_800_000_000
Content = dict[str, SavedFile]


def file(text: str, at: float, save: int | None = 1) -> SavedFile:
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    return {"size": 10, "sha256": sha256, "mtime_ns": int(at * 1e9), "save": save}


def described(
    host: str, entry: str, files: Content, references: dict[str, int] | None = None, attempt: int = 1
) -> Manifest:
    newest_file = max(one["mtime_ns"] for one in files.values()) / 1e9
    return {
        "schema": 1,
        "entry": entry,
        "host": host,
        "step": step_of(entry),
        "time": datetime.fromtimestamp(newest_file, timezone.utc).isoformat(),
        "size": sum(one["size"] for one in files.values()),
        "files": dict(files),
        "references": references,
        "version": version_of(files),
        "serial": 1,
        "run": "r",
        "attempt": attempt,
        "clock": host,
    }


# --- three checkpoints that were once mixed --------------------------------------------------------------------------
def test_a_host_that_was_lost_before_it_saved_again_makes_a_folder_incomplete() -> None:
    ones = [
        described("a", "latest", {"rank_0.pt": file("step 200", START + 600, save=2)}),
        described("b", "latest", {"rank_1.pt": file("step 100", START, save=1)}),
    ]
    assert newest_of_series(ones) == []
    assert list_missing(ones) == ["b has not saved it again"]
    copied = described("a", "latest", {"rank_0.pt": file("step 100", START, save=1)})
    assert [texts(one, "step 100", "step 200") for one in newest_of_series([*ones, copied])] == [{"step 100"}]


def test_files_of_two_attempts_are_never_united() -> None:
    ones = [
        described("a", "step_200", {"rank_0.pt": file("attempt 2", START + 600)}, attempt=2),
        described("b", "step_200", {"rank_1.pt": file("attempt 2", START + 600)}, attempt=2),
        described("c", "step_200", {"rank_2.pt": file("attempt 1", START)}),
    ]
    for one in newest_of_series(ones):
        assert len(texts(one, "attempt 1", "attempt 2")) == 1
    assert sorted(newest_of_series(ones[:2])[0].files) == ["rank_0.pt", "rank_1.pt"]


def test_the_clock_of_another_host_brings_no_old_shard_into_a_new_save() -> None:
    files = {".metadata": file("attempt 2", START + 40), "__0_0.distcp": file("attempt 2", START + 39)}
    ones = [
        described("a", "step_200", files, {"__0_0.distcp": 1, "__1_0.distcp": 1}, attempt=2),
        described("c", "step_200", {"__1_0.distcp": file("attempt 1", START + 41)}),
    ]
    assert newest_of_series(ones) == []
    assert list_missing(ones) == ["__1_0.distcp"]


def texts(chosen: Chosen, *known: str) -> set[str]:
    """Which of the known texts its files have."""
    names = {hashlib.sha256(text.encode()).hexdigest(): text for text in known}
    return {names[one["sha256"]] for one in chosen.files.values()}


# --- any interleaving ------------------------------------------------------------------------------------------------
INDEX = ".metadata"


class World:
    """The folders of three hosts, as saves, copies, losses and restores leave them, each with a clock of its own. The
    text of a file says which save it is of."""

    def __init__(self, skews: Sequence[float]) -> None:
        self.skews = dict(zip(HOSTS, skews, strict=True))
        self.kept: dict[tuple[str, str, str], Manifest] = {}  # (host, writer, entry) -> manifest
        self.disks: dict[tuple[str, str], Content] = {}  # (host, entry) -> the files there
        self.saves: dict[str, str] = {}  # hash -> the save that it is of
        self.whole: list[dict[str, str]] = []  # the content of every save that came to its end
        self.now, self.attempt, self.failed = START, 1, False
        self.written: dict[tuple[str, str], int] = {}  # (host, entry) -> saves in this attempt
        self.gone: set[str] = set()  # hosts that take no part any more

    @property
    def hosts(self) -> list[str]:
        return [host for host in HOSTS if host not in self.gone]

    @property
    def held(self) -> list[Kept]:
        return [Kept(host, found) for (host, _, _), found in self.kept.items()]

    def save(self, entry: str, writing: Sequence[str], ends: bool) -> None:
        """The ranks of these hosts save; without the other ranks the attempt has failed, and no rank saves again."""
        if self.failed:
            return
        self.now += 100
        hosts = self.hosts
        number = self.written.get((hosts[0], entry), 0) + 1
        save = f"{entry} of attempt {self.attempt}" + (f", save {number}" if step_of(entry) is None else "")
        shards = {host: self.name(entry, hosts.index(host)) for host in hosts}
        content_of: Content = {}
        for host in [host for host in writing if host in hosts]:
            content_of.update(self.write(host, entry, shards[host], save))
        self.failed = not set(writing) >= set(hosts)
        if "dcp" in entry and ends and not self.failed:
            content_of.update(self.write(hosts[0], entry, INDEX, save, dict.fromkeys(shards.values(), 10)))
        if not self.failed and (ends or "dcp" not in entry):
            self.whole.append(content(content_of))
        self.failed = self.failed or not ends

    @staticmethod
    def name(entry: str, rank: int) -> str:
        return f"__{rank}_0.distcp" if "dcp" in entry else f"rank_{rank}.pt"

    def write(self, host: str, entry: str, path: str, save: str, references: dict[str, int] | None = None) -> Content:
        """One file in place, and what the keeper makes of the folder."""
        self.written[host, entry] = self.written.get((host, entry), 0) + (path != INDEX)
        number = self.written[host, entry] if step_of(entry) is None else 1
        made = file(f"{save} {path}", self.now + self.skews[host], number)
        self.saves[made["sha256"]] = save
        files = self.disks.setdefault((host, entry), {})
        files[path] = made
        old = self.kept.pop((host, host, entry), None)
        if not find_left_behind({path: one["save"] for path, one in files.items()}):
            references = references or (old["references"] if old and INDEX in files else None)
            self.kept[host, host, entry] = described(host, entry, files, references, self.attempt)
        return {path: made}

    def copy(self, writer: str, to: str) -> None:
        for (host, of, entry), found in list(self.kept.items()):
            if (host, of) == (writer, writer) != (to, to) and found["attempt"] == self.attempt:
                self.kept[to, writer, entry] = found

    def lose(self, host: str, for_good: bool) -> None:
        """Its disk is empty when it comes back, if it does."""
        self.kept = {key: found for key, found in self.kept.items() if key[0] != host}
        self.disks = {key: files for key, files in self.disks.items() if key[0] != host}
        self.failed = True
        if for_good and len(self.hosts) > 1:
            self.gone.add(host)

    def restore(self) -> None:
        """The next attempt begins."""
        for one in plan_restore(self.held, self.hosts):
            for path, sources in one.sources.items():
                assert sources
                for at, writer in sources:
                    found = self.kept[at, writer, one.chosen.entry]["files"]
                    assert found[path]["sha256"] == one.chosen.files[path]["sha256"]
            for host in one.hosts:
                self.kept[host, host, one.chosen.entry] = manifest.own_manifest(one.chosen, host)
                self.disks[host, one.chosen.entry] = dict(one.chosen.files)
        self.disks = {
            key: {path: {**one, "save": 0} for path, one in files.items()} for key, files in self.disks.items()
        }
        self.attempt, self.failed, self.written = self.attempt + 1, False, {}


ENTRIES = ["latest", "dcp", "step_1", "step_2", "step_3_dcp"]
SAVES = st.tuples(st.just("save"), st.sampled_from(ENTRIES), st.permutations(HOSTS), st.booleans())
CUT = st.tuples(st.just("save"), st.sampled_from(ENTRIES), st.lists(st.sampled_from(HOSTS), unique=True), st.just(True))
WHOLE = st.tuples(st.just("save"), st.sampled_from(ENTRIES), st.just(HOSTS), st.just(True))
COPIES = st.tuples(st.just("copy"), st.sampled_from(HOSTS), st.sampled_from(HOSTS))
LOSSES = st.tuples(st.just("lose"), st.sampled_from(HOSTS), st.booleans())
EVENTS = st.lists(st.one_of(SAVES, WHOLE, WHOLE, CUT, COPIES, COPIES, LOSSES, st.just(("restore",))), max_size=25)
SKEWS = st.lists(st.floats(-7200, 7200), min_size=3, max_size=3)


@pytest.mark.slow
@given(events=EVENTS, skews=SKEWS)
def test_no_interleaving_of_saves_attempts_and_hosts_gives_a_mixed_checkpoint(
    events: list[tuple[Any, ...]], skews: list[float]
) -> None:
    world = World(skews)
    for name, *args in events:
        getattr(world, name)(*args)
        for one in newest_of_series(kept.manifest for kept in world.held):
            assert len({world.saves[file["sha256"]] for file in one.files.values()}) == 1
            if "dcp" in one.entry:
                assert content(one.files) in world.whole
    world.restore()
    found = newest_of_series(one.manifest for one in world.held)
    for one in found:
        for host in world.hosts:
            own = world.kept[host, host, one.entry]
            assert content(own["files"]) == content(one.files)
            assert own["version"] == version_of(one.files)
    assert plan_restore(world.held, world.hosts) == []


TWICE = [("latest", "latest"), ("dcp", "dcp"), ("step_8", "step_9"), ("step_8_dcp", "step_9_dcp")]


@pytest.mark.slow
@given(events=EVENTS, skews=SKEWS, entries=st.sampled_from(TWICE))
def test_the_second_whole_save_of_an_attempt_outlives_any_host(
    events: list[tuple[Any, ...]], skews: list[float], entries: tuple[str, str]
) -> None:
    world = World(skews)
    for name, *args in events:
        getattr(world, name)(*args)
    world.restore()
    for entry in entries:
        world.save(entry, HOSTS, True)
        for at, host in enumerate(world.hosts):
            world.copy(host, world.hosts[at - 1])
    for lost in world.hosts if len(world.hosts) > 1 else []:
        left = [one.manifest for one in world.held if one.host != lost]
        assert world.whole[-1] in [content(one.files) for one in newest_of_series(left) if one.entry == entries[1]]


def test_a_file_of_one_host_is_for_every_host() -> None:
    held = [Kept("b", described("a", "snapshot.pt", {"": file("new", START)}, attempt=2))]
    held.append(Kept("c", described("c", "snapshot.pt", {"": file("old", START + 10)})))
    (one,) = plan_restore(held, HOSTS)
    assert one.hosts == HOSTS
    assert one.sources == {"": [("b", "a")]}


def test_what_a_script_saves_in_several_files_comes_back_together_and_of_a_series_the_last() -> None:
    names = ["model.pt", "optimizer.pt", "epoch_1.pt", "epoch_2.pt"]
    held = [Kept("a", described("a", name, {"": file(name, START + at)})) for at, name in enumerate(names)]
    assert [one.chosen.entry for one in plan_restore(held, HOSTS)] == ["epoch_2.pt", "optimizer.pt", "model.pt"]


def test_files_of_all_ranks_of_the_newest_save_come_back_together() -> None:
    saves = [("step_1_rank_0.pt", 0), ("step_1_rank_1.pt", 1), ("step_2_rank_0.pt", 5), ("step_2_rank_1.pt", 6)]
    ones = [described("a", name, {"": file(name, START + at)}) for name, at in saves]
    assert {one.entry for one in newest_of_series(ones)} == {"step_2_rank_0.pt", "step_2_rank_1.pt"}
    assert {one.entry for one in newest_of_series(ones[:3])} == {name for name, _ in saves[:2]}, (
        "the second save is not whole"
    )
    assert {one.entry for one in newest_of_series(ones[2:3])} == {saves[2][0]}, (
        "there is no save before it to compare with"
    )


def test_a_folder_without_the_file_of_a_lost_hosts_rank_is_not_resumed() -> None:
    ones = [
        described(host, f"step_{step}", {f"rank_{rank}.pt": file(f"{step} {rank}", START + step + rank)})
        for step in (10, 20)
        for rank, host in enumerate("ab")
    ]
    assert [one.entry for one in newest_of_series(ones)] == ["step_20"]
    assert [one.entry for one in newest_of_series(ones[:3])] == ["step_10"]
    assert sorted(newest_of_series(ones[:3])[0].files) == ["rank_0.pt", "rank_1.pt"]


def of_ranks(*counts: int) -> list[Manifest]:
    """Saves of so many ranks each."""
    names = [(at, f"step_{at}_rank_{rank}.pt") for at, count in enumerate(counts) for rank in range(count)]
    return [described("a", name, {"": file(name, START + at)}) for at, name in names]


@pytest.mark.parametrize(
    ("counts", "resumed"), [((4, 2), 0), ((4, 2, 2), 2), ((2, 4), 1), ((4, 2, 4), 2), ((2, 1), 0), ((3,), 0)]
)
def test_of_a_training_with_fewer_ranks_than_before_the_second_save_counts(counts: list[int], resumed: int) -> None:
    found = sorted(one.entry for one in newest_of_series(of_ranks(*counts)))
    assert found == [f"step_{resumed}_rank_{rank}.pt" for rank in range(counts[resumed])]


@given(counts=st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_never_more_than_the_last_save_is_left_out(counts: list[int]) -> None:
    found = {save_of(one.entry) for one in newest_of_series(of_ranks(*counts))}
    assert found <= {f"step_{at}_*.pt" for at in range(len(counts))[-2:]}


def test_other_names_in_a_folder_do_not_matter() -> None:
    ones = [
        described("a", f"step_{step}", {"model.pt": file("m", START + step), f"loss_0.{step}.bin": file("l", START)})
        for step in (10, 20)
    ]
    assert [one.entry for one in newest_of_series(ones)] == ["step_20"]


def row(writer: str, entry: str, version: str = "v", attempt: int = 1, clock: str = "a") -> dict[str, Any]:
    time = "2027-01-01T00:00:00+00:00"
    place = {"writer": writer, "entry": entry, "version": version, "time": time, "clock": clock}
    return {**place, "serial": 1, "run": "r", "attempt": attempt}


def test_a_host_that_lacks_a_rank_of_the_newest_save_lacks_something() -> None:
    names = [f"step_1_rank_{rank}.pt" for rank in range(2)]
    assert all_have({"a": [row("a", name) for name in names]})
    assert not all_have({"a": [row("a", name) for name in names], "b": [row("b", names[0])]})


WHOLE_SAVE = ("save", "latest", HOSTS, True)
RANKS_OF_TWO_ATTEMPTS = [WHOLE_SAVE, ("restore",), WHOLE_SAVE, WHOLE_SAVE]  # each host has its own rank of the second


def in_short(world: World, hosts: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """As ``listing.summarize`` has it."""
    rows: dict[str, list[dict[str, Any]]] = {host: [] for host in hosts}
    for (host, writer, _), one in world.kept.items():
        if host in rows:
            rows[host].append({**one, "writer": writer, "version": one["version"] if is_whole(one) else ""})
    return rows


@pytest.mark.slow
@given(events=EVENTS, skews=SKEWS, left=st.lists(st.sampled_from(HOSTS), min_size=1, unique=True))
@example(events=RANKS_OF_TWO_ATTEMPTS, skews=[0.0, 0.0, 0.0], left=["a"])
def test_nobody_is_passed_over_where_something_is_to_be_restored(
    events: list[tuple[Any, ...]], skews: list[float], left: list[str]
) -> None:
    world = World(skews)
    for name, *args in events:
        getattr(world, name)(*args)
    held = [one for one in world.held if one.host in left]
    if all_have(in_short(world, left)):
        assert plan_restore(held, left) == []
        assert all(choose_newest_complete([one.manifest]) for one in held), "what is not complete is to be set aside"


def test_two_versions_of_one_entry_may_be_parts_that_nobody_has_put_together() -> None:
    rows = [row("a", "step_1", "of a"), row("b", "step_1", "of b", clock="b")]
    assert not all_have({"a": rows})
    assert all_have({"a": rows[:1]})
    rows = [row("a", "step_1", attempt=2), row("b", "step_0", "of b"), row("a", "step_0")]
    assert all_have({"a": rows})


def test_of_a_plain_folder_the_files_of_all_hosts_are_put_together() -> None:
    held = [
        Kept(
            host, described(host, "checkpoint-5", {"model.bin": file("same", START), f"rng_{host}.pth": file(host, 0)})
        )
        for host in ("a", "b")
    ]
    (one,) = plan_restore(held, ["a", "b"])
    assert sorted(one.chosen.files) == ["model.bin", "rng_a.pth", "rng_b.pth"]
    assert one.sources["model.bin"] == [("a", "a"), ("b", "b")]


def test_shards_without_an_index_and_an_index_without_its_shards_are_nothing() -> None:
    shard = described("a", "step_1", {"__0_0.distcp": file("shard", START)})
    index = described("a", "step_1", {".metadata": file("index", START + 1)}, {"__0_0.distcp": 11})
    assert newest_of_series([shard]) == []
    assert newest_of_series([index]) == []
    assert newest_of_series([shard, index]) == []  # it is shorter than the index says


def test_what_follows_after_the_index_belongs_to_the_checkpoint() -> None:
    files = {"__0_0.distcp": file("shard", START), ".metadata": file("index", START + 1)}
    index = described("a", "step_1", {**files, "whole.json": file("ours", START + 500)}, {"__0_0.distcp": 10})
    assert sorted(newest_of_series([index])[0].files) == [".metadata", "__0_0.distcp", "whole.json"]
