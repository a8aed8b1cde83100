"""The whole way with a real torch: hosts with another torch or no torch, no route outside, a locked environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uv

from ddpctl.environment.origins import pip_settings
from tests.conftest import MakeLab
from tests.environment.support import TORCH, make_sdist, make_wheel
from tests.lab import Lab
from tests.lab.command import Ddpctl, Done
from tests.lab_environment.scene import BASE

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SCRIPT = """
import sys
import aiohttp, antlr4, boto3, hydra, mine, netifaces, numpy, requests, torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("world", int(total), "torch", torch.__version__, "from", torch.__file__, "hydra", hydra.__version__, flush=True)
print("has", mine.greeting, "lo" in netifaces.interfaces(), flush=True)
dist.destroy_process_group()
"""


# A training program's requirements as they are found: hydra-core needs antlr4-python3-runtime, which has no wheel, and
# netifaces is C without a wheel for this Python.
PACKAGES = ("torch==2.13.0", "numpy", "boto3", "hydra-core", "requests", "aiohttp", "netifaces")


@pytest.fixture(scope="module")
def hosts(make_module_lab: MakeLab) -> Lab:
    return make_module_lab(3)


@pytest.fixture
def lab(hosts: Lab) -> Iterator[Lab]:
    yield hosts
    hosts.heal()


def sources() -> dict[str, Any]:
    """Where this machine's pip gets its packages: the test brings no address of its own."""
    pip = pip_settings(os.environ)
    found: dict[str, Any] = {
        "extra_index_urls": pip.get("extra-index-url", []),
        "find_links": pip.get("find-links", []),
    }
    if pip.get("index-url"):
        found["index_url"] = pip["index-url"][0]
    return found


def make_project(folder: Path) -> Path:
    """The job's own package."""
    (folder / "mine").mkdir(parents=True)
    (folder / "mine" / "__init__.py").write_text('greeting = "hello"\n')
    (folder / "pyproject.toml").write_text('[project]\nname = "mine"\nversion = "1.0"\n')
    return folder


def versions(lock: Path) -> dict[str, str | None]:
    return {one["name"]: one.get("version") for one in tomllib.loads(lock.read_text())["packages"]}


def resolved_by_uv(folder: Path, project: Path, kept: Path) -> dict[str, str | None]:
    """The same requirements without ddpctl: same Python, same platform, same sources."""
    where, (python, machine, glibc) = sources(), kept.name.split(".")[1].split("-")
    wanted, lock = folder / "wanted.txt", folder / "pylock.toml"
    wanted.write_text("".join(f"{line}\n" for line in (*PACKAGES, project)))
    env = {
        **os.environ,
        "UV_INDEX": " ".join(where["extra_index_urls"]),
        "UV_FIND_LINKS": ",".join(where["find_links"]),
    }
    if "index_url" in where:
        env["UV_DEFAULT_INDEX"] = str(where["index_url"])
    command = [uv.find_uv_bin(), "pip", "compile", str(wanted), "--format", "pylock.toml", "-o", str(lock), "-q"]
    command += ["--python-version", f"3.{python[3:]}"]
    command += ["--python-platform", f"{machine}-manylinux_{glibc.removeprefix('glibc')}"]
    subprocess.run(command, check=True, env=env, cwd=folder)
    return versions(lock)


def test_a_push_reaches_two_hosts_and_a_refusal_none(lab: Lab, ddpctl: Ddpctl, tmp_path: Path) -> None:
    """Small wheels from a folder; a host that is new gets them from the other host."""
    shelf = tmp_path / "wheels"
    shelf.mkdir()
    make_wheel(shelf, "torch", "2.13.0+cpu", code=TORCH)
    make_wheel(shelf, "alpha", "1.3", ballast=os.urandom(2_000_000))
    first, second = lab.hosts[:2]

    def push(*words: str, packages: tuple[str, ...] = ("alpha", "torch")) -> Done:
        path = lab.inventory(
            tmp_path / "inventory.yaml",
            hosts=[{"name": host.name, "address": host.address} for host in (first, second)],
            defaults={"python": "/usr/bin/python3"},
            environment={"mode": "managed", "packages": packages, "find_links": [str(shelf)]},
        )
        env = {"PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull}
        return ddpctl("push", str(path), "--json", *words, home=lab.home("small"), env=env, timeout=240)

    def environments() -> list[str]:
        return [host.run(f"stat -c '%n %i' {BASE}/envs/*").stdout for host in (first, second)]

    told = push().ok().json()
    assert [node["versions"]["torch"] for node in told["nodes"]] == ["2.13.0+cpu"] * 2
    assert told["bytes"]["sent_by_controller"] > 2_000_000
    assert told["bytes"]["relayed"] > 2_000_000
    for node, host in zip(told["nodes"], (first, second), strict=True):
        assert host.run([node["python"], "-c", "import alpha; print(alpha.__version__)"]).stdout == "1.3\n"
    made = environments()
    again = push("--locked").ok().json()
    assert again["bytes"]["sent_by_controller"] == again["bytes"]["relayed"] == 0
    assert again["bytes"]["reused"] == again["bytes"]["needed"] > 4_000_000
    assert environments() == made, "installed again"

    refused = push(packages=("alpha", "torch", "beta==7"))
    assert refused.rc == 5, refused.stderr
    assert "the packages cannot be resolved" in refused.stderr
    assert "beta" in refused.stderr
    assert environments() == made

    second.run(f"rm -rf {BASE}/store {BASE}/envs {BASE}/wheels {BASE}/uv-cache {BASE}/tools")
    new = push("--locked").ok().json()
    assert new["bytes"]["sent_by_controller"] == 0
    assert new["bytes"]["relayed"] > 2_000_000
    assert environments()[0] == made[0]


@pytest.mark.heavy
@pytest.mark.timeout(900)
@pytest.mark.full(covered_by="tests/lab_environment/test_managed.py::test_a_push_reaches_two_hosts_and_a_refusal_none")
def test_up_trains_with_what_ddpctl_sent_and_nothing_else(lab: Lab, ddpctl: Ddpctl, tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(SCRIPT)
    project = make_project(tmp_path / "project")
    path = lab.inventory(
        tmp_path / "inventory.yaml",
        defaults={"python": "/usr/bin/python3", "slots": 1},
        environment={
            "mode": "managed",
            "packages": list(PACKAGES),
            "project": str(project),
            "torch_backend": "cpu",
            **sources(),
        },
        jobs={"train": {"script": "train.py", "code": str(code), "env": {"OMP_NUM_THREADS": "1"}}},
    )
    home = lab.home("first")
    for host in lab:
        # No route outside: only the lab's own network is known to the kernel.
        assert "default" not in host.run("ip route").stdout
    up = ddpctl("up", str(path), "--job", "train", "--deep", home=home, timeout=560).ok()
    assert "rehearsal" in up.stderr
    output = ddpctl("tail", "train", "--no-fold", "-n", "all", "-i", str(path), home=home).ok().stdout
    for name in ("node0", "node1", "node2"):
        lines = [line for line in output.splitlines() if line.startswith(name) and "world" in line]
        assert len(lines) == 1, output
        assert "world 3 torch 2.13.0" in lines[0]
        assert f"from {BASE}/envs/" in lines[0]
        assert "hydra 1." in lines[0]
    assert output.count("has hello True") == 3
    built = next(line for line in up.stderr.splitlines() if line.startswith("build"))
    for wheel in ("antlr4_python3_runtime-4.9.3-py3-none-any", "netifaces-0.11.0-cp311-cp311-linux", "mine-1.0-py3"):
        assert wheel in built
    kept = next(home.rglob("pylock.cp3*.toml"))
    assert versions(kept) == resolved_by_uv(tmp_path, project, kept)

    # The rehearsal comes after the environment and before the launch.
    wrong = "jobs.train.env={GLOO_SOCKET_IFNAME: nope0}"
    skip = ("--skip", "fabric.interface")  # or it would be refused earlier
    stuck = ddpctl("up", str(path), "--deep", *skip, "--set", wrong, "--json", home=home, timeout=120)
    assert stuck.rc == 3, stuck.stderr
    assert "environment   ok" in stuck.stderr
    assert "build" not in stuck.stderr
    assert "nope0" in stuck.stderr
    assert {one["check"] for one in stuck.json()["findings"] if one["severity"] == "error"} == {"deep.rehearsal"}
    assert not any(process.argv for host in lab for process in host.processes())

    # The script's imports are tried in the environment before the launch; an optional import may be missing.
    (code / "train.py").write_text(f"try:\n    import lightning\nexcept ImportError:\n    pass\nimport timm\n{SCRIPT}")
    lacking = ddpctl("up", str(path), "--json", home=home, timeout=240)
    assert lacking.rc == 3, lacking.stderr
    errors = [one for one in lacking.json()["findings"] if one["severity"] == "error"]
    assert [(one["check"], one["host"]) for one in errors] == [("job.imports", host.name) for host in lab]
    assert "train.py:5 imports timm, which is not installed for" in errors[0]["message"]
    assert errors[0]["fix"] == "add timm to `environment.packages`"
    assert "No module named 'timm'" in lab[0].run(errors[0]["command"], check=False).stderr
    assert not any(process.argv for host in lab for process in host.processes())
    (code / "train.py").write_text(SCRIPT)

    before = [host.run(f"stat -c '%n %i' {BASE}/envs/*").stdout for host in lab]
    second = ddpctl("push", str(path), "--json", home=home, timeout=240).ok().json()
    assert second["ok"]
    assert second["bytes"]["sent_by_controller"] == second["bytes"]["relayed"] == 0
    assert second["bytes"]["reused"] == second["bytes"]["needed"] > 3 * 190_000_000
    assert all(node["versions"]["torch"].startswith("2.13.0") for node in second["nodes"])
    assert [host.run(f"stat -c '%n %i' {BASE}/envs/*").stdout for host in lab] == before, "installed again"

    # A new node gets every file from a node that has it.
    lab[1].run(f"rm -rf {BASE}/store {BASE}/envs {BASE}/wheels {BASE}/uv-cache {BASE}/tools")
    third = ddpctl("push", str(path), "--locked", "--json", home=home, timeout=200).ok().json()
    assert third["ok"]
    assert third["bytes"]["sent_by_controller"] < 10_000  # the code of the job at most
    assert third["bytes"]["relayed"] > 190_000_000

    # A failed build is reported before any file is sent: package, host, and the compiler's own words.
    make_sdist(
        tmp_path,
        "broken",
        files={
            "setup.py": "from setuptools import Extension, setup\n"
            "setup(name='broken', version='1.0', ext_modules=[Extension('broken', ['broken.c'])])\n",
            "broken.c": '#include "no_such_header.h"\n',
        },
    )
    wanted = f"environment.packages=[torch==2.13.0, 'broken @ file://{tmp_path}/broken-1.0.tar.gz']"
    broken = ddpctl("up", str(path), "--set", wanted, home=home, timeout=200)
    assert broken.rc == 5, broken.stderr
    assert broken.stderr.splitlines()[-2].startswith("error: node0: broken 1.0 has no wheel and cannot be built")
    assert "no_such_header.h: No such file" in broken.stderr
