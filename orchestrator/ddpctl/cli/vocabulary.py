"""Reads all commands and options from typer as plain data for completion."""

from __future__ import annotations

from typing import Any

import typer.main

from ddpctl.checks.catalogue import CATALOGUE
from ddpctl.cli.program import make_app

# Options and arguments that take a name of this kind. Further options take a file, a choice, or free text.
_OPTIONS = {"--job": "job", "--host": "hosts", "--only": "checks", "--skip": "checks", "--inventory": "inventory"}
_ARGUMENTS = {"JOB": "run", "RUN": "run", "HOST|JOB:RANK": "hosts", "INVENTORY": "inventory"}
FREE = "free"


def vocabulary() -> dict[str, Any]:
    """Return ``commands`` by name (as "bench scaling"; "" has the global options), and the ids of all ``checks``."""
    found: dict[str, Any] = {}
    _add(found, "", typer.main.get_command(make_app()))
    return {"commands": found, "checks": sorted(check.id for check in CATALOGUE)}


def _add(found: dict[str, Any], path: str, command: Any) -> None:
    below = getattr(command, "commands", {})
    arguments = [param for param in command.params if param.param_type_name == "argument"]
    found[path] = {
        "options": {name: _kind(param) for param in command.params for name in param.opts if name.startswith("-")},
        "arguments": [_ARGUMENTS.get((argument.metavar or "").strip("[].").upper(), FREE) for argument in arguments],
        "many": any(argument.nargs == -1 for argument in arguments),
        "commands": list(below),
    }
    found[path]["options"]["--help"] = None
    for name, subcommand in below.items():
        _add(found, f"{path} {name}".strip(), subcommand)


def _kind(option: Any) -> str | list[str] | None:
    """Return the kind of the option's value, or its allowed words; ``None`` for a flag."""
    if option.is_flag:
        return None
    if "|" in (option.metavar or ""):
        return list(option.metavar.split("|"))
    return next((_OPTIONS[name] for name in option.opts if name in _OPTIONS), FREE)
