"""The entries that a record needs to continue a run, and the hosts that then take part."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ddpctl.errors import UsageError
from ddpctl.files.inventory import load_text
from ddpctl.spec.job import JobSpec
from ddpctl.spec.origin import Origin
from ddpctl.spec.outcome import Attempt, Cause
from ddpctl.spec.plan import Facts, NodeFacts, RunIdentity
from ddpctl.spec.restart import ChosenHosts, Earlier, Settings, choose_hosts, keys_of, recorded_attempts, without_hosts
from ddpctl.stages.launch import Launch
from tests.values import value_of

ALL_KEYS = """
hosts: ['gpu[0-3]']
jobs:
  j:
    module: pkg.train
    args: [--lr, "0.1"]
    nodes: 2
    spares: 1
    nproc_per_node: 2
    master: gpu1
    launcher: torchrun
    local_rank_arg: none
    elastic: {min_nodes: 1, max_nodes: 3}
    env: {A: "1"}
    requires: {data: [/d], free_disk_gb: 5}
    outputs: [o]
    timeouts: {silence: 60}
    restarts: 2
    keep_runs: 3
    doctor: off
    checkpoint: {paths: [saved/, best.v2/], replicas: 2}
"""
IDENTITY = RunIdentity("r2", Origin("me", "here", "/home/me", 1), "2026-01-02T03:04:05+00:00")


def launch(**more: Any) -> Launch:
    inventory = load_text(ALL_KEYS.encode(), "i.yaml")
    return Launch(inventory, inventory.job(), inventory.hosts[:3], spares=1, identity=IDENTITY, **more)


def record(one: Launch) -> dict[str, Any]:
    facts = {name: NodeFacts(fabric_address=f"10.0.0.{number}") for number, name in enumerate(one.names, 1)}
    plan = one.plan(Facts(facts, 29500, 29600))
    found: dict[str, Any] = json.loads(json.dumps(plan.record(plan.nodes[0])))
    return found


def test_a_record_gives_back_the_job_that_it_was_made_of() -> None:
    one = launch(nproc=4, secrets={"TOKEN": "hidden"}).named("mine")
    text = json.dumps(record(one))
    assert "hidden" not in text
    settings = value_of(Settings, record(one)["settings"])
    assert (settings.job, settings.hosts, settings.nodes, settings.nproc) == ("j", ("gpu0", "gpu1", "gpu2"), 2, 4)
    assert settings.secrets == ("TOKEN",)
    before = launch().job
    assert before is not None
    assert settings.as_job("mine", before.code) == before.model_copy(update={"name": "mine", "nodes": "all"})
    assert settings.changed(before) == []
    assert settings.changed(before.model_copy(update={"args": (), "restarts": 3})) == ["args", "restarts"]


def test_settings_of_another_version_are_refused() -> None:
    with pytest.raises(UsageError, match=r"mine was started with cannot be used here: new_key"):
        Settings("j", {"script": "train.py", "new_key": 1}, ("a",), 1).as_job("mine", ".")


def test_attempts_count_on() -> None:
    assert record(launch())["attempt"] == 1
    found = record(launch(earlier=Earlier("r1", (Attempt(3, ("gpu0",)),))))
    assert (found["attempt"], found["continues"]["run"]) == (4, "r1")
    assert found["restart"]["first"]["attempt"] == 4
    assert found["restart"]["restarts"] == 2 + 3  # as many as the job says, by their numbers
    assert found["restarts"] == 2


def test_old_attempts_and_tracebacks_are_left_out() -> None:
    cause = Cause("gpu0", "exited", "gone", "2026-01-02T03:04:05+00:00", traceback="long")
    short = recorded_attempts([Attempt(number, ("gpu0",), cause=cause) for number in range(1, 31)])
    assert [one.number for one in short] == list(range(11, 31))
    assert short[-1].cause == replace(cause, traceback=None)


KNOWN = ("a", "b", "c", "d")


@pytest.mark.parametrize(
    ("keys", "usable", "found"),
    [
        ({}, "abcd", ChosenHosts(("a", "b"), 0)),
        ({}, "bcd", None),  # no spares: no host steps in
        ({"elastic": {"min_nodes": 1, "max_nodes": 2}}, "bcd", ChosenHosts(("b",), 0)),
        ({"elastic": {"min_nodes": 1, "max_nodes": 2}}, "d", None),
        ({"restarts": 1, "spares": 1}, "abcd", ChosenHosts(("a", "b", "c"), 1)),
        ({"restarts": 1, "spares": 1}, "bd", ChosenHosts(("b", "d"), 0)),
        ({"restarts": 1, "spares": 1}, "d", None),
    ],
)
def test_who_takes_part(keys: dict[str, Any], usable: str, found: ChosenHosts | None) -> None:
    job = JobSpec.model_validate({"name": "j", "script": "train.py", **keys})
    hosts = ("a", "b", "c") if job.spares else ("a", "b")
    settings = Settings("j", keys_of(job), hosts, 2)
    assert choose_hosts(settings, job, KNOWN, set(usable)) == found


def test_a_host_with_broken_hardware_is_out_for_good() -> None:
    settings = without_hosts(Settings("j", {}, ("a", "b", "c"), 2), {"b": "its GPU is broken"})
    assert settings.hosts == ("a", "c")
