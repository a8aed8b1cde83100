"""`ddpctl preflight --fix` on real hosts, for a user with a password for sudo."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.lab import Lab
from tests.lab.command import AtTerminal, Ddpctl, Running
from tests.lab_preflight.preflight import DEFAULTS, JOB, NETWORK, preflight_of, trouble

SMALL = "/srv/small"
CHECKS = (*NETWORK, "host.shm", "host.inodes")


def train(lab: Lab) -> Path:
    """Return an inventory: its login is not root and needs a password for sudo; node1's base_dir lies below SMALL."""
    for host in lab:
        host.add_user("train")
        host.run("chpasswd", stdin="train:secret\n")
        host.write("/etc/sudoers.d/train", "train ALL=(ALL) ALL\n", 0o440)
    ssh = {"ssh_config": str(lab.ssh_config), "known_hosts": str(lab.known_hosts)}
    hosts: list[dict[str, Any]] = [{"name": host.name, "address": host.address} for host in lab]
    hosts[1]["base_dir"] = f"{SMALL}/ddpctl"
    return lab.inventory(lab.folder / "fix.yaml", **ssh, defaults={**DEFAULTS, "user": "train"}, hosts=hosts, jobs=JOB)


def break_them(lab: Lab) -> None:
    """A firewall that drops, a tmpfs without inodes, and hardly any shared memory."""
    dropped, full, tiny = lab
    for other in (full, tiny):
        dropped.drop(port="29500-60999", from_=other)
    full.small_tmpfs(SMALL, "64m", "nr_inodes=900")
    full.run(f"chown train {SMALL}")
    tiny.small_tmpfs("/dev/shm", "64k", "mode=1777")


def start(lab: Lab, where: Path, *words: str, terminal: bool, only: tuple[str, ...] = CHECKS) -> Running:
    folder = Path(tempfile.mkdtemp(prefix="fix-", dir=lab.folder))
    command = Ddpctl(folder)
    return command.start(
        "preflight", str(where), "--only", ",".join(only), *words, home=lab.home("fix"), terminal=terminal
    )


@pytest.mark.timeout(900)  # five preflights in a row
def test_three_faults_of_three_hosts_are_fixed_at_once(lab3: Lab) -> None:
    where = train(lab3)
    break_them(lab3)
    refused = start(lab3, where, "--fix", terminal=False).wait(120)
    assert refused.rc == 2
    assert "there is no terminal" in refused.stderr

    wrong = {(found.check, found.host) for found in trouble(preflight_of(where, CHECKS))}
    assert {("host.shm", "node2"), ("host.inodes", "node1"), ("mesh.ports", "node0")} <= wrong

    no = start(lab3, where, "--fix", terminal=True)
    assert isinstance(no, AtTerminal)
    no.wait_for("password of train for sudo", 240)  # the firewall is closed to this login
    no.type("secret\n")
    no.wait_for(r"run these \d+ commands\?", 240)
    no.type("n\n")
    assert no.wait(120).rc == 3
    assert "65536" in lab3[2].run("df -B1 --output=size /dev/shm").stdout  # nothing was done

    fixing = start(lab3, where, "--fix", "--json", terminal=True)
    assert isinstance(fixing, AtTerminal)
    fixing.wait_for("password of train for sudo", 240)
    fixing.type("secret\n")
    fixing.wait_for(r"run these \d+ commands\?", 240)
    fixing.type("y\n")
    done = fixing.wait(240)
    assert done.rc == 0, done.stdout
    assert "secret" not in done.stdout
    assert done.stdout.count("password of train") == 1
    assert done.stdout.count('"exit_code": 0') >= 3

    assert preflight_of(where, CHECKS).exit_code == 0


def test_json_for_scripts_and_what_is_left_to_a_person(lab3: Lab) -> None:
    where = train_as_root(lab3)
    lab3[2].small_tmpfs("/dev/shm", "64k", "mode=1777")
    lab3[1].run(
        "setsid env TORCHELASTIC_RUN_ID=none RANK=1 LOCAL_RANK=1 sh -c 'sleep 4711 >/dev/null 2>&1 & exec true'"
    )
    done = start(lab3, where, "--fix", "--yes", "--json", terminal=False, only=("host.shm", "job.leftovers")).wait(240)
    document = json.loads(done.stdout)
    assert [(fix["host"], fix["check"], fix["exit_code"]) for fix in document["fixes"]] == [("node2", "host.shm", 0)]
    assert document["fixes"][0]["command"] == "mount -o remount,size=50% /dev/shm"
    found = {one["check"]: one["severity"] for one in document["findings"]}
    assert found["host.shm"] == "ok"
    assert found["job.leftovers"] == "warning"  # its command ends a process
    assert "sleep 4711" in lab3[1].run("ps -eo args").stdout


def train_as_root(lab: Lab) -> Path:
    ssh = {"ssh_config": str(lab.ssh_config), "known_hosts": str(lab.known_hosts)}
    hosts = [{"name": host.name, "address": host.address} for host in lab]
    return lab.inventory(lab.folder / "fix.yaml", **ssh, defaults=DEFAULTS, hosts=hosts, jobs={})
