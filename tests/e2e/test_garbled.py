"""A host with a wrapper as its interpreter, which garbles the worker's output: every command ends,
prints a clear line about that host, and serves the other hosts."""

from __future__ import annotations

import pytest

from tests.e2e.programs import SLEEP
from tests.e2e.site import Site, assert_nothing_runs, one_line, until
from tests.lab import Lab
from tests.lab.command import Done

BOUND_S = 90.0
PATH = "/root/python-with-a-mind-of-its-own"
ESCAPE = "\x1b]52;c;Z2FyYmxl\x07\x1b[2J"

# Passes the real interpreter's output on: unchanged up to the banner, then changed as /root/how says.
WRAPPER = r"""#!%(python)s
import json, os, subprocess, sys
ESCAPE = "\x1b]52;c;Z2FyYmxl\x07\x1b[2J"
DROPPED = {"state", "path", "received", "signalled", "ports", "listening"}
how = open("/root/how").read().strip()

def change(value):
    if isinstance(value, dict):
        return {key: change(one) for key, one in value.items() if not (how == "drop" and key in DROPPED)}
    if isinstance(value, list):
        return [change(one) for one in value]
    if how == "types" and not isinstance(value, bool) and isinstance(value, (int, float)):
        return str(value)
    return value

def garbled(frame):
    if how == "escape" and "ok" in frame:
        return {"ok": False, "error": {"kind": "bug", "message": "gone " + ESCAPE, "hint": "[red]" + ESCAPE}}
    return {**change(frame), **{key: frame[key] for key in ("raw", "ok", "hb") if key in frame}}

sys.stderr.write("the wrapper says " + ESCAPE + "\n")
sys.stderr.flush()
child = subprocess.Popen(["%(python)s", *sys.argv[1:]], stdout=subprocess.PIPE)
out = sys.stdout.buffer
begun = False
for line in child.stdout:
    raw = b""
    if begun:
        frame = json.loads(line)
        raw = child.stdout.read(frame.get("raw", 0))
        line = json.dumps(garbled(frame)).encode() + b"\n"
    begun = begun or line.startswith(b"DDPCTL/")
    out.write(line + raw)
    out.flush()
sys.exit(child.wait())
"""


def harmless(done: Done) -> Done:
    """It ended by itself, and nothing of node1 reached the terminal as it was."""
    text = done.stdout + done.stderr
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "Traceback" not in text
    assert "internal error" not in text
    return done


def of_node1(done: Done, rc: int) -> None:
    """One line, and it is about node1 alone."""
    assert harmless(done).rc == rc, done.stderr
    line = one_line(done)
    assert "node1" in line
    assert "garbled" in line or "gone \\x1b]52;" in line
    assert "node0: " not in done.stderr
    assert "node2: " not in done.stderr


MORE = pytest.mark.full(covered_by="tests/e2e/test_garbled.py::test_every_command_serves_the_others")


@pytest.mark.parametrize("ways", [("types", "escape"), pytest.param(("drop",), marks=MORE)], ids="-".join)
def test_every_command_serves_the_others(site: Site, lab: Lab, ways: tuple[str, ...]) -> None:
    # A name that no other run has: node1 cannot say that an older run of the same name has ended.
    job = site.job("-".join(("garbled", *ways)), SLEEP)
    run = site.up(job)["run"]
    site.wait_for_output(job, "(sleeps.*){3}")
    until(lambda: all(node["state"] == "running" for node in site.status(job)["nodes"]), 60, "a node is still starting")
    lab[1].write(PATH, WRAPPER % {"python": site.python}, 0o755)
    site.hosts[1]["python"] = PATH
    for how in ways:
        lab[1].write("/root/how", how)
        started = [site.start("status", job), site.start("ps"), site.start("tail", job)]
        started.append(site.start("fetch", job, f"to-{how}"))
        status, ps, tail, fetch = (one.wait(BOUND_S) for one in started)
        assert harmless(status).rc == 0, status.stderr
        assert status.stdout.count("running") == 3  # the run's own and two of its nodes
        assert "node1: " in status.stdout
        of_node1(ps, 1)
        assert run in ps.stdout
        of_node1(tail, 1)
        assert all(f"rank {rank} sleeps" in tail.stdout for rank in (0, 2))
        of_node1(fetch, 1)
        assert all((site.folder / f"to-{how}" / host / "record" / "run.json").exists() for host in ("node0", "node2"))

    lab[1].write("/root/how", "types")
    started = [site.start("preflight", "--json"), site.start("ps", "--debug")]
    preflight, debug = (one.wait(BOUND_S) for one in started)
    assert harmless(preflight).rc == 3, preflight.stderr
    report = preflight.json()
    errors = [(finding["host"], finding["check"]) for finding in report["findings"] if finding["severity"] == "error"]
    # The findings of the other hosts name the job that runs on them.
    assert errors == [("node1", "host.worker"), ("node0", "job.leftovers"), ("node2", "job.leftovers")]
    assert "torch.import" in {finding["check"] for finding in report["findings"] if finding["severity"] == "ok"}
    assert "\x1b" not in debug.stderr
    assert "node1: status: stderr of the worker: the wrapper says \\x1b]52;" in debug.stderr
    assert " paramiko" in debug.stderr

    kill = site("kill", job, "--json", timeout=BOUND_S)
    of_node1(kill, 1)
    assert [node["reachable"] for node in kill.json()["nodes"]] == [True, False, True]
    assert_nothing_runs([lab[0], lab[2]], within=0)
    site.hosts[1]["python"] = site.python
    assert site("kill", job, timeout=BOUND_S).rc == 0
    assert_nothing_runs(lab, within=0)
