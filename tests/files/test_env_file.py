"""The file with a job's secrets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.errors import InventoryError
from ddpctl.files.env_file import parse_env, read_env_file


def test_what_is_understood() -> None:
    text = b"""
# a comment
A=1
export B=two words  # comment
C='$literal \\n #'
D="line\\none \\"quoted\\" \\$x"  # comment
E=
F=a#b
  G = spaced
H=a=b=c
"""
    assert parse_env(text, "f") == {
        "A": "1",
        "B": "two words",
        "C": "$literal \\n #",
        "D": 'line\none "quoted" $x',
        "E": "",
        "F": "a#b",
        "G": "spaced",
        "H": "a=b=c",
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"A=1\nhunter2", "f:2: the line is not NAME=value"),
        (b"A=1\n\nhunter2 x=hunter2", "f:3: the text before '='"),
        (b"A=1\nA=hunter2", "f:2: A is given twice"),
        (b"A='hunter2", "f:1: the quotes around the value of A do not close"),
        (b'A="hunter2" hunter2', "f:1: the quotes"),
        (b'A="hunter2\\"', "f:1: the quotes"),
        (b"A=1\nB=hunter2\xff", "f:2: is not UTF-8"),
        (b"A=hunter2\0", "f:1: the value of A holds a NUL"),
        (b"RANK=hunter2", "f:1: RANK is set by the launcher"),
    ],
)
def test_a_fault_says_the_line_and_never_the_value(text: bytes, words: str) -> None:
    with pytest.raises(InventoryError) as caught:
        parse_env(text, "f")
    assert words in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_nothing_is_put_into_this_process(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("DDP_TEST_SECRET=hunter2\n")
    assert read_env_file(file) == {"DDP_TEST_SECRET": "hunter2"}
    assert "DDP_TEST_SECRET" not in os.environ


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match="env_file not found"):
        read_env_file(tmp_path / "x")
    with pytest.raises(InventoryError, match="Is a directory"):
        read_env_file(tmp_path)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\n\r'"), max_size=30))
def test_single_quotes_are_literal(value: str) -> None:
    assert parse_env(f"A='{value}'\n".encode(), "f") == {"A": value}


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=30))
def test_double_quotes_hold_everything(value: str) -> None:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("$", "\\$")
    assert parse_env(f'A="{escaped}"\n'.encode(), "f") == {"A": value}


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        found = parse_env(data, "f")
    except InventoryError:
        return
    assert all(isinstance(value, str) for value in found.values())
