"""The files of /proc, as text."""

from __future__ import annotations

from ddpctl_worker.machine.proc import parse_meminfo

MEMINFO = "MemTotal:       24683652 kB\nMemAvailable:   23221544 kB\nHugePages_Total:       3\nHugepagesize: 2048 kB\n"


def test_sizes_are_in_bytes_and_numbers_without_a_unit_are_no_sizes() -> None:
    assert parse_meminfo(MEMINFO) == {
        "MemTotal": 24683652 << 10,
        "MemAvailable": 23221544 << 10,
        "Hugepagesize": 2048 << 10,
    }


def test_damaged_lines_are_left_out() -> None:
    assert parse_meminfo("\nMemTotal\nMemFree: x kB\nCached: 1\nMemAvailable: 1 MB\nSwapTotal: 2 kB\n") == {
        "SwapTotal": 2048
    }
