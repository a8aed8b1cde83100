"""Other deadlines for one node: its worker is a copy in which some constants, and nothing else, are different."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.worker.node import WORKER, Node


def shorten(node: Node, file: str, **constants: float) -> None:
    """``shorten(node, "run/limits.py", STUCK_LOOP_S=5.0)``; to be called before the node has started anything."""
    copy = node.scratch / "worker"
    if not copy.exists():
        shutil.copytree(Path(WORKER, "ddpctl_worker"), copy / "ddpctl_worker")  # with what is compiled already
    path = copy / "ddpctl_worker" / file
    text = path.read_text()
    for name, seconds in constants.items():
        text, count = re.subn(rf"^{name} = [0-9.]+\b", f"{name} = {seconds}", text, flags=re.MULTILINE)
        assert count == 1, f"{file} has no {name}"
    path.write_text(text)
    node.worker = str(copy)
