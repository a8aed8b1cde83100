"""Host ranges."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.spec.limits import MAX_HOSTS
from ddpctl.spec.ranges import RangeFault, expand


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node0", ("node0",)),
        ("node[01-03]", ("node01", "node02", "node03")),
        ("node[1-3,7]", ("node1", "node2", "node3", "node7")),
        ("n[1-2]x[1-2]", ("n1x1", "n1x2", "n2x1", "n2x2")),
        ("a[1-5/2]", ("a1", "a3", "a5")),
        ("10.0.0.[9-11]", ("10.0.0.9", "10.0.0.10", "10.0.0.11")),
        ("node[8-11]-ib", ("node8-ib", "node9-ib", "node10-ib", "node11-ib")),
    ],
)
def test_expands(text: str, names: tuple[str, ...]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    "text",
    [
        "node[",
        "node]",
        "node[]",
        "node[3-1]",
        "node[1-2",
        "node[a-b]",
        "node[1-2,2]",
        "node[1-2],x[1-2]",
        "@all[1-2]",
        "node[1-2]!node1",
        "node[1-2]&node1",
        "node[1-2]^node1",
        "node[1-2]*",
        "node[[1-2]]",
        "node[1-2]]",
        "node[01-100]",
        "node[-1-2]",
        "node[1-99999]",
        "node[1-999999999]",
        "node[1-9999999999]",
        "n[1-1000]x[1-1000]",
        "node[1-3/0]",
        "nöde[1-2]",
        "node[1-2]\n",
        "node[１-２]",
    ],
)
def test_refuses(text: str) -> None:
    with pytest.raises(RangeFault):
        expand(text)


def test_the_largest_range_is_accepted() -> None:
    assert len(expand(f"n[1-{MAX_HOSTS}]")) == MAX_HOSTS


@given(st.integers(0, 999), st.integers(0, 50), st.integers(1, 5))
def test_padding_is_kept(first: int, count: int, width: int) -> None:
    numbers = [str(number).zfill(width) for number in range(first, first + count + 1)]
    if len({len(number) for number in numbers}) > 1 and width > 1 and numbers[0].startswith("0"):
        return  # a padded range that outgrows its padding is ambiguous and refused
    assert expand(f"n[{numbers[0]}-{numbers[-1]}]") == tuple(f"n{number}" for number in numbers)


@given(st.text(alphabet="ab01239[],-/@*!", max_size=20))
def test_any_text_gives_names_or_a_fault(text: str) -> None:
    try:
        names = expand(text)
    except RangeFault:
        return
    assert len(names) == len(set(names)) <= MAX_HOSTS
    assert "[" in text or names == (text,)


@pytest.mark.slow  # processes
def test_no_group_file_is_read(tmp_path: object) -> None:
    """ClusterShell would look for groups on this machine; a range must mean the same everywhere."""
    program = (
        "import sys\n"
        "opened = []\n"
        "sys.addaudithook(lambda e, a: opened.append(str(a[0])) if e == 'open' else None)\n"
        "from ddpctl.spec.ranges import expand\n"
        "expand('node[1-3]')\n"
        "print([name for name in opened if 'groups' in name])\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
