"""The keeper: which checkpoints get a manifest; a torn checkpoint is never complete."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.checkpoint import manifest
from ddpctl_worker.checkpoint.fencing import begin
from ddpctl_worker.checkpoint.folder import list_entries
from ddpctl_worker.checkpoint.keeper import Keeper
from ddpctl_worker.checkpoint.limits import KEEPER_LOOK_S, MOST_UNFINISHED
from ddpctl_worker.checkpoint.listing import read_checkpoints
from ddpctl_worker.rules.attempts import BEFORE_ANY, AttemptId
from ddpctl_worker.rules.unite import Saved, unite
from tests.worker.checkpoint.test_metadata import index
from tests.worker.checkpoint.test_whole import safetensors, saved_by_torch
from tests.worker.checkpoints import made
from tests.worker.rights import no_override

LONG_AGO = 1_000_000_000.0


class Node:
    """A host's folder of a job, and its keeper. The test sets the keeper's clock."""

    def __init__(self, top: Path, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host, self.folder, self.now = host, top / host, 100.0
        self.folder.mkdir(parents=True)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        self.begin()

    def begin(self, **how: Any) -> None:
        """The ranks are started; what is there is of an earlier run."""
        self.keeper = Keeper(str(self.folder), self.host, since=time.time() - 1, **how)

    def write(self, path: str, content: bytes = b"weights", *, old: bool = False) -> Path:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        if old:
            os.utime(file, (LONG_AGO, LONG_AGO))
        return file

    def looks(self, count: int = 3) -> list[str]:
        """Which entries get a manifest while the ranks live."""
        found = []
        for _ in range(count):
            found += [one["entry"] for one in self.keeper.look()]
            self.now += KEEPER_LOOK_S
        return found

    def end(self, *, well: bool) -> list[str]:
        return [one["entry"] for one in self.keeper.look(well)]

    @property
    def complete(self) -> list[str]:
        return [one.entry for one in saved(self) if one.complete]


def saved(*nodes: Node) -> list[Saved]:
    return unite({node.host: read_checkpoints(str(node.folder.parent))[0] for node in nodes})


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path / "a" / "train", "a", monkeypatch)


def test_what_came_to_rest_is_known(node: Node) -> None:
    node.write("snapshot.pt")
    assert node.looks(1) == []
    assert node.looks(1) == ["snapshot.pt"]
    assert node.looks() == [], "once is enough"
    assert node.complete == ["snapshot.pt"]


def test_what_still_changes_is_not_known(node: Node) -> None:
    for size in range(1, 6):
        node.write("model.bin", b"x" * size)
        assert node.looks(1) == []
    assert node.looks() == ["model.bin"]


def test_new_content_under_an_old_name_is_a_new_version(node: Node) -> None:
    node.write("snapshot.pt", b"one")
    node.looks()
    before = manifest.read(str(node.folder), "snapshot.pt")
    node.write("snapshot.pt.tmp", b"two").replace(node.folder / "snapshot.pt")
    assert node.complete == ["snapshot.pt"], "the version before is pinned"
    assert node.looks() == ["snapshot.pt"]
    after = manifest.read(str(node.folder), "snapshot.pt")
    assert before is not None
    assert after is not None
    assert before["version"] != after["version"]


def test_what_is_removed_is_no_longer_known(node: Node) -> None:
    node.write("step_1.pt")
    node.looks()
    (node.folder / "step_1.pt").unlink()
    node.looks(1)
    assert manifest.read_all(str(node.folder)) == []


@pytest.mark.parametrize("made_again", [False, True])
def test_a_folder_that_vanishes_does_not_remove_the_copies_of_what_was_in_it(node: Node, made_again: bool) -> None:
    """A disk that is away for a while: other hosts remove their copies of what is gone for good."""
    node.write("step_1.bin")
    node.looks()
    away = node.folder.rename(node.folder.with_name("away"))
    if made_again:
        node.folder.mkdir()
    node.looks()
    assert node.keeper.gone == []
    if made_again:
        node.folder.rmdir()
    away.rename(node.folder)
    assert node.looks() == []
    assert node.complete == ["step_1.bin"]
    (node.folder / "step_1.bin").unlink()
    node.looks(1)
    assert node.keeper.gone == ["step_1.bin"]


def test_the_last_look_waits_for_nothing(node: Node) -> None:
    node.write("step_1/.metadata", index(("__0_0.distcp", 0, 4)))
    node.write("step_1/__0_0.distcp", b"some")
    node.write("step_1/optimizer.pt", saved_by_torch())
    node.write("step_1/whole.json", b'{"step": 1}')
    node.write("last.pt", saved_by_torch())
    assert sorted(node.end(well=False)) == ["last.pt", "step_1"]


def test_what_lies_beside_shards_may_come_to_rest_too(node: Node) -> None:
    shards(node, metadata=index(("__0_0.distcp", 0, 10)))
    node.write("step_1/optimizer.bin")
    assert node.looks() == ["step_1"]


def test_a_run_that_ended_well_has_written_all_of_it(node: Node) -> None:
    node.write("model.bin")
    assert node.end(well=True) == ["model.bin"]


def test_what_was_known_is_so_in_the_next_run_too(node: Node) -> None:
    node.write("model.bin")
    node.looks()
    node.begin()
    assert node.looks() == []
    assert node.complete == ["model.bin"]


def test_a_manifest_that_cannot_be_written_is_tried_again_and_stops_no_other(
    node: Node, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    write = manifest.write

    def full_disk(*_args: Any) -> None:
        raise OSError(28, "No space left on device")

    def full(folder: str, found: Any) -> None:
        if found["entry"] == "step_1":
            full_disk()
        write(folder, found)

    node.write("step_1/model.bin")
    os.utime(node.write("newer.bin"), (time.time(), time.time() + 1))
    node.looks(1)
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "write", full)
        patch.setattr("ddpctl_worker.checkpoint.keeper.pin", full_disk)
        assert node.looks(3) == ["newer.bin"]
    said = capfd.readouterr().err
    assert [said.count(f"checkpoint step_1 {what}") for what in ("cannot be pinned", "is not complete")] == [1, 1]
    assert node.looks(1) == ["step_1"]


@pytest.mark.parametrize("name", ["x" * 247 + ".pt", "%" * 100 + ".pt", "saved/" + "x" * 230 + ".pt"])
def test_a_long_name_has_a_manifest_and_a_pin_too(node: Node, name: str) -> None:
    node.write(name, saved_by_torch())
    os.utime(node.write("newer.bin"), (time.time(), time.time() + 1))
    (entry,) = (found for found in list_entries(str(node.folder)) if found != "newer.bin")
    assert node.looks() == [entry, "newer.bin"]
    node.write(f"{name}.tmp" if len(name) < 250 else "tmp", b"torn").replace(node.folder / name)
    node.begin()
    assert sorted(node.complete) == sorted([entry, "newer.bin"]), "the version before is pinned"
    (node.folder / name).unlink()
    node.looks(1)
    assert node.keeper.gone == [entry]
    assert [pinned.name for pinned in (node.folder / ".ddpctl" / "pinned").iterdir()] == ["newer.bin"]


def cut(content: bytes) -> bytes:
    return content[: len(content) * 2 // 3]


def shards(node: Node, entry: str = "step_1", *, metadata: bytes | None = None, first: bytes = b"x" * 10) -> Path:
    told = index(("__0_0.distcp", 0, 10), ("__1_0.distcp", 0, 10)) if metadata is None else metadata
    node.write(f"{entry}/__0_0.distcp", first)
    if told:
        node.write(f"{entry}/.metadata", told)  # torch writes it last
    return node.folder / entry


def zeroed(content: bytes) -> bytes:
    """As a power cut leaves it: blocks of the middle never got to the disk."""
    at = content.index(bytes(range(256)))
    return content[:at] + bytes(512) + content[at + 512 :]


@pytest.mark.parametrize("name", ["model.pt", "step_1/model.pt"])
def test_what_lost_bytes_in_a_power_cut_is_never_complete(node: Node, name: str) -> None:
    if "/" in name:
        shards(node, metadata=index(("__0_0.distcp", 0, 10)))
    node.write(name, zeroed(saved_by_torch()), old=True)
    for _ in range(2):
        node.looks()
        assert node.complete == []
        node.end(well=False)
        assert node.complete == []
        node.begin()
    node.write(name, saved_by_torch())
    assert node.looks() == [name.partition("/")[0]]


def test_a_whole_file_of_a_run_before_is_complete(node: Node) -> None:
    node.write("model.pt", saved_by_torch(), old=True)
    assert node.looks() == ["model.pt"]


def killed_in_place(node: Node) -> None:
    node.write("model.pt", cut(saved_by_torch()))


def killed_in_place_safetensors(node: Node) -> None:
    node.write("model.safetensors", cut(safetensors()))


def killed_in_place_unknown_format(node: Node) -> None:
    node.write("model.bin", b"half")


def killed_at_the_first_byte(node: Node) -> None:
    node.write("model.pt", b"")


def killed_before_the_rename(node: Node) -> None:
    node.write("model.pt.tmp", saved_by_torch())
    node.write(".model.pt.x81", saved_by_torch())


def killed_between_two_files(node: Node) -> None:
    node.write("checkpoint-500/model.safetensors", safetensors())


def killed_within_a_folders_file(node: Node) -> None:
    node.write("checkpoint-500/model.safetensors", cut(safetensors()))
    node.write("checkpoint-500/optimizer.pt", saved_by_torch())


def killed_before_the_index(node: Node) -> None:
    shards(node, metadata=b"")
    node.write("step_1/__1_0.distcp", b"x" * 10)


def killed_while_the_index_was_written_aside(node: Node) -> None:
    shards(node, metadata=b"")
    node.write("step_1/.metadata.tmp", index(("__0_0.distcp", 0, 10)))


def index_cut(node: Node) -> None:
    shards(node, metadata=cut(index(("__0_0.distcp", 0, 10))))


def index_empty(node: Node) -> None:
    shards(node, metadata=b"")
    node.write("step_1/.metadata", b"")


def index_alone(node: Node) -> None:
    node.write("step_1/.metadata", index(("__0_0.distcp", 0, 10)))


def index_that_leads_elsewhere(node: Node) -> None:
    shards(node, metadata=index(("../step_0/__0_0.distcp", 0, 10)))


def index_of_each_rank(node: Node) -> None:
    """torch can save without coordination; then nothing says how many ranks there were."""
    shards(node, metadata=b"")
    node.write("step_1/__0.metadata", index(("__0_0.distcp", 0, 10)))


def shard_missing(node: Node) -> None:
    shards(node)


def shard_cut(node: Node) -> None:
    shards(node, first=b"x" * 9)
    node.write("step_1/__1_0.distcp", b"x" * 10)


def shard_under_a_temporary_name(node: Node) -> None:
    shards(node)
    node.write("step_1/__1_0.distcp.tmp", b"x" * 10)


def shard_that_is_a_link(node: Node) -> None:
    shards(node)
    (node.folder / "step_1" / "__1_0.distcp").symlink_to("__0_0.distcp")


def nested_shard_missing(node: Node) -> None:
    shards(node, "step-1/weights")
    node.write("step-1/weights/context.pt", saved_by_torch())


def file_beside_the_shards_cut(node: Node) -> None:
    shards(node, metadata=index(("__0_0.distcp", 0, 10)))
    node.write("step_1/optimizer.pt", cut(saved_by_torch()))


def file_beside_the_shards_of_unknown_format(node: Node) -> None:
    shards(node, metadata=index(("__0_0.distcp", 0, 10)))
    node.write("step_1/optimizer.bin", b"half")


def left_by_a_run_before(node: Node) -> None:
    node.write("model.bin", b"half", old=True)
    node.write("final/weights.bin", b"half", old=True)


def unfinished(node: Node, died: float) -> list[str]:
    node.keeper.note_death(died, 0.0)
    node.end(well=False)
    return [file["path"] for file in node.keeper.list_unfinished()]


def test_files_that_the_end_of_the_ranks_has_cut_off(node: Node) -> None:
    node.write("whole.pt", saved_by_torch())
    node.write("step_1/model.safetensors", safetensors())
    node.write("step_1/optimizer.pt", saved_by_torch()[:-50])
    node.write("model.bin.tmp", b"half")
    died = time.time()
    assert sorted(unfinished(node, died)) == ["model.bin.tmp", "step_1/optimizer.pt"]
    assert {"path": "model.bin.tmp", "bytes": 4} in node.keeper.list_unfinished()


def test_a_file_that_was_finished_before_the_end_is_not_cut_off(node: Node) -> None:
    node.write("model.bin")
    node.looks()
    node.write("of_a_run_before.pt", saved_by_torch()[:-50], old=True)
    node.write("never.hashed.bin")
    assert unfinished(node, time.time() + KEEPER_LOOK_S + 1.0) == []


def test_few_of_many_files_are_listed(node: Node) -> None:
    for step in range(2 * MOST_UNFINISHED):
        os.utime(node.write(f"step_{step}.tmp"), (time.time(), time.time() + step))
    newest = range(2 * MOST_UNFINISHED - 1, MOST_UNFINISHED - 1, -1)
    assert unfinished(node, time.time()) == [f"step_{step}.tmp" for step in newest]


TORN = [
    killed_in_place, killed_in_place_safetensors, killed_in_place_unknown_format, killed_at_the_first_byte,
    killed_before_the_rename, killed_between_two_files, killed_within_a_folders_file, killed_before_the_index,
    killed_while_the_index_was_written_aside, index_cut, index_empty, index_alone, index_that_leads_elsewhere,
    index_of_each_rank, shard_missing, shard_cut, shard_under_a_temporary_name, shard_that_is_a_link,
    nested_shard_missing, file_beside_the_shards_cut, file_beside_the_shards_of_unknown_format, left_by_a_run_before,
]  # fmt: skip


@pytest.mark.parametrize("tear", TORN)
def test_what_is_torn_is_never_complete(node: Node, tear: Callable[[Node], None]) -> None:
    """Neither right after its writer was killed, nor in the next run, nor when the next run ends well."""
    tear(node)
    node.end(well=False)
    assert node.complete == []
    for one in node.folder.rglob("*"):
        if not one.is_symlink() and ".ddpctl" not in one.parts:
            os.utime(one, (LONG_AGO, LONG_AGO))
    node.begin()
    node.looks()
    assert node.complete == []
    node.end(well=True)
    assert node.complete == []


def damage_a_byte(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def shorten(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


@pytest.mark.parametrize("damage", [damage_a_byte, shorten, Path.unlink])
@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata"])
def test_what_is_damaged_later_is_no_longer_complete(node: Node, damage: Callable[[Path], None], name: str) -> None:
    where = shards(node, metadata=index(("__0_0.distcp", 0, 10)))
    node.looks()
    assert node.complete == ["step_1"]
    known = manifest.read(str(node.folder), "step_1")
    assert known is not None
    os.utime(where / name, (LONG_AGO, LONG_AGO))  # a file system with coarse times
    damage(where / name)
    assert node.complete == []
    assert manifest.find_damaged_files(str(node.folder), known) == [name]


def test_shards_of_two_hosts_are_complete_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Node(tmp_path / "a" / "train", "a", monkeypatch)
    second = Node(tmp_path / "b" / "train", "b", monkeypatch)
    shards(first)
    second.write("step_1/__1_0.distcp", b"x" * 10)
    for one in (first, second):
        monkeypatch.setattr(time, "monotonic", lambda one=one: one.now)
        one.looks()
    assert [one.missing for one in saved(first)] == [("__1_0.distcp",)]
    assert [one.missing for one in saved(second)] == [(".metadata",)]
    (both,) = saved(first, second)
    assert both.complete
    assert both.hosts == ("a", "b")


def test_old_ones_of_a_series_are_removed_with_their_manifests(node: Node) -> None:
    node.write("best.pt")
    for step in range(1, 6):
        node.write(f"step_{step}.pt")
        os.utime(node.folder / f"step_{step}.pt", (time.time(), time.time() + step))
    node.looks()
    node.keeper.tidy(2, [], {})
    assert sorted(list_entries(str(node.folder))) == ["best.pt", "step_4.pt", "step_5.pt"]
    assert sorted(one["entry"] for one in manifest.read_all(str(node.folder))) == ["best.pt", "step_4.pt", "step_5.pt"]


def test_parts_on_other_hosts_make_it_complete_and_their_copies_are_left_to_their_writers(node: Node) -> None:
    other = node.folder.parent / "b"
    elsewhere = []
    for step in (1, 2):
        shards(node, f"step_{step}")
        (other / f"step_{step}").mkdir(parents=True)
        (other / f"step_{step}" / "__1_0.distcp").write_bytes(b"x" * 10)
        for folder in (node.folder, other):
            for file in (folder / f"step_{step}").iterdir():
                os.utime(file, (time.time(), time.time() + step))
        elsewhere.append(made(other, f"step_{step}", "b", BEFORE_ANY))
    node.looks()
    node.keeper.tidy(1, [], {})
    assert sorted(list_entries(str(node.folder))) == ["step_1", "step_2"]
    copies = [*elsewhere[:1], *(one for one in manifest.read_all(str(node.folder)) if one["entry"] == "step_1")]
    node.keeper.tidy(1, [], {"b": [*elsewhere, *copies], "c": copies}, 2)
    assert sorted(list_entries(str(node.folder))) == ["step_1", "step_2"], "the second has no copies yet"
    node.keeper.tidy(1, [], {"b": elsewhere})
    assert sorted(list_entries(str(node.folder))) == ["step_2"]
    assert sorted(list_entries(str(other))) == ["step_1", "step_2"]
    assert node.keeper.gone == ["step_1"]


def test_one_that_is_being_written_again_does_not_count(node: Node) -> None:
    for step in (1, 2):
        node.write(f"step_{step}.bin")
        os.utime(node.folder / f"step_{step}.bin", (time.time(), time.time() + step))
    node.looks()
    node.write("step_2.bin", b"torn")
    node.keeper.tidy(1, [], {})
    assert node.complete == ["step_1.bin"]


def test_what_was_written_again_meanwhile_is_not_removed(node: Node) -> None:
    for step in (1, 2):
        node.write(f"step_{step}.pt")
        os.utime(node.folder / f"step_{step}.pt", (time.time(), time.time() + step))
    node.looks()
    node.write("step_1.pt", b"again")
    node.keeper.tidy(1, [], {})
    assert sorted(list_entries(str(node.folder))) == ["step_1.pt", "step_2.pt"]


def test_folders_that_are_empty_so_far_are_nothing_yet(node: Node) -> None:
    (node.folder / "step_1" / "optimizer").mkdir(parents=True)
    assert node.looks() == []
    assert read_checkpoints(str(node.folder.parent)) == ([], [])
    node.write("step_1/optimizer/weights.bin")
    assert node.looks() == ["step_1"]


def lock(path: Path) -> None:
    path.chmod(0o000)


def noted(capfd: pytest.CaptureFixture[str], entry: str) -> int:
    return sum(f"checkpoint {entry} is not complete" in line for line in capfd.readouterr().err.splitlines())


def test_a_file_that_cannot_be_read_stops_nothing_else(node: Node, capfd: pytest.CaptureFixture[str]) -> None:
    lock(node.write("a.pt", saved_by_torch()))
    lock(node.write("step_1/__0_0.distcp"))
    node.write("z.pt", saved_by_torch())
    with no_override():
        assert node.looks(5) == ["z.pt"]
        assert noted(capfd, "a.pt") == 1, "once, not at every look"
        assert node.end(well=True) == []
        node.begin()
        assert node.end(well=False) == []
    (node.folder / "a.pt").chmod(0o600)
    assert node.looks() == ["a.pt"]


def test_a_folder_that_cannot_be_read_stops_nothing_else(node: Node) -> None:
    node.write("step_1/model.bin")
    lock(node.write("step_1/optimizer/weights.bin").parent)
    lock(node.write("step_2/model.bin").parent)
    node.write("z.pt", saved_by_torch())
    with no_override():
        assert node.looks() == ["z.pt"]
        assert node.end(well=True) == []
        manifests, unknown = read_checkpoints(str(node.folder.parent))
        assert [one["entry"] for one in manifests] == ["z.pt"]
        assert [one["entry"] for one in unknown] == ["step_1", "step_2"]


@pytest.mark.parametrize("entry", ["saved/step_1.pt", "step_1/weights.pt"])
def test_what_is_in_a_folder_that_cannot_be_read_is_not_gone(node: Node, entry: str) -> None:
    """If the keeper counted the files as gone, other hosts would remove their copies."""
    folder = node.write(entry, saved_by_torch()).parent
    (known,) = node.looks()
    lock(folder)
    with no_override():
        node.looks()
        assert node.keeper.gone == []
    folder.chmod(0o700)
    assert node.complete == [known]


def test_one_that_cannot_be_removed_keeps_no_other_from_it(node: Node) -> None:
    for step in range(1, 5):
        node.write(f"step_{step}/weights.pt", saved_by_torch())
        os.utime(node.folder / f"step_{step}" / "weights.pt", (time.time(), time.time() + step))
    node.looks()
    (node.folder / "step_1").chmod(0o500)
    with no_override():
        node.keeper.tidy(2, [], {})
    (node.folder / "step_1").chmod(0o700)
    assert sorted(list_entries(str(node.folder))) == ["step_1", "step_3", "step_4"]


def test_what_is_saved_after_the_clock_was_set_back_is_the_newest(node: Node) -> None:
    for step in range(8, 11):
        node.write(f"step_{step}.bin")
        os.utime(node.folder / f"step_{step}.bin", (time.time() + 3600, time.time() + 3600 + step))
    assert node.looks() == ["step_8.bin", "step_9.bin", "step_10.bin"], "the oldest first"
    for step in (11, 12):
        node.write(f"step_{step}.bin")
        assert node.looks() == [f"step_{step}.bin"]
        node.keeper.tidy(2, [], {})
        assert node.complete == [f"step_{step}.bin", f"step_{step - 1}.bin"]
    node.begin()
    node.write("step_1.bin")
    assert node.looks() == ["step_1.bin"]
    assert node.complete[0] == "step_1.bin", "a training from the start in the same folder"


@pytest.mark.parametrize("hours", [-1, 1])
@pytest.mark.parametrize(("ago", "stays"), [(KEEPER_LOOK_S / 2, True), (10 * KEEPER_LOOK_S, False)])
def test_a_clock_that_was_set_does_not_change_what_came_before_a_death(
    node: Node, monkeypatch: pytest.MonkeyPatch, hours: int, ago: float, stays: bool
) -> None:
    node.write("model.bin")
    assert node.looks() == ["model.bin"]
    now = time.time() + hours * 3600
    monkeypatch.setattr(time, "time", lambda: now)
    node.keeper.note_death(now - ago, 0.0)
    assert node.complete == (["model.bin"] if stays else [])


def test_a_save_after_the_clock_was_set_back_is_of_this_run(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = time.time() - 1800
    os.utime(node.write("torn.bin"), (earlier, earlier))
    begin(str(node.folder), AttemptId(1, "r", 1))
    node.begin()
    now = time.time() - 3600
    monkeypatch.setattr(time, "time", lambda: now)
    os.utime(node.write("model.bin"), (now, now))
    assert node.looks() == ["model.bin"]
    assert [file["path"] for file in node.keeper.list_unfinished()] == []
    os.utime(node.write("cut-off.bin"), (now, now))
    assert [file["path"] for file in node.keeper.list_unfinished()] == ["cut-off.bin"]
    node.keeper.note_death(None, now + 1)
    assert [file["path"] for file in node.keeper.list_unfinished()] == [], "the ranks were restarted after it"


def test_a_save_before_the_clock_was_set_forward_is_of_this_run(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.write("model.bin")
    node.looks(1)
    now = time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: now)
    assert node.looks(1) == ["model.bin"]


def test_a_clock_that_was_set_back_after_a_restart_changes_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    restarted = time.time() - 1
    node.keeper.note_death(None, restarted)
    now = time.time() - 3600
    monkeypatch.setattr(time, "time", lambda: now)
    os.utime(node.write("model.bin"), (now, now))
    node.keeper.note_death(None, restarted)
    assert node.looks() == ["model.bin"]


def test_a_clock_that_is_right_decides_what_is_older(node: Node) -> None:
    node.write("step_2.pt", saved_by_torch())
    node.looks()
    node.write("step_1.pt", saved_by_torch(), old=True)
    assert node.looks() == ["step_1.pt"], "somebody has brought it"
    assert node.complete == ["step_2.pt", "step_1.pt"]
