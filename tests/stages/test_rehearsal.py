"""The rehearsal of two nodes that are folders of this machine; a short program takes the place of the launcher."""

from __future__ import annotations

import socket
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ddpctl.checks.base import Requirements, Target, View
from ddpctl.checks.deep import REHEARSAL
from ddpctl.spec.finding import Severity
from ddpctl.transport.base import Transport
from tests.environment.support import fleet_of, local_inventory

DEADLINES_S = 6.0, 60.0  # the second where a rank of a busy machine starts late
# Connects to the master where it is asked to, and starts one rank as torch's launcher does.
LAUNCHER = """
import os, socket, subprocess, sys
if sys.argv[2] == "joins":
    link = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
os.environ.update(RANK=sys.argv[3], LOCAL_RANK="0", WORLD_SIZE="2")
subprocess.run([os.environ["PYTHON_EXEC"], "rank.py"])
"""
STUCK = """
import os, time
print("rank " + os.environ["RANK"] + ": init_process_group", flush=True)
time.sleep(3600)
"""


@pytest.mark.slow
def test_ranks_that_are_stuck_and_a_launcher_that_never_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker reports where each rank stood and whether its launcher met the master.

    It leaves no process and no file.
    """
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    with socket.create_server(("127.0.0.1", 0)) as master, fleet_of(local_inventory(tmp_path, 2)) as fleet:
        port = master.getsockname()[1]

        def rehearse(transport: Transport, deadline: float) -> Any:
            number = transport.host.removeprefix("n")
            words = [str(port), "stays away" if number == "1" else "joins", number]
            request = {"argv": [sys.executable, "-c", LAUNCHER, *words], "env": {}, "token_env": []}
            script = {"name": "rank.py", "script": STUCK, "port": port, "deadline": deadline}
            return transport.call("rehearse", {**request, **script})

        for deadline in DEADLINES_S:
            outcome = fleet.together(partial(rehearse, deadline=deadline))
            if all(answer["ranks"] for answer in outcome.results.values()):
                break
    assert outcome.ok, outcome.errors
    joined, away = outcome.results.values()
    for number, answer in (("0", joined), ("1", away)):
        assert (answer["exit_code"], answer["timed_out"], answer["survivors"]) == (None, True, [])
        assert answer["ranks"] == {number: {"phase": "init_process_group", "report": None}}
        assert "rank.py:4" in answer["where"][number]
    assert (joined["met"], away["met"]) == (True, False)
    assert list(temporary.iterdir()) == []

    targets = tuple(Target(host, "127.0.0.1", sys.executable, "~") for host in ("n0", "n1"))
    told = {host: {"expected": [int(host[1:])], **answer} for host, answer in outcome.results.items()}
    (found,) = REHEARSAL.judge(View(targets, Requirements(), {}, rehearsal=told))
    assert (found.severity, found.host) == (Severity.ERROR, "n1")
    assert "never joined the others" in found.message
    assert "rank 1 is at rank.py:4" in found.message
