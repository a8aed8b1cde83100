"""Claims are locks: they end with their holder, and nothing that another account left there is followed or trusted."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

import pytest

from ddpctl_worker.slots.folder import (
    SlotSettings,
    SlotsFolder,
    UnusableFolder,
    read_claims,
    read_settings,
    rewrite_claim,
)
from ddpctl_worker.wire.channel import WorkerError
from ddpctl_worker.wire.contract import UNSAFE_PATH


@pytest.fixture
def folder(tmp_path: Path) -> SlotsFolder:
    return SlotsFolder(str(tmp_path / "slots"))


def test_all_accounts_may_write_and_no_account_removes_the_files_of_others(folder: SlotsFolder) -> None:
    assert stat.S_IMODE(os.stat(folder.path).st_mode) == 0o1777


def test_a_slot_has_one_holder_until_it_is_closed(folder: SlotsFolder) -> None:
    first = folder.take_slot("0")
    assert first is not None
    assert folder.take_slot("0") is None
    second = folder.take_slot("1")
    assert second is not None
    os.close(first)
    again = folder.take_slot("0")
    assert again is not None
    os.close(again)
    os.close(second)


def test_a_claim_ends_with_its_lock_and_its_account_removes_the_rest(folder: SlotsFolder) -> None:
    fd = folder.write_claim("r1.node0", {"run": "r1"})
    (claim,) = read_claims(folder.path)
    assert (claim.name, claim.uid, claim.value) == ("r1.node0", os.geteuid(), {"run": "r1"})
    rewrite_claim(fd, {"a": 1})
    folder.remove_old()
    assert [each.value for each in folder.claims()] == [{"a": 1}]
    os.close(fd)
    assert folder.claims() == []
    assert os.path.exists(folder.claim_path("r1.node0"))
    folder.remove_old()
    assert os.listdir(folder.path) == []


def test_a_reader_makes_no_folder(tmp_path: Path) -> None:
    assert read_claims(str(tmp_path / "none")) == []
    assert list(tmp_path.iterdir()) == []


def test_garbage_in_a_claim_is_no_error(folder: SlotsFolder) -> None:
    fd = folder.write_claim("r1.node0", {})
    for garbage in (b"", b"[1]", b"\xff{", b"[" * 10_000):
        os.ftruncate(fd, 0)
        os.pwrite(fd, garbage, 0)
        assert [claim.value for claim in folder.claims()] == [{}]
    os.close(fd)


@pytest.mark.parametrize("name", ["slots", "two words"])
@pytest.mark.parametrize(
    ("how", "cause", "fix"),
    [
        ("link", "is a symbolic link", "sudo rm {}"),
        ("dangling link", "is a symbolic link", "sudo rm {}"),
        ("file", "is not a folder", "sudo rm {}"),
        ("no sticky bit", "has no sticky bit: every account may remove the claims of others", "sudo chmod 1777 {}"),
    ],
)
def test_an_unsafe_folder_is_refused_with_its_cause_and_the_fix(
    how: str, cause: str, fix: str, name: str, tmp_path: Path
) -> None:
    path, elsewhere = tmp_path / name, tmp_path / "elsewhere"
    if how != "dangling link":
        elsewhere.mkdir(mode=0o1777)
    if "link" in how:
        path.symlink_to(elsewhere)
    elif how == "file":
        path.write_text("")
    else:
        path.mkdir()
        path.chmod(0o777)
    for use in (SlotsFolder, read_claims):
        with pytest.raises(WorkerError) as refused:
            use(str(path))
        assert (refused.value.kind, refused.value.message, refused.value.hint) == (
            UNSAFE_PATH,
            f"{path} {cause}",
            fix.format(shlex.quote(str(path))),
        )
    assert not elsewhere.exists() or list(elsewhere.iterdir()) == []


def test_a_link_in_place_of_a_lock_is_refused(folder: SlotsFolder, tmp_path: Path) -> None:
    os.symlink(tmp_path / "victim", os.path.join(folder.path, "slot-0"))
    with pytest.raises(WorkerError, match="slot-0 is a symbolic link"):
        folder.take_slot("0")
    assert not (tmp_path / "victim").exists()


@pytest.mark.parametrize("name", ["lock", "slot-3"])
def test_a_reader_refuses_a_lock_that_no_start_could_take(name: str, folder: SlotsFolder) -> None:
    path = os.path.join(folder.path, name)
    os.mkdir(path)
    with pytest.raises(WorkerError) as refused:
        read_claims(folder.path)
    found = (refused.value.kind, refused.value.message, refused.value.hint)
    assert found == (UNSAFE_PATH, f"{path} is no file", f"sudo rm -r {path}")
    os.rmdir(path)
    os.symlink("elsewhere", path)
    with pytest.raises(WorkerError, match=f"{name} is a symbolic link"):
        read_claims(folder.path)
    os.unlink(path)
    assert read_claims(folder.path) == []


def test_a_folder_that_cannot_be_made_is_no_fault_of_the_run(tmp_path: Path) -> None:
    with pytest.raises(UnusableFolder, match="No such file"):
        SlotsFolder(str(tmp_path / "missing" / "slots"))


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("", SlotSettings()),
        ("# comment\n\nslots_dir = /srv/slots  # here\n", SlotSettings("/srv/slots")),
        ("account_slots=4\nslots_dir=/x\n", SlotSettings("/x", 4)),
    ],
)
def test_settings(text: str, settings: SlotSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DDPCTL_SLOTS_DIR", raising=False)
    monkeypatch.setattr(os, "stat", lambda path: os.stat_result((0o100644, 0, 0, 1, 0, 0, 0, 0, 0, 0)))
    path = tmp_path / "ddpctl.conf"
    path.write_text(text)
    assert read_settings(str(path)) == settings


@pytest.mark.parametrize("line", ["slots_dir = relative", "account_slots = many", "slot_dir = /x", "words"])
def test_a_wrong_setting_is_named(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "stat", lambda path: os.stat_result((0o100644, 0, 0, 1, 0, 0, 0, 0, 0, 0)))
    path = tmp_path / "ddpctl.conf"
    path.write_text(f"# first\n{line}\n")
    with pytest.raises(WorkerError, match=r"ddpctl\.conf:2: "):
        read_settings(str(path))


def test_settings_that_another_account_may_change_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "ddpctl.conf"
    path.write_text("account_slots = 1\n")
    path.chmod(0o666)
    with pytest.raises(WorkerError, match="not root's alone"):
        read_settings(str(path))
