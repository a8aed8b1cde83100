"""``ddpctl schema``: the JSON Schema of the inventory file."""

from __future__ import annotations

import json

import typer

from ddpctl.spec.schema import inventory_schema


def schema() -> int:
    """Print the JSON Schema of the inventory file, for editors."""
    typer.echo(json.dumps(inventory_schema(), indent=2))
    return 0
