"""Checkpoints that are replaced faster than they are judged, and folders that are rewritten in place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddpctl_worker.checkpoint import manifest
from ddpctl_worker.checkpoint.copy import put_back
from ddpctl_worker.checkpoint.fencing import begin, read_begun
from ddpctl_worker.checkpoint.folder import files_below
from ddpctl_worker.checkpoint.jobfolder import JobFolder
from ddpctl_worker.checkpoint.pins import find_pin, read_pin
from ddpctl_worker.record.lag import Lag, read_lag
from ddpctl_worker.rules.attempts import BEFORE_ANY, AttemptId, attempt_of
from ddpctl_worker.rules.entries import Stamp
from ddpctl_worker.rules.saves import SaveCounter
from tests.worker.checkpoint.test_keeper import Node
from tests.worker.checkpoint.test_whole import saved_by_torch

FIRST, SECOND = AttemptId(1, "r", 1), AttemptId(1, "r", 2)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node(tmp_path / "checkpoints" / "lab" / "exp" / "train", "a", monkeypatch)
    next_attempt(made, FIRST)
    return made


def next_attempt(node: Node, attempt: AttemptId) -> None:
    begin(str(node.folder), attempt)
    node.begin(attempt=attempt)


def replace(node: Node, path: str, content: bytes) -> None:
    """As os.replace of a file that was written under another name."""
    node.write(path + ".tmp", content).replace(node.folder / path)


def kept(node: Node, entry: str = "state.pt") -> bytes | None:
    """Return the content that a start would resume from, or None without a complete version."""
    found = JobFolder(str(node.folder.parents[4]), "lab/exp/train", "a").manifests("a").get(entry)
    if found is None:
        return None
    place = find_pin(str(node.folder), found)
    assert place is not None
    (name,) = files_below(place)
    return Path(place, name).read_bytes()


@pytest.mark.parametrize("saves_a_look", [1, 4])
def test_a_file_that_is_replaced_at_every_look_has_a_version_that_is_never_old(node: Node, saves_a_look: int) -> None:
    for step in range(1, 41):
        replace(node, "state.pt", b"step %d" % step)
        if step % saves_a_look == 0:
            node.looks(1)
            content = kept(node)
            assert content is not None or step <= 2 * saves_a_look
            assert content is None or int(content.split()[1]) >= step - 3 * saves_a_look


def test_a_file_that_is_rewritten_in_place_is_not_believed_before_it_rests(node: Node) -> None:
    for step in range(5):
        node.write("state.pt", b"step %d" % step)
        assert node.looks(1) == []
    assert node.looks(1) == ["state.pt"]
    node.write("state.pt", b"torn")
    assert node.complete == [], "the link has the new content as well"


def test_a_version_that_is_replaced_while_it_is_hashed_is_hashed_to_its_end(node: Node) -> None:
    steps = iter(range(2, 100))
    node.begin(attempt=FIRST, read_on=lambda count: replace(node, "state.pt", b"step %d" % next(steps)))
    replace(node, "state.pt", b"step 1")
    assert node.looks(2) == ["state.pt"]
    assert kept(node) == b"step 1"
    node.looks(2)
    assert kept(node) == b"step 2"


def test_a_version_stays_until_its_copies_are_made_and_then_the_newest_is_taken(node: Node) -> None:
    copying = [True]
    node.begin(attempt=FIRST, copying=lambda entry, version: copying[0])
    for step in range(1, 6):
        replace(node, "state.pt", b"step %d" % step)
        node.looks(2)
        assert kept(node) == b"step 1"
    copying[0] = False
    assert node.looks(2) == ["state.pt"]
    assert kept(node) == b"step 5"


def test_no_more_than_one_replaced_version_stays_once_it_rests(node: Node) -> None:
    for step in range(1, 6):
        replace(node, "state.pt", b"step %d" % step)
        node.looks(1)
    assert len(pins(node)) <= 2
    node.looks(3)
    assert len(pins(node)) == 1
    assert kept(node) == b"step 5"
    (node.folder / "state.pt").unlink()
    node.looks(1)
    assert pins(node) == []


def pins(node: Node) -> list[Path]:
    return [path for path in (node.folder / ".ddpctl" / "pinned").glob("*/*") if path.is_dir()]


def test_pins_of_a_killed_keeper_are_removed_but_for_the_version_that_has_a_manifest(node: Node) -> None:
    replace(node, "state.pt", b"step 1")
    node.looks(2)
    replace(node, "state.pt", b"step 2")
    replace(node, "other.pt", b"other")
    node.looks(1)
    (node.folder / ".ddpctl" / "pinned" / "state.pt" / "half.new").mkdir()
    assert len(pins(node)) == 4
    node.begin()
    assert len(pins(node)) == 1
    assert kept(node) == b"step 1"


def test_without_hard_links_a_file_counts_once_it_rests(
    node: Node, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def no_link(*args: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", no_link)
    for step in range(5):
        replace(node, "state.pt", b"step %d" % step)
        assert node.looks(1) == []
    assert node.looks(2) == ["state.pt"]
    assert node.complete == ["state.pt"]
    assert capfd.readouterr().err.count("no hard links") == 1
    replace(node, "state.pt", b"step 9")
    assert node.complete == []


def test_a_torn_file_makes_room_for_the_version_that_was_kept(node: Node) -> None:
    replace(node, "state.pt", saved_by_torch())
    node.looks(2)
    replace(node, "state.pt", saved_by_torch()[:-20])
    assert node.end(well=False) == []
    folder = JobFolder(str(node.folder.parents[4]), "lab/exp/train", "a")
    assert put_back(folder) == ["state.pt"]
    assert (node.folder / "state.pt").read_bytes() == saved_by_torch()
    assert [one.read_bytes() for one in node.folder.glob(".state.pt.aside-*")] == [saved_by_torch()[:-20]]
    assert node.complete == ["state.pt"]
    assert put_back(folder) == []


def test_the_newest_file_is_taken_at_the_end_and_the_kept_one_only_if_that_is_torn(node: Node) -> None:
    replace(node, "state.pt", saved_by_torch())
    node.looks(1)
    replace(node, "state.pt", saved_by_torch() + b"")
    assert node.end(well=False) == ["state.pt"]
    assert put_back(JobFolder(str(node.folder.parents[4]), "lab/exp/train", "a")) == []


def test_a_file_that_was_pinned_but_not_judged_yet_counts_at_the_end_if_the_newest_is_torn(node: Node) -> None:
    replace(node, "state.pt", saved_by_torch())
    node.looks(1)
    replace(node, "state.pt", b"PK\x03\x04 torn")
    assert node.end(well=False) == ["state.pt"]
    assert kept(node) == saved_by_torch()


def test_a_folder_that_is_replaced_as_a_whole_keeps_its_version(node: Node) -> None:
    for step in (1, 2):
        node.write(f"new{step}.tmp/model.bin", b"model %d" % step)
        node.write(f"new{step}.tmp/optim.bin", b"optim %d" % step)
    (node.folder / "new1.tmp").rename(node.folder / "last")
    node.looks(2)
    (node.folder / "last").rename(node.folder / "old.tmp")
    (node.folder / "new2.tmp").rename(node.folder / "last")
    assert node.complete == ["last"]
    known = manifest.read(str(node.folder), "last")
    assert known is not None
    place = find_pin(str(node.folder), known)
    assert place is not None
    assert sorted(read_pin(place)) == ["model.bin", "optim.bin"]
    assert Path(place, "model.bin").read_bytes() == b"model 1"


# --- which save, and which attempt -----------------------------------------------------------------------------------
def test_a_folder_waits_for_the_file_of_a_rank_that_has_not_saved_again(node: Node) -> None:
    for rank in (0, 1):
        node.write(f"latest/rank_{rank}.pt", b"step 100")
    assert node.looks(3) == ["latest"]
    node.write("latest/rank_0.pt", b"step 200")
    assert node.looks(4) == []
    assert node.complete == []
    node.write("latest/rank_1.pt", b"step 200")
    assert node.looks(3) == ["latest"]
    known = manifest.read(str(node.folder), "latest")
    assert known is not None
    assert {path: one["save"] for path, one in known["files"].items()} == {"rank_0.pt": 2, "rank_1.pt": 2}


def test_a_run_that_ended_well_has_written_all_of_its_files(node: Node) -> None:
    for name in ("model.bin", "optim.bin"):
        node.write(f"final/{name}", b"first")
    node.looks(3)
    node.write("final/model.bin", b"second")
    assert node.end(well=True) == ["final"]


def test_files_of_an_attempt_before_are_marked(node: Node) -> None:
    for rank in (0, 1):
        node.write(f"latest/rank_{rank}.pt", b"step 100")
    node.looks(3)
    next_attempt(node, SECOND)
    node.write("latest/rank_0.pt", b"step 200")
    assert node.looks(3) == ["latest"]
    known = manifest.read(str(node.folder), "latest")
    assert known is not None
    assert attempt_of(known) == SECOND
    assert {path: one["save"] for path, one in known["files"].items()} == {"rank_0.pt": 1, "rank_1.pt": 0}
    assert node.complete == [], "rank 1 has not saved in this attempt"


def test_a_file_of_the_attempt_before_that_is_hashed_later_is_of_that_attempt(node: Node) -> None:
    node.write("step_1.pt", saved_by_torch())
    begin(str(node.folder), SECOND)
    node.begin()
    node.write("step_2.pt", saved_by_torch())
    node.looks(3)
    found = {one["entry"]: attempt_of(one) for one in manifest.read_all(str(node.folder))}
    assert found == {"step_1.pt": FIRST, "step_2.pt": SECOND}


def test_a_file_from_before_any_run_is_of_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path / "train", "a", monkeypatch)
    node.write("pretrained.pt", saved_by_torch())
    begin(str(node.folder), FIRST)
    node.begin()
    node.looks(3)
    (one,) = manifest.read_all(str(node.folder))
    assert (one["serial"], one["run"], one["attempt"]) == (0, None, 0)
    assert attempt_of(one) == BEFORE_ANY


def test_a_keeper_of_an_older_attempt_writes_nothing_once_a_newer_one_has_begun(
    node: Node, capfd: pytest.CaptureFixture[str]
) -> None:
    node.write("step_1.pt", saved_by_torch())
    begin(str(node.folder), SECOND)
    assert node.looks(4) == []
    assert node.complete == []
    assert capfd.readouterr().err.count("attempt 2 of run r has begun") == 1


def test_an_older_attempt_does_not_begin_after_a_newer_one(node: Node) -> None:
    begin(str(node.folder), SECOND)
    with pytest.raises(Exception, match="a newer attempt has begun here: attempt 2 of run r"):
        begin(str(node.folder), FIRST)
    begin(str(node.folder), SECOND)
    assert read_begun(str(node.folder)).is_older == FIRST
    begin(str(node.folder), AttemptId(2, "other", 1))


class Counter:
    """One file of a folder, look by look."""

    def __init__(self) -> None:
        self.counter = SaveCounter(read_begun("/nowhere"), {})
        self.at = 0

    def see(self, inode: int, size: int, mtime_ns: int) -> int | None:
        stamp = Stamp(size, mtime_ns, inode)
        self.counter.see({"latest": {"rank_0.pt": stamp}})
        return self.counter.of("latest", {"rank_0.pt": stamp})["rank_0.pt"]


def test_saves_with_a_rest_between_them_are_counted() -> None:
    file = Counter()
    looks = [(1, 10, 1), (1, 10, 1), (1, 10, 2), (1, 10, 2), (2, 10, 3), (2, 10, 3), (3, 5, 4), (3, 5, 4)]
    assert [file.see(*look) for look in looks] == [1, 1, 2, 2, 3, 3, 4, 4]


def test_a_file_that_grows_is_of_one_save() -> None:
    file = Counter()
    assert [file.see(1, size, size) for size in (10, 20, 30, 30)] == [1, 1, 1, 1]


@pytest.mark.parametrize("again", [(2, 10, 2), (1, 5, 2), (1, 10, 2)], ids=["renamed", "cut", "written again"])
def test_saves_that_follow_each_other_too_soon_cannot_be_told_apart(again: tuple[int, int, int]) -> None:
    file = Counter()
    assert file.see(1, 10, 1) == 1
    assert file.see(*again) is None
    assert file.see(*again) is None
    assert file.see(3, 30, 9) is None


# --- how far behind --------------------------------------------------------------------------------------------------
def test_the_lag_is_told_in_ages_of_the_hosts_own_clock(node: Node, tmp_path: Path) -> None:
    path = str(tmp_path / "saved.json")
    copied: list[str] = []
    lag = Lag(path, FIRST, 1)

    def look() -> None:
        lag.look(node.keeper.note_written(), node.keeper.manifests, lambda entry, version: version in copied)

    look()
    assert read_lag(path) is None
    replace(node, "state.pt", b"step 1")
    node.looks(1)
    look()
    told = read_lag(path)
    assert told is not None
    assert (told["name"], told["kept_s"], told["copies"]) == ("state.pt", None, 1)
    assert told["behind_s"] is not None
    node.looks(2)
    copied.append(node.keeper.manifests["state.pt"]["version"])
    look()
    told = read_lag(path)
    assert told is not None
    assert told["behind_s"] is None
    assert told["kept_s"] is not None
