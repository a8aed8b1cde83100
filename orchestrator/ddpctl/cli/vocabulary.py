"""All commands and options as plain data, read from typer: what completion has to know."""

from __future__ import annotations

from typing import Any

import typer.main

from ddpctl.checks.catalogue import CATALOGUE
from ddpctl.cli.program import make_app

# What is completed by name. The rest is a file, one of some words, or anybody's guess.
_OPTIONS = {"--job": "job", "--host": "hosts", "--only": "checks", "--skip": "checks", "--inventory": "inventory"}
_ARGUMENTS = {"JOB": "run", "RUN": "run", "INVENTORY": "inventory"}
FREE = "free"


def vocabulary() -> dict[str, Any]:
    """``commands`` by name ("bench scaling", and "" for what holds everywhere), and the ids of all ``checks``."""
    found: dict[str, Any] = {}
    _add(found, "", typer.main.get_command(make_app()))
    return {"commands": found, "checks": sorted(check.id for check in CATALOGUE)}


def _add(found: dict[str, Any], path: str, command: Any) -> None:
    below = getattr(command, "commands", {})
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    found[path] = {
        "options": {name: _kind(name, one) for one in command.params for name in one.opts if name.startswith("-")},
        "arguments": [_ARGUMENTS.get((one.metavar or "").strip("[].").upper(), FREE) for one in arguments],
        "many": any(one.nargs == -1 for one in arguments),
        "commands": list(below),
    }
    found[path]["options"]["--help"] = None
    for name, one in below.items():
        _add(found, f"{path} {name}".strip(), one)


def _kind(name: str, option: Any) -> str | list[str] | None:
    """What the option takes; None for a flag."""
    if option.is_flag:
        return None
    if "|" in (option.metavar or ""):
        return list(option.metavar.split("|"))
    return next((_OPTIONS[one] for one in option.opts if one in _OPTIONS), FREE)
