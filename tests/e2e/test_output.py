"""The output of processes comes out unchanged: every byte, nothing interpreted, in text, in JSON and on disk."""

from __future__ import annotations

import hashlib
import json
import re
import time
from datetime import datetime

from ddpctl.cli.output import parse_ranks
from ddpctl.spec.limits import FOLD_S
from tests.e2e.programs import SLEEP
from tests.e2e.site import Site, assert_nothing_runs, json_lines, one_line, until, wait_for_ranks
from tests.lab import Lab

ODD = """\
import os, sys, time
out = sys.stdout.buffer
if os.environ["RANK"] == "0":
    out.write(b"[/red][bold]not markup[/bold] :smile: \\\\[x]\\n")
    out.write(b"broken \\xff\\xfe utf-8 \\xc3\\x28 and \\xe2\\x82 cut\\n")
    out.write("ünï 日本 🎲\\n".encode())
    out.write(b"\\x1b[31mred\\x1b[0m \\x07 bell\\n")
    out.write(b"tab\\there\\n\\n   \\nempty lines above\\n")
    out.write(b"windows\\r\\n")
    out.write(b'{"json": "looking", "ok": true}\\n')
    for percent in range(0, 101, 10):
        out.write(b"\\rprogress %d%%" % percent)
        out.flush()
        time.sleep(0.02)
    out.write(b"\\n")
    out.write(b"no newline at the end")
    out.flush()
    sys.stderr.write("to stderr\\n")
else:
    out.write(b"quiet\\n")
"""
MUCH = """\
import hashlib, os, sys
rank, digest, size, number = os.environ["RANK"], hashlib.sha256(), 0, 0
while size < int(sys.argv[1]):
    line = f"{rank} {number} ".encode() + bytes(33 + (number * 7 + i * 13) % 90 for i in range(number % 2000)) + b"\\n"
    sys.stdout.buffer.write(line)
    digest.update(line)
    size, number = size + len(line), number + 1
sys.stdout.buffer.flush()
print("digest", digest.hexdigest(), size, flush=True)
"""
COLOUR = re.compile(r"\x1b\[(?:\d+;)*[349][0-8][;m]")
MINE = re.compile(r"^node0:0 \| ?(.*)$", re.MULTILINE)


def test_odd_output(site: Site, lab: Lab) -> None:
    site.only(0, 1)
    job = site.job("odd", ODD, env={"GREETING": "ünï 日本"})
    up = site.start("up", "--job", job)
    done = up.wait()
    assert done.rc == 0, done.stderr
    raw = (up.folder / "stdout").read_bytes()
    for want in (
        rb"[/red][bold]not markup[/bold] :smile: \[x]",
        b"broken \xff\xfe utf-8 \xc3\x28 and \xe2\x82 cut",
        "ünï 日本 🎲".encode(),
        b"\x1b[31mred\x1b[0m \x07 bell",
        b"tab\there",
        b"windows\r",
        b'{"json": "looking", "ok": true}',
        b"progress 100%",
        b"no newline at the end",
        b"to stderr",
    ):
        assert b"node0:0 | " + want + b"\n" in raw, want
    lines = json_lines(site("tail", job, "--json").ok().stdout)
    assert all(set(line) == {"host", "rank", "stream", "time", "text"} for line in lines)
    mine = [line for line in lines if line["rank"] == 0]
    assert [line["text"] for line in mine if line["text"].startswith("to stderr")] == ["to stderr"]
    assert {line["stream"] for line in mine if line["text"] == "to stderr"} == {"stderr"}
    text = [line["text"] for line in mine if line["stream"] == "stdout"]
    assert r"[/red][bold]not markup[/bold] :smile: \[x]" in text
    assert [one for one in text if one.startswith("progress")][-1] == "progress 100%"
    assert len([one for one in text if one.startswith("progress")]) == 11  # every update is in the log
    assert "ünï 日本 🎲" in text
    site("fetch", job, "results").ok()
    log = (site.folder / "results/node0/logs/rank-0.log").read_bytes()
    assert b"broken \xff\xfe utf-8 \xc3\x28 and \xe2\x82 cut\n" in log
    assert b"\rprogress 90%\rprogress 100%\n" in log
    assert log.count(b"no newline at the end") == 1

    plain = site("status", job, env={"NO_COLOR": "1"}, terminal=True)
    assert plain.rc == 0
    assert not COLOUR.search(plain.stdout)
    lively = site("status", job, terminal=True)
    assert COLOUR.search(lively.stdout)


def test_megabytes_arrive_whole(site: Site, lab: Lab) -> None:
    """From two hosts at once, in the order in which each wrote."""
    site.only(0, 1)
    job = site.job("much", MUCH, str(6 << 20), env={"OMP_NUM_THREADS": "1"})
    up = site.start("up", "--job", job)
    assert up.wait(200).rc == 0, up.stderr[-3000:]
    raw = (up.folder / "stdout").read_bytes()
    for rank in (0, 1):
        prefix = b"node%d:%d | " % (rank, rank)
        mine = [line.removeprefix(prefix) for line in raw.split(b"\n") if line.startswith(prefix)]
        last = next(line for line in mine if line.startswith(b"digest "))
        body = b"".join(line + b"\n" for line in mine if line.startswith(b"%d " % rank))
        assert (hashlib.sha256(body).hexdigest(), len(body)) == (last.split()[1].decode(), int(last.split()[2]))
    few = site("tail", job, "-n", "3").ok().stdout.splitlines()
    assert len(few) == 3  # of all hosts together


MEET = """\
import os, time
def read_time():
    try:
        return float(open("/root/go").read() or "inf")
    except OSError:
        return float("inf")
while time.time() < read_time():
    time.sleep(0.02)
print("ready", flush=True)
"""


def test_tail_in_every_way(site: Site, lab: Lab) -> None:
    # All ranks print at the same time: equal lines are folded if at most a second lies between them.
    count = MEET + "for n in range(50): print('line', os.environ['RANK'], n, flush=True)\n" + SLEEP
    job = site.job("tailed", count)
    run = site.up(job)
    wait_for_ranks(lab, run["run"])
    live = site.start("tail", job, "-f", "--timestamps", "--grep", "ready|sleeps")
    soon = time.time() + 5
    for host in lab:
        host.write("/root/go", str(soon))
    tail = site.start("tail", job, "-f", "--json", "--rank", "0,2")
    until(lambda: tail.stdout.count("sleeps") == 2, 30, lambda: tail.stdout + tail.stderr)
    assert [line["text"] for line in json_lines(tail.stdout) if line["rank"] == 2][:51] == [
        "ready",
        *(f"line 2 {number}" for number in range(50)),
    ]
    assert {line["host"] for line in json_lines(tail.stdout) if line["rank"] is not None} == {"node0", "node2"}
    last = site("tail", job, "--host", "node[1-2]", "--lines", "60").ok().stdout.splitlines()
    assert len(last) == 60
    assert {"node1:1 | line 1 49", "node1:1 | rank 1 sleeps", "node2:2 | rank 2 sleeps"} <= set(last)
    assert not any(line.startswith("node0") for line in last)
    assert len(site("tail", job).ok().stdout.splitlines()) == 50
    ready = json_lines(site("tail", job, "--grep", "ready", "--json").ok().stdout)
    written = [datetime.fromisoformat(line["time"].replace("Z", "+00:00")).timestamp() for line in ready]
    if max(written) - min(written) < FOLD_S:  # on a busy machine a rank may come later
        assert site("tail", job, "--grep", "ready").ok().stdout == "node[0-2]:0-2 | ready\n"
    apart = site("tail", job, "--grep", "ready", "--no-fold", "--timestamps").ok().stdout.splitlines()
    assert sorted(line.split(" ", 1)[1] for line in apart) == [f"node{rank}:{rank} | ready" for rank in range(3)]
    times = [line.split(" ", 1)[0] for line in apart]
    assert times == sorted(times)
    until(lambda: live.stdout.count("sleeps") == 3, 30, lambda: live.stdout + live.stderr)
    shown = re.findall(r"^\S+ node\S*:(\S+) [|] ready$", live.stdout, re.MULTILINE)
    assert sorted(rank for ranks in shown for rank in parse_ranks(ranks)) == [0, 1, 2]
    nothing = site("tail", job, "--lines", "0").ok()
    assert nothing.stdout == ""
    for wrong in (["--rank", "9"], ["--host", "node7"]):
        done = site("tail", job, *wrong)
        assert done.rc == 2, done.stderr
        assert done.stdout == ""
    site("kill", job).ok()
    assert tail.wait(20).rc == live.wait(20).rc == 0  # they end with the run
    for host in lab:
        host.run("rm /root/go")
    assert_nothing_runs(lab)


def test_documents_on_stdout_and_everything_else_on_stderr(site: Site, lab: Lab) -> None:
    """A single JSON document whatever the job prints, and the exit codes for wrong arguments."""
    site.only(0, 1)
    job = site.job("quick", "print('not json')\n")
    done = site("up", "--job", job, "--json").ok()
    document = done.json()
    assert document["state"] == "succeeded"
    assert "not json" in done.stderr
    keys = {"schema", "job", "run", "cluster", "state", "started", "ended", "world_size", "nodes", "cause"}
    assert keys <= set(document)
    node = {"host", "node_rank", "state", "pid", "ranks", "exit_code", "heartbeat_age_s", "attempt"}
    assert all(node <= set(one) for one in document["nodes"])
    detached = site("up", "--job", job, "-d", "--json").ok().json()
    assert keys <= set(detached)
    assert detached["state"] in ("starting", "running", "succeeded")
    assert all(isinstance(one["pid"], int) for one in detached["nodes"])
    site.wait_for_state(job, "succeeded")

    site.job("second", SLEEP)
    several = site("up")
    assert several.rc == 2
    assert "--job" in one_line(several)
    assert "quick" in one_line(several)
    assert "second" in one_line(several)
    assert site("up", "--job", "quik").rc == 2
    assert site("no-such-command").rc == 2
    assert site("up", "--no-such-option").rc == 2
    broken = site.folder / "broken.yaml"
    broken.write_text("cluster: lab\nhosts:\n  - name: node0\n    adress: 10.0.0.1\n")
    done = site("ps", str(broken), inventory=None)
    assert done.rc == 2
    assert re.fullmatch(rf"{re.escape(str(broken))}:4:5: .*adress.*address.*", one_line(done)), done.stderr
    assert json.loads(site("up", "--job", job, "--dry-run", "--json").ok().stdout)["schema"] == 1
    assert job in site("ps", inventory=None, cwd=site.home).ok().stdout  # the inventory that runs were started with
    empty = site("push", inventory=None, cwd=site.home)
    assert empty.rc == 2
