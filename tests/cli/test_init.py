"""`ddpctl init` before it contacts a host: its refusals, and the values that it then asks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpctl.cli.init import _imported_packages
from ddpctl.files.inventory import load_text
from tests.cli.conftest import InProcess
from tests.files.foreign.test_read import BROKEN
from tests.lab.command import AtTerminal, Ddpctl, Done

TRAIN = "import torch.distributed as dist\ndist.init_process_group()\nif __name__ == '__main__':\n    pass\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "code"
    path.mkdir()
    (path / "train.py").write_text(TRAIN)
    return path


def refused(done: Done, *words: str) -> None:
    assert done.rc == 2, done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr, done.stderr


@pytest.mark.parametrize("name", ["slots that are none", "a section", "groups of hosts", "machines that are none"])
def test_a_broken_file_is_refused_with_line_and_column(name: str, run_command: InProcess, folder: Path) -> None:
    text, (line, column), word = BROKEN[name]
    (folder / "hosts").write_text(text)
    refused(run_command("init", "--from", "hosts", cwd=folder), f"error: hosts:{line}:{column}: ", word)
    assert not (folder / "inventory.yaml").exists()


def test_what_is_missing_has_an_option(run_command: InProcess, folder: Path) -> None:
    refused(run_command("init", cwd=folder), "no host", "--host gpu1")
    (folder / "main.py").write_text(TRAIN)
    refused(run_command("init", "--host", "a", cwd=folder), "main.py, train.py", "--script FILE")
    refused(run_command("init", "--host", "a", "--script", "none.py", cwd=folder), "none.py is not here")
    refused(
        run_command("init", "--host", "a", "--", "torchrun", "--nnodes=x", "t.py", cwd=folder), "--:1:19: nnodes 'x'"
    )
    refused(run_command("init", "--host", "a b:x", cwd=folder), "--host: 'x' is not a port")
    refused(run_command("init", "--host", "a", "--cluster", "no such", cwd=folder), "--cluster 'no such'")
    words = ("--host", "a", "--script", "main.py", "--python", "venv/bin/python")
    refused(run_command("init", *words, cwd=folder), "python", "relative")
    (folder / "hosts").write_text("a\nb\n")
    refused(run_command("init", "--from", "hosts", "--host", "c", cwd=folder), "no such host", "its hosts are a,b")


def test_a_file_that_is_there_stays(run_command: InProcess, folder: Path) -> None:
    (folder / "inventory.yaml").write_text("mine")
    refused(run_command("init", "--host", "a", "--yes", cwd=folder), "inventory.yaml is there already", "-i FILE")
    other = folder / "other.yaml"
    other.write_text("mine")
    refused(run_command("init", "--host", "a", "--yes", cwd=folder, inventory=other), "other.yaml is there already")
    assert other.read_text() == (folder / "inventory.yaml").read_text() == "mine"


@pytest.mark.slow  # a terminal
def test_a_script_is_chosen_by_number(ddpctl: Ddpctl, folder: Path) -> None:
    """No process listens on port 1 of this machine: the host that was chosen is named."""
    (folder / "main.py").write_text(TRAIN)
    run = ddpctl.start("init", "--host", "127.0.0.1:1", cwd=folder, terminal=True)
    assert isinstance(run, AtTerminal)
    run.wait_for(r"1  main.py\s+2  train.py\s+Which script is to run\? \[1\]: ")
    run.type("4\n1\n")
    done = run.wait()
    assert done.rc == 4, done.stdout
    assert "127.0.0.1:1 refuses the connection" in done.stdout
    assert not (folder / "inventory.yaml").exists()


@pytest.mark.slow  # a terminal
def test_the_end_of_input_is_an_interrupt(ddpctl: Ddpctl, folder: Path) -> None:
    run = ddpctl.start("init", cwd=folder, terminal=True)
    assert isinstance(run, AtTerminal)
    run.wait_for("Hosts .*: ")
    run.type("\x04")
    done = run.wait()
    assert done.rc == 130, done.stdout
    assert not (folder / "inventory.yaml").exists()


def test_the_packages_that_the_script_imports_are_proposed_and_unknown_modules_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "train.py").write_text(f"import torchvision, own_lab\n{TRAIN}")
    text = b"{hosts: [a], jobs: {train: {script: train.py}}}"
    assert _imported_packages(load_text(text, str(folder / "inventory.yaml"))) == ["torchvision"]
    assert "the script imports own_lab: add the packages" in capsys.readouterr().err
