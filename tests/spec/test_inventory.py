"""The models of the inventory: defaults, merging, and which hosts a job runs on."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ddpctl.errors import UsageError
from ddpctl.spec.inventory import Inventory, InventoryFile, build, job_hosts, suggestion
from ddpctl.spec.job import JobSpec
from ddpctl.spec.values import Fault


def made(document: dict[str, Any]) -> Inventory:
    inventory, faults = build(InventoryFile.model_validate(document), "cluster.yaml", "exp")
    assert inventory is not None, faults
    return inventory


def faults_of(document: dict[str, Any]) -> list[Fault]:
    return build(InventoryFile.model_validate(document), "cluster.yaml", "exp")[1]


def job(**keys: Any) -> dict[str, Any]:
    return {"script": "train.py", **keys}


def test_every_default_is_the_contracts() -> None:
    inventory = made({"hosts": ["node0"], "jobs": {"train": job()}})
    assert (inventory.ssh_config, inventory.known_hosts) == (None, None), "ssh's own"
    host = inventory.host("node0")
    assert host.model_dump() == {
        "name": "node0",
        "address": "node0",
        "fabric_address": None,
        "interface": None,
        "port": None,
        "user": None,
        "identity_file": None,
        "jump": None,
        "slots": "auto",
        "connection": "ssh",
        "transport": "auto",
        "python": "python3",
        "base_dir": "~/.local/state/ddpctl",
        "env": {},
        "labels": {},
    }
    assert inventory.job().model_dump() == {
        "name": "train",
        "script": "train.py",
        "module": None,
        "args": (),
        "code": ".",
        "workdir": None,
        "nodes": "all",
        "nproc_per_node": "auto",
        "master": None,
        "master_port": "auto",
        "launcher": "auto",
        "local_rank_arg": "auto",
        "rendezvous": "static",
        "elastic": None,
        "env": {},
        "env_file": None,
        "requires": {"data": (), "free_disk_gb": None},
        "outputs": (),
        "timeouts": {"start": 120.0, "stop": 30.0, "leftover": 10.0, "after": 3600.0, "silence": None},
        "before": None,
        "after": None,
        "links": {},
        "keep_runs": None,
        "restarts": 0,
        "spares": 0,
        "doctor": {"stall": 30.0},
        "notify": (),
        "checkpoint": {"paths": (), "signal": "SIGUSR1", "timeout": 120.0, "replicas": 1, "keep": 3},
    }
    environment = inventory.environment
    assert (environment.mode, environment.packages, environment.torch_backend) == ("existing", (), "auto")


def test_defaults_are_merged_and_the_hosts_own_keys_win() -> None:
    inventory = made(
        {
            "defaults": {"user": "train", "slots": 4, "env": {"A": "1", "B": "1"}, "labels": {"gpu": "a100"}},
            "hosts": ["node0", {"name": "node1", "user": "root", "slots": "auto", "env": {"B": "2"}}],
        }
    )
    first, second = inventory.hosts
    assert (first.user, first.slots, dict(first.env)) == ("train", 4, {"A": "1", "B": "1"})
    assert (second.user, second.slots, dict(second.env)) == ("root", "auto", {"A": "1", "B": "2"})
    assert second.labels == {"gpu": "a100"}


def test_a_range_of_addresses_goes_with_a_range_of_names() -> None:
    inventory = made({"hosts": [{"name": "n[1-3]", "address": "10.0.0.[11-13]", "fabric_address": "192.168.0.[1-3]"}]})
    assert [(h.name, h.address, h.fabric_address) for h in inventory.hosts] == [
        ("n1", "10.0.0.11", "192.168.0.1"),
        ("n2", "10.0.0.12", "192.168.0.2"),
        ("n3", "10.0.0.13", "192.168.0.3"),
    ]
    assert faults_of({"hosts": [{"name": "n[1-3]", "address": "10.0.0.[11-12]"}]})


def test_an_ipv6_address_is_no_range() -> None:
    assert made({"hosts": [{"name": "n1", "address": "[fe80::1]"}]}).hosts[0].address == "[fe80::1]"


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"hosts": ["a", "a"]}, ("hosts", 1, "name")),
        ({"hosts": ["a1", "a[1-2]"]}, ("hosts", 1, "name")),
        ({"hosts": ["a[1-"]}, ("hosts", 0, "name")),
        ({"hosts": ["-a"]}, ("hosts", 0, "name")),
        ({"hosts": ["a" * 64]}, ("hosts", 0, "name")),
        ({"hosts": ["a b"]}, ("hosts", 0, "name")),
        ({"hosts": ["n[1-4096]", "m"]}, ("hosts", 1, "name")),
        ({"hosts": ["a"], "jobs": {"j": job(master="b")}}, ("jobs", "j", "master")),
        ({"hosts": ["a"], "jobs": {"j": job(nodes=2)}}, ("jobs", "j", "nodes")),
        ({"hosts": ["a"], "jobs": {"j": job(nodes=["b"])}}, ("jobs", "j", "nodes")),
        ({"hosts": ["a"], "jobs": {"j": job(nodes=["a", "a"])}}, ("jobs", "j", "nodes")),
        ({"hosts": ["a", "b"], "jobs": {"j": job(nodes=["a"], master="b")}}, ("jobs", "j", "nodes")),
    ],
)
def test_what_does_not_fit_together(document: dict[str, Any], path: tuple[str | int, ...]) -> None:
    assert [fault.path for fault in faults_of(document)] == [path]


@pytest.mark.parametrize(
    "keys",
    [
        {"port": 0},
        {"port": "22"},
        {"port": True},
        {"slots": 0},
        {"slots": "all"},
        {"slots": 1.0},
        {"user": "-oProxyCommand=x"},
        {"user": "a b"},
        {"address": ""},
        {"address": "train@10.0.0.1"},
        {"address": "10.0.0.1:22"},
        {"fabric_address": "[fe80::1]:22"},
        {"address": "a\nb"},
        {"connection": "telnet"},
        {"transport": "asyncssh"},
        {"env": {"A-B": "1"}},
        {"env": {"RANK": "0"}},
        {"env": {"DDPCTL_RUN": "x"}},
        {"env": {"A": "a\0b"}},
        {"env": ["A=1"]},
        {"labels": {"": "x"}},
        {"python": "-c"},
        {"python": "  "},
    ],
)
def test_a_host_refuses(keys: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        InventoryFile.model_validate({"hosts": [{"name": "a", **keys}]})


@pytest.mark.parametrize(
    "keys",
    [
        {"module": "a.b"},
        {"script": None},
        {"script": None, "module": "a-b"},
        {"args": "--epochs 3"},
        {"args": [True]},
        {"args": [None]},
        {"args": ["a\0"]},
        {"nodes": 0},
        {"nodes": []},
        {"nodes": [1]},
        {"nodes": True},
        {"nproc_per_node": "gpu"},
        {"master_port": 70000},
        {"launcher": "mpirun"},
        {"local_rank_arg": "--rank"},
        {"rendezvous": "etcd"},
        {"elastic": {"min_nodes": 3, "max_nodes": 2}},
        {"elastic": {"min_nodes": 1}},
        {"timeouts": {"start": 0}},
        {"timeouts": {"silence": 0}},
        {"timeouts": {"stop": -1}},
        {"timeouts": {"stop": float("inf")}},
        {"timeouts": {"stop": float("nan")}},
        {"doctor": True},
        {"doctor": 0},
        {"doctor": "on"},
        {"doctor": "Off"},
        {"doctor": 30},
        {"doctor": {"stall": 0}},
        {"doctor": {"stall": -1}},
        {"doctor": {"stall": None}},
        {"doctor": {"stall": float("nan")}},
        {"doctor": {"stalled": 5}},
        {"checkpoint": None},
        {"checkpoint": {"signal": "SIGKILL"}},
        {"checkpoint": {"signal": "SIGINT"}},
        {"checkpoint": {"signal": "USR1"}},
        {"checkpoint": {"signal": 10}},
        {"checkpoint": {"timeout": 0}},
        {"checkpoint": {"replicas": -1}},
        {"checkpoint": {"keep": 0}},
        {"checkpoint": {"keep": True}},
        {"checkpoint": {"paths": "saved_models"}},
        {"checkpoint": {"paths": ["/srv/saved"]}},
        {"checkpoint": {"paths": ["."]}},
        {"checkpoint": {"paths": ["a/.."]}},
        {"checkpoint": {"paths": ["../a"]}},
        {"checkpoint": {"paths": [".ddpctl"]}},
        {"checkpoint": {"paths": ["saved/.best"]}},
        {"checkpoint": {"paths": ["a/../../b"]}},
        {"checkpoint": {"paths": ["snapshot.pt"]}},
        {"checkpoint": {"paths": ["saved", "./saved/"]}},
        {"checkpoint": {"paths": ["saved", "saved/best"]}},
        {"checkpoint": {"paths": ["saved"]}, "code": None, "workdir": "/srv"},
        {"checkpoint": {"paths": ["saved"]}, "workdir": "/srv"},
        {"requires": {"free_disk_gb": "5"}},
        {"outputs": "saved"},
        {"before": ""},
        {"after": ["a", "b"]},
        {"links": {"data": "sets"}},
        {"links": {"/data": "/sets"}},
        {"links": {"data": "/sets", "data/deep": "/sets"}},
        {"links": {"data": "/sets"}, "code": None},
        {"links": {"data": "/sets"}, "checkpoint": {"paths": ["data"]}},
        {"name": "other"},
    ],
)
def test_a_job_refuses(keys: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        InventoryFile.model_validate({"hosts": ["a"], "jobs": {"j": job(**keys)}})


def test_no_message_and_no_repr_holds_a_value_of_the_environment() -> None:
    secret = "hunter2hunter2"
    spec = JobSpec(name="j", script="a.py", env={"TOKEN": secret})
    assert secret not in repr(spec)
    for env in ({"A": [secret]}, secret, [secret], {"A": secret + "\0"}, {"RANK": secret}, {"A-B": secret}):
        with pytest.raises(ValidationError) as caught:
            InventoryFile.model_validate({"hosts": ["a"], "jobs": {"j": job(env=env)}})
        assert secret not in str(caught.value)
        assert secret not in str(caught.value.errors(include_input=False))


def test_numbers_in_arguments_are_the_text_they_were_written_as() -> None:
    spec = made({"hosts": ["a"], "jobs": {"j": job(args=["--n", 10, -3], env={"A": 4})}}).job()
    assert spec.args == ("--n", "10", "-3")
    assert spec.env == {"A": "4"}


HOSTS = ["n0", "n1", "n2", "n3"]


@pytest.mark.parametrize(
    ("keys", "nodes", "names"),
    [
        ({}, None, ["n0", "n1", "n2", "n3"]),
        ({"nodes": 2}, None, ["n0", "n1"]),
        ({"nodes": 2}, 3, ["n0", "n1", "n2"]),
        ({"nodes": 2}, "all", ["n0", "n1", "n2", "n3"]),
        ({"master": "n2"}, None, ["n2", "n0", "n1", "n3"]),
        ({"master": "n2", "nodes": 2}, None, ["n2", "n0"]),
        ({"master": "n2", "nodes": 1}, None, ["n2"]),
        ({"nodes": ["n3", "n[0-1]"]}, None, ["n0", "n1", "n3"]),
        ({"nodes": ["n3", "n1"], "master": "n3"}, None, ["n3", "n1"]),
        ({"nodes": "n[2-3]"}, None, ["n2", "n3"]),
    ],
)
def test_which_hosts_a_job_runs_on(keys: dict[str, Any], nodes: Any, names: list[str]) -> None:
    inventory = made({"hosts": HOSTS, "jobs": {"j": job(**keys)}})
    assert [host.name for host in job_hosts(inventory, inventory.job("j"), nodes)] == names


@pytest.mark.parametrize("nodes", [0, 5, "n9", ("n0", "n0"), ("n1",), "n["])
def test_an_override_that_cannot_be_met(nodes: Any) -> None:
    inventory = made({"hosts": HOSTS, "jobs": {"j": job(master="n0")}})
    with pytest.raises(UsageError):
        job_hosts(inventory, inventory.job("j"), nodes)


@given(st.integers(1, 20), st.data())
def test_the_master_is_always_first_and_nobody_is_lost(count: int, data: st.DataObject) -> None:
    names = [f"n{index}" for index in range(count)]
    master = data.draw(st.none() | st.sampled_from(names))
    wanted = data.draw(st.integers(1, count))
    inventory = made({"hosts": names, "jobs": {"j": job(master=master)}})
    chosen = [host.name for host in job_hosts(inventory, inventory.job(), wanted)]
    assert len(chosen) == len(set(chosen)) == wanted
    assert chosen[0] == (master or names[0])
    assert chosen[1:] == [name for name in names if name in chosen[1:]]


def test_unknown_names_come_with_the_nearest_one() -> None:
    inventory = made({"hosts": HOSTS, "jobs": {"resnet_ddp": job(), "other": job()}})
    with pytest.raises(UsageError, match="did you mean resnet_ddp"):
        inventory.job("resnet-ddp")
    with pytest.raises(UsageError, match="choose one with --job: resnet_ddp, other"):
        inventory.job()
    with pytest.raises(UsageError, match="valid: n0, n1, n2, n3"):
        inventory.host("node7")
    assert suggestion("zzz", ["a", "b"]) == "valid: a, b"


def test_a_model_cannot_be_changed() -> None:
    spec = JobSpec(name="j", script="a.py")
    with pytest.raises(ValidationError):
        spec.script = "b.py"
