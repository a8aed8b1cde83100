"""Files of a node become files here, whole or not at all; what cannot be written is that host's error alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpctl.errors import DdpctlError, RemoteError
from ddpctl.stages.fetch import Fetched, fetch_run, nowhere
from ddpctl.transport.base import FleetOutcome, Frame
from tests.transport.dry import DryFleet, DryTransport, Stream


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
    assert nowhere(outcome) == ("plots",)


def test_hosts_that_did_not_answer_say_nothing_about_outputs(tmp_path: Path) -> None:
    fleet = DryFleet([_host("a", "/etc/passwd")])
    assert nowhere(fetch_run("run", ["a"], tmp_path, fleet, lambda event: None)) == ()


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
