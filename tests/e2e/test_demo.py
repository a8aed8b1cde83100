"""`make demo` as it ships, and its output in the README."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.e2e.site import until
from tests.lab.command import PROGRAM, Ddpctl
from tests.lab.disk import CHECKOUT
from tests.lab.process import Process, read_processes

GUARD_S = 1500  # half a minute on two idle cores

# The parts that differ from run to run and from machine to machine.
VALUES = (
    (r"\b\d{8}T\d{6}Z-[0-9a-f]{6}\b", "RUN"),
    (r"\b[0-9a-f]{16}\b", "DIGEST"),
    (r"(?<=host )\S+", "NAME"),
    (r"(?<=done: )\S*(?=/\.local/)", "HOME"),
    (r"\b(\d+[dhm])+(\d+s)?\b|\b\d+(\.\d+)?s\b", "TIME"),
    (r"\b\d+(\.\d+)?(e[-+]\d+)?\b", "NUMBER"),
    (r" {2,}", "  "),
)


# The demo's job in another checkout, which ends with a checkpoint.
OTHER = f"""\
cluster: local
defaults: {{connection: local, python: {sys.executable}, fabric_address: 127.0.0.1, slots: 1}}
hosts: [local-0]
jobs:
  resnet_ddp: {{script: save.py}}
"""
SAVE = """\
import os
with open(os.path.join(os.environ["DDPCTL_CHECKPOINT_DIR"], "resnet_ddp.ckpt"), "w") as file:
    file.write("weights")
"""


def run_in_another_checkout(ddpctl: Ddpctl, folder: Path, home: Path) -> None:
    inventory = folder / "inventory" / "local.yaml"
    inventory.parent.mkdir()
    inventory.write_text(OTHER)
    (inventory.parent / "save.py").write_text(SAVE)
    ddpctl("up", str(inventory), "--skip-preflight", home=home, timeout=GUARD_S).ok()
    assert "resnet_ddp.ckpt" in ddpctl("checkpoints", "resnet_ddp", "-i", str(inventory), home=home).ok().stdout


@pytest.mark.heavy
@pytest.mark.timeout(GUARD_S + 60)
def test_the_demo_and_the_output_in_the_readme(ddpctl: Ddpctl, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    run_in_another_checkout(ddpctl, tmp_path, home)
    # The rule for `demo` and no other: its virtual environment runs this test.
    make = f"exec make --silent --old-file=venv BIN={PROGRAM.parent} demo"
    try:
        done = ddpctl.start(shell=make, cwd=CHECKOUT, home=home).wait(GUARD_S).ok()
        until(lambda: processes_with(home) == [], 30, lambda: f"left running: {processes_with(home)}")
    finally:
        for process in processes_with(home):
            os.kill(process.pid, signal.SIGKILL)
    run = re.findall(r"\(run (\S+)\)", done.stderr + done.stdout)[0]
    status = ddpctl("status", run, home=home).ok()
    assert f"run {run} " in status.stdout

    up_sample, status_sample = samples()
    output = [line for line in up_sample.splitlines() if " | " in line]
    stages = [line for line in up_sample.splitlines() if " | " not in line]
    assert shapes(done.stdout.splitlines()) == shapes(output), done.stdout
    # On a slow machine stderr has more lines, such as that no rank has started yet.
    assert shapes(stages) - shapes(done.stderr.splitlines()) == Counter(), done.stderr
    # On a busy machine a rank may fall behind its peers, and then the status says so.
    lines = [line for line in status.stdout.splitlines() if not line.startswith("slow: rank ")]
    assert shapes(lines) == shapes(status_sample.splitlines()), status.stdout
    losses = [float(loss) for loss in re.findall(r"epoch \d/4 loss (\S+)", done.stdout)]
    assert losses[3] < losses[0] / 2, losses
    (checkpoint,) = re.findall(r"done: (\S+)", done.stdout)
    assert Path(checkpoint.replace("~", str(home), 1)).stat().st_size > 0


def samples() -> tuple[str, str]:
    """What the README shows after `ddpctl up inventory/local.yaml` and after `ddpctl status resnet_ddp`."""
    block = re.search(
        r"```\n\$ ddpctl up inventory/local\.yaml\n(.*?)\n\$ ddpctl status resnet_ddp\n(.*?)```",
        (CHECKOUT / "README.md").read_text(),
        re.DOTALL,
    )
    assert block is not None
    return block[1], block[2]


def shapes(lines: Iterable[str]) -> Counter[str]:
    """The lines without values, and how often each comes: ranks and stages may end in another order."""
    found: Counter[str] = Counter()
    for line in lines:
        for pattern, name in VALUES:
            line = re.sub(pattern, name, line)
        if line.strip():
            found[line.rstrip()] += 1
    return found


def processes_with(home: Path) -> list[Process]:
    """The processes of this machine that have inherited this home folder."""
    found = read_processes(Path("/proc"))
    return [process for process in found if process.environ.get("HOME") == str(home) and process.state not in "ZX"]
