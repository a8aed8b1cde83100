"""``ddpctl schema``: the JSON Schema of the inventory file, made from the models."""

from __future__ import annotations

import json
from typing import Any

import typer

from ddpctl.spec.inventory import InventoryFile


def schema() -> int:
    """Print the JSON Schema of the inventory file, for editors."""
    typer.echo(json.dumps(inventory_schema(), indent=2))
    return 0


def inventory_schema() -> dict[str, Any]:
    """JSON Schema, 2020-12. What it cannot say (unique hosts, names that exist) the reader of the file checks."""
    schema = _tidy(InventoryFile.model_json_schema(mode="validation"))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "ddpctl inventory",
    }


def _tidy(value: Any) -> Any:
    """Without what an editor would show instead of the words, or paste: made-up titles, and whole sections of nulls."""
    if isinstance(value, list):
        return [_tidy(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: _tidy(item) for key, item in value.items() if not _noise(key, item)}


def _noise(key: str, item: Any) -> bool:
    return (key == "title" and isinstance(item, str)) or (key == "default" and isinstance(item, dict) and bool(item))
