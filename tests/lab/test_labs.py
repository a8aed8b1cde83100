"""Labs begin, stand side by side, and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab import Lab, claim
from tests.lab.disk import CHECKOUT
from tests.lab.process import call
from tests.lab.traffic import fetch, serve

pytestmark = pytest.mark.alone  # another lab may take the number of a lab that has ended, or sweep up after it


def test_labs_side_by_side_do_not_meet(make_lab: Callable[..., Lab]) -> None:
    first, second = make_lab(2), make_lab(2)
    assert {host.address for host in first}.isdisjoint(host.address for host in second)
    serve(second[0], 29500)
    word, _, _ = fetch(first[0], second[0], 29500, timeout=0.5)
    assert word in ("OSError", "TimeoutError")
    assert first.ssh("node0", "hostname").stdout == second.ssh("node0", "hostname").stdout


def traces(number: int) -> list[str]:
    """Whatever there is on this machine of a lab: processes, devices, mounts, control groups, files."""
    folder, device = str(claim.ROOT / str(number)), f"ddplab{number}"
    found = [f"mount {line}" for line in Path("/proc/self/mountinfo").read_text().splitlines() if folder + " " in line]
    found += [f"device {entry.name}" for entry in Path("/sys/class/net").iterdir() if entry.name == device]
    found += [f"file {path}" for path in (claim.ROOT / f"{number}", claim.ROOT / f"{number}.lock") if path.exists()]
    private = claim.Claim(number, -1).private_network
    found += [f"route {line}" for line in call(["ip", "route"]).stdout.splitlines() if private in line]
    found += [f"group {path}" for path in Path("/sys/fs/cgroup").glob(f"*/{device}")]
    found += [f"group {path}" for path in Path("/sys/fs/cgroup").glob(device)]
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            inside = os.readlink(entry / "ns/net")
        except OSError:
            continue
        if f"{folder}/".encode() in words:
            found.append(f"process {entry.name} {inside}")
    return found


def test_nothing_is_left_of_a_lab() -> None:
    with Lab(3, fabric=True) as lab:
        number = lab.claim.number
        lab[0].popen("sleep 60")
        lab[1].power_off()
        namespaces = {os.readlink(f"/proc/{host.init.pid}/ns/net") for host in lab if host.init}
        assert len(traces(number)) > 5
    assert traces(number) == []
    assert not namespaces & {_namespace(entry) for entry in Path("/proc").glob("[0-9]*")}


def _namespace(process: Path) -> str:
    try:
        return os.readlink(process / "ns/net")
    except OSError:
        return ""


SWEEP = "tests/lab/test_labs.py::test_the_next_lab_sweeps_up_after_a_killed_owner"


@pytest.mark.parametrize(
    "options", ["", pytest.param(", systemd=True", id="systemd", marks=pytest.mark.full(covered_by=SWEEP))]
)
def test_the_next_lab_sweeps_up_after_a_killed_owner(options: str) -> None:
    lab = f"lab = Lab(2{options}); print(lab.claim.number, flush=True)"
    code = f"from tests.lab import Lab; import time; {lab}; time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        number = int(owner.stdout.readline())
        assert len(traces(number)) > 5
        with Lab(1) as beside:  # the owner lives: its lab is left alone
            assert beside.claim.number != number
            assert len(traces(number)) > 5
        owner.send_signal(signal.SIGKILL)
    assert len(traces(number)) > 5
    claim.sweep()
    assert traces(number) == []


def test_by_hand_from_a_shell() -> None:
    lab = [sys.executable, "-m", "tests.lab"]
    folder = subprocess.run(
        [*lab, "up", "2"], cwd=CHECKOUT, check=True, text=True, stdout=subprocess.PIPE
    ).stdout.strip()
    try:
        assert call([*lab, "enter", folder, "node1", "hostname"]).stdout == "node1\n"
        assert call(["ssh", "-F", f"{folder}/ssh_config", "node0", "hostname"]).stdout == "node0\n"
        assert folder in call([*lab, "list"]).stdout.split()
    finally:
        call([*lab, "down", folder])
    assert traces(int(Path(folder).name)) == []
