"""The reference pages that are made from the code: commands, keys of the inventory, exit codes.

conf.py writes them to ``docs/reference/`` whenever the site is built, so they cannot go stale. checks.md has its own
generator (ddpctl.checks.document) and is in the repository, because error messages name it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer
import typer.main

from ddpctl import errors
from ddpctl.cli.init import inventory_schema
from ddpctl.cli.program import make_app

_NOTE = "Made from the code when this site is built."


def write(folder: Path) -> None:
    """Write all pages. A page with the same text keeps its time, so that Sphinx need not read it again."""
    folder.mkdir(exist_ok=True)
    for name, text in (("commands", commands()), ("inventory", inventory()), ("exit-codes", exit_codes())):
        path = folder / f"{name}.md"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


# -- commands -------------------------------------------------------------------------------------------------------


def commands() -> str:
    """Every command with its arguments and options, as ``--help`` has them."""
    app = typer.main.get_command(make_app())
    head = ["# All commands and options", _NOTE, "[Commands](../commands.md) is the overview, with examples."]
    return _join([*head, *(part for name, one in app.commands.items() for part in _command(f"ddpctl {name}", one))])


def _command(path: str, command: Any) -> Iterator[str]:
    below = getattr(command, "commands", None)
    if below:
        for name, one in below.items():
            yield from _command(f"{path} {name}", one)
        return
    context = typer.Context(command, info_name=path)
    yield f"## {path}"
    yield f"```text\n{path} {' '.join(command.collect_usage_pieces(context))}\n```"
    yield inspect.cleandoc(command.help or "").replace("\b", "")
    rows = [(names, text) for param in command.params for names, text in [_param(param, context)]]
    if rows:
        yield _table(("argument or option", "meaning"), rows)


def _param(param: Any, context: typer.Context) -> tuple[str, str]:
    """Its names, with what follows them, and its help."""
    if param.param_type_name == "argument":
        return f"`{param.metavar or param.name.upper()}`", param.help or ""
    names, text = param.get_help_record(context)
    return f"`{names}`", text


# -- inventory ------------------------------------------------------------------------------------------------------

# Where each part of the schema belongs in a file, in the order of a file.
_TYPES = {"string": "text", "object": "names and values", "boolean": "`true` or `false`"}
_PARTS = {
    "HostKeys": "A host, and `defaults:`",
    "Environment": "`environment:`",
    "JobEntry": "A job",
    "Requires": "`requires:` of a job",
    "Timeouts": "`timeouts:` of a job",
    "Elastic": "`elastic:` of a job",
    "Checkpoint": "`checkpoint:` of a job",
    "Notifier": "`notify:` of a job",
    "Doctor": "`doctor:` of a job",
}


def inventory() -> str:
    """Every key of an inventory with its type, its default and its meaning."""
    whole = inventory_schema()
    parts = whole["$defs"]
    if unknown := set(parts) - set(_PARTS) - {"HostEntry"}:
        raise ValueError(f"these parts of the schema have no place in docs/generate.py: {', '.join(sorted(unknown))}")
    text = ["# All keys of an inventory", _NOTE, "`ddpctl schema` prints the same as JSON Schema, for editors."]
    text += ["## The file", _keys(whole)]
    host = parts["HostEntry"]["properties"]["name"]["description"]
    for name, title in _PARTS.items():
        text += [f"## {title}", *([f"`name`: {host}"] if name == "HostKeys" else []), _keys(parts[name])]
    return _join(text)


def _keys(part: Mapping[str, Any]) -> str:
    required = part.get("required", ())
    rows = [
        (f"`{key}`", _kind(one), "required" if key in required else _default(one), one.get("description", ""))
        for key, one in part["properties"].items()
    ]
    return _table(("key", "value", "default", "meaning"), rows)


def _kind(one: Mapping[str, Any]) -> str:
    """What may be written there, in words."""
    if "$ref" in one:
        return "see below"
    if "enum" in one:
        return ", ".join(f"`{value}`" for value in one["enum"])
    if "const" in one:
        return f"`{one['const']}`"
    if "anyOf" in one:
        kinds = [_kind(each) for each in one["anyOf"] if each.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if one.get("type") == "array":
        return f"a list: {_kind(one.get('items', {}))}"
    kinds = one.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else [kind for kind in kinds if kind != "null"]
    return " or ".join(_TYPES.get(kind, kind) for kind in kinds) or "anything"


def _default(one: Mapping[str, Any]) -> str:
    value = one.get("default")
    if value is None or value == {} or value == []:
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


# -- exit codes -----------------------------------------------------------------------------------------------------


def exit_codes() -> str:
    """Every error with the exit code that it gives."""
    kinds = {*_classes(errors.DdpctlError)} - {errors.DdpctlError}
    ordered = sorted(kinds, key=lambda kind: (kind.exit_code, kind.__name__))
    rows = [(f"{kind.exit_code}", f"`{kind.__name__}`", _first_line(kind)) for kind in ordered]
    head = ["# Errors and exit codes", _NOTE, "[Commands](../commands.md#exit-codes) has the codes in brief."]
    return _join([*head, _table(("exit code", "error", "meaning"), rows)])


def _classes(root: type[errors.DdpctlError]) -> Iterator[type[errors.DdpctlError]]:
    yield root
    for below in root.__subclasses__():
        yield from _classes(below)


def _first_line(kind: type) -> str:
    return inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].replace("``", "`")


# -- Markdown -------------------------------------------------------------------------------------------------------


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", r"\|")


def _join(parts: Iterable[str]) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"
