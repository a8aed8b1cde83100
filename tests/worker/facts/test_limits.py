"""What a rank may use."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from ddpctl_worker.facts import host
from tests.worker.node import WORKER, Node


def test_ranks_get_as_many_open_files_and_as_much_locked_memory_as_the_user_may_have(node: Node) -> None:
    kinds = (resource.RLIMIT_NOFILE, resource.RLIMIT_MEMLOCK)
    before = {kind: resource.getrlimit(kind) for kind in kinds}
    for kind, low in zip(kinds, (1024, 65536), strict=True):
        resource.setrlimit(kind, (low, before[kind][1]))
    try:
        run = node.start(f"import resource\nprint(*[resource.getrlimit(kind)[0] for kind in {kinds}])")
    finally:
        for kind in kinds:
            resource.setrlimit(kind, before[kind])
    node.wait_state(run)
    assert [int(word) for word in node.text(run, 0).split()] == [before[kind][1] for kind in kinds]


@pytest.mark.slow
@pytest.mark.parametrize("user", [0, 65534], ids=["root", "other"])
def test_the_job_goes_before_its_supervisor_when_memory_runs_out(user: int) -> None:
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    code = (
        "import codecs, ctypes, os, sys\ncodecs.lookup('ascii')\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from ddpctl_worker.run.launcher import protect_from_oom\n"
        "os.setresuid(*[int(sys.argv[2])] * 3)\n"
        "ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as after a login: its files in /proc are its own\n"
        "print(protect_from_oom(), open('/proc/self/oom_score_adj').read())\n"
    )
    argv = [sys.executable, "-c", code, WORKER, str(user)]
    children, own = map(int, subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split())
    assert children >= own + 100


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
