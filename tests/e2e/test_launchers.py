"""Scripts of every age run unchanged with torch 1.13 and 2.13, and the command that a dry run prints is the command
that runs.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import pytest

from tests.e2e.programs import REPORT, SLEEP
from tests.e2e.site import Site, assert_nothing_runs, launcher, ranks, until, wait_for_ranks
from tests.lab import Lab

DASH = """\
import argparse, os
parser = argparse.ArgumentParser()
parser.add_argument("--local-rank", type=int, required=True)
parser.add_argument("--word")
args = parser.parse_args()
print("told", os.environ["RANK"], args.local_rank, args.word, flush=True)
"""
ENVIRONMENT = """\
import argparse, os
parser = argparse.ArgumentParser()
parser.add_argument("--word")
args = parser.parse_args()
print("told", os.environ["RANK"], os.environ["LOCAL_RANK"], args.word, flush=True)
"""
# With real communication, so that a wrong rank or world size would hang or be seen.
UNDERSCORE = """\
import argparse
import torch
import torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int, required=True)
args = parser.parse_args()
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
print("told", dist.get_rank(), args.local_rank, f"sum={total.item():.0f}", flush=True)
dist.barrier()
dist.destroy_process_group()  # without it torch may abort at the end of a rank
"""


OLD_TORCH = pytest.mark.full(covered_by="tests/e2e/test_launchers.py::test_a_script_gets_its_local_rank_in_its_own_way")
OLD_MEETING = pytest.mark.full(covered_by="tests/e2e/test_launchers.py::test_processes_of_an_old_script_really_meet")
OLD_DRY_RUN = pytest.mark.full(covered_by="tests/e2e/test_launchers.py::test_what_a_dry_run_prints_is_what_runs")
PROGRAMS = {"dash": DASH, "environment": ENVIRONMENT}


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("site", "dash"),
        ("site", "environment"),
        *(pytest.param("old_site", name, marks=OLD_TORCH) for name in PROGRAMS),
    ],
)
def test_a_script_gets_its_local_rank_in_its_own_way(version: str, name: str, request: pytest.FixtureRequest) -> None:
    site: Site = request.getfixturevalue(version).only(0, 1)
    site.hosts[0]["slots"] = 2  # another number of processes on each host
    job = site.job(name, PROGRAMS[name], "--word", "$HOME ${local_rank}")
    done = site("up", "--job", job).ok()
    told = sorted(line.partition("told ")[2] for line in done.stdout.splitlines() if "told " in line)
    want = [f"{rank} {local} $HOME ${{local_rank}}" for rank, local in enumerate([0, 1, 0])]
    assert told == want, done.stdout


@pytest.mark.parametrize("version", ["torch_site", pytest.param("old_site", marks=OLD_MEETING)])
def test_processes_of_an_old_script_really_meet(version: str, request: pytest.FixtureRequest, lab: Lab) -> None:
    site: Site = request.getfixturevalue(version).only(1, 2)
    site.hosts[0]["slots"] = 2
    job = site.job("meet", UNDERSCORE, env={"OMP_NUM_THREADS": "1"})
    done = site("up", "--job", job, "--skip-preflight").ok()
    told = sorted(line.partition("told ")[2] for line in done.stdout.splitlines() if "told " in line)
    assert told == ["0 0 sum=6", "1 1 sum=6", "2 0 sum=6"], done.stdout
    assert_nothing_runs(lab)


@pytest.mark.parametrize("version", ["site", pytest.param("old_site", marks=OLD_DRY_RUN)])
def test_what_a_dry_run_prints_is_what_runs(version: str, request: pytest.FixtureRequest, lab: Lab) -> None:
    """The launchers' command lines and environment in /proc are as planned. The file gives the values that only nodes
    know.
    """
    site: Site = request.getfixturevalue(version)
    for host, entry in zip(lab, site.hosts, strict=True):
        entry.update(fabric_address=host.address, interface="eth0", env={"HOST_SAYS": f"{host.name} $x"})
    site.hosts[1]["slots"] = 2
    env = {"A": "b c", "QUOTE": "'\"`$(id)", "EMPTY": "", "OMP_NUM_THREADS": "1"}
    (site.folder / "secrets.env").write_text("TOKEN=shibboleth\n")
    job = site.job("dry", SLEEP, "a b", "", "$X", "${local_rank}", master_port=29511, env=env, env_file="secrets.env")
    (site.code / "ssh").mkdir()
    dry = site("up", "--job", job, "--dry-run", "--json", home=site.lab.home("dry"), env={"PATH": "/nowhere"}).ok()
    assert "shibboleth" not in dry.stdout + dry.stderr
    plan = dry.json()
    open_questions = [one for one in plan["open_questions"] if "torch" not in one]
    assert open_questions == []
    run = site.up(job)
    for host in lab:
        until(lambda host=host: launcher(host, run["run"]) and ranks(host, run["run"]), 30)  # type: ignore[misc]
    for host, node in zip(lab, plan["nodes"], strict=True):
        found = launcher(host, run["run"])
        assert found is not None
        assert list(found.argv) == node["argv"]
        folder = f"/root/.local/state/ddpctl/runs/{run['run']}/{host.name}"
        cwd = host.run(["readlink", f"/proc/{found.pid}/cwd"]).stdout.strip()
        assert cwd == node["cwd"].replace("{code_dir}", f"{folder}/code")
        tokens = {
            "{run_dir}": folder,
            "{output_dir}": f"{folder}/output",
            "{checkpoint_dir}": f"{site.checkpoints(job)}/{host.name}",
            plan["run"]: run["run"],
        }
        check_environment(node["env"], dict(found.environ), tokens)
    site("kill", job).ok()


def check_environment(planned: dict[str, str], real: dict[str, str], tokens: dict[str, str]) -> None:
    """Check that every planned variable is there, and that every other variable comes from the login, ddpctl or
    torch.

    ``tokens`` are the parts of a planned value that only the node, or only the real run, can spell.
    """
    assert planned["TOKEN"] != real["TOKEN"] == "shibboleth"
    for name, value in planned.items():
        want = functools.reduce(lambda text, token: text.replace(token, tokens[token]), tokens, value)
        assert name == "TOKEN" or real[name] == want, name
    others = set(real) - set(planned)
    login = {"HOME", "LANG", "LOGNAME", "MAIL", "PATH", "PWD", "SHELL", "SHLVL", "USER", "_", "OLDPWD", "MOTD_SHOWN"}
    own = {"DDPCTL_COOKIE", "DDPCTL_LOOK_BY", "PYTHON_EXEC", "TORCHELASTIC_ERROR_FILE"}
    old_torch = {"PET_REDIRECTS", "PET_TEE"}  # depends on the torch of the nodes, which a dry run does not ask
    assert others <= login | own | old_torch, others - login - own


def test_a_module_runs_too(site: Site) -> None:
    site.only(0, 1)
    (site.code / "pkg").mkdir()
    (site.code / "pkg" / "__init__.py").write_text("")
    (site.code / "pkg" / "train.py").write_text(REPORT)
    site.jobs["module"] = {"module": "pkg.train", "code": "code", "args": ["x y"]}
    done = site("up", "--job", "module").ok()
    reports = [json.loads(line[line.index("{") :]) for line in done.stdout.splitlines() if '{"argv"' in line]
    assert [report["argv"][1:] for report in reports] == [["x y"], ["x y"]]


def test_a_script_of_the_command_line(site: Site) -> None:
    site.only(0, 1)
    site.job("unused", SLEEP)
    (site.folder / "other.py").write_text(REPORT)
    done = site("up", str(site.inventory), "--nproc", "2", "--", "other.py", "--json", "-n", "--", "x").ok()
    reports: list[Any] = [json.loads(line[line.index("{") :]) for line in done.stdout.splitlines() if '{"argv"' in line]
    assert [report["argv"][1:] for report in reports] == [["--json", "-n", "--", "x"]] * 4
    assert sorted(report["environ"]["RANK"] for report in reports) == ["0", "1", "2", "3"]


def test_a_number_of_nodes_and_another_master(site: Site, lab: Lab) -> None:
    job = site.job("some", SLEEP, nodes=["node0", "node2"], master="node2")
    run = site.up(job)
    wait_for_ranks([lab[0], lab[2]], run["run"])
    assert (list(ranks(lab[2], run["run"])), list(ranks(lab[0], run["run"]))) == ([0], [1])
    found = launcher(lab[0], run["run"])
    assert found is not None
    assert lab[2].address in found.argv
    site("kill", job).ok()
