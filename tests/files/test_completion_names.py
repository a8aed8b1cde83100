"""The quick reader of an inventory finds the same names as the real reader."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from ddpctl.files.completion_names import Names, names_in
from ddpctl.files.inventory import load_text
from ddpctl.files.limits import COMPLETED_HOSTS
from tests.examples import fewest
from tests.files.strategies import documents

EXAMPLES = sorted((Path(__file__).parents[2] / "inventory").glob("*.yaml"))


def really(text: str) -> Names:
    inventory = load_text(text.encode(), str(EXAMPLES[0]))
    return Names(inventory.names, tuple(inventory.jobs))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_of_the_examples(path: Path) -> None:
    assert names_in(path.read_text()) == really(path.read_text())


@pytest.mark.parametrize(
    "text",
    [
        "hosts: [a, b]\n",
        "hosts: [a, b-1.x]  # two\njobs: {t: {script: x.py, env: {A: b}}, e: {module: pkg}}\n",
        "hosts: ['node[0-2]', n5]\n",
        "hosts:\n- a\n- {name: b, port: 22}\n- name: c\n  user: d\n  labels: {rack: x}\n",
        "hosts:\n  - port: 22\n    name: 'a[08-11,20]-x'\njobs:\n    t:\n        script: x\n    e: {extends: t}\n",
        "jobs:\n  t:\n    script: x\n    args:\n      - --lr\n      - word\nhosts:\n  - a\n",
        "hosts: [{name: a}, {name: b, port: 1}]\n",
    ],
)
def test_of_what_people_write(text: str) -> None:
    found = names_in(text)
    assert (set(found.hosts), found.jobs) == (set(really(text).hosts), really(text).jobs)


@given(documents())
@fewest
def test_of_any_json(document: dict[str, Any]) -> None:
    assert names_in(json.dumps(document)) == really(json.dumps(document))


@pytest.mark.slow  # PyYAML's writer and reader take most of a second
@given(documents())
@fewest
def test_of_yaml_as_a_program_writes_it(document: dict[str, Any]) -> None:
    """A job's name that has to be quoted is not offered; no name is offered that is not there."""
    out = io.StringIO()
    YAML(typ="safe", pure=True).dump({"cluster": "x", **document}, out)
    found = names_in(out.getvalue())
    assert set(found.jobs) <= set(document["jobs"])


@pytest.mark.parametrize("name", ["$(id)", "a b", "a;b", "`id`", "a'b", 'a"b', "a\\nb", "-x", ""])
def test_nothing_that_means_something_to_a_shell_is_offered(name: str) -> None:
    text = json.dumps({"hosts": [name, {"name": name}], "jobs": {name: {}}})
    assert names_in(text) == Names()
    yaml = f"hosts: ['{name}']\njobs:\n  '{name}':\n    script: x\n"
    offered = names_in(yaml)
    assert not set("$(`;'\" \n") & set("".join((*offered.hosts, *offered.jobs)))


@given(st.text(max_size=80) | st.text("hostsjb:[]{}-, \n#'\"a0", max_size=80))
def test_any_text_is_looked_at_without_a_fault(text: str) -> None:
    found = names_in(text)
    assert not set("$(`;'\" \n|&<>") & set("".join((*found.hosts, *found.jobs)))


@pytest.mark.parametrize(
    "hosts",
    [
        "".join(f"  - n{number}[1-99999]\n" for number in range(1500)),
        f"  - n[{'1-99999,' * 6000}1]\n",
        f"  - n[1-{'9' * 60_000}]\n",
        f"  - n[{'0' * 20_000}1-99999]\n",
        f"  - n[{','.join(['1-3'] * 9000)}]\n",
    ],
    ids=["many", "parts", "digits", "padded", "short"],
)
def test_a_short_text_cannot_name_millions_of_hosts(hosts: str) -> None:
    found = names_in("hosts:\n" + hosts)
    assert len(found.hosts) <= COMPLETED_HOSTS
    assert sum(map(len, found.hosts)) < 100_000
