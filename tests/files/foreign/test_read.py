"""The files of other tools: the hosts that they name, and the errors of broken files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ddpctl.errors import InventoryError
from ddpctl.files.foreign.read import read_foreign, read_text, with_hostfile
from ddpctl.spec.draft import Imported
from tests.examples import few
from tests.files.foreign import samples

FILE = "hosts"


def read(text: str) -> Imported:
    return read_text(text, FILE)


def hosts(found: Imported) -> list[dict[str, Any]]:
    """Each host's keys that are not left to a default."""
    return [host.model_dump(exclude_none=True, exclude_defaults=True) for host in found.hosts]


def test_a_hostfile_of_deepspeed() -> None:
    assert hosts(read(samples.DEEPSPEED)) == [{"name": "worker-1", "slots": 4}, {"name": "worker-2", "slots": 4}]


def test_a_hostfile_of_open_mpi() -> None:
    assert hosts(read(samples.OPEN_MPI)) == [
        {"name": "foo.example.com"},
        {"name": "bar.example.com", "slots": 2},
        {"name": "yow.example.com", "slots": 4},
    ]


def test_a_hostfile_of_mpich() -> None:
    found = hosts(read(samples.MPICH))
    assert [host["slots"] for host in found] == [2, 2, 2, 2]
    assert found[3] == {"name": "terra", "slots": 2, "user": "alice"}


def test_a_line_for_every_process() -> None:
    assert hosts(read(samples.PBS)) == [{"name": "gpu07", "slots": 4}, {"name": "gpu08", "slots": 4}]


def test_this_machine_needs_no_ssh() -> None:
    assert hosts(read("localhost slots=2\n")) == [{"name": "localhost", "connection": "local", "slots": 2}]


def test_a_configuration_of_accelerate() -> None:
    found = read(samples.ACCELERATE)
    assert (found.master, found.port, found.nodes, found.nproc) == ("192.168.20.1", 9898, 2, 4)
    assert not found.hosts


def test_the_hostfile_that_accelerate_names_is_read(tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text(samples.DEEPSPEED)
    text = samples.ACCELERATE + "deepspeed_config:\n  deepspeed_hostfile: hostfile\n"
    (tmp_path / "accelerate.yaml").write_text(text)
    assert [host.name for host in read_foreign(tmp_path / "accelerate.yaml").hosts] == ["worker-1", "worker-2"]


def test_the_hosts_of_a_filter_and_of_a_hostfile_that_a_line_names(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text(samples.DEEPSPEED)
    line = Imported("deepspeed", hostfile="hosts", exclude="worker-1")
    assert [host.name for host in with_hostfile(line, tmp_path).hosts] == ["worker-2"]
    alone = with_hostfile(Imported("deepspeed", include="a:0,1@b"), tmp_path)
    assert [(host.name, host.slots) for host in alone.hosts] == [("a", 2), ("b", None)]
    with pytest.raises(InventoryError, match="leave no host"):
        with_hostfile(Imported("deepspeed", hostfile="hosts", exclude="worker-1@worker-2"), tmp_path)


# The text of the file, the position of the error, and a word of its message.
BROKEN = {
    "nothing": ("# only a comment\n", (1, 1), "nothing in it"),
    "slots that are none": ("node1 slots=8\nnode2 slots=eight\n", (2, 13), "'eight'"),
    "no such key": ("node1 gpus=8\n", (1, 7), "'gpus'"),
    "a host twice": ("node1 slots=8\nnode1 slots=4\n", (2, 1), "listed twice"),
    "a port or processes": ("node1:2222\n", (1, 7), "counts processes"),
    "a sentence": ("please use node1\n", (1, 8), "not understood"),
    "a bad name": ("node1\n-x\n", (2, 1), "not a valid host name"),
    "a section": ("node1\n[gpu]\na\n", (2, 1), "INI file"),
    "groups of hosts": ("all:\n  hosts: {a:}\n", (1, 1), "'all' is not understood"),
    "a list": ("- hosts: gpu\n  tasks: []\n", (1, 1), "not a file with hosts"),
    "broken YAML": ("num_machines:\n  hosts: {a\n", (3, 1), "not valid YAML"),
    "an alias": ("num_machines: *two\n", (1, 15), "aliases are not allowed"),
    "an inventory of ours": ("cluster: lab\nhosts: [a]\n", (2, 8), "already"),
    "some other YAML": ("version: 3\nservices: 1\n", (1, 1), "not understood"),
    "machines that are none": ("num_machines: two\n", (1, 15), "'two'"),
    "processes that do not divide": ("num_machines: 3\nnum_processes: 8\n", (2, 16), "divided"),
    "no machines of yours": ("compute_environment: AMAZON_SAGEMAKER\nnum_machines: 1\n", (1, 22), "SAGEMAKER"),
    "a program": ("#!/usr/bin/env python3\nprint('{}')\n", (1, 1), "program"),
    "a control character": ("node1\nno\x07de2\n", (2, 3), "control character"),
}


@pytest.mark.parametrize(("text", "place", "word"), BROKEN.values(), ids=BROKEN)
def test_a_broken_file_is_refused_at_its_place(text: str, place: tuple[int, int], word: str, tmp_path: Path) -> None:
    path = tmp_path / FILE
    path.write_text(text)
    with pytest.raises(InventoryError) as caught:
        read_foreign(path)
    assert (caught.value.line, caught.value.column) == place
    assert word in caught.value.summary
    assert caught.value.summary.startswith(f"{path}:{place[0]}:{place[1]}: ")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match="No such file"):
        read_foreign(tmp_path / "nowhere")


# --- whatever the text -----------------------------------------------------------------------------------------------

PIECES = st.sampled_from(
    [
        "[gpu]", "[gpu:vars]", "[gpu:children]", "all:", "hosts:", "children:", "vars:", "node1", "node[1:3]", "a:2",
        "slots=2", "num_machines: 2", "main_process_ip: ", "- ", "  ", "\n", "\t",
        "'", '"', "#", ";", "&a", "*a", "<<: *a", "{", "}", "[", "]", ":", "=", "\\", "\r", "---", "@", "\u00e9", "\0",
    ]
)  # fmt: skip
ANYTHING = st.text(max_size=120) | st.lists(PIECES | st.text(max_size=4), max_size=40).map("".join)
BOMB = "a: &a {hosts: {x:}}\n" + "".join(
    f"{name}: &{name}\n  children: {{" + ", ".join(f"c{n}{name}: *{before}" for n in range(9)) + "}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


LARGE = {
    "aliases": BOMB,
    "brackets": "[" * 2000,
    "a wide range": "node[1:99999999]",
    "5000 hosts": "".join(f"h{n}\n" for n in range(5000)),
}


@given(ANYTHING)
@example("a:\n  hosts: &h\n    x:\n  vars: *h\n")
@few
def test_any_text_is_read_or_refused_with_line_and_column(text: str) -> None:
    assert_read_or_refused(text)


@pytest.mark.slow  # thousands of hosts
@pytest.mark.parametrize("text", LARGE.values(), ids=LARGE)
def test_large_text_is_read_or_refused_with_line_and_column(text: str) -> None:
    assert_read_or_refused(text)


def assert_read_or_refused(text: str) -> None:
    lines = text.split("\n")
    answer = read_or_error(text)
    if isinstance(answer, Imported):
        assert answer.hosts or answer.nodes
    else:
        assert answer.line is not None
        assert answer.column is not None
        assert 1 <= answer.line <= len(lines) + 1
        assert answer.column >= 1


def read_or_error(text: str) -> Imported | InventoryError:
    try:
        return read(text)
    except InventoryError as error:
        return error


NAMES = st.lists(st.from_regex(r"[a-z][a-z0-9-]{0,8}[a-z0-9]", fullmatch=True), min_size=1, max_size=6, unique=True)
COUNTS = st.none() | st.integers(1, 64)


@given(NAMES.flatmap(lambda names: st.tuples(*(st.tuples(st.just(name), COUNTS) for name in names))), st.data())
@few
def test_a_hostfile_says_what_was_written(wanted: tuple[tuple[str, int | None], ...], data: st.DataObject) -> None:
    forms = st.sampled_from(["{} slots={}", "{}:{}", "  {}   slots = {}  # it", "{} max_slots=64 slots={}"])
    lines = [name if count is None else data.draw(forms).format(name, count) for name, count in wanted]
    found = read(data.draw(st.sampled_from(["", "# hosts\n\n"])) + "\n".join(lines))
    if [name for name, _ in wanted] != ["localhost"]:
        assert [(host.name, host.slots) for host in found.hosts] == list(wanted)


@given(st.integers(1, 64), st.integers(1, 64), st.ip_addresses(v=4), st.none() | st.integers(1, 65535))
def test_a_configuration_of_accelerate_says_what_was_written(
    nodes: int, nproc: int, main: object, port: int | None
) -> None:
    text = f"num_machines: {nodes}\nnum_processes: {nodes * nproc}\nmain_process_ip: {main}\n"
    found = read(text + f"main_process_port: {'null' if port is None else port}\nmachine_rank: 0\n")
    assert (found.nodes, found.nproc, found.master, found.port) == (nodes, nproc, str(main), port)
