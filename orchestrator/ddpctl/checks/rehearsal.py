"""The rehearsal's verdict: did every rank get through every phase, and if not, which ones stand where?"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddpctl.checks import nccl_log
from ddpctl.checks.base import Check, Doc, Question, Target, View, Want
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.ranges import fold
from ddpctl_worker.contract import VICTIM_WORDS

CHECK = "deep.rehearsal"
AT_ONCE_S = 3.0  # the nodes begin and end within so much of each other
# What the ranks of the other nodes say when one of them is missing: no cause, but its echo.
_ECHO = re.compile(VICTIM_WORDS + r"|timed out|timeout|connection reset", re.IGNORECASE)


@dataclass(frozen=True)
class _Rank:
    """Where a rank ended up: ``report`` is its last word (None: it never got to one), ``phase`` the last it entered."""

    host: str
    rank: int
    phase: str | None
    report: Mapping[str, Any] | None

    @property
    def ok(self) -> bool:
        return bool(self.report and self.report.get("ok"))

    @property
    def error(self) -> str | None:
        return str(self.report["error"]) if self.report and self.report.get("error") else None

    @property
    def echo(self) -> bool:
        return self.error is not None and bool(_ECHO.search(self.error))


def _ask(target: Target, want: Want) -> Iterable[Question]:
    return ()


def _judge(view: View) -> Iterable[Finding]:
    told = view.rehearsal
    if told is None:
        return
    broken = [host for host, answer in told.items() if "error" in answer]
    for host in broken:
        yield Finding(
            CHECK,
            Severity.ERROR,
            f"the rehearsal could not start: {told[host]['error']}",
            host,
            fix=told[host].get("hint"),
            evidence=dict(told[host]),
        )
    ranks = [rank for host, answer in told.items() if host not in broken for rank in _ranks(host, answer)]
    if not broken and ranks and all(rank.ok for rank in ranks):
        yield _fine(ranks, told)
    else:
        yield from _trouble(ranks, told, blame=not broken)
    for host, answer in told.items():
        if answer.get("survivors"):
            pids = ", ".join(str(one["pid"]) for one in answer["survivors"])
            yield Finding(
                CHECK,
                Severity.WARNING,
                f"processes of the rehearsal could not be killed: {pids}",
                host,
                fix="a process that ignores SIGKILL hangs in its driver or file system: its wait channel says where; "
                "only a reboot ends it if that does not come back",
                command=f"ps -o pid,stat,wchan:32,args -p {pids.replace(' ', '')}",
            )


def _ranks(host: str, answer: Mapping[str, Any]) -> list[_Rank]:
    found = answer.get("ranks", {})
    return [
        _Rank(host, rank, found.get(str(rank), {}).get("phase"), found.get(str(rank), {}).get("report"))
        for rank in answer["expected"]
    ]


def _fine(ranks: Sequence[_Rank], told: Mapping[str, Mapping[str, Any]]) -> Finding:
    reports = [rank.report for rank in ranks if rank.report]
    slowest = min((report["mb_per_s"] for report in reports if report.get("mb_per_s")), default=None)
    speed = f", {slowest:g} MB/s" if slowest else ""
    backend = reports[0].get("backend")
    seconds = max(answer["seconds"] for answer in told.values())
    return Finding(
        CHECK,
        Severity.OK,
        f"all-reduce correct across {len(ranks)} ranks on {len(told)} nodes ({backend}{speed}, {seconds:.0f} s)",
        evidence={"mb_per_s": slowest, "backend": backend, "seconds": seconds},
    )


def _trouble(ranks: Sequence[_Rank], told: Mapping[str, Mapping[str, Any]], *, blame: bool) -> Iterable[Finding]:
    """Causes if there are any; otherwise the stuck ranks. Ranks that only report the others' absence come last."""
    failed = [rank for rank in ranks if not rank.ok]
    silent = [rank for rank in failed if rank.report is None]
    guilty = [rank for rank in failed if rank.error is not None and not rank.echo]
    given_up = min((float(answer["seconds"]) for answer in told.values() if answer.get("timed_out")), default=math.inf)
    dead = [rank for rank in silent if _ended_by_itself(told[rank.host], given_up)]
    absent = [rank for rank in silent if not told[rank.host].get("met")]
    chosen = guilty or dead or (absent or silent or failed if blame else [])
    for host in dict.fromkeys(rank.host for rank in chosen):
        own = [rank for rank in chosen if rank.host == host]
        yield _finding(host, own, told[host], [rank for rank in failed if rank not in chosen])


def _ended_by_itself(answer: Mapping[str, Any], given_up: float) -> bool:
    """A launcher that ends about when another node gives up (seconds from the start) has only lost its connection."""
    return answer.get("exit_code") not in (None, 0) and float(answer["seconds"]) < given_up - AT_ONCE_S


def _finding(host: str, ranks: Sequence[_Rank], answer: Mapping[str, Any], waiting: Sequence[_Rank]) -> Finding:
    names = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(str(rank.rank) for rank in ranks)}"
    first = ranks[0]
    where = f"in {first.phase}" if first.phase and first.phase != "import" else "before init_process_group"
    if first.error is not None:
        text = f"{names} failed {where}: {first.error}"
    elif answer.get("timed_out"):
        met = "" if answer.get("met") else ", its launcher never met the others"
        text = f"{names} stuck {where} after {answer['seconds']:.0f} s{met}"
    else:
        last = answer["tail"][-1] if answer.get("tail") else "no output"
        text = f"{names} ended with exit code {answer.get('exit_code')} {where}: {last}"
    if waiting:
        hosts = fold(dict.fromkeys(rank.host for rank in waiting))
        text += f"; {len(waiting)} ranks on {hosts} waited for it"
    return Finding(
        CHECK,
        Severity.ERROR,
        text,
        host,
        fix="see the rehearsal's output in the evidence (`ddpctl preflight --deep --json`), or run it as a job: "
        "worker/jobs/init_proc.py",
        evidence={
            "ranks": [rank.rank for rank in ranks],
            "phases": {str(rank.rank): rank.phase for rank in ranks},
            "exit_code": answer.get("exit_code"),
            "timed_out": answer.get("timed_out"),
            "output": answer.get("tail", [])[-20:],
        },
    )


REHEARSAL = Check(
    CHECK,
    "a rehearsal with every rank (--deep)",
    _ask,
    _judge,
    Doc(
        cause="Whatever no single check knows: the job's own interpreter, launcher, backend and interfaces, on all "
        "ranks at once, do not get through init_process_group, an all_reduce of known numbers and a barrier.",
        symptom="init_process_group hangs or fails; wrong sums",
        fix="The finding names the ranks that are stuck or failed, the phase, and their last words; the other ranks "
        "only waited for them.",
        verified="lab (gloo); never on GPUs",
    ),
)

CHECKS = (REHEARSAL, nccl_log.NETWORK)
