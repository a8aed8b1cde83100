"""What a rank may use."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import pytest

from tests.worker.node import WORKER, Node


def test_ranks_get_as_many_open_files_as_the_user_may_have(node: Node) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
    try:
        run = node.start("import resource\nprint(resource.getrlimit(resource.RLIMIT_NOFILE)[0])")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    node.wait_state(run)
    assert node.text(run, 0).strip() == str(hard).encode()


@pytest.mark.parametrize("user", [0, 65534], ids=["root", "other"])
def test_the_job_goes_before_its_supervisor_when_memory_runs_out(user: int) -> None:
    if os.geteuid() != 0:
        pytest.skip("becoming another user needs root")
    code = (
        "import codecs, ctypes, os, sys\ncodecs.lookup('ascii')\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from ddpctl_worker.spawn import protect_from_oom\n"
        "os.setresuid(*[int(sys.argv[2])] * 3)\n"
        "ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # as after a login: its files in /proc are its own\n"
        "print(protect_from_oom(), open('/proc/self/oom_score_adj').read())\n"
    )
    argv = [sys.executable, "-c", code, WORKER, str(user)]
    children, own = map(int, subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split())
    assert children >= own + 100
