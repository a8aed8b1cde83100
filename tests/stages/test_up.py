"""What is not known when the launchers are to start."""

from __future__ import annotations

from typing import cast

import pytest

from ddpctl.errors import PreflightFailed
from ddpctl.files.inventory import load_text
from ddpctl.spec.plan import Facts, NodeFacts, RunIdentity
from ddpctl.stages.launch import Launch
from ddpctl.stages.up import Up
from ddpctl.transport.base import Fleet

FILE = """
hosts: [gpu0, gpu1]
jobs:
  j: {script: train.py, code: null, workdir: /w, master_port: 29500, nproc_per_node: 1}
"""
KNOWN = {name: NodeFacts(fabric_address=f"10.0.0.{number}") for number, name in enumerate(("gpu0", "gpu1"), 1)}


def launch(text: str) -> Launch:
    inventory = load_text(text.encode(), "i.yaml")
    return Launch(inventory, inventory.job(), inventory.hosts, identity=RunIdentity("r", "me", "here", ""))


def up(text: str, facts: Facts) -> Up:
    found = Up(launch(text), no_fleet(), lambda event: None)
    found.facts = facts
    return found


def no_fleet() -> Fleet:
    return cast("Fleet", None)  # any use of it is an error


@pytest.mark.parametrize("rendezvous", ["static", "c10d"])
def test_nothing_starts_without_an_address(rendezvous: str) -> None:
    text = FILE.replace("script:", f"rendezvous: {rendezvous}, script:")
    one = up(text, Facts({"gpu1": KNOWN["gpu1"]}))
    with pytest.raises(PreflightFailed, match="fabric address of gpu0"):
        one.start()
    assert one.plan is None
    assert launch(text).plan(Facts(KNOWN)).unknown == ()


def test_nothing_starts_without_a_port_or_a_number_of_processes() -> None:
    text = FILE.replace("master_port: 29500, nproc_per_node: 1", "master_port: auto")
    with pytest.raises(PreflightFailed, match=r"processes per node of gpu0, .* of gpu1, master port"):
        up(text, Facts(KNOWN)).start()
