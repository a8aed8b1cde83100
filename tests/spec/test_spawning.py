"""Which scripts start the processes of their training by themselves, and what is planned for them."""

from __future__ import annotations

import pytest

from ddpctl.errors import UsageError
from ddpctl.files.program import inspect_script, shipped_jobs
from ddpctl.spec.job import JobSpec
from ddpctl.spec.plan import Facts, NodeFacts
from ddpctl.spec.script import ScriptFacts, Start, read_script
from ddpctl.spec.self_spawning import processes_text
from tests.spec.test_planning import hosts, plan

HEAD = "import os, torch.distributed as dist, torch.multiprocessing as mp\n"
SETUP = HEAD + (
    "def setup(rank, size):\n"
    "    os.environ['MASTER_ADDR'] = 'localhost'\n"
    "    dist.init_process_group('gloo', rank=rank, world_size=size)\n"
    "def train(rank, size):\n"
    "    setup(rank, size)\n"
)
WORKER = "def worker(rank):\n    dist.init_process_group('gloo')\n"


@pytest.mark.parametrize(
    ("text", "start"),
    [
        (SETUP + "mp.spawn(train, args=(2,), nprocs=2)", "alone"),
        (SETUP + "def run(demo):\n    mp.spawn(demo, nprocs=2)\nrun(train)", "alone"),
        (SETUP + "mp.spawn(fn=train, nprocs=2)", "alone"),
        (SETUP + "import functools\nmp.spawn(functools.partial(train, size=2), nprocs=2)", "alone"),
        (SETUP + "mp.start_processes(train, nprocs=2)", "alone"),
        (SETUP + "p = mp.Process(target=train, args=(0, 2))", "alone"),
        (SETUP + "ctx = mp.get_context('fork')\nctx.Process(target=train)", "alone"),
        (SETUP.replace("mp\n", "mp\nfrom torch.multiprocessing import spawn\n") + "spawn(train)", "alone"),
        (SETUP.replace("torch.multiprocessing as mp", "torch") + "torch.multiprocessing.spawn(train)", "alone"),
        (HEAD + WORKER + "class Job:\n    def go(self):\n        worker(0)\nmp.spawn(Job().go)", "alone"),
        (HEAD + "from engine import worker\nmp.spawn(worker, nprocs=2)", "ranks"),  # whether it joins is not known
        (SETUP + "mp.spawn(train, nprocs=int(os.environ['WORLD_SIZE']))", "alone"),
        (SETUP + "node = os.environ['RANK']\nmp.spawn(train)", "node"),
        (SETUP + "node = int(os.getenv('NODE_RANK', 0))\nmp.spawn(train)", "node"),
        # A script that knows both ways is started as a rank.
        (SETUP + "if 'LOCAL_RANK' in os.environ: train(0, 1)\nelse: mp.spawn(train)", "ranks"),
        (SETUP + "p.add_argument('--local_rank')\nmp.spawn(train)", "ranks"),
        # Variables that are only written say nothing of how it is started.
        (SETUP + "os.environ['LOCAL_RANK'] = os.environ['RANK'] = '0'\nmp.spawn(train)", "alone"),
        # Helpers that do something else.
        (HEAD + "def load(i): pass\nmp.spawn(load)\ndist.init_process_group()", "ranks"),
        (HEAD + "def load(i): pass\nmp.Process(target=load)\ndist.init_process_group()", "ranks"),
        (HEAD + "from loader import load\nmp.Process(target=load)", "ranks"),
        (SETUP + "import pexpect\npexpect.spawn('ssh')\ntrain(0, 1)", "ranks"),
        (SETUP + "train(0, 1)", "ranks"),
        ("# mp.spawn(train)", "ranks"),
        ("this is no python", "ranks"),
    ],
)
def test_how_its_processes_begin(text: str, start: Start) -> None:
    assert read_script(text).start == start


@pytest.mark.parametrize(
    ("text", "loopback"),
    [
        (SETUP + "mp.spawn(train)", "localhost"),
        (HEAD + WORKER + "os.environ.setdefault('MASTER_ADDR', '127.0.0.1')\nmp.spawn(worker)", "127.0.0.1"),
        (
            HEAD + "def w(r):\n    dist.init_process_group('gloo', init_method='tcp://localhost:1')\nmp.spawn(w)",
            "localhost",
        ),
        (HEAD + WORKER + "os.environ['MASTER_ADDR'] = '10.0.0.1'\nmp.spawn(worker)", None),
        (HEAD + WORKER + "mp.spawn(worker)", None),
    ],
)
def test_an_address_that_no_other_host_reaches(text: str, loopback: str | None) -> None:
    found = read_script(text).spawning
    assert found is not None
    assert found.loopback == loopback


JOB = JobSpec(name="train", script="train.py")


@pytest.mark.parametrize(
    ("more", "number", "end"),
    [
        ("", 2, "; they meet at localhost, so each host trains alone"),
        ("", 1, ""),
        ("os.environ['RANK']\n", 2, "; there RANK is the number of the host, and WORLD_SIZE the number of hosts"),
    ],
)
def test_what_will_happen_is_said(more: str, number: int, end: str) -> None:
    facts = read_script(SETUP + more + "mp.spawn(train)").named("train.py")
    head = "train.py starts its own processes (train.py:%d: spawn), so it is started once on each host"
    assert processes_text(JOB, facts, number) == head % (8 if more else 7) + end


def test_nothing_is_said_of_a_script_that_torchs_launcher_starts() -> None:
    facts = read_script(SETUP + "mp.spawn(train)")
    assert processes_text(JOB.model_copy(update={"launcher": "torchrun"}), facts, 2) is None
    assert processes_text(JOB, ScriptFacts(), 2) is None
    assert processes_text(JOB, None, 2) is None


def test_it_is_started_as_by_hand() -> None:
    made = plan({"args": ("--n", "$X"), "master_port": 29500}, hosts(2, slots=4), start="alone")
    assert [node.command.argv for node in made.nodes] == [("python3", "train.py", "--n", "$X")] * 2
    assert (made.launcher, made.world_size, [node.ranks for node in made.nodes]) == ("python", 2, [(0,), (1,)])
    env = made.nodes[1].command.env
    assert not {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS"} & set(env)
    assert not [name for name in env if name.startswith(("TORCHELASTIC_", "PET_"))]
    assert env["PYTHONUNBUFFERED"] == "1"


def test_a_module_is_started_as_by_hand() -> None:
    made = plan({"script": None, "module": "pkg.train"}, hosts(1), start="alone")
    assert made.nodes[0].command.argv == ("python3", "-m", "pkg.train")


def test_on_several_hosts_it_finds_where_they_meet() -> None:
    env = plan({"master_port": 29500}, hosts(2), start="node").nodes[1].command.env
    found = {name: env[name] for name in ("RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    want = {"RANK": "1", "NODE_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    assert found == want


def test_a_script_on_the_nodes_is_read_there() -> None:
    facts = Facts({"node0": NodeFacts(start="alone"), "node1": NodeFacts(start="alone")})
    assert plan({}, hosts(2), facts=facts).launcher == "python"
    assert plan({}, hosts(2), facts=facts, start="ranks").launcher != "python"


@pytest.mark.parametrize("keys", [{"launcher": "torchrun"}, {"launcher": "launch"}, {"rendezvous": "c10d"}])
def test_a_launcher_that_the_job_names_is_used(keys: dict[str, str]) -> None:
    assert plan(keys, hosts(2, slots=2), start="alone").launcher.startswith("torch.distributed")


@pytest.mark.parametrize(("key", "nproc"), [({"nproc_per_node": 2}, None), ({}, 2), ({"nproc_per_node": 1}, 2)])
def test_a_number_of_processes_that_it_would_not_heed_is_refused(key: dict[str, int], nproc: int | None) -> None:
    with pytest.raises(UsageError, match=r"train.py starts its own processes, so 2 processes per node cannot") as error:
        plan(key, hosts(2), start="alone", nproc=nproc)
    assert "launcher: torchrun" in str(error.value.hint)
    assert plan({"nproc_per_node": 1}, hosts(2), start="alone").world_size == 2


@pytest.mark.parametrize(
    ("engine", "start"),
    [
        (HEAD + WORKER, "alone"),
        (HEAD + "def worker(rank): pass", "ranks"),
        (HEAD + WORKER + "p.add_argument('--local_rank')", "ranks"),
        (HEAD + WORKER + "local = os.environ['LOCAL_RANK']", "ranks"),
        (HEAD + WORKER + "node = os.environ['RANK']", "node"),
    ],
)
def test_a_module_beside_the_script_may_join(engine: str, start: Start) -> None:
    script = read_script(HEAD + "from engine import worker\nmp.spawn(worker, nprocs=2)")
    assert script.with_modules([read_script(engine)]).start == start
    launch = HEAD + WORKER + "def launch(fn):\n    mp.spawn(fn)"
    assert ScriptFacts().with_modules([read_script(launch)]).start == "alone"


def test_the_job_in_the_box_knows_both_ways() -> None:
    job = JobSpec(name="toy", script="toy_ddp.py", code=str(shipped_jobs()))
    facts = inspect_script(job)
    assert facts is not None
    assert facts.spawning is not None
    assert facts.start == "ranks"
