"""`ddpctl trust` on real hosts: an unknown key is shown and added when confirmed, a changed key is never added."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeLab
from tests.lab.command import AtTerminal, Ddpctl

pytestmark = pytest.mark.slow


def test_unknown_keys_are_added_only_when_confirmed(make_lab: MakeLab, ddpctl: Ddpctl, tmp_path: Path) -> None:
    lab = make_lab(2)
    keys = {"ssh_config": str(lab.ssh_config), "known_hosts": str(tmp_path / "known_hosts")}
    lab.ssh_config.write_text(lab.ssh_config.read_text().replace("UserKnownHostsFile", "# UserKnownHostsFile"))
    inventory = lab.inventory(tmp_path / "inventory.yaml", defaults={"python": "/usr/bin/python3"}, **keys)

    def command(*args: str) -> Any:
        return ddpctl(*args, inventory=inventory)

    refused = command("ps")
    assert refused.rc == 4
    assert "ddpctl trust" in refused.stderr

    asked = command("trust")
    assert asked.rc == 2, "nobody can be asked without a terminal"
    assert "SHA256:" in asked.stdout
    assert not (tmp_path / "known_hosts").exists()

    assert command("trust", "--yes").rc == 0
    assert command("ps").rc == 0

    lab[1].wrong_host_key()
    before = (tmp_path / "known_hosts").read_text()
    changed = command("trust", "--yes")
    assert changed.rc == 4
    assert "node1" in changed.stderr
    assert (tmp_path / "known_hosts").read_text() == before


def test_hosts_behind_a_jump_host_are_trusted_in_one_go(make_lab: MakeLab, ddpctl: Ddpctl, tmp_path: Path) -> None:
    lab = make_lab(3, jump=True)
    keys = {"ssh_config": str(lab.ssh_config), "known_hosts": str(tmp_path / "known_hosts")}
    lab.ssh_config.write_text(lab.ssh_config.read_text().replace("UserKnownHostsFile", "# UserKnownHostsFile"))
    inventory = lab.inventory(tmp_path / "inventory.yaml", defaults={"python": "/usr/bin/python3"}, **keys)
    assert ddpctl("trust", "--yes", inventory=inventory).rc == 0
    assert ddpctl("ps", inventory=inventory).rc == 0


def test_the_key_of_a_jump_host_wants_a_passphrase(make_lab: MakeLab, ddpctl: Ddpctl, tmp_path: Path) -> None:
    lab = make_lab(2, jump=True)
    key = tmp_path / "locked"
    shutil.copy(lab.key, key)
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "open sesame", "-f", key], check=True, stdout=subprocess.DEVNULL)
    config = lab.ssh_config.read_text().replace(str(lab.key), str(key))
    lab.ssh_config.write_text(config.replace("UserKnownHostsFile", "# UserKnownHostsFile"))
    keys = {"ssh_config": str(lab.ssh_config), "known_hosts": str(tmp_path / "known_hosts")}
    inventory = lab.inventory(tmp_path / "inventory.yaml", defaults={"python": "/usr/bin/python3"}, **keys)
    run = ddpctl.start("trust", "--yes", inventory=inventory, terminal=True)
    assert isinstance(run, AtTerminal)
    run.wait_for(f"passphrase of {key}: ")
    run.type("open sesame\n")
    done = run.wait()
    assert done.rc == 0, done.stdout
    assert done.stdout.count("passphrase") == 1
    assert len((tmp_path / "known_hosts").read_text().splitlines()) == 2
