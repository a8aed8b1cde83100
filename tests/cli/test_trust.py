"""`ddpctl trust` on real hosts: what is unknown is shown and added when confirmed, what has changed never."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.conftest import MakeLab
from tests.lab.command import Ddpctl


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
