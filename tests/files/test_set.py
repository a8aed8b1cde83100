"""``--set KEY=VALUE``."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.errors import UsageError
from ddpctl.files.inventory import load_text
from ddpctl.spec.job import Doctor

FILE = b"""\
hosts: [a, b]
defaults: {user: me}
jobs:
  train:
    script: t.py
    timeouts: {stop: 5}
  eval.v1:
    script: e.py
"""


def loaded(*sets: str, job: str | None = "train", data: bytes = FILE) -> Any:
    return load_text(data, "c.yaml", sets=sets, job=job)


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("script=other.py", "script", "other.py"),
        ("args=[--lr, 0.1, 'a b']", "args", ("--lr", "0.1", "a b")),
        ("nproc_per_node=3", "nproc_per_node", 3),
        ("nodes=[b]", "nodes", ("b",)),
        ("env.NOTE=a: b # c", "env", {"NOTE": "a: b # c"}),
        ("env.URL=http://x/?a=b", "env", {"URL": "http://x/?a=b"}),
        ('env.NO="no"', "env", {"NO": "no"}),
        ("env={A: x}", "env", {"A": "x"}),
        ("code=null", "code", None),
        ("elastic.min_nodes=1", "elastic", None),
        ("jobs.train.master=b", "master", "b"),
        ("outputs=[]", "outputs", ()),
        ("doctor=off", "doctor", None),
        ("doctor=false", "doctor", None),
        ("doctor={stall: 5}", "doctor", Doctor(stall=5)),
        ("doctor.stall=5", "doctor", Doctor(stall=5)),
    ],
)
def test_into_the_chosen_job(text: str, key: str, value: Any) -> None:
    if key == "elastic":
        with pytest.raises(UsageError, match=r"jobs.train.elastic.max_nodes: is missing"):
            loaded(text)
        return
    assert getattr(loaded(text).job("train"), key) == value


def test_what_was_there_stays() -> None:
    timeouts = loaded("timeouts.start=7").job("train").timeouts.model_dump()
    assert timeouts == {"start": 7, "stop": 5, "leftover": 10, "after": 3600, "silence": None}


def test_from_the_root() -> None:
    inventory = loaded("cluster=other", "defaults.slots=3", "environment.mode=existing", "hosts=['n[1-2]']", job=None)
    assert inventory.cluster == "other"
    assert [(host.name, host.slots, host.user) for host in inventory.hosts] == [("n1", 3, "me"), ("n2", 3, "me")]


def test_a_jobs_name_may_hold_dots() -> None:
    assert loaded("jobs.eval.v1.nodes=1").job("eval.v1").nodes == 1
    assert loaded("nodes=1", job="eval.v1").job("eval.v1").nodes == 1


def test_the_only_job_needs_no_name() -> None:
    data = b"hosts: [a]\njobs: {j: {script: t.py}}\n"
    assert loaded("nodes=1", job=None, data=data).job().nodes == 1


def test_the_later_one_wins() -> None:
    assert loaded("nodes=1", "nodes=2").job("train").nodes == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nproc_per_nod=2", "did you mean nproc_per_node"),
        (
            "gpus=2",
            "--set gpus: unknown key 'gpus'; did you mean nproc_per_node? It is how many processes",
        ),
        ("clustr=x", "did you mean cluster"),
        ("zzz=x", "valid: after, args, "),
        ("timeouts.stp=2", "--set timeouts.stp: jobs.train.timeouts.stp: is not a known key; did you mean stop"),
        ("doctor=no", "--set doctor: reads as a boolean in some YAML readers and as text in others; quote it"),
        ("env.doctor=off", "--set env.doctor: reads as a boolean in some YAML readers and as text in others"),
        ("doctor=on", "reads as a boolean"),
        ("doctor=30", "--set doctor: jobs.train.doctor: must be off, or a mapping with stall"),
        ("doctor.stal=3", "--set doctor.stal: jobs.train.doctor.stal: is not a known key; did you mean stall"),
        ("nodes=9", "--set nodes: jobs.train.nodes: 9 nodes, but the inventory has 2 hosts"),
        ("launcher=no", "--set launcher: reads as a boolean in some YAML readers and as text in others; quote it"),
        ("args=[a", "--set args: [1]: is not valid YAML"),
        ("args=[&x a]", "--set args: [0]: YAML anchors are not allowed"),
        ("args=x", "--set args: jobs.train.args: must be a list"),
        ("script.x=1", "--set script.x: jobs.train.script is not a mapping"),
        ("hosts.a.slots=1", "--set hosts.a.slots: hosts is not a mapping"),
        ("nodes", "KEY=VALUE is needed"),
        ("=1", "KEY=VALUE is needed"),
        ("a..b=1", "KEY=VALUE is needed"),
        ("env.TOKEN=010", "reads as a number"),
    ],
)
def test_faults_point_at_the_option(text: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        loaded(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_a_job_the_jobs_are_counted() -> None:
    with pytest.raises(UsageError, match="the file has 2 jobs; choose one with --job"):
        loaded("nodes=1", job=None)
    with pytest.raises(UsageError, match="unknown job 'trian'; did you mean train"):
        loaded("nodes=1", job="trian")


def test_no_message_repeats_a_value() -> None:
    for text in ("env.TOKEN=[hunter2hunter2", "env.TOKEN=[hunter2hunter2]", "env.A-B=hunter2hunter2"):
        with pytest.raises(UsageError) as caught:
            loaded(text)
        assert "hunter2" not in str(caught.value)


@given(st.text(max_size=30) | st.text(alphabet="abjobs.trainenv=[]{}'\"&*!#: 01", max_size=30))
def test_any_text_is_taken_or_refused(text: str) -> None:
    try:
        loaded(text)
    except UsageError as error:
        words = str(error)
    else:
        words = "="
    assert words


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20))
def test_plain_text_arrives_as_it_is(value: str) -> None:
    """Everything that does not begin like YAML's brackets and quotes and that no reader takes for something else."""
    text = "x" + value
    assert loaded("env.A=" + text).job("train").env["A"] == text
