"""What is recorded: each scene types commands and waits for the expected output."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tests.e2e.site import SMALL_NETWORK
from tests.recordings.stage import Stage

PORTS = "1024-65535"
LONG = [*SMALL_NETWORK, "--data_dir", "synthetic", "--train_size", "160", "--test_size", "40", "--num_epochs", "900"]


def start(stage: Stage) -> None:
    """From nothing to a job on two hosts."""
    terminal = stage.terminal
    terminal.type("ls *.py | head -3")
    terminal.done()
    terminal.type(f"ddpctl init --host node0 --host node1 --script train.py --python {stage.python}")
    terminal.done()
    terminal.type(f"ddpctl up -- {' '.join(LONG)}")
    terminal.see("epoch 2")
    terminal.press("\x03")
    terminal.see("etach")
    terminal.press("d")
    terminal.press("\r")
    terminal.done()
    terminal.type("ddpctl kill train")
    terminal.done()


def firewall(stage: Stage) -> None:
    """A closed port, found before the start, and opened."""
    stage.inventory()
    stage.lab[0].firewall("ct state established,related accept", f"tcp dport {PORTS} drop")
    terminal = stage.terminal
    terminal.type("ddpctl preflight")
    terminal.done()
    terminal.type("ddpctl preflight --fix")
    terminal.see(r"\[y/N\]|\(y/n\)|\? ")
    terminal.rest(2)
    terminal.type("y")
    terminal.done()


def failure(stage: Stage) -> None:
    """A rank is killed: the cause names it, and nothing is left."""
    stage.inventory({"args": LONG})
    terminal = stage.terminal
    terminal.type("ddpctl up -d")
    terminal.done()
    terminal.type("ddpctl tail train -f")
    terminal.see("epoch 2")
    terminal.press("\x03")
    terminal.done()
    stage.kill_rank(stage.lab[1], run_of(stage))
    stage.wait_for_end()
    terminal.type("ddpctl status train")
    terminal.done()
    terminal.type("ddpctl kill train")
    terminal.done()


def restart(stage: Stage) -> None:
    """A host loses power, and the run continues on the spare."""
    job = {"nodes": 2, "spares": 1, "restarts": 3, "checkpoint": {"paths": ["saved_models"]}}
    stage.inventory({**job, "args": [*LONG, "--resume"]})
    terminal = stage.terminal
    terminal.type("ddpctl up")
    terminal.see("epoch 2")
    stage.lab[1].power_off()
    terminal.see(r"#2 \|\S* epoch")
    terminal.press("\x03")
    terminal.see("etach")
    terminal.press("d")
    terminal.press("\r")
    terminal.done()
    terminal.type("ddpctl status train")
    terminal.done()
    terminal.type("ddpctl kill train")
    terminal.done()


def slots(stage: Stage) -> None:
    """A colleague has all slots: the job waits in line, and starts when the colleague's run has ended."""
    for host in stage.lab:
        for user in ("alice", "ada"):
            host.add_user(user)
    job = {"args": LONG, "nproc_per_node": 2}
    stage.inventory(job, defaults={"python": stage.python, "slots": 2, "user": "alice"})
    stage.run_as("alice", "desk", "up", "-d", "--name", "resnet")
    stage.inventory(job, defaults={"python": stage.python, "slots": 2, "user": "ada"})
    stage.run("preflight")  # remembered, so the recording does not show it again
    terminal = stage.terminal
    terminal.type("ddpctl up")
    terminal.done()
    terminal.type("ddpctl up --wait")
    terminal.see("in use: 2 by alice")
    terminal.rest(2)
    terminal.press("\x03")
    terminal.see("etach")
    terminal.press("d")
    terminal.press("\r")
    terminal.done()
    terminal.type("ddpctl ps")
    terminal.done()
    stage.run_as("alice", "desk", "kill", "resnet")
    terminal.type("ddpctl attach train")
    terminal.see("epoch 2")
    terminal.press("\x03")
    terminal.done()
    terminal.type("ddpctl ps")
    terminal.done()
    terminal.type("ddpctl kill train")
    terminal.done()


def run_of(stage: Stage) -> str:
    """The run with ranks on the first host."""
    runs = {process.environ.get("DDPCTL_RUN") for process in stage.lab[0].processes()} - {None}
    assert len(runs) == 1, runs
    return str(runs.pop())


class Scene(NamedTuple):
    """``hosts``: how many it needs."""

    title: str
    hosts: int
    play: Callable[[Stage], None]


SCENES = {
    "start": Scene("From nothing to a job on two hosts", 2, start),
    "firewall": Scene("A closed port is found before the start", 2, firewall),
    "failure": Scene("A rank is killed", 2, failure),
    "restart": Scene("A host loses power", 3, restart),
    "slots": Scene("A job waits in line", 2, slots),
}
