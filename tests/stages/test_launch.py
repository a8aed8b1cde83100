"""What a job brings with it beside its script."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddpctl.checks import job_imports
from ddpctl.checks.base import Target, View, Want
from ddpctl.files.inventory import load_inventory
from ddpctl.spec.question import Answer
from ddpctl.stages.launch import Launch, launch_to_check

NCCL = "import torch.distributed as dist\ndist.init_process_group('nccl')\n"
FILE = """
hosts: [gpu0, gpu1]
jobs:
  j: {{script: train.py, master_port: 2379, rendezvous: {rendezvous}}}
"""


def launch(folder: Path, rendezvous: str) -> Launch:
    (folder / "train.py").write_text("import torch\n")
    (folder / "i.yaml").write_text(FILE.format(rendezvous=rendezvous))
    inventory = load_inventory(folder / "i.yaml")
    return launch_to_check(inventory, inventory.job())


def want(found: Launch) -> Want:
    return Want.of(found.inventory.environment, found.job, found.hosts, found.imports, found.script)


@pytest.mark.parametrize(("rendezvous", "needs"), [("c10d", False), ("etcd-v2", True)])
def test_etcd_needs_its_client_on_the_nodes(tmp_path: Path, rendezvous: str, needs: bool) -> None:
    found = want(launch(tmp_path, rendezvous))
    assert found.imports is not None
    assert ("import etcd" in [one.statement for one in found.imports.tried]) == needs


def test_a_client_that_is_missing_is_named_with_its_package(tmp_path: Path) -> None:
    found = launch(tmp_path, "etcd-v2")
    target = Target.all(found.hosts, found.job)[0]
    question = job_imports.modules_question(target, want(found))
    assert question is not None
    error = "ModuleNotFoundError: No module named 'etcd'"
    failed = {"statement": "import etcd", "kind": "missing", "missing": "etcd", "through": [], "error": error}
    answer = Answer(True, {"failed": [failed], "error": None})
    view = View((target,), want(found), {target.name: {question.key: answer}})
    (finding,) = job_imports.IMPORTS.judge(view)
    assert finding.message == "rendezvous: etcd-v2 imports etcd, which is not installed for python3"
    assert "install python-etcd there" in str(finding.fix)


@pytest.mark.parametrize(("rendezvous", "port"), [("static", 2379), ("etcd-v2", None)])
def test_the_port_of_etcd_need_not_be_free(tmp_path: Path, rendezvous: str, port: int | None) -> None:
    assert want(launch(tmp_path, rendezvous)).master_port == port


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
    found = want(launch_to_check(inventory, inventory.job()))
    assert (found.backend, found.backend_place) == (backend, place)
