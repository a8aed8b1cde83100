"""The notice of an inventory that runs programs on this machine: once for each folder and kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpctl.files.first_use import take_new_programs
from ddpctl.files.inventory import load_inventory

LOCAL = "hosts: [{name: here, connection: local}]\n"
FAR = "hosts: [far]\n"
PACKAGE = FAR + "environment: {mode: managed, packages: [torch==2.13.0], project: pkg}\n"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def programs(folder: Path, text: str, name: str = "inventory.yaml") -> list[str]:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return take_new_programs(load_inventory(folder / name))


def test_a_local_host_is_named_once_for_each_folder(tmp_path: Path) -> None:
    assert programs(tmp_path / "a", LOCAL) == ["jobs (`connection: local`)"]
    assert programs(tmp_path / "a", LOCAL) == []
    assert programs(tmp_path / "a", LOCAL, "other.yaml") == []
    assert programs(tmp_path / "b", LOCAL) != []


def test_each_kind_is_named_when_it_appears(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    assert programs(folder, FAR) == []
    (folder / "ssh.conf").write_text("Host *\n  proxycommand nc %h %p\nMatch host x exec true\n# LocalCommand x\n")
    [found] = programs(folder, FAR + "ssh_config: ssh.conf\n")
    assert found == f"programs that {folder}/ssh.conf names (Match, proxycommand)"
    assert programs(folder, LOCAL + "ssh_config: ssh.conf\n") == ["jobs (`connection: local`)"]
    assert programs(folder, PACKAGE) == [f"the build of the package in {folder}/pkg"]
    assert programs(folder, PACKAGE) == []


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("ProxyCommand nc %h %p", "ProxyCommand"),
        ("ProxyCommand=nc %h %p", "ProxyCommand"),
        ('"ProxyCommand" nc %h %p', "ProxyCommand"),
        ("KnownHostsCommand /bin/cat known", "KnownHostsCommand"),
        ("PermitLocalCommand yes\n  LocalCommand touch x", "LocalCommand"),
        ("PKCS11Provider ./p.so", "PKCS11Provider"),
        ("SecurityKeyProvider ./s.so", "SecurityKeyProvider"),
        ('Match originalhost x "exec" true', "Match"),
        ("Match host=x exec=true", "Match"),
        ("Include other", "Include"),
    ],
)
def test_each_option_that_runs_a_program_is_named(tmp_path: Path, line: str, option: str) -> None:
    """ssh accepts keywords in quotes."""
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "ssh.conf").write_text(f"Host *\n  {line}\n")
    assert programs(folder, FAR + "ssh_config: ssh.conf\n") == [f"programs that {folder}/ssh.conf names ({option})"]


def test_shell_text_around_a_job_is_named_where_the_job_runs_here(tmp_path: Path) -> None:
    jobs = "jobs:\n  a: {script: a.py, before: module load x}\n  b: {script: b.py, after: touch y}\n"
    assert programs(tmp_path / "far", FAR + jobs) == []
    assert programs(tmp_path / "here", LOCAL) == ["jobs (`connection: local`)"]
    assert programs(tmp_path / "here", LOCAL + jobs) == ["their `before`", "their `after`"]
    notified = "jobs:\n  a: {script: a.py, after: touch y, notify: [{command: [touch, made]}]}\n"
    assert programs(tmp_path / "here", LOCAL + notified) == ["their `notify`"]
    assert programs(tmp_path / "here", LOCAL + notified) == []


def test_an_ssh_config_without_programs_and_that_of_the_user_are_not_named(tmp_path: Path, home: Path) -> None:
    folder = tmp_path / "a"
    programs(folder, FAR)
    (folder / "ssh.conf").write_text("Host x\n  HostName 10.0.0.1\n  ProxyJump y\n")
    assert programs(folder, FAR + "ssh_config: ssh.conf\n") == []
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "config").write_text("Host x\n  ProxyCommand nc %h %p\n")
    assert programs(folder, FAR + "ssh_config: ~/.ssh/config\n") == []


def test_without_a_state_directory_it_is_named_each_time(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no folder")
    assert programs(tmp_path / "a", LOCAL) == programs(tmp_path / "a", LOCAL) != []
