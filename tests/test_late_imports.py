"""Tables that name a module and its function as text, for an import at the first use. No type check sees them."""

from __future__ import annotations

import importlib

import pytest

from ddpctl.cli import program
from ddpctl_worker import __main__ as worker
from ddpctl_worker import facts

TABLES = {
    "the worker's verbs": ("ddpctl_worker.", worker.VERBS),
    "the worker's questions": ("ddpctl_worker.facts.", facts.QUESTIONS),
    "the commands": ("ddpctl.cli.", program.COMMANDS),
}


@pytest.mark.parametrize("table", TABLES)
def test_every_entry_names_a_function(table: str) -> None:
    package, entries = TABLES[table]
    assert [
        f"{package}{module}.{name}"
        for name, module in entries.items()
        if not callable(getattr(importlib.import_module(package + module), name, None))
    ] == []
