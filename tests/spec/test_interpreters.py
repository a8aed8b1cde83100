"""Which Python is proposed for a job."""

from __future__ import annotations

from ddpctl.spec.interpreters import USUAL_TORCH, Interpreter, choices, own_paths

SYSTEM = Interpreter("/usr/bin/python3", "3.11", default=True)
OLD = Interpreter("/usr/bin/python3", "3.11", "1.13.0", default=True)


def venv(torch: str, path: str = "~/venv/bin/python", version: str = "3.11") -> Interpreter:
    return Interpreter(path, version, torch)


def test_the_newest_torch_at_one_path_on_all_hosts_comes_first() -> None:
    found = {"a": [OLD, venv("2.13.0+cu126")], "b": [venv("2.13.0+cu126"), OLD]}
    first, second = choices(found)
    assert (first.torch, first.paths) == ("2.13.0+cu126", {"a": "~/venv/bin/python", "b": "~/venv/bin/python"})
    assert second.torch == "1.13.0"
    assert own_paths(first, found) == first.paths
    assert own_paths(second, found) == {}, "it runs there anyway"


def test_one_path_beats_a_newer_torch_at_several() -> None:
    found = {"a": [OLD, venv("2.13.0", "/opt/x/bin/python")], "b": [OLD, venv("2.13.0", "/opt/y/bin/python")]}
    assert [choice.torch for choice in choices(found)] == ["1.13.0", "2.13.0"]
    assert choices(found)[1].paths == {"a": "/opt/x/bin/python", "b": "/opt/y/bin/python"}


def test_a_torch_that_one_host_lacks_is_installed_on_all() -> None:
    found = {"a": [SYSTEM, venv("2.9.1+cu128")], "b": [SYSTEM]}
    managed, plain = choices(found)
    assert managed.install == "2.9.1"
    assert (plain.install, plain.paths) == (None, {})
    assert choices({"a": [SYSTEM], "b": []})[0].install == USUAL_TORCH


def test_a_python_that_is_too_old_is_none() -> None:
    assert choices({"a": [venv("1.10.0", version="3.7")]})[0].install == USUAL_TORCH
