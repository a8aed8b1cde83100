"""Nodes for the tests of the runtime."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.suite.leftovers import find_leftovers
from tests.worker.node import Node

MakeNode = Callable[..., Node]


@pytest.fixture
def make_node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeNode]:
    """``make_node("node1")``: another host on the same base_dir, as with a shared home."""
    made: list[Node] = []

    def make(host: str = "node0", base: Path | None = None) -> Node:
        scratch = tmp_path / f"scratch-{host}"
        scratch.mkdir(exist_ok=True)
        made.append(Node(base or tmp_path / "base", scratch, host))
        return made[-1]

    yield make
    for node in made:
        node.clean_up()
    # The guardian of a refused start is still ending. The suite's guard reports every process that stays.
    until = time.monotonic() + 60.0
    while started_by(request.node.nodeid) and time.monotonic() < until:
        time.sleep(0.03)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A base_dir on a filesystem of 1 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small filesystem needs root")
    folder = tmp_path / "base"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m,mode=0700", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def started_by(test: str) -> list[str]:
    """The worker's processes that a test has started."""
    return [one.command for one in find_leftovers(f"{test} (") if "ddpctl_worker" in one.command]


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    return make_node()
