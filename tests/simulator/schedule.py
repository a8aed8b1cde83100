"""Threads of several machines that run one at a time, in an order from a seed, on clocks that jump.

The product's own threads run unchanged, as real threads, since its code blocks in the middle of functions (an answer is
waited for, a pause is made): as coroutines each of these would have to be written a second time, and the copy would be
what is tested. Only the thread that holds the baton runs. It gives the baton back wherever it waits: in every method of
``HostClock`` that takes time and in every receive of the simulated network. The thread that gives it back picks the
next in the order of (simulated time, chance), so a hand-over takes one switch of threads. Between two waits a thread is
not interrupted: the simulation looks for races of messages, clocks and crashes, not for races of the memory.
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
from collections.abc import Callable
from typing import Any

from ddpctl_worker.machine.system import HostClock

START_OF_TIME = 1_767_225_600.0  # Unix seconds: 2026-01-01


class Killed(BaseException):
    """The process of this thread was killed; it unwinds without a trace."""


class Machine:
    """A host as its clock sees it: ``rate`` of its clock, which begins anew at a boot."""

    def __init__(self, scheduler: Scheduler, name: str, rate: float = 1.0, since_boot: float = 1000.0) -> None:
        self.scheduler, self.name, self.rate = scheduler, name, rate
        self.powered, self.boots = True, 0
        self._base, self._at = since_boot, scheduler.now

    def boot_time(self) -> float:
        return self._base + (self.scheduler.now - self._at) * self.rate

    def boot(self) -> None:
        self.powered, self.boots = True, self.boots + 1
        self._base, self._at = 1.0, self.scheduler.now


class Process:
    """Threads that live and die together. ``clock`` is what they are given as the clock of their host."""

    def __init__(self, machine: Machine, name: str) -> None:
        self.machine, self.name = machine, name
        self.scheduler = machine.scheduler
        self.alive, self.stopped = True, False
        self.threads: list[SimThread] = []
        self.clock = SimClock(self)
        self.held: list[tuple[SimThread, int]] = []  # would run, but for a SIGSTOP
        self.at_end: list[Callable[[], None]] = []

    def kill(self) -> None:
        """As SIGKILL does. A thread of its own that calls this ends at its next wait."""
        if not self.alive:
            return
        self.alive = False
        self.held.clear()
        for thread in self.threads:
            self.scheduler.wake(thread)
        for ended in self.at_end:
            ended()

    def stop(self) -> None:
        self.stopped = True

    def resume(self) -> None:
        self.stopped = False
        held, self.held = self.held, []
        for thread, turn in held:
            if thread.turn == turn:
                self.scheduler.wake(thread)


class SimClock(HostClock):
    """The clocks of a machine, for one process on it."""

    def __init__(self, process: Process) -> None:
        self._process, self._machine, self._scheduler = process, process.machine, process.scheduler

    def now(self) -> float:
        return self._machine.boot_time()

    def boot(self) -> float:
        return self._machine.boot_time()

    def wall(self) -> float:
        return START_OF_TIME + self._scheduler.now

    def sleep(self, seconds: float) -> None:
        self._scheduler.pause(seconds / self._machine.rate)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        if not event.is_set():
            self._scheduler.pause(seconds / self._machine.rate, event)
        return event.is_set()

    def thread(self, work: Callable[..., None], name: str, *args: Any) -> threading.Thread:
        return SimThread(self._process, work, name, args)


class SimThread(threading.Thread):
    """An object that looks like a thread to the product. Its work is done by a thread of the scheduler's."""

    def __init__(self, process: Process, work: Callable[..., None], name: str, args: tuple[Any, ...] = ()) -> None:
        super().__init__(name=name, daemon=True)
        self.process, self._work, self._arguments = process, work, args
        self.turn = 0  # counts its waits: an exception for an earlier thread must not end this thread
        self.baton: threading.Lock | None = None  # of the thread that does its work, once it has begun
        self.begun = self.over = False

    def start(self) -> None:
        self.begun = True
        self.process.threads.append(self)
        self.process.scheduler.wake(self)

    def is_alive(self) -> bool:
        return self.begun and not self.over

    def work(self) -> None:
        if self.process.alive:
            self._work(*self._arguments)


class _Worker:
    """A real thread, which does the work of simulated threads, one by one."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.baton = threading.Lock()
        self.baton.acquire()
        self.job: SimThread | None = None
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            self.baton.acquire()
            job = self.job
            if job is None:
                return
            try:
                job.work()
            except Killed:
                pass
            except BaseException as error:
                self._scheduler.fault = self._scheduler.fault or error
            job.over, job.baton, self.job = True, None, None
            job.process.threads.remove(job)
            self._scheduler.idle.append(self)
            self._scheduler.hand_over()


class Scheduler:
    """``run`` lets simulated time pass; ``at`` has something happen later."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.fault: BaseException | None = None  # in a thread, or in an event
        self.idle: list[_Worker] = []
        self._heap: list[tuple[float, float, int, Callable[[], None] | SimThread, int]] = []
        self._count = itertools.count()
        self._waiters: dict[SimThread, threading.Event] = {}
        self._current: SimThread | None = None
        self._until = 0.0
        self._workers: list[_Worker] = []
        self._main = threading.Lock()
        self._main.acquire()
        self.switches = 0

    def at(self, seconds: float, action: Callable[[], None]) -> None:
        """``action`` happens so much later; it must not wait."""
        self._push(seconds, action, 0)

    def run(self, until: float) -> None:
        """Let everything happen up to then. Raises what went wrong in a thread."""
        self._until = until
        baton = self._pick()
        if baton is not self._main:
            baton.release()
            self._main.acquire()
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        self.now = until

    def close(self, processes: list[Process]) -> None:
        """End all threads."""
        self._heap.clear()
        self._waiters.clear()
        for process in processes:
            process.at_end.clear()
            process.kill()
        self.run(self.now + 1.0)
        for worker in self.idle:
            worker.job = None
            worker.baton.release()

    def running(self) -> SimThread:
        assert self._current is not None, "only a simulated thread can wait"
        return self._current

    def pause(self, seconds: float, event: threading.Event | None = None) -> None:
        """The thread that runs waits: for so long, for ``event``, or until ``wake``."""
        me = self.running()
        if not me.process.alive:
            raise Killed
        me.turn += 1
        self._push(seconds, me, me.turn)
        if event is not None:
            self._waiters[me] = event
        baton = self._pick()
        if baton is not me.baton:
            assert me.baton is not None
            baton.release()
            self.switches += 1
            me.baton.acquire()
        if not me.process.alive:
            raise Killed

    def wake(self, thread: SimThread) -> None:
        """It need not wait any longer."""
        self._waiters.pop(thread, None)
        thread.turn += 1
        self._push(0.0, thread, thread.turn)

    def hand_over(self) -> None:
        self._pick().release()

    def _push(self, seconds: float, what: Callable[[], None] | SimThread, turn: int) -> None:
        when = self.now + max(0.0, seconds)
        heapq.heappush(self._heap, (when, self.random.random(), next(self._count), what, turn))

    def _pick(self) -> threading.Lock:
        """Let happen what is due, up to the next thread that can run; the baton that it waits for."""
        while self.fault is None:
            if self._waiters:
                for thread in [one for one, event in self._waiters.items() if event.is_set()]:
                    self.wake(thread)
            if not self._heap or self._heap[0][0] > self._until:
                break
            when, _, _, what, turn = heapq.heappop(self._heap)
            self.now = when
            if not isinstance(what, SimThread):
                self._current = None
                try:
                    what()
                except BaseException as error:
                    self.fault = error
            elif what.turn == turn and not what.over:
                if what.process.stopped and what.process.alive:
                    what.process.held.append((what, turn))
                    continue
                self._waiters.pop(what, None)
                self._current = what
                return what.baton or self._begin(what)
        self._current = None
        return self._main

    def _begin(self, thread: SimThread) -> threading.Lock:
        worker = self.idle.pop() if self.idle else _Worker(self)
        worker.job, thread.baton = thread, worker.baton
        return worker.baton
