"""Nodes for the tests of the runtime."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.worker.node import Node

MakeNode = Callable[..., Node]


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[MakeNode]:
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


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    return make_node()
