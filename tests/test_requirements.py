"""requirements.txt: the locked versions of ddpctl's own dependencies, with hashes and without an address."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import uv
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.suite.speed import stretch
from tests.test_package import variables

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "requirements.txt").read_text()
PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")


def dependencies() -> list[Requirement]:
    """Return the dependencies that pyproject.toml names."""
    (listed,) = re.findall(r"^dependencies = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.M | re.S)
    return [Requirement(text) for text in re.findall(r'^  "(.*)",$', listed, re.M)]


def locked(python: str) -> dict[str, str]:
    """Return the version of each package on Linux with this Python."""
    environment = {"python_version": python, "python_full_version": f"{python}.0", "sys_platform": "linux"}
    pins = [Requirement(line.partition("\\")[0]) for line in LOCK.splitlines() if line[:1].isalnum()]
    here = [pin for pin in pins if pin.marker is None or pin.marker.evaluate(environment)]
    found: dict[str, str] = {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in here}
    assert len(found) == len(here), "two versions of a package"
    return found


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_fits_the_project(python: str) -> None:
    """`make requirements` brings it in step."""
    found = locked(python)
    for wanted in dependencies():
        if wanted.marker is None or wanted.marker.evaluate({"python_version": python}):
            assert wanted.specifier.contains(found[canonicalize_name(wanted.name)]), wanted


def test_the_lock_has_every_dependency_of_a_dependency() -> None:
    """As far as the packages that are installed here say."""
    found = locked(f"{sys.version_info.major}.{sys.version_info.minor}")
    for name in found:
        for text in metadata.requires(name) or []:
            wanted = Requirement(text)
            if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
                assert canonicalize_name(wanted.name) in found, f"{name} needs {text}"


def test_every_locked_file_has_a_hash_and_none_has_an_address() -> None:
    entries = re.split(r"\n(?=\w)", "\n".join(line for line in LOCK.splitlines() if not line.startswith("#")))
    assert len(entries) > len(dependencies())
    for entry in entries:
        assert re.fullmatch(r"[\w.-]+==[^\s;]+( ;.*?)?( \\\n    --hash=sha256:[0-9a-f]{64})+", entry), entry
    assert "://" not in LOCK


@pytest.mark.slow
@pytest.mark.full(covered_by="tests/test_requirements.py::test_the_lock_fits_the_project")
def test_no_locked_version_has_a_known_vulnerability(tmp_path: Path) -> None:
    """pip-audit asks the advisory service about the versions; without the service nothing is known."""
    program = [uv.find_uv_bin(), "tool", "run", "--quiet", "--python", sys.executable, "--from", "pip-audit>=2.9,<3"]
    options = ["--require-hashes", "--disable-pip", "--format", "json", "--progress-spinner", "off"]
    done = subprocess.run(
        [*program, "pip-audit", *options, "--requirement", str(ROOT / "requirements.txt")],
        env=variables(tmp_path),
        capture_output=True,
        text=True,
        timeout=stretch(200),
    )
    if not done.stdout:
        pytest.skip(f"pip-audit does not reach the advisory service: {done.stderr.strip().splitlines()[-1]}")
    packages = json.loads(done.stdout)["dependencies"]
    assert len(packages) > len(dependencies())
    unknown = [package["name"] for package in packages if "skip_reason" in package]
    vulnerable = [package for package in packages if package.get("vulns")]
    assert not vulnerable
    if unknown:
        pytest.skip(f"the advisory service here does not know {len(unknown)} of {len(packages)} packages")
