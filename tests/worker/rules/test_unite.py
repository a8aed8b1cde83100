"""Checkpoints put together from the manifests of many hosts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ddpctl.spec.checkpoints import JobCheckpoints
from ddpctl.spec.origin import JobId
from ddpctl_worker.machine.notes import iso
from ddpctl_worker.rules.choice import newest_of_series
from ddpctl_worker.rules.complete import Manifest
from ddpctl_worker.rules.entries import series_of
from ddpctl_worker.rules.unite import unite

NOW = 1_700_000_000.0


def manifest(
    host: str,
    files: dict[str, int],
    *,
    entry: str = "step_1",
    references: dict[str, int] | None = None,
    age: float = 0,
    version: str = "v1",
    attempt: int = 1,
    save: int = 1,
) -> Manifest:
    return {
        "schema": 1,
        "entry": entry,
        "host": host,
        "step": 1,
        "time": iso(NOW - age),
        "size": sum(files.values()),
        "files": {
            name: {"size": size, "sha256": version, "mtime_ns": int((NOW - age) * 1e9), "save": save}
            for name, size in files.items()
        },
        "references": references,
        "version": version,
        "serial": 1,
        "run": "r",
        "attempt": attempt,
        "clock": host,
    }


def rank_0(**how: Any) -> Manifest:
    return manifest(
        "a", {"__0_0.distcp": 10, ".metadata": 3}, references={"__0_0.distcp": 10, "__1_0.distcp": 7}, **how
    )


def rank_1(size: int = 7, **how: Any) -> Manifest:
    return manifest("b", {"__1_0.distcp": size}, **how)


def test_shards_of_all_hosts_make_one_checkpoint() -> None:
    (saved,) = unite({"a": [rank_0()], "b": [rank_1()]})
    assert (saved.entry, saved.step, saved.size, saved.hosts) == ("step_1", 1, 20, ("a", "b"))
    assert saved.complete
    assert saved.missing == ()


def test_a_copy_counts_like_what_it_is_a_copy_of() -> None:
    (saved,) = unite({"a": [rank_0(), rank_1()]})
    assert saved.complete
    assert saved.hosts == ("a",)
    (saved,) = unite({"a": [rank_0(), rank_1()], "b": [rank_1()]})
    assert {part.manifest["host"]: part.holders for part in saved.parts} == {"a": ("a",), "b": ("a", "b")}


def test_every_host_that_got_it_before_a_start_has_it() -> None:
    (saved,) = unite({host: [manifest(host, {"": 10})] for host in ("a", "b", "c")})
    assert saved.hosts == ("a", "b", "c")


def test_without_another_hosts_shard_it_is_not_complete() -> None:
    (saved,) = unite({"a": [rank_0()]})
    assert saved.missing == ("__1_0.distcp",)


def test_without_an_index_it_is_not_complete() -> None:
    (saved,) = unite({"b": [rank_1()]})
    assert saved.missing == (".metadata",)
    (saved,) = unite({"b": [manifest("b", {"weights/__1_0.distcp": 7, ".metadata": 1}, references={})]})
    assert saved.missing == ("weights/.metadata",)


def test_a_shard_that_is_too_short_is_cut() -> None:
    (saved,) = unite({"a": [rank_0()], "b": [rank_1(size=6)]})
    assert saved.missing == ("__1_0.distcp is cut: 6 of 7 bytes",)


def test_a_shard_may_be_longer_than_what_is_referred_to() -> None:
    (saved,) = unite({"a": [rank_0()], "b": [rank_1(size=100)]})
    assert saved.complete


def test_a_part_of_another_save_is_not_taken_for_one_of_this() -> None:
    (saved,) = unite({"a": [rank_0(save=2)], "b": [rank_1(save=1)]})
    assert saved.missing == ("__1_0.distcp is of another save",)
    (saved,) = unite({"a": [rank_0(attempt=2)], "b": [rank_1(attempt=1)]})
    assert saved.missing == ("__1_0.distcp",)


def test_an_older_copy_is_no_part_of_a_newer_save() -> None:
    (saved,) = unite({"a": [rank_0(), rank_1(age=60, version="old")], "b": [rank_1(version="new", size=6)]})
    assert saved.missing == ("__1_0.distcp is cut: 6 of 7 bytes",)
    assert [part.holders for part in saved.parts if part.manifest["host"] == "b"] == [("b",)]


def test_of_two_hosts_with_the_same_file_the_newer_one_counts() -> None:
    """Rank 0 was on another host before."""
    old = manifest("a", {"": 5}, entry="snapshot.pt", version="v0")
    new = manifest("b", {"": 6}, entry="snapshot.pt", age=60, attempt=2)  # its clock is behind
    (saved,) = unite({"a": [old], "b": [new]})
    assert (saved.complete, saved.size, saved.hosts) == (True, 6, ("b",))


def test_the_newest_is_first_whatever_its_step() -> None:
    ones = [manifest("a", {"": 1}, entry=name, age=age) for name, age in (("s_1", 5), ("s_3", 9), ("s_2", 1))]
    assert [saved.entry for saved in unite({"a": ones})] == ["s_2", "s_1", "s_3"]


def test_no_manifests_no_checkpoints() -> None:
    assert unite({}) == []
    assert unite({"a": []}) == []


SHARDS = ["__0_0.distcp", "__1_0.distcp"]
ENTRIES = ["step_1", "step_2", "model.pt", "step_1_rank_0.pt", "step_1_rank_1.pt"]


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """As hosts have them: whole and cut shards, with and without an index, files of several saves under a name."""
    kinds = [st.just([""]), st.lists(st.sampled_from([*SHARDS, ".metadata", "rng"]), min_size=1, unique=True)]
    names = draw(st.one_of(kinds))
    files: dict[str, Any] = {
        name: {
            "size": draw(st.sampled_from([6, 7, 8])),
            "sha256": draw(st.sampled_from(["first", "second"])),
            "mtime_ns": int((NOW - draw(st.sampled_from([0, 5, 60, 5000]))) * 1e9),
        }
        for name in names
    }
    for one in files.values():
        one["sha256"] += f" of {one['size']}"  # a file of another size has another hash
        one["save"] = draw(st.sampled_from([None, 0, 1, 2]))
    referred = st.dictionaries(st.sampled_from(SHARDS), st.integers(6, 8))
    made = manifest(draw(st.sampled_from("abc")), {}, entry=draw(st.sampled_from(ENTRIES)))
    made["files"], made["size"] = files, sum(one["size"] for one in files.values())
    made["version"] = repr(sorted(files.items()))
    made["time"] = iso(max(one["mtime_ns"] for one in files.values()) / 1e9)
    made["references"] = draw(referred) if ".metadata" in files else None
    made["attempt"] = draw(st.integers(1, 2))
    return made


held = st.dictionaries(st.sampled_from("abc"), st.lists(manifests(), max_size=4))


@pytest.mark.slow
@given(held)
def test_what_is_complete_has_every_file_that_is_referred_to(held: dict[str, list[Manifest]]) -> None:
    for saved in unite(held):
        for name, file in saved.files.items():
            known = [part.manifest["files"][name] for part in saved.parts if name in part.manifest["files"]]
            assert file["sha256"] in [one["sha256"] for one in known]
        for part in saved.parts:
            assert part.holders
            assert all(part.manifest in held[holder] for holder in part.holders)
        names = set(saved.files)
        if any(name.endswith(".distcp") for name in names) and "" not in names:
            assert not saved.complete or ".metadata" in saved.files
        assert saved.complete == bool(saved.files)
        assert saved.complete == (not saved.missing)


@pytest.mark.slow
@given(held)
def test_what_is_listed_as_complete_is_what_a_restart_resumes_from(held: dict[str, list[Manifest]]) -> None:
    listed = JobCheckpoints(JobId("lab", "exp", "train"), tuple(unite(held)))
    chosen = newest_of_series(one for ones in held.values() for one in ones)
    assert [(one.entry, one.time, one.files) for one in listed.resumed] == [
        (one.entry, one.time, one.files) for one in chosen
    ]
    series = {series_of(one.entry) or one.entry for one in chosen}
    for saved in listed.saved:
        if saved.complete:
            alone = newest_of_series(one for ones in held.values() for one in ones if one["entry"] == saved.entry)
            assert [one.files for one in alone] == [saved.files]
            assert (series_of(saved.entry) or saved.entry) in series


@pytest.mark.slow
@given(held)
def test_the_order_of_hosts_and_manifests_does_not_matter(held: dict[str, list[Manifest]]) -> None:
    written: dict[tuple[str, str, str], list[Manifest]] = {}
    for one in (one for ones in held.values() for one in ones):
        written.setdefault((one["host"], one["entry"], one["version"]), []).append(one)
    assume(all(one == ones[0] for ones in written.values() for one in ones))  # each content was written once
    turned = {host: held[host][::-1] for host in reversed(list(held))}
    assert unite(turned) == unite(held)
