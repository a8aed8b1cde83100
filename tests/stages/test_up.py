"""What is not known when the launchers are to start."""

from __future__ import annotations

from typing import cast

import pytest

from ddpctl.errors import PreflightFailed
from ddpctl.files.inventory import load_text
from ddpctl.spec.inventory import Inventory
from ddpctl.spec.plan import Facts, Identity, NodeFacts, Plan
from ddpctl.spec.planning import make_plan
from ddpctl.stages.up import Wanted, Way, start
from ddpctl.transport.base import Fleet

FILE = """
hosts: [gpu0, gpu1]
jobs:
  j: {script: train.py, code: null, workdir: /w, master_port: 29500, nproc_per_node: 1}
"""
KNOWN = {name: NodeFacts(fabric_address=f"10.0.0.{number}") for number, name in enumerate(("gpu0", "gpu1"), 1)}


def wanted(inventory: Inventory) -> Wanted:
    job = inventory.job()

    def plan(facts: Facts) -> Plan:
        return make_plan(inventory, job, inventory.hosts, Identity("r", "me", "here", ""), facts=facts)

    return Wanted(inventory, job, inventory.hosts, None, plan)


def no_fleet() -> Fleet:
    return cast("Fleet", None)  # any use of it is an error


@pytest.mark.parametrize("rendezvous", ["static", "c10d"])
def test_nothing_starts_without_an_address(rendezvous: str) -> None:
    inventory = load_text(FILE.replace("script:", f"rendezvous: {rendezvous}, script:").encode(), "i.yaml")
    way = Way(facts=Facts({"gpu1": KNOWN["gpu1"]}))
    with pytest.raises(PreflightFailed, match="fabric address of gpu0"):
        start(wanted(inventory), way, no_fleet(), lambda event: None)
    assert way.plan is None
    assert wanted(inventory).plan(Facts(KNOWN)).unknown == ()


def test_nothing_starts_without_a_port_or_a_number_of_processes() -> None:
    text = FILE.replace("master_port: 29500, nproc_per_node: 1", "master_port: auto")
    way = Way(facts=Facts(KNOWN))
    with pytest.raises(PreflightFailed, match=r"processes per node of gpu0, .* of gpu1, master port"):
        start(wanted(load_text(text.encode(), "i.yaml")), way, no_fleet(), lambda event: None)
