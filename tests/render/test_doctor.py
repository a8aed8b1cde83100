"""The view of ``ddpctl doctor``: the verdict first, then its evidence."""

from __future__ import annotations

import io
from typing import Any

import pytest

from ddpctl.render.console import make_console
from ddpctl.render.doctor import doctor_view
from ddpctl.spec.doctor import DoctorReport
from ddpctl.spec.outcome import Straggler
from ddpctl_worker.rules.verdict import diagnose
from tests.worker.looks import ODD, WAIT, Look, behind, look, recorded, three_wait

SLOW = Straggler("node1", 2, 22.0, 0.94)


def shown(looks: list[Look], *, stacks: bool = False, **more: Any) -> list[str]:
    out = io.StringIO()
    found = diagnose(looks, absent=more.pop("absent", ()))
    consultation = DoctorReport("train", "r1", "running", found, looks, **more)
    make_console(out).print(doctor_view(consultation, stacks=stacks))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def row(lines: list[str], first: str) -> list[str]:
    """Return the words of the table row that begins with the word ``first``."""
    return next(line.split() for line in lines if line.split()[:1] == [first])


def test_the_verdict_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    lines = shown(three_wait(behind(2, cpu=1.0, rss_mb=12.4, output_age_s=70.0)))
    assert lines[:3] == ["train  running  run r1", WAIT + ODD, ""]
    assert row(lines, "RANKS") == ["RANKS", "WHERE"]
    assert row(lines, "0-1,") == ["0-1,", "3", "broadcast", "#6", "(train.py:88", "in", "step)"]
    assert row(lines, "2")[-2:] == ["in", "blocked_read"]
    assert "rank 2 on node1, pid 1002: sleeping, 1 % of a core" in lines


def test_a_row_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    lines = shown(three_wait(behind(2, cpu=1.0, rss_mb=12.4, output_age_s=70.0)))
    table = lines[lines.index(next(line for line in lines if line.startswith("RANK "))) :]
    assert table[0].split() == ["RANK", "HOST", "PID", "STATE", "CPU", "RSS", "OUTPUT", "COLLECTIVE"]
    assert [line.split()[0] for line in table[1:5]] == ["0", "1", "2", "3"]
    wanted = ["2", "node1", "1002", "sleeping", "1%", "12", "MB", "70s", "ago", "all_reduce", "#5", "done"]
    assert table[3].split() == wanted
    assert table[1].split()[4:] == ["0%", "-", "-", "broadcast", "#6", "waiting"]


def test_stacks_only_when_asked_for() -> None:
    looks = three_wait(behind(2))
    assert not [line for line in shown(looks) if line.startswith("rank 0 on")]
    lines = shown([*looks, look(4, stack=None)], stacks=True)
    at = lines.index("rank 0 on node0:")
    assert lines[at + 1].startswith("    /venv/lib/")
    assert lines[at + 2] == "  * /job/code/train.py:88 in step"
    assert lines[lines.index("rank 4 on node2:") + 1] == "    no stack"


def test_what_is_slow_and_what_is_not_known() -> None:
    lines = shown([look(0, missing=["no stack: x"])], slow=(SLOW,), absent=["node9"])
    assert "slow: rank 2 on node1 is the last one in 94 % of the steps, 22.0 ms after the others" in lines
    assert lines[-2:] == ["not known: node9 did not answer", "not known: rank 0: no stack: x"]


def test_without_looks_there_are_no_tables() -> None:
    assert shown([]) == ["train  running  run r1", "no rank was seen"]


def test_what_a_node_says_is_no_markup_and_steers_no_terminal() -> None:
    odd = behind(2, state="\x1b[2J", waits_in="[red]x\x07", stack=[["[bold]\x1b.py", 1, "f\n\udcff"]])
    text = "\n".join(shown(three_wait(odd), stacks=True))
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "[red]x" in text


@pytest.mark.parametrize("name", ["asleep", "loader", "skipped", "receive_cycle", "subgroup"])
def test_real_jobs(name: str) -> None:
    lines = shown(recorded(name), stacks=True)
    assert sum(line.startswith("rank ") and line.endswith(":") for line in lines) == 3
