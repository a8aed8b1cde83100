"""What a rank may use."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

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
