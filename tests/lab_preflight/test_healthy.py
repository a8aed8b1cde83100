"""Nothing is wrong and nothing is said to be; and a crowd out of reach, which costs no more than one host."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from ddpctl.spec.finding import Severity
from tests.conftest import MakeLab
from tests.lab import Lab
from tests.lab.command import PATH, PROGRAM, Ddpctl
from tests.lab_preflight.conftest import shape
from tests.lab_preflight.preflight import BUSY, DEFAULTS, infos, preflight, trouble, where

RUNS = 2  # the second run finds the files on the hosts that the first run left there
CROWD = 500
CROWD_S = 240
QUIET = {"fabric.address", "mesh.ports"}

# A network of its own, in which every address of 127/8 is a host.
NAMESPACE = """
set -e
ip link set lo up
if [ "$1" = drop ]; then
  nft 'add table inet t; add chain inet t i { type filter hook input priority 0; }; add rule inet t i tcp dport 2 drop'
fi
shift
exec "$@"
"""


def test_eight_healthy_hosts(make_lab: MakeLab, ddpctl: Ddpctl, tmp_path: Path) -> None:
    """The whole catalogue, as the installed command runs it."""
    eight = shape(make_lab(8))
    path = eight.inventory(tmp_path / "inventory.yaml", defaults=DEFAULTS)
    home = eight.home("healthy")
    for _ in range(RUNS):
        report = ddpctl("preflight", str(path), "--json", home=home, timeout=240).ok().json()
        assert report["ok"]
        wrong = [one for one in report["findings"] if one["severity"] not in ("ok", "skipped")]
        assert [one for one in wrong if BUSY not in one["message"]] == []
        assert report["hosts"] == [host.name for host in eight]
        (links,) = (one["message"] for one in report["findings"] if one["check"] == "mesh.bandwidth")
        assert links.startswith("56 links")


def test_what_is_harmless_stays_quiet(make_lab: MakeLab) -> None:
    """IPv6 off, a dead DNS server, a chatty profile, a closed ephemeral range where gloo never listens."""
    lab = shape(make_lab(4))
    lab[1].run("sysctl -qw net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1")
    lab[2].bashrc("echo welcome; echo 'to the machine' >&2")
    lab[2].write("/etc/resolv.conf", "nameserver 192.0.2.53\n")
    lab[3].firewall("ct state new tcp dport 32768-60999 drop")
    report = preflight(lab, only=("ssh", "port", "fabric", "mesh"), jobs={})
    assert where(trouble(report)) == []
    assert where(infos(report)) == [("mesh.ports", "info", "node3", None)]


def test_left_out_checks_are_shown_as_skipped(lab3: Lab) -> None:
    report = preflight(lab3, only=("mesh.ports",), jobs={})
    skipped = {finding.check for finding in report.findings if finding.severity is Severity.SKIPPED}
    assert "mesh.mtu" in skipped
    assert "ssh.connect" in skipped
    assert "mesh.ports" not in skipped


@pytest.mark.lab
@pytest.mark.parametrize(("way", "words"), [("refuse", "refuses the connection"), ("drop", "no answer from")])
def test_crowd_that_cannot_be_reached(tmp_path: Path, way: str, words: str) -> None:
    hosts = [{"name": f"n{i}", "address": f"127.9.{i // 250}.{i % 250 + 1}", "port": 2} for i in range(CROWD)]
    for name in ("config", "known_hosts"):
        (tmp_path / name).touch()
    inventory = tmp_path / "inventory.yaml"
    keys = {"ssh_config": str(tmp_path / "config"), "known_hosts": str(tmp_path / "known_hosts")}
    inventory.write_text(json.dumps({"cluster": "crowd", "hosts": hosts, **keys}))
    command = [
        "unshare",
        "--net",
        "bash",
        "-c",
        NAMESPACE,
        "bash",
        way,
        str(PROGRAM),
        "preflight",
        str(inventory),
        "--json",
    ]
    env = {"PATH": f"{PATH}:/usr/sbin:/sbin", "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=CROWD_S, check=False, env=env)
    assert done.returncode == 4, done.stderr
    (finding,) = (one for one in json.loads(done.stdout)["findings"] if one["severity"] != "unknown")
    assert (finding["check"], finding["severity"], finding["host"]) == ("ssh.connect", "error", None)
    assert finding["message"].startswith(f"{CROWD} hosts, for example n0: ")
    assert words in finding["message"]
    assert finding["evidence"]["hosts"] == [host["name"] for host in hosts]
