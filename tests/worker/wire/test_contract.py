"""The words of the worker's contract are in contract.py and nowhere else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddpctl_worker.wire import contract
from tests.worker.node import WORKER

PACKAGE = Path(WORKER, "ddpctl_worker")
WORDS = {value for name, value in vars(contract).items() if name.isupper() and isinstance(value, str)}


def literals(path: Path, *callers: str) -> Iterator[str]:
    """Yield each string that is the first argument of a call of ``callers``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in callers and node.args:
            first = node.args[0]
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value


def test_boot_which_cannot_import_them_uses_the_same_words() -> None:
    found = set(literals(PACKAGE / "wire" / "boot.py", "Refusal", "say"))
    assert {"have", "need", "fail", "unsafe_path", "corrupt"} <= found
    assert {word.split()[0] for word in found} <= WORDS


@pytest.mark.slow  # it parses every file of the worker
def test_no_kind_of_error_is_spelt_out() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 100
    found = {path: sorted(literals(path, "WorkerError")) for path in files}
    assert {str(path.relative_to(PACKAGE)): words for path, words in found.items() if words} == {}
