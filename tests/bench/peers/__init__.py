"""ddpctl beside what a user would take otherwise: the same faults, on the same hosts, in the same run.

DDPCTL_PEERS names some of the tools and faults: `DDPCTL_PEERS="deepspeed power cable" make bench ARGS=peers`.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from tests.bench.peers.case import COST_S, FAULTS, LIMIT_S, Fault, Outcome, load, start, strike
from tests.bench.peers.tools import TOOLS, Tool, Unavailable
from tests.bench.report import Row, spread

ROUNDS = 3
START = "start"
Named = TypeVar("Named", Tool, Fault)


def all_of(folder: Path) -> Sequence[Row]:
    # A shell that starts us in the background has us ignore Ctrl-C, and with us all that we start, hosts included.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rows = []
    for row in _rows(folder):
        print(row, file=sys.stderr, flush=True)  # the whole takes 40 minutes
        rows.append(row)
    return rows


def _rows(folder: Path) -> Iterator[Row]:
    wanted = os.environ.get("DDPCTL_PEERS", "").split()
    every = [START, *(fault.key for fault in FAULTS), *(tool.key for tool in TOOLS)]
    if unknown := set(wanted) - set(every):
        raise SystemExit(f"DDPCTL_PEERS: no {', '.join(unknown)}; there are: {' '.join(every)}")
    tools, faults = _chosen(TOOLS, wanted), _chosen(FAULTS, wanted)
    only_start = START in wanted and len(faults) == len(FAULTS)
    programs: dict[str, Sequence[Path]] = {}
    for tool in tools:
        try:
            programs[tool.key] = tool.programs()
        except Unavailable as error:
            yield Row(tool.title, "not run", "", note=str(error))
    for fault in [] if only_start else faults:
        for tool in tools:
            if tool.key in programs:
                yield _row(tool, programs[tool.key], fault, folder / f"{fault.key}-{tool.key}")
    for tool in tools:
        if tool.key in programs and (START in wanted or len(faults) == len(FAULTS)):
            yield from _start(tool, programs[tool.key], folder / f"start-{tool.key}")


def _chosen(all_of_them: Sequence[Named], wanted: Sequence[str]) -> Sequence[Named]:
    """Those named; where none is, all."""
    return [one for one in all_of_them if one.key in wanted] or all_of_them


def _row(tool: Tool, programs: Sequence[Path], fault: Fault, folder: Path) -> Row:
    name = f"{fault.what}: {tool.title}"
    try:
        outcome = strike(tool, programs, fault, folder)
    except Unavailable as error:
        return Row(name, "not measured", "", note=str(error))
    if outcome.line:
        print(f"  {outcome.line[:300]}", file=sys.stderr)
    value = f">{LIMIT_S:.0f}" if outcome.gone_s is None else outcome.gone_s
    return Row(name, value, "s", note=f"{_note(fault, outcome)}; load {load()}")


def _note(fault: Fault, outcome: Outcome) -> str:
    parts = [f"{outcome.left} processes left"]
    if not fault.hits_command and outcome.ended_s is None:
        parts.append("the command hangs")
    elif not fault.hits_command:
        parts.append(f"exit code {outcome.code} after {outcome.ended_s:.1f} s")
    if fault.key in ("raise", "kill-rank", "kill-launcher", "power", "cable"):
        parts.append(f"a line names {', '.join(outcome.named) or 'nothing of it'}")
    return "; ".join([*parts, *filter(None, [outcome.further])])


def _start(tool: Tool, programs: Sequence[Path], folder: Path) -> Iterator[Row]:
    folder.mkdir()
    try:
        seconds, cost = start(tool, programs, folder, ROUNDS)
    except Unavailable as error:
        yield Row(f"first all-reduce: {tool.title}", "not measured", "", note=str(error))
        return
    note = f"one after the other on the same hosts, first {seconds[0]:.1f} s; {spread(seconds)} s; load {load()}"
    yield Row(f"first all-reduce: {tool.title}", statistics.median(seconds), "s", note=note)
    note = f"for a start and {COST_S:.0f} s, with all that the command starts here"
    yield Row(f"controller CPU: {tool.title}", cost.cpu_s, "s", note=note)
    yield Row(
        f"controller memory: {tool.title}", cost.peak_mb, "MB", note="peak of the proportional set size; the same"
    )
