"""The plan: pure, exact, and the same for a dry run and the real thing."""

from __future__ import annotations

import contextlib
import shlex
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.errors import UsageError
from ddpctl.spec.inventory import Host, Inventory, job_hosts
from ddpctl.spec.job import JobSpec
from ddpctl.spec.origin import Origin
from ddpctl.spec.plan import CodeRef, Facts, NodeFacts, Plan, RunIdentity
from ddpctl.spec.planning import make_plan, torch_release

IDENTITY = RunIdentity("20260101T000000Z-abc123", Origin("ann", "laptop", "/home/ann", 1), "2026-01-01T00:00:00Z")


def hosts(count: int, **keys: Any) -> tuple[Host, ...]:
    return tuple(Host(name=f"node{i}", address=f"10.0.0.{i + 1}", **keys) for i in range(count))


def plan(job: dict[str, Any], nodes: tuple[Host, ...], **more: Any) -> Plan:
    spec = JobSpec(**{"name": "train", "script": "train.py", **job})
    return make_plan(Inventory(hosts=nodes), spec, nodes, IDENTITY, **more)


def test_the_command_line_works_from_torch_1_6_on() -> None:
    """Underscore spellings, --use_env, and `--` before the script."""
    made = plan({"master_port": 29500, "args": ("--n", "3")}, hosts(2, slots=2, python="/usr/bin/python3"))
    assert made.nodes[1].command.argv == tuple(
        shlex.split(
            "/usr/bin/python3 -m torch.distributed.launch --nnodes 2 --node_rank 1 --nproc_per_node 2 "
            "--master_addr 10.0.0.1 --master_port 29500 --use_env -- train.py --n 3"
        )
    )
    assert made.world_size == 4
    assert [node.ranks for node in made.nodes] == [(0, 1), (2, 3)]


def test_different_slots_add_up() -> None:
    nodes = (hosts(1, slots=2)[0], *hosts(2, slots=1)[1:])
    made = plan({}, nodes, facts=Facts(master_port=29501))
    assert [node.ranks for node in made.nodes] == [(0, 1), (2,)]
    assert made.world_size == 3


def test_old_torch_refuses_uneven_slots() -> None:
    nodes = (hosts(1, slots=2)[0], *hosts(2, slots=1)[1:])
    facts = Facts({"node0": NodeFacts(torch="1.8.1"), "node1": NodeFacts(torch="1.8.1")})
    with pytest.raises(UsageError, match=r"node0: torch 1\.8\.1 cannot run"):
        plan({}, nodes, facts=facts)


def test_slots_auto_asks_the_node() -> None:
    nodes = hosts(1)
    assert plan({}, nodes).nodes[0].nproc is None
    assert "auto" in plan({}, nodes).nodes[0].command.argv
    assert plan({}, nodes, facts=Facts({"node0": NodeFacts(gpus=8)})).nodes[0].nproc == 8
    assert plan({}, nodes, facts=Facts({"node0": NodeFacts(gpus=0)})).nodes[0].nproc == 1
    assert plan({}, nodes, nproc=3).nodes[0].nproc == 3


@pytest.mark.parametrize(
    ("key", "told"), [({}, {"stall": 30.0}), ({"doctor": {"stall": 5}}, {"stall": 5.0}), ({"doctor": "off"}, None)]
)
def test_every_record_says_when_the_run_counts_as_stalled(key: dict[str, Any], told: Any) -> None:
    made = plan(key, hosts(2))
    assert made.to_json()["doctor"] == told
    assert [made.record(node)["doctor"] for node in made.nodes] == [told, told]


@pytest.mark.parametrize(("key", "kept"), [({}, None), ({"keep_runs": 0}, 0), ({"keep_runs": 3}, 3)])
def test_every_record_says_how_many_ended_runs_stay(key: dict[str, Any], kept: int | None) -> None:
    made = plan(key, hosts(2))
    assert [made.to_json()["keep_runs"], *(made.record(node)["keep_runs"] for node in made.nodes)] == [kept] * 3


def test_every_record_says_what_is_kept_of_checkpoints() -> None:
    made = plan({"checkpoint": {"paths": ["./saved//models/"], "keep": 5}}, hosts(2))
    told = {"paths": ["saved/models/"], "signal": "SIGUSR1", "timeout": 120.0, "replicas": 1, "keep": 5}
    assert made.to_json()["checkpoint"] == told
    assert [made.record(node)["checkpoint"] for node in made.nodes] == [told, told]


@pytest.mark.parametrize(
    ("spares", "told"), [(0, "node0:2,node1:2,node2:2"), (1, "node0:2,node1:2")], ids=["all", "spare"]
)
def test_every_rank_finds_the_hosts_by_node_rank(spares: int, told: str) -> None:
    made = plan({"nproc_per_node": 2, "restarts": 1}, hosts(3), spares=spares)
    assert {node.command.env["DDPCTL_HOSTS"] for node in made.nodes} == {told}


def test_a_host_map_says_what_only_the_nodes_know() -> None:
    assert plan({}, hosts(1)).nodes[0].command.env["DDPCTL_HOSTS"] == "node0:auto"


@pytest.mark.parametrize("style", ["--local_rank", "--local-rank"])
def test_a_script_gets_its_local_rank_in_its_own_spelling(style: str) -> None:
    argv = plan({}, hosts(1), local_rank_arg=style).nodes[0].command.argv
    assert f"{style}=${{local_rank}}" in argv
    assert "--use_env" in argv


def test_the_job_file_decides_over_what_the_script_seems_to_want() -> None:
    argv = plan({"local_rank_arg": "none"}, hosts(1), local_rank_arg="--local_rank").nodes[0].command.argv
    assert not any("local_rank}" in word for word in argv)


def test_torch_1_8_gets_its_local_rank_from_its_own_launcher() -> None:
    facts = Facts({"node0": NodeFacts(torch="1.8.1")})
    argv = plan({}, hosts(1), local_rank_arg="--local_rank", facts=facts).nodes[0].command.argv
    assert "--use_env" not in argv
    assert not any("${local_rank}" in word for word in argv)


def test_elastic_rendezvous_uses_run_and_addresses() -> None:
    job = {"rendezvous": "c10d", "master_port": 29400, "elastic": {"min_nodes": 1, "max_nodes": 2, "max_restarts": 5}}
    argv = plan(job, hosts(2, slots=1)).nodes[1].command.argv
    line = shlex.join(argv)
    assert "torch.distributed.run --nnodes 1:2 --nproc_per_node 1 --max_restarts 5" in line
    assert "--rdzv_endpoint 10.0.0.1:29400" in line
    assert "--local_addr 10.0.0.2" in line
    assert "--rdzv_conf is_host=0,join_timeout=120" in line
    assert "--node_rank" not in argv
    assert plan(job, hosts(2)).nodes[0].command.env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] == "1"
    assert "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" not in plan({}, hosts(2)).nodes[0].command.env


@pytest.mark.parametrize(("nodes", "fits"), [(1, False), (2, True), (3, True), (4, False)])
def test_an_elastic_job_has_as_many_nodes_as_it_allows(nodes: int, fits: bool) -> None:
    job = {"rendezvous": "c10d", "elastic": {"min_nodes": 2, "max_nodes": 3}}
    with (
        contextlib.nullcontext() if fits else pytest.raises(UsageError, match=rf"{nodes} nodes?, elastic allows 2 to 3")
    ):
        made = plan(job, hosts(nodes))
        assert made.record(made.nodes[0])["min_nodes"] == 2


def test_the_static_rendezvous_leaves_elastic_to_others() -> None:
    made = plan({"elastic": {"min_nodes": 2, "max_nodes": 3}}, hosts(4))
    assert made.record(made.nodes[0])["min_nodes"] is None


def test_silence_cannot_be_kept_where_the_nodes_do_not_watch_each_other() -> None:
    silence = {"timeouts": {"silence": 60}}
    assert plan(silence, hosts(2)).timeouts["silence_enforced"]
    assert plan({"rendezvous": "c10d", **silence}, hosts(1)).timeouts["silence_enforced"]
    with pytest.raises(UsageError, match=r"timeouts\.silence cannot be kept"):
        plan({"rendezvous": "c10d", **silence}, hosts(2))


def test_the_master_is_a_node_of_the_job() -> None:
    spec = JobSpec(name="train", script="train.py", nodes=("node0",), master="node1", rendezvous="c10d")
    with pytest.raises(UsageError, match="node1 of job train is not among its nodes"):
        job_hosts(Inventory(hosts=hosts(2)), spec)


def test_run_where_a_torch_has_no_launch() -> None:
    made = plan({}, hosts(2), facts=Facts({"node1": NodeFacts(has_launch=False)}))
    assert made.launcher == "torch.distributed.run"
    assert "--use_env" not in made.nodes[0].command.argv


def test_the_interface_and_threads_come_from_the_node_unless_set() -> None:
    facts = Facts({"node0": NodeFacts(cores=8, interface="eth1")})
    env = plan({"nproc_per_node": 2}, hosts(1), facts=facts).nodes[0].command.env
    assert (env["GLOO_SOCKET_IFNAME"], env["NCCL_SOCKET_IFNAME"], env["OMP_NUM_THREADS"]) == ("eth1", "=eth1", "4")
    env = (
        plan({"env": {"OMP_NUM_THREADS": "1"}}, hosts(1, env={"GLOO_SOCKET_IFNAME": "ib0"}), facts=facts)
        .nodes[0]
        .command.env
    )
    assert (env["GLOO_SOCKET_IFNAME"], env["OMP_NUM_THREADS"]) == ("ib0", "1")


def test_a_dry_run_says_what_it_cannot_know() -> None:
    nodes = (Host(name="gpu0", address="gpu0"), Host(name="gpu1", address="gpu1"))
    made = plan({}, nodes)
    assert made.master_addr == "auto"
    assert made.master_port is None
    assert len(made.open_questions) == 7


def test_a_secret_is_named_and_never_shown() -> None:
    made = plan({"env": {"TOKEN": "from the file"}}, hosts(1), secret_names=["TOKEN"])
    assert made.to_json()["nodes"][0]["env"]["TOKEN"] == "********"
    assert "TOKEN" not in made.nodes[0].command.env


def test_the_record_has_the_code_and_the_gang() -> None:
    code = CodeRef("ab" * 32, 10, "c0ffee", True)
    made = plan({}, hosts(2, slots=1), facts=Facts(master_port=29500, gang_port=29501), code=code)
    record = made.record(made.nodes[1])
    assert record["code"] == {"hash": "ab" * 32, "size": 10, "git_commit": "c0ffee", "dirty": True}
    assert record["gang"] == {"hub_host": "node0", "hub_addr": "10.0.0.1", "port": 29501, "bind_addr": "10.0.0.2"}


def test_one_node_needs_no_gang() -> None:
    made = plan({}, hosts(1, slots=1), facts=Facts(master_port=29500, gang_port=29501))
    assert made.record(made.nodes[0])["gang"] is None


@given(st.lists(st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0")), max_size=5))
def test_arguments_come_back_from_the_launchers_template(args: list[str]) -> None:
    """The launcher runs every argument through string.Template: the result is the content of the job file."""
    from string import Template

    argv = plan({"args": tuple(args)}, hosts(1)).nodes[0].command.argv
    behind = argv[argv.index("--") + 2 :]
    assert [Template(word).safe_substitute(local_rank="0") for word in behind] == args


@given(st.integers(1, 6), st.lists(st.integers(1, 4), min_size=6, max_size=6))
def test_ranks_are_counted_once_each(count: int, slots: list[int]) -> None:
    nodes = tuple(Host(name=f"n{i}", address=f"10.0.0.{i + 1}", slots=slots[i]) for i in range(count))
    made = plan({}, nodes)
    assert [rank for node in made.nodes for rank in node.ranks] == list(range(made.world_size or 0))
    assert made == plan({}, nodes)


@pytest.mark.parametrize(
    ("text", "release"), [("1.8.1+cu111", (1, 8)), ("2.13.0", (2, 13)), (None, None), ("nightly", None)]
)
def test_releases(text: str | None, release: tuple[int, int] | None) -> None:
    assert torch_release(text) == release


@pytest.mark.parametrize(("torch", "patched"), [("1.13.1", True), ("1.8.1", False), ("2.13.0", False), (None, False)])
def test_old_launchers_get_defaults_that_work_on_new_pythons(torch: str | None, patched: bool) -> None:
    env = plan({}, hosts(1), facts=Facts({"node0": NodeFacts(torch=torch)})).nodes[0].command.env
    assert (env.get("PET_TEE") == "9:1") is patched
