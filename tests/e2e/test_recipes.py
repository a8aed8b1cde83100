"""The recipes of docs/recipes.md, as they stand there, with the real frameworks."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.e2e.site import Site, assert_nothing_runs
from tests.lab import Lab, interpreters
from tests.lab.command import Ddpctl

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"
# Letters as numbers of two bytes, where the job's `links` expect them.
DATA = """mkdir -p {0}/shakespeare_char && cd {0}/shakespeare_char && python3 -c '
import array
array.array("H", (n * n % 96 for n in range(5000))).tofile(open("train.bin", "wb"))'"""
# The recipes whose next run continues the last one, and where their second run ends.
RESUMED = {"DeepSpeed": "step 96", "nanoGPT": "iteration 40"}
_BLOCK = re.compile(r"```(yaml|python)\n(.*?)```", re.DOTALL)


def recipes() -> dict[str, dict[str, str]]:
    """Title -> the inventory and the script: the sections of the page that have both."""
    sections = (part.partition("\n") for part in PAGE.read_text().split("\n## ")[1:])
    found = {title: dict(_BLOCK.findall(text)) for title, _, text in sections}
    return {title: blocks for title, blocks in found.items() if blocks.keys() == {"yaml", "python"}}


@pytest.fixture(scope="module")
def frameworks() -> str:
    try:
        return str(interpreters.make_frameworks())
    except subprocess.CalledProcessError as error:
        pytest.skip(f"the frameworks cannot be installed: {error}")


@pytest.mark.heavy
@pytest.mark.full(covered_by="tests/e2e/test_training.py::test_three_hosts_train")
@pytest.mark.parametrize("title", recipes())
def test_a_recipe_trains_on_two_hosts(title: str, lab: Lab, ddpctl: Ddpctl, tmp_path: Path, frameworks: str) -> None:
    site = Site(lab, ddpctl, tmp_path / "recipe", frameworks).only(0, 1)
    blocks = recipes()[title]
    job = YAML(typ="safe").load(blocks["yaml"])["jobs"]["train"]
    env = {**job.pop("env", {}), "OMP_NUM_THREADS": "1"}
    site.job("train", blocks["python"], **job, env=env)
    for place in job.get("links", {}).values():
        for host in (lab[0], lab[1]):
            host.run(DATA.format(place))

    def train() -> str:
        done = site("up", timeout=300).ok()
        assert_nothing_runs(lab)
        found = re.search(r"trained to (.*) on 2 processes", done.stdout)
        assert found, done.stdout
        return found[1]

    assert train() != RESUMED.get(title)
    if title in RESUMED:
        assert train() == RESUMED[title]
