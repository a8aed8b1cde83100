"""Which of cause, host and rank a line names. The lines are what the tools said."""

from __future__ import annotations

import pytest

from tests.bench.peers.said import best_line, names

HOST = ("node1", "10.64.4.12")


@pytest.mark.parametrize(
    ("fault", "line", "named"),
    [
        ("raise", "node1:3 | [rank3]: RuntimeError: the loss is not a number", "cause host rank"),
        ("raise", "[rank3]: RuntimeError: the loss is not a number", "cause rank"),
        ("raise", "node0: [rank1]: RuntimeError: Connection closed by peer [10.64.4.12]:51599", ""),
        ("kill-rank", "node1:   traceback : Signal 9 (SIGKILL) received by PID 113", "cause host"),
        ("kill-rank", "node1: failed (exitcode: -9) local_rank: 3 (pid: 113) of binary: python", "cause host"),
        ("kill-rank", "node1: [INFO] [launch.py:253:sigkill_handler] Killing subprocess 36", ""),
        ("kill-rank", "node11: exited with code -9, rank 31", "cause"),
        ("kill-rank", "node1:   traceback : Signal 15 (SIGTERM) received by PID 112", ""),
        ("kill-rank", "time: 2026-11-24_23:24:53-9-x rank 3 on 10.64.4.121 lasted 19-9", ""),
        ("kill-launcher", "error: train failed: node1: the launcher was killed by SIGKILL", "cause host"),
        ("kill-launcher", "node1: ssh exited with exit code 137", ""),
        ("power", "error: train failed: node1: no contact for 12 s", "cause host"),
        ("ctrl-c", "node1: rank 3 was killed", ""),
    ],
)
def test_what_a_line_names(fault: str, line: str, named: str) -> None:
    assert names(line, fault, HOST, 3) == named.split()


def test_the_line_that_names_most() -> None:
    less, more = (
        "[rank3]: RuntimeError: the loss is not a number",
        "\x1b[31mnode1\x1b[0m rank 3: the loss is not a number",
    )
    text = f"step 3\n{less}\n{more}\nstep 4\n"
    line, named = best_line(text, "raise", HOST, 3)
    assert line == "node1 rank 3: the loss is not a number"
    assert named == ["cause", "host", "rank"]


def test_no_line() -> None:
    assert best_line("step 1\nstep 2\n", "power", HOST, 3) == ("", [])
