"""What the pages show works: every inventory in them loads, every command in them can be typed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from ddpctl.cli.program import make_app
from ddpctl.errors import InventoryError
from ddpctl.files.inventory import load_inventory

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
YAML = re.compile(r"^```yaml\n(.*?)^```$", re.M | re.S)
TYPED = re.compile(r"^(?:    |\$ )(ddpctl (?:[^\n'\\]|\\(?:.|\n)|'[^']*')*)$|`(ddpctl [^`]+)`", re.M)


def examples() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for match in YAML.finditer(page.read_text()):
            yield f"{page.name}:{page.read_text()[: match.start()].count(chr(10)) + 2}", match[1]


def typed() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for match in TYPED.finditer(page.read_text()):
            line = page.read_text()[: match.start()].count("\n") + 1
            yield f"{page.name}:{line}", match[1] or match[2]


def test_every_inventory_loads(tmp_path: Path) -> None:
    """A part of an inventory is completed by the least that is needed."""
    path = tmp_path / "inventory.yaml"
    for name in ("train.py", "sampler.py"):
        (tmp_path / name).write_text("")
    needed = {"cluster": "cluster: lab\n", "hosts": "hosts: [node0]\n"}
    found = list(examples())
    assert len(found) >= 2
    faults = {}
    for place, text in found:
        path.write_text(text + "".join(line for key, line in needed.items() if not re.search(rf"^{key}:", text, re.M)))
        try:
            assert load_inventory(path).hosts
        except InventoryError as error:
            faults[place] = str(error)
    assert faults == {}


def test_every_command_can_be_typed() -> None:
    """Its name, and each of its options, wherever it stands for a usage or for something to copy."""
    root = typer.main.get_command(make_app())
    found = list(typed())
    assert len(found) > 60
    assert {f"{place} {text}": fault for place, text in found if (fault := find_fault(root, text))} == {}


def find_fault(command: Any, text: str) -> str:
    """Return the fault of a typed command line: the first unknown command, or all unknown options."""
    if "'" in text:
        words = shlex.split(text)
    else:  # a usage has its effect beside it
        usage = re.split(r" {3,}|  #", text.replace("\\\n", " "))[0]
        words = re.sub(r"[][]|\.\.\.", " ", usage).split()
    rest = words[1:]
    if rest in (["--help"], ["--install-completion"]):
        return ""
    while rest and hasattr(command, "commands"):
        if rest[0] not in command.commands:
            return f"no command {rest[0]}"
        command, rest = command.commands[rest[0]], rest[1:]
    options = {one for param in command.params for one in (*param.opts, *param.secondary_opts)}
    common = {"-i", "--inventory", "--debug", "-h", "--help"}
    own = rest[: rest.index("--")] if "--" in rest else rest
    unknown = [word for one in own for word in one.split("/") if word.startswith("-") and word not in options | common]
    return f"{command.name} has no {unknown}" if unknown else ""


@pytest.mark.parametrize("picture", sorted(ROOT.glob("docs/**/*.svg")), ids=lambda path: path.name)
def test_a_picture_loads_nothing_from_elsewhere(picture: Path) -> None:
    assert not re.findall(r"@import|@font-face|url\((?!#)|href=[\"'](?!#)", picture.read_text())
