"""What a host has and what is left of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpctl_worker.facts import host


@pytest.mark.parametrize(
    ("files", "room"),
    [
        (
            {
                "memory.max": "64000000000\n",
                "memory.current": "63000000000\n",
                "memory.stat": "anon 2000000000\nfile 60500000000\nshmem 500000000\n"
                "inactive_file 40000000000\nactive_file 20000000000\n",
            },
            61e9,
        ),
        (
            {
                "memory.limit_in_bytes": "64000000000\n",
                "memory.usage_in_bytes": "63000000000\n",
                "memory.stat": "active_file 0\ninactive_file 0\n"
                "total_active_file 20000000000\ntotal_inactive_file 40000000000\n",
            },
            61e9,
        ),
        ({"memory.max": "64000000000\n", "memory.current": "63000000000\n"}, 1e9),
        ({"memory.max": "max\n", "memory.current": "63000000000\n"}, None),
    ],
    ids=["version 2", "version 1", "no statistics", "no limit"],
)
def test_what_a_control_group_leaves_counts_the_page_cache_as_free(
    tmp_path: Path, files: dict[str, str], room: float | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    found = host.memory_limit(str(tmp_path))
    assert (None if found is None else found[0] - found[1] + found[2]) == room
