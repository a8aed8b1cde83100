"""The owner of a run."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from ddpctl.spec.origin import JobId, Origin, as_name
from ddpctl.spec.values import is_name
from tests.values import value_of

HERE = Origin("ann", "laptop", "/home/ann/exp", 7)


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (Origin("ann", "laptop", "/home/ann/exp", 7), True),
        (Origin("root", "laptop", "/home/ann/exp", 7), True),
        (Origin("ann", "laptop", "/home/ann/exp", 8), True),  # cloned again
        (Origin("ann", "laptop", "/home/ann/moved", 7), True),
        (Origin("ann", "login2", "/home/ann/exp", 7), True),  # a shared file system
        (Origin("ann", "laptop", "/home/ann/copy", 8), False),
        (Origin("ann", "desktop", "/home/ann/exp", 8), False),
        (Origin("bob", "desktop", "/home/bob/exp", 7), False),
    ],
)
def test_two_of_three_signs_make_the_same_folder(other: Origin, same: bool) -> None:
    assert HERE.is_same_folder(other) is same
    assert other.is_same_folder(HERE) is same


def test_it_survives_json_and_is_told_as_scp_names_it() -> None:
    assert value_of(Origin, json.loads(json.dumps(asdict(HERE)))) == HERE
    assert str(HERE) == "ann@laptop:/home/ann/exp"
    assert str(JobId("lab", "exp1-7f3a", "train")) == "lab/exp1-7f3a/train"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("exp1", "exp1"),
        ("my exp", "my-exp"),
        (".hidden", "hidden"),
        ("a__b.c", "a__b.c"),
        ("日本", "project"),
        ("", "project"),
    ],
)
def test_a_folder_is_turned_into_a_valid_name(text: str, name: str) -> None:
    assert as_name(text, "project") == name
    assert is_name(as_name(text * 40, "project"))
