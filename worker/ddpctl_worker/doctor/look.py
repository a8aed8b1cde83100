"""Looks at every rank of this node at the same time. Each rank has a thread and a deadline of its own.

A look at a rank is a dictionary, which ``rules/verdict.py`` reads:

    rank, local_rank, pid        the rank's identity
    state                        running, sleeping, blocked, stopped, traced, ended; unknown if nothing was seen
    cpu, below                   percent of a core in the last second: of the rank, and of all its descendants
    wants_cpu                    whether the rank or a descendant was ready to run most of the time
    bytes                        read and written in that second by the rank and its descendants
    rss_mb, swap_mb, waits_in, sleep_s        see process.py
    polls                        whether the rank sleeps again and again on the same line, as a polling loop does
    gpu, gpu_mb                  percent of the GPU's time, and memory of the rank there; see facts/gpu.py
    stack, gil, threads, children             Python stacks; a child also has state, sleep_s, still and polls
    unseen                       the number of child processes that could not be looked at
    still, spins                 every sample shows the same line; every sample shows the same function with the GIL
    peers                        the other ranks of a send or receive
    unanswered                   connections whose data is not acknowledged; see unanswered.py
    groups                       the last collectives (rules/flight.py)
    dumped                       whether ``groups`` is from torch's own dump, written before the rank ended
    moved                        whether the rank entered or left a collective in that second, by record or stack
    now                          Unix time of this machine at the end of the look
    missing                      facts that could not be had, and why

A look without an interval (0), at a rank that is about to be stopped, has no cpu, below, bytes, still or children.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple

from ddpctl_worker.doctor import process, server, stacks
from ddpctl_worker.doctor.limits import (
    CHILD_FRAMES,
    LAST_RECORD_S,
    LOOK_DEADLINE_S,
    LOOK_S,
    MOST_CHILDREN,
    MOST_THREADS,
    MOST_WAITED_FOR,
    SAMPLES,
    SERVER_S,
    THREAD_FRAMES,
)
from ddpctl_worker.doctor.stacks import Stacks
from ddpctl_worker.doctor.unanswered import find_unanswered
from ddpctl_worker.facts import gpu
from ddpctl_worker.machine import proc
from ddpctl_worker.rules import flight, frames
from ddpctl_worker.rules.limits import BUSY_BYTES, BUSY_CPU

NO_RECORD = "no record of its collectives"
HELD = ("stopped", "traced")  # a process in these states answers nothing
TICKS = os.sysconf("SC_CLK_TCK")


# Monotonic time of a sample, and seconds until the sleep ends; no seconds if the process was awake.
Sleep = Tuple[float, Optional[float]]


class Subject(NamedTuple):
    """A rank to look at."""

    rank: int
    local_rank: int
    pid: int


class Tools(NamedTuple):
    """The folder with the rank's server and stack file, the py-spy program of this host, and the allowed means.

    ``asked``: a person asks, so a rank without another way to its stack may get the signal. ``stuck``: the run is known
    to be stuck, so an idle rank may get the signal as well. ``nccl``: ask for NCCL's record too, see
    ``record_of_nccl``.
    """

    folder: str
    py_spy: Optional[str]
    asked: bool = False
    stuck: bool = False
    nccl: bool = False
    no_py_spy: str = "py-spy is not on this host"


class Looks:
    """Looks at several ranks at once. The results so far can be read at any time."""

    def __init__(self, subjects: Sequence[Subject], tools: Tools, interval: float) -> None:
        self._each = [_Looking(subject, tools, interval) for subject in subjects]
        self._use: Dict[int, gpu.Use] = {}
        self._unanswered: Dict[int, List[List[Any]]] = {}
        self._pids = [subject.pid for subject in subjects]
        self._interval = interval

    def run(self, seconds: float) -> None:
        """Run the looks for at most ``seconds``."""
        begun = time.monotonic()
        threads: List[threading.Thread] = list(self._each)
        if self._interval:
            threads.append(threading.Thread(target=lambda: self._use.update(gpu.by_pid()), name="gpu", daemon=True))
        threads.append(threading.Thread(target=self._look_at_connections, name="connections", daemon=True))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, begun + seconds - time.monotonic()))

    def results(self) -> List[Dict[str, Any]]:
        use, unanswered = dict(self._use), dict(self._unanswered)
        found = [each.to_json() for each in self._each]
        for one in found:
            pid = int(one["pid"])
            one.update(_on_gpu(use.get(pid)), **({"unanswered": unanswered[pid]} if pid in unanswered else {}))
        return found

    def _look_at_connections(self) -> None:
        self._unanswered.update(find_unanswered(self._pids))


def look(subjects: Sequence[Subject], tools: Tools, interval: float = LOOK_S) -> List[Dict[str, Any]]:
    """Look at all ranks at once, for ``interval`` seconds, and LOOK_DEADLINE_S more if a rank does not answer."""
    looks = Looks(subjects, tools, interval)
    looks.run(interval + LOOK_DEADLINE_S)
    return looks.results()


def _on_gpu(use: Optional[gpu.Use]) -> Dict[str, Any]:
    return {} if use is None else {"gpu": use.percent, "gpu_mb": use.memory_mb}


def record_of(folder: str, pid: int, seconds: float = SERVER_S) -> Optional[List[flight.Entry]]:
    """Return a rank's last collectives, or ``None`` if it has no server or does not answer."""
    answer = server.ask(folder, pid, "fr_trace_json", seconds)
    return None if answer is None else flight.entries(answer)


def record_of_nccl(folder: str, pid: int) -> Optional[List[flight.Entry]]:
    """Return the last collectives of NCCL, or ``None``.

    Only for a rank that does not move, when a person asks: the server queries CUDA events under a lock, which can break
    a CUDA graph that is being captured.
    """
    answer = server.ask(folder, pid, "dump_nccl_trace_json?onlyactive=false")
    found = None if answer is None else flight.entries(answer)
    return None if found is None else flight.parse_nccl_dump(found)


class _Looking(threading.Thread):
    """The look at one rank. Its results so far can be read before it ends."""

    def __init__(self, subject: Subject, tools: Tools, interval: float) -> None:
        super().__init__(name="look-%d" % subject.rank, daemon=True)
        self._subject, self._tools, self._interval = subject, tools, interval
        self._known: Dict[str, Any] = dict(subject._asdict(), state="unknown", missing=[])
        self._missing: List[str] = []
        self._sleeps: List[Sleep] = []
        self.over = False

    def to_json(self) -> Dict[str, Any]:
        """Return the results so far."""
        late = [] if self.over else ["the look at it was not over in time"]
        return dict(self._known, missing=self._missing + late)

    def run(self) -> None:
        try:
            if self._interval:
                self._follow()
            else:
                self._see()
        except Exception as error:
            self._missing.append("the look at it failed: %r" % error)
        self.over = True

    def _see(self) -> None:
        """Look at a rank that is about to be stopped: the quickest answers first, no measurements over time."""
        pid = self._subject.pid
        vital = process.look_at_process(pid)
        if vital is None or vital.state == "ended":
            self._known["state"] = "ended"
            return
        self._keep(vital)
        self._known["now"] = time.time()
        stopped = vital.state in HELD
        self._keep_record(None, None if stopped else record_of(self._tools.folder, pid, LAST_RECORD_S), stopped)
        self._keep_stacks([self._by_py_spy(pid)])

    def _follow(self) -> None:
        pid = self._subject.pid
        begun = time.monotonic()
        before, work_before = process.look_at_process(pid), process.work_of(process.find_descendants(pid))
        if before is None or before.state == "ended":
            self._known["state"] = "ended"
            return
        self._keep(before)
        stopped = before.state in HELD
        record_before = None if stopped else record_of(self._tools.folder, pid)
        self._sleeps = [(begun, before.sleep_s)]
        samples = self._sample(begun)
        after, work_after = process.look_at_process(pid), process.work_of(process.find_descendants(pid))
        seconds = time.monotonic() - begun
        if after is None:
            self._known["state"] = "ended"
            return
        self._keep(after)
        self._keep_work(before.work, after.work, work_before, work_after, seconds)
        self._keep_record(record_before, None if stopped else record_of(self._tools.folder, pid), stopped)
        self._keep_stacks(samples)
        if self._tools.nccl and self._known.get("still"):
            found = record_of_nccl(self._tools.folder, pid)
            if found:
                self._known["groups"] = {**(self._known.get("groups") or {}), **flight.to_json(found)}
        self._known["now"] = time.time()

    def _keep(self, vital: process.Vital) -> None:
        self._known.update(
            state=vital.state,
            rss_mb=vital.rss_mb,
            swap_mb=vital.swap_mb,
            waits_in=vital.waits_in,
            sleep_s=vital.sleep_s,
        )

    def _sample(self, begun: float) -> List[Stacks]:
        found: List[Stacks] = []
        ready = 0
        for number in range(SAMPLES):
            pause = begun + self._interval * (number + 1) / SAMPLES - time.monotonic()
            time.sleep(max(0.0, pause))
            ready += process.is_ready(self._subject.pid)
            self._sleeps.append((time.monotonic(), process.read_sleep(self._subject.pid)))
            if not found or found[-1].threads is not None:
                found.append(self._by_py_spy(self._subject.pid))
        self._known["wants_cpu"] = 2 * ready > SAMPLES
        self._known["polls"] = time_of_wakeup(self._sleeps)
        return found

    def _keep_work(
        self,
        before: process.Work,
        after: process.Work,
        below_before: Dict[int, process.Work],
        below_after: Dict[int, process.Work],
        seconds: float,
    ) -> None:
        per_second = 100.0 / TICKS / max(seconds, 1e-3)
        nothing = process.Work(0, 0)
        more = [
            (work.ticks - below_before.get(pid, nothing).ticks, work.bytes - below_before.get(pid, nothing).bytes)
            for pid, work in below_after.items()
        ]
        self._known["cpu"] = round((after.ticks - before.ticks) * per_second, 1)
        self._known["below"] = round(sum(ticks for ticks, _ in more) * per_second, 1)
        self._known["bytes"] = max(0, after.bytes - before.bytes) + sum(max(0, size) for _, size in more)

    def _keep_record(
        self, before: Optional[List[flight.Entry]], after: Optional[List[flight.Entry]], stopped: bool
    ) -> None:
        if after is None:
            after = before
        if after is None:
            if not stopped:
                self._missing.append(NO_RECORD)
            return
        self._known["groups"] = flight.to_json(after)
        self._known["moved"] = before is not None and state_of(before) != state_of(after)

    def _keep_stacks(self, samples: List[Stacks]) -> None:
        last = samples[-1]
        if last.threads is None:
            first, why_not = last.trouble, self._why_no_signal()
            if why_not:
                last = Stacks(None, why_not)
            else:
                samples = [*(one for one in samples if one.main is not None), *self._by_signal()]
                last = samples[-1]
            if last.threads is None:
                self._missing.append("no stack: %s; %s" % (first, last.trouble))
        main = last.main
        if main is None:
            return
        self._known.update(stack=main.frames, gil=main.gil, peers=main.peers, spins=_spins(samples))
        if len(samples) > 1:
            self._known["still"] = len({_lines(one) for one in samples}) == 1
            self._known["polls"] = self._known["still"] and time_of_wakeup(self._sleeps)
        if _passes(samples, recorded="groups" in self._known):
            self._known["moved"] = True
        rest = [one for one in last.threads or () if not one.main][:MOST_THREADS]
        self._known["threads"] = [{"name": one.name, "stack": one.frames[:THREAD_FRAMES]} for one in rest]
        if self._interval:
            self._known["children"] = self._children()

    def _why_no_signal(self) -> str:
        """Return why the rank must not get the signal that asks for its stack; empty if it may."""
        known = self._known
        if known["state"] in HELD:
            return "the rank is %s" % known["state"]
        if self._tools.asked:
            return ""
        if not self._tools.stuck:
            return "a signal asks for it only once the run is stuck"
        cpu = float(known.get("cpu") or 0.0) + float(known.get("below") or 0.0)
        works = cpu >= BUSY_CPU or int(known.get("bytes") or 0) >= BUSY_BYTES or known.get("wants_cpu")
        if works or known["sleep_s"] is not None or known["state"] != "sleeping":
            return "a signal might disturb what the rank does"
        return ""

    def _by_py_spy(self, pid: int) -> Stacks:
        program = self._tools.py_spy
        return Stacks(None, self._tools.no_py_spy) if program is None else stacks.by_py_spy(program, pid)

    def _by_signal(self) -> List[Stacks]:
        """Return the rank's stack, and a second sample if NCCL's record is wanted, which needs a rank that is still."""
        found = [stacks.by_signal(self._tools.folder, self._subject.pid)]
        if self._tools.nccl and found[0].main is not None:
            time.sleep(self._interval / 2)
            again = stacks.by_signal(self._tools.folder, self._subject.pid)
            found += [again] if again.main is not None else []
        return found

    def _children(self) -> List[Dict[str, Any]]:
        """Return a look at the Python processes that the rank has started, most of all its data loader's.

        Processes that sleep or wait for each other get a second look.
        """
        begun = time.monotonic()
        first = {pid: self._child(pid) for pid in self._processes()}
        self._known["unseen"] = sum(one is None for one in first.values())
        seen = {pid: one for pid, one in first.items() if one is not None}
        if not any(one.vital.sleep_s is not None or frames.operation(one.frames) for one in seen.values()):
            return [one.to_json(pid) for pid, one in seen.items()]
        time.sleep(self._interval / 2)
        found = []
        for pid, one in seen.items():
            again = self._child(pid)
            if again is not None:
                still = again.frames == one.frames
                polls = still and time_of_wakeup([(begun, one.vital.sleep_s), (time.monotonic(), again.vital.sleep_s)])
                found.append(dict(again.to_json(pid), still=still, polls=polls))
        return found

    def _processes(self) -> List[int]:
        """Return the children to look at, the oldest first, then their descendants."""
        waits = frames.reason(self._known.get("stack")) == frames.FOR_PROCESS
        direct = sorted(proc.children_of(self._subject.pid))
        rest = [pid for pid in process.find_descendants(self._subject.pid) if pid not in direct]
        return [*direct, *rest][: MOST_WAITED_FOR if waits else MOST_CHILDREN]

    def _child(self, pid: int) -> "Optional[_Child]":
        main, one = self._by_py_spy(pid).main, process.look_at_process(pid)
        return _Child(one, main.frames[:CHILD_FRAMES]) if main is not None and one is not None else None


class _Child(NamedTuple):
    """A process that a rank has started."""

    vital: process.Vital
    frames: List[List[Any]]

    def to_json(self, pid: int) -> Dict[str, Any]:
        return {"pid": pid, "state": self.vital.state, "sleep_s": self.vital.sleep_s, "stack": self.frames}


def time_of_wakeup(sleeps: Sequence[Sleep]) -> bool:
    """Return whether a process sleeps at a time by which an earlier sleep must have ended."""
    asleep = [(at, seconds) for at, seconds in sleeps if seconds is not None]
    return any(at + seconds < later for at, seconds in asleep for later, _ in asleep)


def state_of(found: Sequence[flight.Entry]) -> Tuple[Any, ...]:
    """Return a value that changes when a rank enters or leaves a collective; empty without a collective."""
    if not found:
        return ()
    last = found[-1]
    return last.group, last.seq, sum(one.done for one in found)


def _lines(sample: Stacks) -> Tuple[Tuple[str, int], ...]:
    return tuple((str(frame[0]), int(frame[1])) for frame in sample.main.frames) if sample.main is not None else ()


def _passes(samples: Sequence[Stacks], recorded: bool) -> bool:
    """Return whether the samples show an operation begin or end that the record (if any) does not contain."""
    found = set()
    for one in (sample.main for sample in samples):
        if one is not None:
            operation = frames.operation(one.frames)
            found.add((operation or "", frames.place(one.frames) if operation else ""))
    unrecorded = any(operation in frames.UNRECORDED for operation, _ in found)
    return len(found) > 1 and (unrecorded or not recorded)


def _spins(samples: List[Stacks]) -> bool:
    """Return whether every sample shows the same functions of the user, with the interpreter's lock held."""
    mains = [one.main for one in samples]
    if len(mains) < SAMPLES or any(one is None or not one.gil for one in mains):
        return False
    places = {tuple((str(frame[0]), str(frame[2])) for frame in one.frames) for one in mains if one is not None}
    return len(places) == 1
