"""What the pages show works: every inventory in them loads, every command in them can be typed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from ddpctl.cli.program import make_app
from ddpctl.files.inventory import load_inventory

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
YAML = re.compile(r"^```yaml\n(.*?)^```$", re.M | re.S)
TYPED = re.compile(r"^(?:    |\$ )(ddpctl (?:[^\n'\\]|\\(?:.|\n)|'[^']*')*)$|`(ddpctl [^`]+)`", re.M)
COMMAND = typer.main.get_command(make_app())


def examples() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for match in YAML.finditer(page.read_text()):
            yield f"{page.name}:{page.read_text()[: match.start()].count(chr(10)) + 2}", match[1]


def typed() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for match in TYPED.finditer(page.read_text()):
            line = page.read_text()[: match.start()].count("\n") + 1
            yield f"{page.name}:{line}", match[1] or match[2]


@pytest.mark.parametrize(("place", "text"), [pytest.param(*one, id=one[0]) for one in examples()])
def test_an_inventory_loads(place: str, text: str, tmp_path: Path) -> None:
    """A part of one is completed by the least that is needed."""
    path = tmp_path / "inventory.yaml"
    for name in ("train.py", "sampler.py"):
        (tmp_path / name).write_text("")
    needed = {"cluster": "cluster: lab\n", "hosts": "hosts: [node0]\n"}
    path.write_text(text + "".join(line for key, line in needed.items() if not re.search(rf"^{key}:", text, re.M)))
    assert load_inventory(path).hosts


@pytest.mark.parametrize(("place", "text"), [pytest.param(*one, id=f"{one[0]} {one[1][:30]}") for one in typed()])
def test_a_command_can_be_typed(place: str, text: str) -> None:
    """Its name, and each of its options, wherever it stands for a usage or for something to copy."""
    if "'" in text:
        words = shlex.split(text)
    else:  # beside a usage stands what it does
        usage = re.split(r" {3,}|  #", text.replace("\\\n", " "))[0]
        words = re.sub(r"[][]|\.\.\.", " ", usage).split()
    command, rest = COMMAND, words[1:]
    if rest in (["--help"], ["--install-completion"]):
        return
    while rest and hasattr(command, "commands"):
        assert rest[0] in command.commands, f"{place}: no command {rest[0]}"
        command, rest = command.commands[rest[0]], rest[1:]
    options = {one for param in command.params for one in (*param.opts, *param.secondary_opts)}
    common = {"-i", "--inventory", "--debug", "-h", "--help"}
    own = rest[: rest.index("--")] if "--" in rest else rest
    unknown = [word for one in own for word in one.split("/") if word.startswith("-") and word not in options | common]
    assert not unknown, f"{place}: {command.name} has no {unknown}"


@pytest.mark.parametrize("picture", sorted(ROOT.glob("docs/**/*.svg")), ids=lambda path: path.name)
def test_a_picture_loads_nothing_from_elsewhere(picture: Path) -> None:
    assert not re.findall(r"@import|@font-face|url\((?!#)|href=[\"'](?!#)", picture.read_text())


def test_there_is_something_to_look_at() -> None:
    assert len(list(examples())) >= 2
    assert len(list(typed())) > 60
