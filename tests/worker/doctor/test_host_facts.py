"""The facts in which the host of a slow rank differs."""

from __future__ import annotations

import pytest

from ddpctl_worker.doctor import hosts
from ddpctl_worker.doctor.hosts import HostFacts, find_differences

USUAL = {"busy": 20.0, "mhz": 2900.0, "free": 0.5, "pages": 0.0, "gpu_c": 60.0, "gpu_slowed": 0.0}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, []),
        ({"busy": 44.0, "mhz": 2600.0, "gpu_c": 69.0}, []),
        ({"busy": 98.0}, ["its processors are 98 % busy, those of the other hosts 20 %"]),
        ({"mhz": 1200.0}, ["its processors run at 1200 MHz, those of the other hosts at 2900"]),
        ({"free": 0.02}, ["2 % of its memory is free"]),
        ({"pages": 400.0}, ["it swaps 400 pages a second"]),
        ({"gpu_c": 88.0}, ["a GPU is at 88 °C, those of the other hosts at 60 °C"]),
        ({"gpu_c": 88.0, "gpu_slowed": 1.0}, ["a GPU is slowed down by heat or power (88 °C)"]),
    ],
)
def test_what_stands_out_is_said(changed: dict[str, float], words: list[str]) -> None:
    assert find_differences({**USUAL, **changed}, [USUAL, USUAL]) == words


def test_without_another_host_only_what_is_bad_by_itself_counts() -> None:
    assert find_differences({**USUAL, "busy": 99.0, "free": 0.01}, []) == ["1 % of its memory is free"]
    assert find_differences({}, [USUAL]) == []


def test_the_kernel_s_tables() -> None:
    assert hosts.processors("cpu  10 0 5 80 5 0 0 0 0 0\ncpu0 1 0 0 0\n") == (15, 100)
    assert hosts.swapped("nr_free 1\npswpin 3\npswpout 4\n") == 7
    assert hosts.memory("MemTotal:  1000 kB\nMemAvailable:   250 kB\n") == {"free": 0.25}
    assert hosts.clock("cpu MHz\t\t: 1000.0\nflags\t: x\ncpu MHz\t\t: 3000.0\n") == {"mhz": 2000.0}
    for text in ("", "x", "cpu\n", "MemTotal: x\n"):
        hosts.memory(text), hosts.clock(text), hosts.swapped(text), hosts.processors(text)


def test_the_hottest_gpu_counts() -> None:
    cool, hot = {"temperature": 61.0, "slowed": False}, {"temperature": 74.0, "slowed": True}
    assert hosts.heat([cool, hot]) == {"gpu_c": 74.0, "gpu_slowed": 1.0}
    assert hosts.heat([cool, {"temperature": None, "slowed": None}]) == {"gpu_c": 61.0, "gpu_slowed": 0.0}
    assert hosts.heat([]) == hosts.heat([{"temperature": None, "slowed": None}]) == {}


def test_this_machine_tells() -> None:
    facts = HostFacts()
    facts.look(0.0)
    found = facts.look(5.0)
    assert 0.0 <= found.get("busy", 0.0) <= 100.0
    assert 0.0 < found["free"] <= 1.0
