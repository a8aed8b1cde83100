"""From a rank's print to the reader's line, through real processes."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

from ddpctl_worker.verbs.limits import JUDGE_RUN_S
from tests.worker.node import Node, eventually

TIME = "2026-01-02T03:04:05+00:00"


def test_lines_carry_rank_and_stream(node: Node) -> None:
    run = node.start(
        "import os, sys\nprint('out', os.environ['RANK'])\nprint('err', os.environ['RANK'], file=sys.stderr)",
        node.record(ranks=[4, 5], node_rank=2),
    )
    node.wait_state(run)
    found = {(one["rank"], one["stream"], one["text"]) for one in node.lines(run)}
    assert found == {(rank, f"std{kind}", f"{kind} {rank}") for rank in (4, 5) for kind in ("out", "err")}


def test_the_launchers_own_words_have_no_rank(node: Node) -> None:
    run = node.start("raise SystemExit(3)")
    node.wait_state(run)
    assert b"exitcode  : 3" in node.text(run, None, "stderr")


def test_any_bytes_survive(node: Node, tmp_path: Path) -> None:
    rng = random.Random(5)
    data = (
        bytes(rng.randrange(256) for _ in range(200_000))
        + "naïve €😀\r\n10%\r20%\r\n\n\xa0".encode()
        + b"\xff\xfe no end"
    )
    source = tmp_path / "bytes"
    source.write_bytes(data)
    script = f"""
import os, time
data = open({str(source)!r}, "rb").read()
fd = 1 if os.environ["RANK"] == "0" else 2
step = 7919
for at in range(0, len(data), step):
    os.write(fd, data[at:at + step])
    if at % (5 * step) == 0:
        time.sleep(0.03)
"""
    run = node.start(script)
    assert node.wait_state(run)["state"] == "succeeded"
    assert node.text(run, 0, "stdout") == data
    assert node.text(run, 1, "stderr") == data
    files, _ = node.files(run)
    assert files["logs/rank-0.log"] == data


def test_progress_bars_come_as_they_are_drawn(node: Node) -> None:
    script = (
        "import time\nfor i in range(4):\n    print(f'{i}%', end='\\r', flush=True)\n    time.sleep(0.4)\nprint('done')"
    )
    run = node.start(script, node.record(nproc=1, ranks=[0]))
    stream = node.open("tail", run=run, follow=True)
    stream.result()
    assert [(one["text"], one["end"]) for one in stream.lines] == [*((f"{i}%", "\r") for i in range(4)), ("done", "\n")]


def test_a_prompt_without_an_end_is_shown(node: Node) -> None:
    run = node.start(
        "import time; print('Epoch 1: ', end='', flush=True); time.sleep(300)", node.record(nproc=1, ranks=[0])
    )
    found = eventually(lambda: node.lines(run), "the unfinished line")
    assert [(one["text"], one["end"]) for one in found] == [("Epoch 1: ", "")]


def test_fifty_megabytes_from_two_ranks(node: Node) -> None:
    script = """
import os, sys
rank = os.environ["RANK"]
for block in range(250):
    sys.stdout.write("".join("%s %d %s\\n" % (rank, block * 1000 + i, "x" * 88) for i in range(1000)))
"""
    run = node.start(script)
    status = node.wait_state(run, seconds=120)
    assert (status["state"], status["dropped_lines"]) == ("succeeded", 0)
    stream = node.open("tail", run=run)
    stream.result(240)
    seen: dict[int, int] = {0: 0, 1: 0}
    for line in stream.lines:
        rank, number, rest = line["text"].split(" ")
        assert int(rank) == line["rank"]
        assert int(number) == seen[line["rank"]]
        assert len(rest) == 88
        seen[line["rank"]] += 1
    assert seen == {0: 250_000, 1: 250_000}


def test_tail_from_offsets_without_loss_or_doubles(node: Node) -> None:
    """A reader that is cut off again and again, each time going on from the last line it had."""
    script = "import os, time\nfor i in range(3000):\n    os.write(1, b'%d\\n' % i)\n    time.sleep(0.0005)"
    run = node.start(script, node.record(nproc=1, ranks=[0]))
    rng = random.Random(3)
    offset, found = 0, []
    for _ in range(200):
        stream = node.open("tail", run=run, follow=True, offset=offset)
        enough = rng.randrange(1, 200)
        eventually(lambda: len(stream.lines) >= enough or stream.process.poll() is not None, "lines")  # noqa: B023
        over = stream.process.poll() is not None
        if rng.random() < 0.5:
            stream.process.kill()
        stream.hang_up()
        found += [int(one["text"]) for one in stream.lines]
        offset = stream.lines[-1]["offset"] if stream.lines else offset
        if over and "ok" in stream.frames[-1]:
            break
    assert found == list(range(3000))


# A single call for each line: a rank that is held up between two calls would write the line in two parts.
FIFTY_LINES = """
import os
for number in range(50):
    os.write(1, f"{os.environ['RANK']} {number}\\n".encode())
"""


def test_only_some_ranks_and_only_the_last_lines(node: Node) -> None:
    run = node.start(FIFTY_LINES, node.record(nproc=3, ranks=[0, 1, 2]))
    node.wait_state(run)
    assert [one["text"] for one in node.lines(run, ranks=[2], lines=3)] == ["2 47", "2 48", "2 49"]
    assert {one["rank"] for one in node.lines(run, ranks=[0, 1])} == {0, 1}
    assert node.lines(run, lines=0) == []


def test_only_lines_with_a_pattern_and_only_since_a_time(node: Node) -> None:
    run = node.start(FIFTY_LINES)
    node.wait_state(run)
    assert [one["text"] for one in node.lines(run, grep="^1 .*7$")] == ["1 7", "1 17", "1 27", "1 37", "1 47"]
    assert [one["text"] for one in node.lines(run, grep="7$", ranks=[1], lines=2)] == ["1 37", "1 47"]
    assert node.lines(run, grep="nowhere") == []
    assert len(node.lines(run, ago=3600)) == len(node.lines(run, since=0)) == 100
    assert node.lines(run, since=time.time()) == node.lines(run, ago=0) == []
    moment = node.lines(run)[60]["time"]
    later = [one["time"] for one in node.lines(run, since=moment)]
    assert 0 < len(later) <= 100
    assert later[0] >= moment


def test_a_pattern_that_takes_for_ever_is_ended(node: Node) -> None:
    """Nothing stays on the node: neither the search nor its process."""
    run = node.start("print('a' * 60 + 'b')", node.record(nproc=1, ranks=[0]))
    node.wait_state(run)
    stream = node.open("tail", run=run, grep="(a+)+$")
    error = stream.last(60)["error"]
    assert "takes more than 2 s" in error["message"]
    assert error["hint"]
    assert stream.process.returncode == 0
    error = node.open("tail", run=run, grep="(").last()["error"]
    assert "cannot read the pattern" in error["message"]


def test_frames_say_whether_more_is_on_the_way(node: Node) -> None:
    run = node.start("for i in range(20_000):\n    print(i)", node.record(nproc=1, ranks=[0]))
    node.wait_state(run)
    requests: list[dict[str, Any]] = [{}, {"follow": True}, {"follow": True, "grep": "0"}]
    for request in requests:
        stream = node.open("tail", run=run, **request)
        stream.result()
        more = [frame["more"] for frame in stream.frames if "lines" in frame]
        assert more == [True] * (len(more) - 1) + [False]
        assert len(more) > 3
    requests = [{"lines": 0}, {"grep": "nowhere"}]
    for request in requests:
        stream = node.open("tail", run=run, follow=True, **request)
        stream.result()
        assert [frame["more"] for frame in stream.frames if "lines" in frame] == [False]
        assert stream.lines == []


def test_tail_ends_when_its_reader_goes_away(node: Node) -> None:
    run = node.start("import time; time.sleep(300)")
    stream = node.open("tail", run=run, follow=True)
    time.sleep(0.3)
    assert stream.process.poll() is None
    stream.hang_up()  # waits for its end
    assert stream.process.returncode == 0


def test_follow_ends_when_the_supervisor_has_died(node: Node) -> None:
    run = node.start("import time; print('here', flush=True); time.sleep(300)")
    stream = node.open("tail", run=run, follow=True)
    eventually(lambda: len(stream.lines) == 2, "both ranks are there")
    os.kill(node.pid(run, "supervisor"), signal.SIGKILL)
    assert stream.result()["state"] == "lost"
    assert len(stream.lines) == 2


def test_a_run_that_stays_stuck_is_told_once(node: Node) -> None:
    """Its sentence changes all the time: it says for how long the ranks have waited."""
    run = node.start("import time; time.sleep(300)")
    stream = node.open("tail", run=run, follow=True)

    def stuck() -> list[str]:
        return [(frame["stuck"] or {}).get("verdict", "") for frame in stream.frames if "stuck" in frame]

    def diagnose(seconds: int, rank: int, over: str | None = None) -> None:
        words = {"verdict": f"rank {rank}, {seconds} s", "suspects": [{"host": "node0", "rank": rank}], "stuck": True}
        found = {**words, "since": TIME, "time": TIME, "over": over, "missing": [], "groups": []}
        temporary = node.folder(run) / "diagnosis.new"
        temporary.write_text(json.dumps({"schema": 1, "diagnosis": found, "slow": []}))
        temporary.rename(node.folder(run) / "diagnosis.json")

    node.wait_state(run, "running")
    diagnose(30, 1)
    eventually(lambda: stuck() == ["rank 1, 30 s"], "it is said")
    diagnose(60, 1)
    time.sleep(2 * JUDGE_RUN_S)
    diagnose(61, 0)
    eventually(lambda: stuck()[1:] == ["rank 0, 61 s"], "another rank is news")
    diagnose(61, 0, over=TIME)
    eventually(lambda: stuck()[2:] == [""], "it moves again")
    stream.hang_up()


ONE_BY_ONE = """
import os, sys, time
for number in range(30):
    print(number, flush=True)
    while not os.path.exists("%s.%d" % (sys.argv[0], number)):
        time.sleep(0.02)
"""


def test_a_line_arrives_soon(node: Node) -> None:
    """Each line before the next is printed: the rank waits until its last line was read."""
    run = node.start(ONE_BY_ONE, node.record(nproc=1, ranks=[0]))
    stream = node.open("tail", run=run, follow=True)
    for number in range(30):
        eventually(lambda number=number: len(stream.lines) > number, "the line comes")  # type: ignore[misc]
        (node.scratch / f"{run}-{node.host}.py.{number}").touch()
    stream.result()
    assert [line["text"] for line in stream.lines] == [str(number) for number in range(30)]


def test_a_rank_is_never_blocked_by_a_reader_that_stops(node: Node) -> None:
    run = node.start("import time\nfor i in range(200_000):\n    print(i)\n", node.record(nproc=1, ranks=[0]))
    stream = node.open("tail", run=run, follow=True)
    stream.process.send_signal(signal.SIGSTOP)
    try:
        assert node.wait_state(run)["state"] == "succeeded"
    finally:
        stream.process.send_signal(signal.SIGCONT)
    stream.result()
    assert len(stream.lines) == 200_000


def test_a_full_disk_costs_lines_but_neither_the_job_nor_its_record(small_disk: Path, node: Node) -> None:
    assert node.base == small_disk
    script = "import os\nfor i in range(200_000):\n    os.write(1, b'%d %s\\n' % (i, b'x' * 50))\nraise SystemExit(4)"
    run = node.start(script, node.record(nproc=1, ranks=[0]))
    status = node.wait_state(run)
    assert status["state"] == "failed"
    assert status["cause"]["exit_code"] == 4, status["cause"]
    assert status["dropped_lines"] > 100_000
    found = [one["text"] for one in node.lines(run) if one["rank"] == 0]
    assert found[0].startswith("0 ")
    more = 200  # lines of the launcher's own, written or dropped, and lines that came in two parts
    assert 200_000 <= len(found) + status["dropped_lines"] <= 200_000 + more
