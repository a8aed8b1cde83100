"""The wheel and the source distribution that `make dist` builds, and the ways to install them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import uv

from ddpctl import __version__
from ddpctl.environment.origins import origins, pip_settings
from ddpctl.environment.resolve import uv_environment
from ddpctl.spec.inventory import Environment
from tests.suite.speed import stretch

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
UV = uv.find_uv_bin()


def variables(folder: Path) -> dict[str, str]:
    """uv with the package sources of this machine's pip, and folders of its own."""
    found = uv_environment(origins(Environment(), os.environ, pip_settings(os.environ)))
    ours = {"UV_TOOL_DIR": "tools", "UV_TOOL_BIN_DIR": "bin", "PIPX_HOME": "pipx", "PIPX_BIN_DIR": "bin"}
    return found | {name: str(folder / below) for name, below in ours.items()} | {"PIP_NO_COMPILE": "1"}


def run(command: list[str], folder: Path) -> str:
    done = subprocess.run(
        command, cwd=folder, env=variables(folder), capture_output=True, text=True, timeout=stretch(200)
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with both; the wheel is built from the source distribution, as an index would have it."""
    folder = tmp_path_factory.mktemp("dist")
    run([UV, "build", "--quiet", "--python", sys.executable, "--out-dir", str(folder), str(ROOT)], folder)
    return folder


def wheel(published: Path) -> Path:
    return next(published.glob("*.whl"))


def test_the_wheel_has_both_programs_and_the_jobs(published: Path) -> None:
    with zipfile.ZipFile(wheel(published)) as archive:
        names = set(archive.namelist())
        (points,) = (name for name in names if name.endswith(".dist-info/entry_points.txt"))
        assert "ddpctl = ddpctl.cli.app:main" in archive.read(points).decode()
    trees = {"ddpctl": "orchestrator/ddpctl", "ddpctl_worker": "worker/ddpctl_worker", "ddpctl/jobs": "worker/jobs"}
    sources = {
        f"{name}/{path.relative_to(ROOT / tree)}"
        for name, tree in trees.items()
        for path in (ROOT / tree).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"ddpctl/cli/app.py", "ddpctl_worker/__main__.py", "ddpctl/jobs/resnet_ddp.py"} <= sources
    assert {name for name in names if ".dist-info/" not in name} == sources


def test_the_source_distribution_has_what_its_tests_need(published: Path) -> None:
    with tarfile.open(next(published.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    wanted = {"Makefile", "README.md", "requirements.txt", "docs/start.md", "inventory/local.yaml"}
    assert wanted | {"tests/test_package.py"} <= names


def test_the_source_distribution_builds_the_same_wheel_again(published: Path, tmp_path: Path) -> None:
    source = next(published.glob("*.tar.gz"))
    build = [UV, "build", "--quiet", "--wheel", "--python", sys.executable, "--out-dir", str(tmp_path)]
    run([*build, str(source)], tmp_path)
    assert wheel(tmp_path).read_bytes() == wheel(published).read_bytes()


@pytest.mark.full(covered_by="tests/test_package.py::test_the_wheel_has_both_programs_and_the_jobs")
def test_make_dist_adds_an_sbom_of_the_lock(tmp_path: Path) -> None:
    run(["make", "--directory", str(ROOT), "dist", f"DIST={tmp_path}/dist"], tmp_path)
    made = tmp_path / "dist"
    assert {path.suffix for path in made.iterdir() if path.name.startswith("ddpctl")} == {".whl", ".gz", ".json"}
    document = json.loads((made / "ddpctl.cdx.json").read_text())
    assert (document["bomFormat"], document["metadata"]["component"]["name"]) == ("CycloneDX", "ddpctl")
    parts = {f"{part['name']}=={part['version']}" for part in document["components"]}
    assert parts == set(re.findall(r"^[\w.-]+==[^\s;]+", (ROOT / "requirements.txt").read_text(), re.M))


def by_uv(wheel: Path, folder: Path) -> list[str]:
    run([UV, "tool", "install", "--quiet", "--python", sys.executable, str(wheel)], folder)
    return [str(folder / "bin" / "ddpctl")]


def by_uvx(wheel: Path, folder: Path) -> list[str]:
    return [UV, "tool", "run", "--quiet", "--python", sys.executable, "--from", str(wheel), "ddpctl"]


def by_pipx(wheel: Path, folder: Path) -> list[str]:
    run([UV, "tool", "run", "--quiet", "--python", sys.executable, "pipx", "install", str(wheel)], folder)
    return [str(folder / "bin" / "ddpctl")]


def by_pip(wheel: Path, folder: Path) -> list[str]:
    run([sys.executable, "-m", "venv", "venv"], folder)
    run(["venv/bin/pip", "install", "-qq", "--disable-pip-version-check", str(wheel)], folder)
    return [str(folder / "venv" / "bin" / "ddpctl")]


def assert_it_plans_a_job(ddpctl: list[str], folder: Path) -> None:
    """Far from the checkout: the command, the inventory's reader, the plan, and the jobs that ship with it."""
    assert run([*ddpctl, "--version"], folder).split() == ["ddpctl", __version__]
    work = folder / "work"
    work.mkdir()
    (work / "train.py").write_text("")
    (work / "inventory.yaml").write_text("hosts: [{name: here, connection: local}]\njobs: {a: {script: train.py}}\n")
    assert "torch.distributed" in run([*ddpctl, "up", "--dry-run"], work)


@pytest.mark.full(covered_by="tests/test_package.py::test_the_wheel_has_both_programs_and_the_jobs")
@pytest.mark.parametrize("way", [by_uv, by_uvx, by_pipx, by_pip])
def test_an_installed_ddpctl_plans_a_job(
    way: Callable[[Path, Path], list[str]], published: Path, tmp_path: Path
) -> None:
    assert_it_plans_a_job(way(wheel(published), tmp_path), tmp_path)


def interpreter(version: str) -> str:
    """Return the path of this Python, or the version itself: uv may be able to download it."""
    words = [f"python{version}", "-c", "import sys; print(sys.executable)"]
    try:
        # The name on PATH may be a shim that picks a version.
        found = subprocess.run(words, env={**os.environ, "PYENV_VERSION": version}, capture_output=True, text=True)
    except OSError:
        return version
    return found.stdout.strip() or version


@pytest.mark.full(covered_by="tests/test_requirements.py::test_the_lock_fits_the_project")
@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13", "3.14"])
def test_the_locked_versions_run_on_each_python(version: str, published: Path, tmp_path: Path) -> None:
    made = subprocess.run(
        [UV, "venv", "--quiet", "--no-project", "--python", interpreter(version), "venv"],
        cwd=tmp_path,
        env=variables(tmp_path),
        capture_output=True,
        text=True,
    )
    if made.returncode:
        said = made.stderr.splitlines()[-1].strip()
        pytest.skip(f"there is no Python {version} here, and uv cannot download it: {said}")
    install = [UV, "pip", "install", "--quiet", "--python", "venv/bin/python"]
    anywhere = ["--index-strategy", "unsafe-best-match"]  # the hash decides, not the index
    run([*install, *anywhere, "--require-hashes", "--requirements", str(ROOT / "requirements.txt")], tmp_path)
    run([*install, "--no-deps", str(wheel(published))], tmp_path)
    run([UV, "pip", "check", "--quiet", "--python", "venv/bin/python"], tmp_path)
    assert_it_plans_a_job([str(tmp_path / "venv" / "bin" / "ddpctl")], tmp_path)
