"""Jobs that extend another job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.errors import InventoryError
from ddpctl.files.inventory import load_text
from ddpctl.spec.inventory import Inventory
from ddpctl.spec.job import JobSpec
from tests.examples import few
from tests.files.strategies import jobs, names

BASE = """\
hosts: [a, b]
jobs:
  train:
    script: t.py
    args: [--epochs, 3]
    env: {A: one, B: two}
    timeouts: {stop: 3}
    nodes: 2
"""


def loaded(own: str, *sets: str, base: str = BASE) -> Inventory:
    return load_text(f"{base}  long: {{extends: train, {own}}}\n".encode(), "c.yaml", sets=sets, job="long")


def long(own: str, *sets: str) -> JobSpec:
    return loaded(own, *sets).job("long")


def refused(text: str) -> InventoryError:
    with pytest.raises(InventoryError) as caught:
        load_text(text.encode(), "c.yaml")
    return caught.value


def test_mappings_are_merged_and_the_rest_replaced() -> None:
    job = long("env: {B: other, C: three}, timeouts: {start: 7}, nodes: 1, args: [--lr, 0.1]")
    assert job.env == {"A": "one", "B": "other", "C": "three"}
    assert (job.timeouts.start, job.timeouts.stop) == (7, 3)
    assert (job.script, job.nodes, job.args) == ("t.py", 1, ("--lr", "0.1"))


@pytest.mark.parametrize(
    ("own", "args"),
    [
        ("args_extra: [--lr, 1e-3]", ("--epochs", "3", "--lr", "1e-3")),
        ("args: [], args_extra: [x]", ("x",)),
        ("args: [w]", ("w",)),
        ("args_extra: []", ("--epochs", "3")),
    ],
)
def test_args_extra_is_added_to_own_or_inherited_args(own: str, args: tuple[str, ...]) -> None:
    assert long(own).args == args


def test_what_the_base_adds_is_inherited_with_its_args() -> None:
    base = BASE + "    args_extra: [z]\n"
    assert loaded("args_extra: [w]", base=base).job("long").args == ("--epochs", "3", "z", "w")
    assert loaded("args: [q]", base=base).job("long").args == ("q",)
    assert load_text(base.encode(), "c.yaml").job("train").args == ("--epochs", "3", "z")


def test_an_own_program_stands_in_for_the_inherited_one() -> None:
    assert (long("module: pkg.x").script, long("module: pkg.x").module) == (None, "pkg.x")
    assert long("script: other.py").script == "other.py"


def test_null_is_a_value_of_its_own() -> None:
    assert long("code: null").code is None
    assert loaded("doctor: off", base=BASE + "    doctor: {stall: 5}\n").job("long").doctor is None


def test_set_works_on_both() -> None:
    assert long("nodes: 1", "env.B=x", "timeouts.start=9").env == {"A": "one", "B": "x"}
    assert long("nodes: 1", "jobs.train.env.A=x").env == {"A": "x", "B": "two"}
    assert long("nodes: 1", "args_extra=[x]").args == ("--epochs", "3", "x")


@pytest.mark.parametrize(
    ("own", "words"),
    [
        ("extends: tran", "c.yaml:9:19: jobs.long.extends: no job is named tran; did you mean train?"),
        ("extends: long", "c.yaml:9:19: jobs.long.extends: a job cannot extend itself"),
        ("extends: 5", "c.yaml:9:19: jobs.long.extends: must be text"),
        ("extends: train, args_extra: x", "c.yaml:9:38: jobs.long.args_extra: must be a list"),
        ("extends: train, args_extra: [x, true]", "c.yaml:9:42: jobs.long.args_extra[1]: must be text; quote it"),
        ("extends: train, extend: x", "c.yaml:9:26: jobs.long.extend: is not a known key; did you mean extends?"),
        ("extends: train, env: {A-B: x}", "c.yaml:9:32: jobs.long.env.A-B: is not a name for an environment variable"),
        ("extends: train, nodes: 3", "c.yaml:9:33: jobs.long.nodes: 3 nodes, but the inventory has 2 hosts"),
        ("extends: train, spares: 1", "c.yaml:9:3: jobs.long: spares is set, and restarts is not"),
    ],
)
def test_what_is_refused_points_at_the_job_that_has_it(own: str, words: str) -> None:
    assert words in str(refused(f"{BASE}  long: {{{own}}}\n"))


def test_one_level_only() -> None:
    error = refused(BASE + "  long: {extends: train}\n  longer: {extends: long}\n")
    assert str(error).startswith("c.yaml:10:21: jobs.longer.extends: long extends another job itself")
    assert "write extends: train" in str(error)


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("env: {A-B: x}", "c.yaml:5:11: jobs.train.env.A-B"),
        ("nodes: 3", "c.yaml:5:12: jobs.train.nodes"),
        ("master: c", "c.yaml:5:13: jobs.train.master"),
        ("timeouts: {stop: soon}", "c.yaml:5:22: jobs.train.timeouts.stop"),
        ("args: [x, true]", "c.yaml:5:15: jobs.train.args[1]"),
        ("args_extra: [true]", "c.yaml:5:18: jobs.train.args_extra[0]"),
        ("elastic: {min_nodes: 1}", "c.yaml:5:5: jobs.train.elastic.max_nodes"),
        ("code: ~nobody-of-that-name/x", "c.yaml:5:11: jobs.train.code"),
        ("wrokdir: x", "c.yaml:5:5: jobs.train.wrokdir"),
    ],
)
def test_an_inherited_fault_is_told_once_and_where_it_was_written(key: str, place: str) -> None:
    text = f"hosts: [a, b]\njobs:\n  train:\n    script: t.py\n    {key}\n"
    error = refused(text + "  long: {extends: train, env: {C: x}, timeouts: {start: 5}, args_extra: [x]}\n")
    assert str(error).startswith(f"{place}: ")
    assert error.further == ()


@given(st.data())
@few
def test_a_job_that_extends_with_nothing_equals_its_base(data: st.DataObject) -> None:
    base, name = data.draw(jobs(["a", "b"])), data.draw(names)
    extra = data.draw(st.fixed_dictionaries({}, optional={"args_extra": st.lists(st.text("abc", max_size=3))}))
    document = {"hosts": ["a", "b"], "jobs": {name: {**base, **extra}, f"{name}-x"[:63]: {"extends": name}}}
    one, other = load_text(json.dumps(document).encode(), "c.yaml").jobs.values()
    assert other == one.model_copy(update={"name": other.name})


@given(base=jobs(["a", "b"]), own=jobs(["a", "b"]))
@few
def test_own_keys_win_and_what_is_not_given_is_inherited(base: dict[str, Any], own: dict[str, Any]) -> None:
    """On plain data, as a person would merge it."""
    merged = {**{key: value for key, value in base.items() if key not in ("script", "module")}, **own}
    for key in merged.keys() & base.keys() & own.keys():
        if isinstance(base[key], dict) and isinstance(own[key], dict):
            merged[key] = {**base[key], **own[key]}
    document = {"hosts": ["a", "b"], "jobs": {"base": base, "own": {"extends": "base", **own}}}
    plain = {"hosts": ["a", "b"], "jobs": {"base": base, "own": merged}}
    assert outcome(document) == outcome(plain)


def outcome(document: dict[str, Any]) -> object:
    """Return the job, or None after an error: the position of an error is tested above."""
    try:
        return load_text(json.dumps(document).encode(), str(Path("/x/c.yaml"))).job("own")
    except InventoryError:
        return None
