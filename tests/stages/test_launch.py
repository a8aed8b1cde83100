"""What a preflight asks of the nodes for a job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddpctl.checks.base import Requirements
from ddpctl.files.inventory import load_inventory
from ddpctl.stages.launch import launch_to_check

NCCL = "import torch.distributed as dist\ndist.init_process_group('nccl')\n"


@pytest.mark.parametrize(
    ("text", "args", "backend", "place"),
    [
        (NCCL, [], "nccl", "train.py:2"),
        ("import setup_ddp\n", [], "nccl", "setup_ddp.py:2"),
        (NCCL, ["--backend", "gloo"], "gloo", None),
        ("import setup_ddp\n" + NCCL.replace("'nccl'", "pick()"), [], None, None),
        ("print()\n", [], None, None),
    ],
)
def test_a_preflight_knows_the_backend_of_the_script(
    tmp_path: Path, text: str, args: list[str], backend: str | None, place: str | None
) -> None:
    (tmp_path / "train.py").write_text(text)
    (tmp_path / "setup_ddp.py").write_text(NCCL)
    (tmp_path / "i.yaml").write_text(json.dumps({"hosts": ["a"], "jobs": {"j": {"script": "train.py", "args": args}}}))
    inventory = load_inventory(tmp_path / "i.yaml")
    made = launch_to_check(inventory, inventory.job())
    found = Requirements.of(made.inventory, made.job, made.hosts, made.imports, made.script)
    assert (found.backend, found.backend_place) == (backend, place)
