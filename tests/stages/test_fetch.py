"""Files of a node become files here, whole or not at all. A file that cannot be written is an error of its host."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from ddpctl.errors import DdpctlError, RemoteError
from ddpctl.stages import fetch as fetch_module
from ddpctl.stages.fetch import Fetched, KeptFiles, fetch_run, missing_outputs, require_room
from ddpctl.transport.base import FleetOutcome, Frame
from tests.transport.dry import Asked, DryFleet, DryTransport, Stream


def _host(name: str, path: str, data: bytes = b"loss 0.1\n", size: int | None = None) -> DryTransport:
    info = {"path": path, "size": len(data) if size is None else size, "mode": 0o644}
    frames = [Frame({"file": info}), *([Frame({"chunk": True}, data)] if data else [])]
    return DryTransport(name, {"fetch": Stream(frames, {"missing": []})})


def _fetch(tmp_path: Path, *hosts: DryTransport) -> FleetOutcome[Fetched]:
    return fetch_run("run", [host.host for host in hosts], tmp_path, DryFleet(hosts), lambda event: None)


def test_each_host_has_a_folder_of_its_own(tmp_path: Path) -> None:
    fleet = DryFleet([_host("a", "logs/rank-0.log"), _host("b", "logs/rank-1.log", b"")])
    outcome = fetch_run("run", ["a", "b"], tmp_path, fleet, lambda event: None)
    assert outcome.ok
    assert (tmp_path / "a/logs/rank-0.log").read_bytes() == b"loss 0.1\n"
    assert (tmp_path / "b/logs/rank-1.log").read_bytes() == b""


def test_a_host_that_has_left_the_inventory_keeps_nothing_of_the_others(tmp_path: Path) -> None:
    fleet = DryFleet([_host("a", "logs/rank-0.log")])
    outcome = fetch_run("run", ["gone", "a"], tmp_path, fleet, lambda event: None)
    assert (tmp_path / "a/logs/rank-0.log").exists()
    assert [(host, error.exit_code, error.message) for host, error in outcome.errors.items()] == [
        ("gone", 4, "it is not in the inventory")
    ]


def test_a_folder_in_the_way_is_an_error_of_its_host_that_says_which(tmp_path: Path) -> None:
    (tmp_path / "a/logs/rank-0.log").mkdir(parents=True)
    fleet = DryFleet([_host("a", "logs/rank-0.log"), _host("b", "logs/rank-1.log")])
    outcome = fetch_run("run", ["a", "b"], tmp_path, fleet, lambda event: None)
    assert list(outcome.results) == ["b"]
    error = outcome.errors["a"]
    assert isinstance(error, DdpctlError)
    assert "rank-0.log" in str(error)
    assert "on this machine" in str(error)


@pytest.mark.parametrize("path", ["../up", "/etc/passwd", "a/../../b", "", ".", "a\0b", "x" * 300, "a/" * 3000])
def test_a_node_names_no_place_outside_of_its_folder(path: str, tmp_path: Path) -> None:
    outcome = fetch_run("run", ["a"], tmp_path / "to", DryFleet([_host("a", path)]), lambda event: None)
    assert isinstance(outcome.errors["a"], RemoteError)
    assert not any(item.is_file() for item in tmp_path.rglob("*"))


def test_an_output_that_one_node_has_is_enough_and_one_that_none_has_is_told(tmp_path: Path) -> None:
    answers = {"a": ["plots"], "b": ["saved_models", "plots"]}
    fleet = DryFleet([DryTransport(name, {"fetch": Stream((), {"missing": lacks})}) for name, lacks in answers.items()])
    outcome = fetch_run("run", ["a", "b"], tmp_path, fleet, lambda event: None)
    assert missing_outputs(outcome) == ("plots",)


def test_hosts_that_did_not_answer_say_nothing_about_outputs(tmp_path: Path) -> None:
    fleet = DryFleet([_host("a", "/etc/passwd")])
    assert missing_outputs(fetch_run("run", ["a"], tmp_path, fleet, lambda event: None)) == ()


def test_a_node_gives_the_bytes_that_it_announced_neither_more_nor_fewer(tmp_path: Path) -> None:
    big = 1 << 62  # more than any disk has
    outcome = _fetch(
        tmp_path,
        _host("more", "a", b"x" * 5, size=1),
        _host("fewer", "a", b"x" * 5, size=9),
        _host("huge", "a", b"x", size=big),
        _host("good", "a"),
        DryTransport("early", {"fetch": Stream([Frame({"chunk": True}, b"x")], {"missing": []})}),
    )
    assert list(outcome.results) == ["good"]
    assert "more bytes of a file than were announced" in str(outcome.errors["more"])
    assert "4 bytes less of a than were announced" in str(outcome.errors["fewer"])
    assert f"{big} bytes are needed" in str(outcome.errors["huge"])
    assert "more bytes of a file" in str(outcome.errors["early"])
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()] == ["good/a"]


def test_nothing_is_written_through_a_symlink_that_lies_there(tmp_path: Path) -> None:
    away = tmp_path / "away"
    away.mkdir()
    (away / "b").write_text("mine")
    to = tmp_path / "to"
    to.mkdir()
    (to / "whole").symlink_to(away)
    (to / "inner").mkdir()
    (to / "inner" / "logs").symlink_to(away)
    (to / "file").mkdir()
    (to / "file" / "b").symlink_to(away / "b")
    outcome = _fetch(to, _host("whole", "b"), _host("inner", "logs/b"), _host("file", "b"))
    assert list(outcome.results) == ["file"]
    assert str(to / "inner/logs/b") in str(outcome.errors["inner"])
    assert (away / "b").read_text() == "mine"
    assert [path.name for path in away.iterdir()] == ["b"]
    assert (to / "file" / "b").read_bytes() == b"loss 0.1\n"
    assert not (to / "file" / "b").is_symlink()


# --- a run that is watched ------------------------------------------------------------------------------------------
class Growing:
    """A node with a single output, which may change between two calls. The node answers as the worker does."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.asked: list[dict[str, Any]] = []
        self.sent: list[int] = []

    def __call__(self, asked: Asked) -> Stream:
        self.asked.append(dict(asked.args))
        have = asked.args["have"].get("outputs/events")
        offset = 0
        if have and hashlib.sha256(self.data[: have[0]]).hexdigest() == have[2]:
            offset = have[0]
        rest = self.data[offset:]
        self.sent.append(len(rest))
        info = {"path": "outputs/events", "size": len(self.data), "mode": 0o644, "offset": offset, "mtime_ns": 1}
        return Stream([Frame({"file": info}), *([Frame({"chunk": True}, rest)] if rest else [])], {"missing": []})


def _again(tmp_path: Path, node: Growing, kept: dict[str, KeptFiles]) -> FleetOutcome[Fetched]:
    fleet = DryFleet([DryTransport("a", {"fetch": node})])
    return fetch_run("run", ["a"], tmp_path, fleet, lambda event: None, outputs_only=True, kept=kept)


def test_a_file_that_grows_keeps_its_place_and_one_that_is_another_takes_it(tmp_path: Path) -> None:
    """TensorBoard reads on in the file that it has open."""
    node, kept, path = Growing(b"one "), {}, tmp_path / "a/outputs/events"  # type: ignore[var-annotated]
    assert _again(tmp_path, node, kept).ok
    with path.open("rb") as reader:
        inode = path.stat().st_ino
        node.data += b"two "
        _again(tmp_path, node, kept)
        _again(tmp_path, node, kept)
        assert reader.read() == path.read_bytes() == b"one two "
        assert path.stat().st_ino == inode
        node.data = b"another"
        _again(tmp_path, node, kept)
        assert path.read_bytes() == b"another"
        assert reader.read() == b""
        assert path.stat().st_ino != inode
    assert node.sent == [4, 4, 0, 7]
    assert all(asked["outputs_only"] for asked in node.asked)


def test_what_is_gone_here_comes_again(tmp_path: Path) -> None:
    node, kept, path = Growing(b"one "), {}, tmp_path / "a/outputs/events"  # type: ignore[var-annotated]
    for change in ("removed", "cut", "link"):
        _again(tmp_path, node, kept)
        path.unlink()
        if change == "cut":
            path.write_bytes(b"o")
        elif change == "link":
            path.symlink_to("/dev/null")
        assert _again(tmp_path, node, kept).ok
        assert path.read_bytes() == b"one "
        assert not path.is_symlink()


def test_what_an_interrupted_call_left_beyond_the_end_is_cut_off(tmp_path: Path) -> None:
    node, kept, path = Growing(b"one "), {}, tmp_path / "a/outputs/events"  # type: ignore[var-annotated]
    _again(tmp_path, node, kept)
    path.write_bytes(b"one two thr")
    node.data = b"one two "
    _again(tmp_path, node, kept)
    assert path.read_bytes() == b"one two "


@pytest.mark.parametrize("offset", [3, 5, 9])
def test_a_node_continues_a_file_only_where_it_ended(tmp_path: Path, offset: int) -> None:
    kept: dict[str, KeptFiles] = {}
    _again(tmp_path, Growing(b"one "), kept)
    info = {"path": "outputs/events", "size": 8, "offset": offset}
    evil = DryTransport("a", {"fetch": Stream([Frame({"file": info}), Frame({"chunk": True}, b"x")], {"missing": []})})
    outcome = fetch_run("run", ["a"], tmp_path, DryFleet([evil]), lambda event: None, kept=kept)
    assert "a file continues where it did not end" in str(outcome.errors["a"])
    assert (tmp_path / "a/outputs/events").read_bytes() == b"one "


def disk(**fields: int) -> os.statvfs_result:
    """A disk of 100 GB with 50 GB free, in blocks of 4096 bytes, with room for a million files."""
    names = ("f_bsize", "f_frsize", "f_blocks", "f_bfree", "f_bavail", "f_files", "f_ffree", "f_favail", "f_flag")
    made = dict.fromkeys(names, 0) | {"f_frsize": 4096, "f_blocks": 25_000_000, "f_bavail": 12_500_000}
    made |= {"f_files": 1_000_000, "f_favail": 500_000} | fields
    return os.statvfs_result((*(made[name] for name in names), 255))


def test_a_node_that_lists_files_without_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty files take no bytes, so the number counts; with ``kept``, of all calls together."""
    monkeypatch.setattr(fetch_module, "FETCH_FILES", 20)
    names = itertools.count()

    def endless() -> Iterator[Frame]:
        while True:
            yield Frame({"file": {"path": f"f{next(names)}", "size": 0, "mode": 0o644}})

    bad = DryTransport("bad", {"fetch": lambda _: Stream(cast("Sequence[Frame]", endless()), {"missing": []})})
    outcome = _fetch(tmp_path, bad, _host("a", "logs/rank-0.log"))
    assert str(outcome.errors["bad"]) == "bad: it sends more than 20 files; name fewer files in `outputs:`"
    assert list(outcome.results) == ["a"]
    assert len(os.listdir(tmp_path / "bad")) == 20
    few = DryTransport("b", {"fetch": lambda _: Stream(list(itertools.islice(endless(), 15)), {"missing": []})})
    kept: dict[str, KeptFiles] = {}
    looks = [fetch_run("run", ["b"], tmp_path, DryFleet([few]), lambda event: None, kept=kept) for _ in range(2)]
    assert [list(look.errors) for look in looks] == [[], ["b"]]
    assert len(os.listdir(tmp_path / "b")) == 20


def test_a_node_does_not_fill_the_disk() -> None:
    """Whatever number of files it sends, a gibibyte and 10,000 files stay free, or a twentieth of a small disk."""
    require_room(disk(), 40 << 30)
    require_room(disk(f_files=0, f_favail=0), 40 << 30)  # a file system that does not count files
    require_room(disk(f_blocks=1000, f_bavail=60), 10 * 4096)
    for refused, size in (
        (disk(f_bavail=(1 << 30) // 4096), 1),
        (disk(f_blocks=1000, f_bavail=60), 11 * 4096),
        (disk(f_favail=10_000), 0),
        (disk(f_files=1000, f_favail=50), 0),
    ):
        with pytest.raises(OSError, match="must stay free"):
            require_room(refused, size)
