"""Which files are the job's code."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.code.support import Pack, git, members, write

pytestmark = pytest.mark.slow  # git


def test_without_git_everything_but_what_is_never_code(folder: Path, packed: Pack) -> None:
    write(folder, "train.py", "pkg/a.py", "pkg/__pycache__/a.pyc", "x.pyc", ".venv/bin/python", ".hidden", "data/big")
    write(folder, "logs/a.txt", "keep/logs/b.txt")
    (folder / ".ddpctlignore").write_text("# comment\n/data/\n/logs\n*.tmp\n")
    write(folder, "a.tmp")
    code = packed()
    assert list(members(code)) == [".ddpctlignore", ".hidden", "keep/logs/b.txt", "pkg/a.py", "train.py"]
    assert (code.files, code.git_commit, code.dirty) == (5, None, None)


def test_an_ignored_file_can_be_taken_back(folder: Path, packed: Pack) -> None:
    write(folder, "a.pyc", "b.pyc")
    (folder / ".ddpctlignore").write_text("!a.pyc\n")
    assert list(members(packed())) == [".ddpctlignore", "a.pyc"]


@pytest.mark.parametrize("with_git", [True, False])
def test_what_fetch_has_brought_is_never_code(folder: Path, packed: Pack, with_git: bool) -> None:
    write(folder, "train.py", "ddpctl-runs/train/a/outputs/model.pt", "sub/ddpctl-runs/x", "sub/a.py")
    (folder / ".ddpctlignore").write_text("!ddpctl-runs\n!ddpctl-runs/train/a/outputs/model.pt\n")
    if with_git:
        git(folder, "init", "-q")
        git(folder, "add", "ddpctl-runs")  # by accident
    assert list(members(packed())) == [".ddpctlignore", "sub/a.py", "train.py"]
    assert packed().notes == ()


def test_an_empty_folder_is_kept_without_git(folder: Path, packed: Pack) -> None:
    (folder / "out" / "deep").mkdir(parents=True)
    assert {name: member.isdir() for name, member in members(packed()).items()} == {"out/deep": True}


def test_with_git_tracked_and_untracked_but_not_ignored(folder: Path, packed: Pack) -> None:
    git(folder, "init", "-q")
    write(folder, "tracked.py", "deleted.py", "sub/changed.py", "ignored.log", "build/x", "large.bin")
    (folder / ".gitignore").write_text("*.log\nbuild/\n")
    git(folder, "add", "tracked.py", "deleted.py", "sub", ".gitignore", "large.bin")
    git(folder, "commit", "-qm", "x")
    clean = packed()
    assert (clean.git_commit, clean.dirty) == (git(folder, "rev-parse", "HEAD"), False)
    (folder / "deleted.py").unlink()
    write(folder, "new file.py")
    (folder / "sub" / "changed.py").write_text("changed")
    (folder / ".ddpctlignore").write_text("large.bin\n")
    code = packed()
    assert code.dirty is True
    assert list(members(code)) == [".ddpctlignore", ".gitignore", "new file.py", "sub/changed.py", "tracked.py"]


def test_a_folder_inside_a_repository(tmp_path: Path, folder: Path, packed: Pack) -> None:
    git(tmp_path, "init", "-q")
    write(tmp_path, "code/a.py", "other.py")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "x")
    (tmp_path / "other.py").write_text("changed elsewhere")
    code = packed()
    assert list(members(code)) == ["a.py"]
    assert code.dirty is False


def test_a_repository_without_a_commit(folder: Path, packed: Pack) -> None:
    git(folder, "init", "-q")
    write(folder, "a.py")
    code = packed()
    assert (list(members(code)), code.git_commit, code.dirty) == (["a.py"], None, True)


def test_a_folder_that_git_ignores_is_packed_without_git(tmp_path: Path, folder: Path, packed: Pack) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text("*\n")
    write(folder, "a.py")
    code = packed()
    assert (list(members(code)), code.dirty) == (["a.py"], None)


@pytest.mark.parametrize("tracked", [False, True])
def test_keys_and_passwords_are_not_sent_and_named(folder: Path, packed: Pack, tracked: bool) -> None:
    secret = [".aws/credentials", ".env", ".env.local", ".netrc", ".ssh/config", "certs/a.key", "certs/a.pem", "id_rsa"]
    write(folder, "train.py", "id_map.py", *secret)
    if tracked:
        git(folder, "init", "-q")
        git(folder, "add", ".")
    code = packed()
    assert [name for name, info in members(code).items() if info.isfile()] == ["id_map.py", "train.py"]
    (note,) = code.notes
    assert note.startswith("not sent, because the names are those of keys and passwords: .aws/")
    assert ".env, .env.local, .netrc, .ssh/" in note
    assert note.endswith(" and 3 more (to send a file: !/NAME in .ddpctlignore)")
    # A pattern of the user's own decides: no line about files that the user leaves out or wants to be sent.
    (folder / ".ddpctlignore").write_text(".aws/\n.ssh/\n*.key\nid_rsa\n.netrc\n.env*\n!/.env.local\n!/certs/a.pem\n")
    code = packed()
    sent = {".ddpctlignore", ".env.local", "certs/a.pem", "id_map.py", "train.py"}
    assert {name for name, info in members(code).items() if info.isfile()} == sent
    assert code.notes == ()


def test_submodules_and_repositories_inside(tmp_path: Path, folder: Path, packed: Pack) -> None:
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "-q")
    write(library, "lib.py", "junk.log")
    (library / ".gitignore").write_text("*.log\n")
    git(library, "add", ".")
    git(library, "commit", "-qm", "x")
    git(folder, "init", "-q")
    git(folder, "submodule", "add", "-q", str(library), "lib")
    git(folder, "submodule", "add", "-q", str(library), "absent")
    git(folder, "commit", "-qm", "x")
    git(folder, "submodule", "--quiet", "deinit", "-f", "absent")
    (folder / "nested").mkdir()
    git(folder / "nested", "init", "-q")
    write(folder, "nested/n.py", "lib/junk.log")
    code = packed()
    assert list(members(code)) == [".gitmodules", "lib/.gitignore", "lib/lib.py", "nested/n.py"]
    assert code.notes == ("the submodule absent is not checked out; its files are not sent",)


def test_a_secret_never_travels(folder: Path, packed: Pack) -> None:
    write(folder, "a.py", "my.env")
    os.link(folder / "my.env", folder / "same.env")
    assert list(members(packed(exclude=[folder / "my.env"]))) == ["a.py"]
    assert list(members(packed(exclude=[folder / "not-there"]))) == ["a.py", "my.env", "same.env"]
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    assert list(members(packed(exclude=[str(folder / "my.env")]))) == ["a.py"]
