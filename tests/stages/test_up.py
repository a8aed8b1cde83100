"""What is not known when the launchers are to start, and a name that is taken."""

from __future__ import annotations

from typing import cast

import pytest

from ddpctl.errors import PreflightFailed, Unreachable, UsageError
from ddpctl.files.inventory import load_text
from ddpctl.spec.event import Event, Note
from ddpctl.spec.origin import Origin
from ddpctl.spec.plan import Facts, NodeFacts, RunIdentity
from ddpctl.stages.launch import Launch
from ddpctl.stages.up import FACTS_ONLY, Up
from ddpctl.transport.base import Fleet
from tests.transport.dry import DryFleet, DryTransport

FILE = """
project: exp
hosts: [gpu0, gpu1]
jobs:
  j: {script: train.py, code: null, workdir: /w, master_port: 29500, nproc_per_node: 1}
"""
KNOWN = {name: NodeFacts(fabric_address=f"10.0.0.{number}") for number, name in enumerate(("gpu0", "gpu1"), 1)}


def launch(text: str) -> Launch:
    inventory = load_text(text.encode(), "i.yaml")
    return Launch(
        inventory, inventory.job(), inventory.hosts, identity=RunIdentity("r", Origin("me", "here", "/home/me", 1), "")
    )


def up(text: str, facts: Facts) -> Up:
    found = Up(launch(text), no_fleet(), lambda event: None)
    found.facts = facts
    return found


def no_fleet() -> Fleet:
    return cast("Fleet", None)  # any use is an error


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


def answering(host: str, **runs: str) -> DryTransport:
    """A host with these runs of the job j1: id -> state."""
    names = {"job": "j1", "cluster": "default", "host": host, "node_rank": 0}
    parts = [
        {**names, "run": run, "state": state, "record": {"project": "exp", "hosts": [host]}}
        for run, state in runs.items()
    ]
    return DryTransport(host, {"status": {"runs": parts}})


def test_a_name_that_is_live_on_any_host_is_refused_before_preflight() -> None:
    fleet = DryFleet([answering("gpu0", old="failed"), answering("gpu1"), answering("idle", new="running")])
    refused = Up(launch(FILE).named("j1"), fleet, lambda event: None)
    with pytest.raises(UsageError, match="j1 is live: run new on idle; nothing was started"):
        refused.run()
    assert {asked.verb for asked in fleet.calls} == {"status"}


def test_a_host_that_cannot_say_whether_a_name_is_live_is_named() -> None:
    """One of the run's own is preflight's to report."""
    dead = [DryTransport(name, unreachable=Unreachable("no answer")) for name in ("gpu1", "idle")]
    fleet = DryFleet([answering("gpu0", old="failed"), *dead])
    told: list[Event] = []
    with pytest.raises(PreflightFailed):
        Up(launch(FILE).named("j1"), fleet, told.append, FACTS_ONLY).run()
    assert [note.host for note in told if isinstance(note, Note)] == ["idle"]


def test_a_name_of_the_run_s_own_takes_the_place_of_the_job_s() -> None:
    plan = launch(FILE).named("j1").plan(Facts(KNOWN))
    assert plan.job == "j1"
    assert [plan.record(node)["job"] for node in plan.nodes] == ["j1", "j1"]
    assert {node.command.env["DDPCTL_JOB"] for node in plan.nodes} == {"j1"}
