"""Files of a node become files here, whole or not at all; what cannot be written is that host's error alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpctl.errors import DdpctlError, RemoteError
from ddpctl.stages.fetch import fetch_run, nowhere
from ddpctl.transport.base import Frame
from ddpctl.transport.dry import DryFleet, DryTransport, Stream


def _host(name: str, path: str, data: bytes = b"loss 0.1\n") -> DryTransport:
    frames = [Frame({"file": {"path": path, "size": len(data), "mode": 0o644}}), Frame({"chunk": 1}, data)]
    return DryTransport(name, {"fetch": Stream(frames)})


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


@pytest.mark.parametrize("path", ["../up", "/etc/passwd", "a/../../b", ""])
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
