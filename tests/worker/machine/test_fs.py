"""Folders below base_dir: a folder that another account could change is refused, with the command that corrects it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpctl_worker.machine import fs
from ddpctl_worker.wire.channel import WorkerError
from ddpctl_worker.wire.contract import UNSAFE_PATH


def test_a_base_dir_that_is_a_symbolic_link_is_refused(tmp_path: Path) -> None:
    """boot.py refuses it before any verb runs; a verb that is asked in another way says the same."""
    (tmp_path / "disk").mkdir(mode=0o700)
    (tmp_path / "base").symlink_to(tmp_path / "disk")
    with pytest.raises(WorkerError, match="symbolic link") as caught:
        fs.own_folder(str(tmp_path / "base"), "store")
    assert caught.value.kind == UNSAFE_PATH


def test_the_fix_for_a_folder_that_others_may_write_quotes_its_path(tmp_path: Path) -> None:
    base = tmp_path / "two words"
    base.mkdir()
    base.chmod(0o777)
    with pytest.raises(WorkerError, match="writable by others") as caught:
        fs.own_folder(str(base))
    assert (caught.value.kind, caught.value.hint) == (UNSAFE_PATH, f"chmod go-w '{base}'")
