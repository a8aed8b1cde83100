"""Links, and what is neither file nor folder."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from ddpctl.errors import ProvisionError
from tests.code.support import Pack, git, members, write


def test_links_inside_stay_links(folder: Path, packed: Pack) -> None:
    write(folder, "a.py", "d/b.py")
    (folder / "d" / "up.py").symlink_to("../a.py")
    (folder / "dir").symlink_to("d")
    (folder / "dangling").symlink_to("nothing")
    found = members(packed())
    assert {n: m.linkname for n, m in found.items() if m.issym()} == {
        "d/up.py": "../a.py",
        "dir": "d",
        "dangling": "nothing",
    }


@pytest.mark.parametrize("target", ["/etc/passwd", "../x", "d/../../x", "d/deep/root/../x", "{folder}/a.py"])
@pytest.mark.parametrize("use_git", [False, pytest.param(True, marks=pytest.mark.slow)])  # git
def test_links_out_are_refused(folder: Path, packed: Pack, target: str, use_git: bool) -> None:
    write(folder, "a.py", "d/deep/b.py")
    (folder / "d" / "deep" / "root").symlink_to("../..")
    (folder / "out").symlink_to(target.format(folder=folder))
    if use_git:
        git(folder, "init", "-q")
    with pytest.raises(ProvisionError, match=r"out is a link out of the code folder.*add /out to \.ddpctlignore"):
        packed()
    (folder / ".ddpctlignore").write_text("/out\n")
    assert "out" not in members(packed())


@pytest.mark.slow  # git
def test_a_tracked_folder_that_became_a_link_is_sent_as_the_link(folder: Path, packed: Pack) -> None:
    git(folder, "init", "-q")
    write(folder, "d/a.py", "e/a.py")
    git(folder, "add", "-A")
    (folder / "d" / "a.py").unlink()
    (folder / "d").rmdir()
    (folder / "d").symlink_to("e")
    assert {name: member.issym() for name, member in members(packed()).items()} == {"d": True, "e/a.py": False}


def test_what_is_no_file_is_refused(folder: Path, packed: Pack) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(ProvisionError, match=r"pipe is a socket, a pipe or a device.*add /pipe to"):
        packed()
    (folder / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(folder / "sock"))
        with pytest.raises(ProvisionError, match="sock is a socket"):
            packed()
