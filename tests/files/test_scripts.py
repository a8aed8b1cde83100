"""Which of a folder's programs is the training."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddpctl.errors import UsageError
from ddpctl.files.init_files import code_of, write_inventory
from ddpctl.files.scripts import find_scripts

MAIN = "\nif __name__ == '__main__':\n    main()\n"
JOINS = "import torch.distributed as dist\ndef main():\n    dist.init_process_group('nccl')\n"


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_programs_that_join_a_process_group(tmp_path: Path) -> None:
    write(tmp_path, evaluate="print(1)" + MAIN, helpers=JOINS, pretrain="import helpers" + MAIN, train=JOINS + MAIN)
    write(tmp_path, examples__small=JOINS + MAIN, venv__train=JOINS + MAIN, tests__train=JOINS + MAIN)
    write(tmp_path, broken="def (")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "pyvenv.cfg").write_text("")
    write(tmp_path, own__train=JOINS + MAIN)
    assert find_scripts(tmp_path) == ["train.py", "pretrain.py", "examples/small.py"]


def test_a_program_without_a_guard(tmp_path: Path) -> None:
    write(tmp_path, tutorial="import torch.distributed as dist\ndist.init_process_group('gloo')\n", other="x = 1")
    assert find_scripts(tmp_path) == ["tutorial.py"]


def test_where_none_does_the_usual_names(tmp_path: Path) -> None:
    write(tmp_path, main="print(1)", other="print(1)" + MAIN)
    assert find_scripts(tmp_path) == ["main.py"]
    assert find_scripts(tmp_path / "nowhere") == []


def test_the_code_of_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, other = tmp_path / "here", tmp_path / "other"
    write(here, a="", b__c="")
    write(other, d="")
    monkeypatch.chdir(here)
    own, elsewhere = Path("inventory.yaml"), other / "inventory.yaml"
    assert code_of("a.py", own) == (None, "a.py")
    assert code_of("b/c.py", own) == (None, "b/c.py")
    assert code_of(str(here / "a.py"), own) == (None, "a.py")
    assert code_of("../other/d.py", own) == ("../other", "d.py")
    assert code_of("a.py", elsewhere) == ("../here", "a.py")
    assert code_of("../other/d.py", elsewhere) == (None, "d.py")
    assert code_of(None, elsewhere) == ("../here", None)
    with pytest.raises(UsageError, match=r"e\.py is not here"):
        code_of("e.py", own)


def test_a_file_is_written_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    write_inventory(tmp_path / "i.yaml", "hosts: [a]\n")
    assert (tmp_path / "i.yaml").read_text() == "hosts: [a]\n"
    umask = os.umask(0)
    os.umask(umask)
    assert (tmp_path / "i.yaml").stat().st_mode & 0o777 == 0o666 & ~umask
    with pytest.raises(UsageError, match="cannot write"):
        write_inventory(tmp_path / "nowhere" / "i.yaml", "")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="cannot write"):
        write_inventory(tmp_path / "folder", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "i.yaml"]
