"""The inventories that ship with ddpctl."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from ddpctl.files.inventory import load_inventory
from ddpctl.files.program import inspect_script
from ddpctl.spec.host import HostEntry
from ddpctl.spec.inventory import Environment, InventoryFile
from ddpctl.spec.job import Checkpoint, Doctor, Elastic, JobEntry, Requires, Timeouts

FOLDER = Path(__file__).parents[2] / "inventory"
EXAMPLES = sorted(FOLDER.glob("*.yaml"))


def test_the_examples_are_there() -> None:
    assert {path.name for path in EXAMPLES} >= {"local.yaml", "two-nodes.yaml", "annotated.yaml"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_loads_and_its_editor_agrees(path: Path) -> None:
    import jsonschema

    assert load_inventory(path).hosts
    assert path.read_text().startswith("# yaml-language-server: $schema=schema.json\n")
    schema = json.loads((FOLDER / "schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(YAML(typ="safe", pure=True).load(path))


def test_annotated_has_every_key() -> None:
    document = YAML(typ="safe", pure=True).load(FOLDER / "annotated.yaml")
    job_keys = set().union(*document["jobs"].values())
    host_keys = set().union(*(host for host in document["hosts"] if isinstance(host, dict)))
    resnet, elastic, _ = document["jobs"].values()
    assert set(document) == set(InventoryFile.model_fields)
    assert host_keys == set(HostEntry.model_fields)
    assert set(document["environment"]) == set(Environment.model_fields)
    assert job_keys == set(JobEntry.model_fields)
    assert set(resnet["requires"]) == set(Requires.model_fields)
    assert set(resnet["timeouts"]) == set(Timeouts.model_fields)
    assert set(resnet["doctor"]) == set(Doctor.model_fields)
    assert set(resnet["checkpoint"]) == set(Checkpoint.model_fields)
    assert set(elastic["elastic"]) == set(Elastic.model_fields)


def test_local_runs_what_is_in_the_box() -> None:
    inventory = load_inventory(FOLDER / "local.yaml")
    job = inventory.job()
    assert job.name == "resnet_ddp"
    assert [host.local for host in inventory.hosts] == [True, True]
    assert inventory.hosts[0].python == str(FOLDER.parent / ".venv" / "bin" / "python")
    facts = inspect_script(job)
    assert facts is not None
    assert facts.initialises
