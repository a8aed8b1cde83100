"""The JSON Schema that editors use."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ddpctl.cli.init import inventory_schema

FILE = Path(__file__).parents[2] / "inventory" / "schema.json"


def test_the_file_is_fresh() -> None:
    assert FILE.read_text() == json.dumps(inventory_schema(), indent=2) + "\n", (
        "make it anew: ddpctl schema > inventory/schema.json"
    )


def test_it_is_a_valid_schema() -> None:
    import jsonschema

    jsonschema.Draft202012Validator.check_schema(inventory_schema())
    assert json.loads(json.dumps(inventory_schema())) == inventory_schema()


def valid(document: Any) -> bool:
    import jsonschema

    return bool(jsonschema.Draft202012Validator(inventory_schema()).is_valid(document))


@pytest.mark.parametrize(
    "change",
    [
        {"hosts": []},
        {"hosts": None},
        {"hosts": [{"name": "a", "prot": 22}]},
        {"hosts": [{"address": "a"}]},
        {"cluster": "a b"},
        {"jobs": {"j": {"script": "a.py", "nodes": 0}}},
        {"jobs": {"j": {"script": "a.py", "launcher": "mpirun"}}},
        {"jobs": {"a b": {"script": "a.py"}}},
        {"defaults": {"slots": "all"}},
        {"defaults": {"env": {"A-B": "1"}}},
        {"environment": {"torch_backend": "tpu9"}},
        {"unknown": 1},
    ],
)
def test_it_refuses_what_the_models_refuse(change: dict[str, Any]) -> None:
    assert valid({"hosts": ["a", {"name": "b[1-2]", "slots": 2, "env": {"A": 1}}]})
    assert not valid({"hosts": ["a"], **change})


def test_every_key_is_described() -> None:
    schema = inventory_schema()
    models = {"": schema, **schema["$defs"]}
    bare = [
        f"{model}.{key}"
        for model, part in models.items()
        for key, value in part["properties"].items()
        if "description" not in value
    ]
    assert not bare
