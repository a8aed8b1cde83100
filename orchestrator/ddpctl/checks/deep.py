"""The rehearsal (--deep): whether every rank passed every phase, which ranks did not, and over which network."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ddpctl.checks import hca, report
from ddpctl.checks.base import NO_HARDWARE, ON_HOSTS, Check, View
from ddpctl.checks.limits import REHEARSAL_ENDS_S
from ddpctl.spec.finding import Finding
from ddpctl.spec.fold import group_by
from ddpctl.spec.ranges import fold_names
from ddpctl_worker.wire.contract import VICTIM_WORDS

SOCKET = "Socket"
_USING = re.compile(r"Using network (.+)")
_GDR = re.compile(r"GPU Direct RDMA (Enabled|Disabled) for ")
# Errors that ranks report when a rank of another node is missing: an effect, not a cause.
_ECHO = re.compile(VICTIM_WORDS + r"|timed out|timeout|connection reset", re.IGNORECASE)


@dataclass(frozen=True)
class _Rank:
    """How far a rank came in the rehearsal.

    ``report`` is its final report, if it got that far, ``phase`` the last phase that it entered.
    """

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


def _judge_rehearsal(view: View) -> Iterable[Finding]:
    results = view.rehearsal
    if results is None:
        return
    broken = [host for host, answer in results.items() if "error" in answer]
    for host in broken:
        yield report.error(
            host,
            f"the rehearsal could not start: {results[host]['error']}",
            fix=results[host].get("hint"),
            evidence=dict(results[host]),
        )
    ranks = [rank for host, answer in results.items() if host not in broken for rank in _ranks(host, answer)]
    if not broken and ranks and all(rank.ok for rank in ranks):
        yield _fine(ranks, results)
    else:
        yield from _trouble(ranks, results, started=not broken)
    for host, answer in results.items():
        if answer.get("survivors"):
            pids = ", ".join(str(process["pid"]) for process in answer["survivors"])
            yield report.warning(
                host,
                f"processes of the rehearsal could not be killed: {pids}",
                fix="a process that survives SIGKILL is stuck in a driver or file system, and its wait channel says "
                "which; unless that recovers, only a reboot ends it",
                command=f"ps -o pid,stat,wchan:32,args -p {pids.replace(' ', '')}",
            )


def _ranks(host: str, answer: Mapping[str, Any]) -> list[_Rank]:
    found = ((rank, answer.get("ranks", {}).get(str(rank), {})) for rank in answer["expected"])
    return [_Rank(host, rank, seen.get("phase"), seen.get("report")) for rank, seen in found]


def _fine(ranks: Sequence[_Rank], results: Mapping[str, Mapping[str, Any]]) -> Finding:
    reports = [rank.report for rank in ranks if rank.report]
    slowest = min((report["mb_per_s"] for report in reports if report.get("mb_per_s")), default=None)
    speed = f", {slowest:g} MB/s" if slowest else ""
    backend = reports[0].get("backend")
    seconds = max(answer["seconds"] for answer in results.values())
    return report.ok(
        f"all-reduce correct across {len(ranks)} ranks on {len(results)} nodes ({backend}{speed}, {seconds:.0f} s)",
        evidence={"mb_per_s": slowest, "backend": backend, "seconds": seconds},
    )


def _trouble(ranks: Sequence[_Rank], results: Mapping[str, Mapping[str, Any]], *, started: bool) -> Iterable[Finding]:
    """Report the ranks that are a cause, or else the stuck ranks. Ranks that only report a missing peer come last."""
    failed = [rank for rank in ranks if not rank.ok]
    silent = [rank for rank in failed if rank.report is None]
    guilty = [rank for rank in failed if rank.error is not None and not rank.echo]
    given_up = min(
        (float(answer["seconds"]) for answer in results.values() if answer.get("timed_out")), default=math.inf
    )
    dead = [rank for rank in silent if _ended_by_itself(results[rank.host], given_up)]
    absent = [rank for rank in silent if not results[rank.host].get("met")]
    chosen = guilty or dead or (absent or silent or failed if started else [])
    for host in dict.fromkeys(rank.host for rank in chosen):
        own = [rank for rank in chosen if rank.host == host]
        yield _finding(host, own, results[host], [rank for rank in failed if rank not in chosen])


def _place(rank: _Rank, answer: Mapping[str, Any]) -> str:
    """Return where the rank hangs according to the doctor, or an empty text."""
    return str(answer.get("where", {}).get(str(rank.rank), ""))


def _ended_by_itself(answer: Mapping[str, Any], given_up: float) -> bool:
    """Return whether the launcher on this host ended by itself, before any node gave up.

    A launcher that ends within REHEARSAL_ENDS_S of another node's giving up (seconds from the start) has only lost its
    connection.
    """
    return answer.get("exit_code") not in (None, 0) and float(answer["seconds"]) < given_up - REHEARSAL_ENDS_S


def _finding(host: str, ranks: Sequence[_Rank], answer: Mapping[str, Any], waiting: Sequence[_Rank]) -> Finding:
    names = f"rank{'s' if len(ranks) > 1 else ''} {', '.join(str(rank.rank) for rank in ranks)}"
    first = ranks[0]
    where = f"in {first.phase}" if first.phase and first.phase != "import" else "before init_process_group"
    if first.error is not None:
        text = f"{names} failed {where}: {first.error}"
    elif answer.get("timed_out"):
        met = "" if answer.get("met") else ", its launcher never joined the others"
        text = f"{names} stuck {where} after {answer['seconds']:.0f} s{met}"
        text += "".join(f"; rank {rank.rank} is {place}" for rank in ranks[:4] if (place := _place(rank, answer)))
    else:
        last = answer["tail"][-1] if answer.get("tail") else "no output"
        text = f"{names} ended with exit code {answer.get('exit_code')} {where}: {last}"
    if waiting:
        hosts = fold_names(dict.fromkeys(rank.host for rank in waiting))
        text += f"; {len(waiting)} ranks on {hosts} waited for it"
    return report.error(
        host,
        text,
        fix="see the rehearsal's output in the evidence (`ddpctl preflight --deep --json`), or run it as a job: "
        "worker/jobs/init_proc.py",
        evidence={
            "ranks": [rank.rank for rank in ranks],
            "where": dict(answer.get("where") or {}),
            "phases": {str(rank.rank): rank.phase for rank in ranks},
            "exit_code": answer.get("exit_code"),
            "timed_out": answer.get("timed_out"),
            "output": answer.get("tail", [])[-20:],
        },
    )


# --- the network that NCCL took --------------------------------------------------------------------------------------


def _judge_network(view: View) -> Iterable[Finding]:
    lines_of = {host: answer.get("nccl", ()) for host, answer in (view.rehearsal or {}).items() if _by_nccl(answer)}
    used = {host: _networks(lines) for host, lines in lines_of.items()}
    for host in (host for host, names in used.items() if not names):
        yield report.unknown(host, "not checked: NCCL did not say which network it uses")
    kinds = {names for names in used.values() if names}
    if len(kinds) > 1:
        yield _differ(used)
        return
    found = [finding for host, lines in lines_of.items() for finding in _of_host(view, host, used[host], lines)]
    yield from found
    if kinds and not found:
        yield report.ok(f"NCCL uses the network {', '.join(next(iter(kinds)))} on {fold_names(list(used))}")


def _by_nccl(answer: Mapping[str, Any]) -> bool:
    """Return whether a rank on the host got far enough with NCCL to choose a network."""
    reports = [rank.get("report") or {} for rank in answer.get("ranks", {}).values()]
    return any(report.get("ok") and report.get("backend") == "nccl" for report in reports)


def _networks(lines: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted({match.group(1).strip() for line in lines if (match := _USING.search(line))}))


def _differ(used: Mapping[str, tuple[str, ...]]) -> Finding:
    hosts = group_by(lambda host: used[host], (host for host, names in used.items() if names))
    words = "; ".join(f"{', '.join(names)} on {fold_names(own)}" for names, own in hosts.items())
    return report.warning(
        None,
        f"NCCL does not use the same network everywhere: {words}",
        fix="the hosts need the same network plugins and working RDMA devices; NCCL's own lines are in the "
        "evidence (`ddpctl preflight --deep --json`)",
        evidence={"networks": {host: list(names) for host, names in used.items()}},
    )


def _of_host(view: View, host: str, names: tuple[str, ...], lines: Sequence[str]) -> Iterable[Finding]:
    up = hca.active_used_ports(view).get(host, [])
    if names == (SOCKET,) and up:
        why = next((line for line in lines if line.startswith("NET/IB") and "Using" not in line), None)
        yield report.warning(
            host,
            f"NCCL sends over TCP (Using network {SOCKET}) though {up[0]['device']} port {up[0]['port']} is "
            f"active{f': {why}' if why else ''}",
            fix="the job must be able to open /dev/infiniband/uverbs* and to load libibverbs (pass both into a "
            "container), and NCCL_IB_DISABLE and NCCL_NET must not rule it out",
            command="ls -l /dev/infiniband; ldconfig -p | grep -e ibverbs -e mlx5; env | grep ^NCCL_",
            evidence={"nccl": list(lines)},
        )
    direct = {match.group(1) for line in lines if "NET/Socket" not in line and (match := _GDR.search(line))}
    if names and SOCKET not in names and direct == {"Disabled"}:
        yield report.warning(
            host,
            f"NCCL copies through host memory: {next(line for line in lines if _GDR.search(line))}",
            fix="GPU Direct RDMA needs the module nvidia_peermem, or DMA-BUF (Linux 5.12, the open GPU kernel "
            "modules, NCCL 2.12), and a GPU that supports it (not GeForce, not GB10); a distance in the line means "
            "that the GPU and the HCA are too far apart for it",
            command="lsmod | grep -e nvidia_peermem -e nv_peer_mem; nvidia-smi topo -m",
            evidence={"nccl": list(lines)},
        )


REHEARSAL = Check(
    "deep.rehearsal",
    "a rehearsal with every rank (--deep)",
    _judge_rehearsal,
    cause="A fault that no other check sees: with the job's own interpreter, launcher, backend and interfaces the "
    "ranks do not get through init_process_group, an all_reduce of known numbers and a barrier. (Seen with gloo; "
    "never run on GPUs.)",
    symptom="init_process_group hangs or fails; wrong sums",
    fix="The finding names the ranks that are stuck or failed, the phase, and their last output; all other ranks only "
    "waited for them.",
    seen=ON_HOSTS,
)

CHECKS = (
    REHEARSAL,
    Check(
        "deep.network",
        "NCCL uses the network that the hosts have (--deep)",
        _judge_network,
        cause="NCCL silently falls back to TCP where it finds no RDMA device that it can open, and copies through "
        "host memory where GPU Direct RDMA does not work.",
        symptom="NCCL INFO NET/IB : No device found. / Using network Socket; GPU Direct RDMA Disabled for HCA 0; the "
        "job runs, at a fraction of the speed",
        fix="Pass /dev/infiniband and libibverbs into the container; load nvidia_peermem.",
        seen=NO_HARDWARE,
    ),
)
