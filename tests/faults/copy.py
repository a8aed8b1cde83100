"""A copy of the checkout with a single fault, and an environment whose `ddpctl` is that copy."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path

from tests.faults.catalogue import Edit, Fault

CHECKOUT = Path(__file__).parents[2]
FOLDERS = ("orchestrator", "worker", "tests", "inventory")
FILES = ("pyproject.toml", "README.md", "Makefile")


def apply_edit(text: str, edit: Edit) -> str:
    """The text with the edit in it.

    Raises:
        ValueError: the passage is not there, or more than once: the catalogue has to follow the source.
    """
    if (count := text.count(edit.before)) != 1:
        raise ValueError(f"{edit.file} has this passage {count} times instead of once: {edit.before!r}")
    return text.replace(edit.before, edit.after)


def copy_with_fault(fault: Fault, folder: Path) -> Path:
    """Copy the checkout into an empty folder, put the fault in, and return the copy's Python."""
    without_bytecode = shutil.ignore_patterns("__pycache__")
    for name in FOLDERS:
        shutil.copytree(CHECKOUT / name, folder / name, ignore=without_bytecode)
    for name in FILES:
        shutil.copy(CHECKOUT / name, folder)
    for edit in fault.edits:
        path = folder / edit.file
        path.write_text(apply_edit(path.read_text(), edit))
    return make_environment(folder)


def make_environment(folder: Path) -> Path:
    """A virtual environment with all packages of the current environment, but with the copy's ddpctl; returns its
    Python.
    """
    target = folder / ".venv"
    venv.create(target, symlinks=True)
    python = target / "bin" / "python"
    packages = sysconfig.get_path("purelib", vars={"base": str(target)})
    paths = [folder / "orchestrator", folder / "worker", Path(sysconfig.get_path("purelib"))]
    Path(packages, "copy.pth").write_text("".join(f"{path}\n" for path in paths))
    for script in ("ddpctl", "py-spy", "uv"):
        content = Path(sys.prefix, "bin", script).read_bytes()
        Path(target, "bin", script).write_bytes(content.replace(sys.prefix.encode(), str(target).encode()))
        Path(target, "bin", script).chmod(0o755)
    return python


def find_failed_tests(python: Path, folder: Path, tests: Sequence[str]) -> list[str]:
    """Run tests of `make test` in the copy; return the names of the failed tests, and the reasons.

    Raises:
        RuntimeError: pytest itself could not run.
    """
    words = [str(python), "-m", "pytest", "--tier", "test", "-x", "-q", "-rfE", "--no-header", "-p", "no:cacheprovider"]
    done = subprocess.run([*words, *tests], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"pytest ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
