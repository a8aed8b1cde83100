"""A git that fails, or would lead astray."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddpctl.code import git as git_module
from ddpctl.code import pack
from ddpctl.errors import ProvisionError
from tests.code.support import Pack, git, members, write

pytestmark = pytest.mark.slow  # git


def test_a_repository_of_somebody_else_is_an_error_with_gits_own_remedy(folder: Path, packed: Pack) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    git(folder, "init", "-q")
    write(folder, "a.py")
    for path in (folder, folder / ".git"):
        os.chown(path, 65534, 65534)
    with pytest.raises(ProvisionError, match=r"dubious ownership.*git config --global --add safe.directory"):
        packed()


def test_a_damaged_repository_is_an_error(folder: Path, packed: Pack) -> None:
    git(folder, "init", "-q")
    write(folder, "a.py")
    git(folder, "add", "a.py")
    (folder / ".git" / "index").write_bytes(b"junk")
    with pytest.raises(ProvisionError, match="git cannot read"):
        packed()


def test_no_git_on_this_machine(folder: Path, packed: Pack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write(folder, "a.py")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert packed().files == 1
    (folder / ".git").mkdir()
    with pytest.raises(ProvisionError, match="git is not installed here"):
        packed()


def test_variables_of_another_repository_do_not_lead_astray(
    folder: Path, packed: Pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    write(other, "wrong.py")
    git(other, "add", ".")
    git(folder, "init", "-q")
    write(folder, "right.py")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    assert list(members(packed())) == ["right.py"]


def test_a_repositorys_own_programs_are_not_run(folder: Path, packed: Pack, tmp_path: Path) -> None:
    git(folder, "init", "-q")
    write(folder, "a.py")
    program = tmp_path / "monitor"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    git(folder, "config", "core.fsmonitor", str(program))
    assert packed().files == 1
    assert not (tmp_path / "ran").exists()


def test_a_repositorys_own_filters_are_not_run(folder: Path, packed: Pack, tmp_path: Path) -> None:
    """Neither the repository's nor a submodule's; the changes are found all the same."""
    for repository in (folder, folder / "inside"):
        git(repository.parent, "init", "-q", str(repository))
        write(repository, "x.dat", "train.py")
        (repository / ".gitattributes").write_text("*.dat filter=evil\n")
        git(repository, "add", "x.dat", "train.py", ".gitattributes")
        git(repository, "commit", "-qm", "x")
    git(folder, "add", "inside")
    git(folder, "commit", "-qm", "inside")
    assert packed().dirty is False
    program = f"sh -c 'touch {tmp_path}/ran; cat'"
    settings = tmp_path / "more"
    settings.write_text(f'[filter "evil"]\n\tsmudge = "{program}"\n\trequired = true\n')
    for repository in (folder, folder / "inside"):
        git(repository, "config", "filter.evil.clean", program)
        git(repository, "config", "include.path", str(settings))
    (folder / "inside" / "x.dat").write_text("changed")
    assert packed().dirty is True
    (folder / "x.dat").write_text("changed")
    assert packed().dirty is True
    assert not (tmp_path / "ran").exists()
    git(folder, "config", "filter.a=b.clean", program)
    with pytest.raises(ProvisionError, match="a filter with an odd name"):
        packed()


def test_a_users_own_filters_are_run(
    folder: Path, packed: Pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "settings"
    settings.write_text('[filter "upper"]\n\tclean = tr a-z A-Z\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    git(folder, "init", "-q")
    (folder / ".gitattributes").write_text("*.dat filter=upper\n")
    (folder / "x.dat").write_text("STORED")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "x")
    (folder / "x.dat").write_text("stored")
    assert packed().dirty is False


def test_git_is_not_waited_for_for_ever(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (folder / ".git").mkdir()
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(git_module, "GIT_S", 0.2)
    with pytest.raises(ProvisionError, match="git did not answer"):
        pack(folder, cache=tmp_path / "cache")
