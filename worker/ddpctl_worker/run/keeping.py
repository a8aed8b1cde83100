"""The keeper of a job's checkpoints: a process beside the supervisor, and the supervisor's part in it.

A process of its own, since it reads every byte of every checkpoint. As a thread it would have to be as nice as can be,
and then could hold Python's lock for long while the ranks use every core: the supervisor's loop would wait for it. The
process is not the job's: it is never signalled with it, and its end is waited for only for a while.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from ddpctl_worker.checkpoint.jobfolder import JobFolder
from ddpctl_worker.checkpoint.keeper import Keeper
from ddpctl_worker.checkpoint.limits import KEEPER_LOOK_S, KEEPER_SHARE
from ddpctl_worker.checkpoint.replicate import Replication, Servers
from ddpctl_worker.machine import child, fs, notes, processes
from ddpctl_worker.machine.strangers import TALLY
from ddpctl_worker.record.lag import Lag
from ddpctl_worker.record.paths import RunPaths
from ddpctl_worker.rules.attempts import attempt_of
from ddpctl_worker.rules.entries import FOLDER
from ddpctl_worker.wire.channel import WorkerError

LINGER_S = 3600.0  # at most, for the copies of what was written right before the end, with nobody waiting for them
MEET_S = 5.0  # at the end of a run, for the hosts to hear where each of them serves
LAST_S = 30.0  # for the last look, after which a checkpoint written right before the end has its manifest
COARSE_S = 1.0  # a file's time may be that much before the clock's
LAST_KILLED_S = 3.0  # the same after a kill: somebody waits for the proof
ASKED = "asked"  # beside the manifests: it changes when ranks are asked to save
GONE_S = 0.5  # how long the process may take to go, once it is killed


class Keeping:
    """Held by the supervisor. ``order["keeper"]`` is None where nothing is to be kept."""

    def __init__(self, order: Dict[str, Any]) -> None:
        self._order: Optional[Dict[str, Any]] = order.get("keeper")
        self._strangers = RunPaths(order["top"]).strangers("keeper")
        copying = (self._order or {}).get("copying") or {}
        self._others = len(copying.get("hosts") or ()) - 1  # who copy from each other
        self._since = time.time() - COARSE_S
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._until: Optional[float] = None  # of the last look
        self._killed_at: Optional[float] = None
        self._heard = b""
        self._met: Servers = {}
        self._meet_until: Optional[float] = None
        self._ranks: Tuple[Optional[float], float] = (None, 0.0)  # as the process knows it
        self.port: Optional[int] = None  # where the other hosts get this one's checkpoints, once it is known
        self.lingers = False  # the run need not wait, and the process has more to do

    def start(self) -> None:
        """Once, when the ranks are about to start. Without it a run has no manifests, and that is all."""
        if self._order is None:
            return
        try:
            pipe = subprocess.PIPE
            keeper = subprocess.Popen(
                child.command(__name__), stdin=pipe, stdout=pipe, start_new_session=True, close_fds=True
            )
        except OSError as error:
            notes.note("nobody keeps the checkpoints: %s" % error)
            return
        keeper.returncode = 0  # the supervisor reaps every child itself
        assert keeper.stdout is not None
        os.set_blocking(keeper.stdout.fileno(), False)
        self._process = keeper
        self._say({**self._order, "since": self._since, "strangers": self._strangers})
        self._order.pop("copying", None)  # a secret

    def listen(self) -> None:
        """Hear what the process has said."""
        if self._process is None or self._process.stdout is None:
            return
        try:
            data = os.read(self._process.stdout.fileno(), 1 << 16)
        except BlockingIOError:
            return
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            word = json.loads(line)
            self.port = word.get("port", self.port)
            self.lingers = bool(word.get("lingers", self.lingers))

    def meet(self, servers: Servers) -> None:
        """Where the other hosts of the run serve what they have. A process that is busy hears the rest later."""
        if self.port is None or self._process is None or self._process.stdin is None:
            return
        for host, place in servers.items():
            word = json.dumps({"servers": {host: place}}).encode("ascii") + b"\n"
            if self._met.get(host) == place or len(word) > select.PIPE_BUF:  # more could block, or arrive in part
                continue
            if not select.select([], [self._process.stdin], [], 0)[1]:
                return
            with contextlib.suppress(BrokenPipeError):  # it has ended, and will be reaped
                os.write(self._process.stdin.fileno(), word)
            self._met[host] = place

    def acquainted(self, servers: Servers) -> bool:
        """Whether this host and the others know where each of them serves, or it is too late for that. A short run may
        be over before, and nobody can tell afterwards."""
        known = self.port is not None and len(servers) >= self._others
        if self._process is None or self._others < 1 or known:
            return True
        self._meet_until = self._meet_until or time.monotonic() + MEET_S
        return time.monotonic() > self._meet_until

    def tell(self, died: Optional[float], restarted: float) -> None:
        """When the first of the ranks of now ended, and when the launcher last started one again (wall-clock time)."""
        if self._process is None or self._process.stdin is None or (died, restarted) == self._ranks:
            return
        if select.select([], [self._process.stdin], [], 0)[1]:  # otherwise at the next turn
            self._ranks = (died, restarted)
            self._say({"died": died, "since": restarted})

    def settled(self, succeeded: bool, linger: bool = False, seconds: float = LAST_S) -> bool:
        """Whether the last look is over, or too late. The first call asks for it. With ``linger`` the process stays
        after it, until other hosts have copies of what it found; after a success also until all of it is hashed."""
        self.listen()
        if self._process is None or self.lingers:
            return True
        now = time.monotonic()
        if self._until is None:
            self._until = now + seconds
            self._say({"ended": succeeded, "linger": linger})
        if now < self._until:
            return False
        if succeeded and linger:
            notes.note("the last look at the checkpoints takes long, and continues after the run")
            self.lingers = True
            return True
        if self._killed_at is None:
            self._killed_at = now
            notes.note("the last look at the checkpoints took too long and was ended; the next start has another")
            os.kill(self._process.pid, signal.SIGKILL)
        return now - self._killed_at > GONE_S

    def ended(self, pid: int) -> None:
        """``pid`` was just reaped: its number may be another process's from now on."""
        if self._process is not None and self._process.pid == pid:
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()
            self._process = None
            if self._until is None:
                notes.note("nobody keeps the checkpoints any more: the process %d has ended" % pid)

    def pids(self) -> List[int]:
        """Never to be stopped with the job."""
        return [self._process.pid] if self._process is not None else []

    def stuck(self) -> List[int]:
        """It outlives the run: it waits for a disk that hangs, and cannot be ended, or it lingers."""
        late = self._killed_at is not None and time.monotonic() - self._killed_at > GONE_S
        return self.pids() if late or self.lingers else []

    def _say(self, word: Dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            os.write(self._process.stdin.fileno(), json.dumps(word).encode("ascii") + b"\n")
        except OSError as error:
            notes.note("the keeper of the checkpoints does not listen: %s" % error)


def main() -> None:
    """The keeper's process: looks until it hears that the ranks have ended, and then once more. Without that word its
    supervisor is dead. Notes go to the run's supervisor.log."""
    os.umask(0o077)
    processes.set_name("ddpctl-keeper")
    os.nice(19)  # which is also its place in the queue of a disk
    words = _Words()
    order = words.wait()
    assert order is not None
    TALLY.start(order["strangers"])
    keep(words, order)


def keep(words: "_Words", order: Dict[str, Any]) -> None:
    """Look until the ranks have ended, or the supervisor."""
    _Looks(words, order).run()


class _Looks:
    """One look after another. While it hashes it listens, too: the end of a run does not wait for a long hash."""

    def __init__(self, words: "_Words", order: Dict[str, Any]) -> None:
        self._words, self._order = words, order
        self._replication = _replication(order)
        self._keeper = _keeper(order, self._replication, self._meanwhile)
        copies = 0 if self._replication is None else self._replication.holders - 1
        self._lag = Lag(order["lag"], attempt_of(order), copies)
        self._watched = time.monotonic()
        self._pace = _Pace(order["folder"], order["timeout"])
        self._end: Optional[Dict[str, Any]] = None  # the last word
        self._alone = False  # the supervisor is dead
        self._trouble = ""

    def run(self) -> None:
        over = False
        while not over:
            if self._end is None:
                self._hear(self._words.wait(min(KEEPER_LOOK_S, max(0.0, self._pace.left()))))
            if self._alone:
                return
            over = self._end is not None
            if over or self._pace.left() <= 0:
                self._look()
        if self._replication is not None and self._end is not None and self._end.get("linger"):
            with contextlib.suppress(BrokenPipeError):  # the supervisor did not wait for this look
                _say(lingers=True)
            self._replication.finish(LINGER_S)

    @property
    def _ended(self) -> Optional[bool]:
        return None if self._end is None else bool(self._end["ended"])

    def _hear(self, word: Optional[Dict[str, Any]]) -> None:
        if word is None:
            self._alone = True
        elif "ended" in word:
            self._end = word
        elif "died" in word:
            self._keeper.heard(word["died"], word["since"])
        elif "servers" in word and self._replication is not None:
            self._replication.meet(word["servers"])

    def _meanwhile(self, count: int) -> None:
        """Some of a file was hashed. What is there at the end is looked at before the time for the rest is up."""
        if self._end is not None or self._alone:
            return
        if time.monotonic() - self._watched >= KEEPER_LOOK_S:
            self._watched = time.monotonic()
            self._try(self._keeper.watch)
        self._hear(self._words.wait(0.0))
        if self._end is not None:
            self._try(lambda: self._keeper.see(self._ended))

    def _look(self) -> None:
        self._watched = time.monotonic()
        self._try(lambda: _turn(self._keeper, self._order, self._ended, self._replication))
        self._try(self._tell_lag)
        self._pace.looked(self._keeper.cost)

    def _tell_lag(self) -> None:
        copied = self._replication.copied if self._replication is not None else _no_copies
        self._lag.look(self._keeper.written(), self._keeper.known, copied)

    def _try(self, what: Callable[[], object]) -> None:
        try:
            what()
        except OSError as error:  # of a disk that is full, or away: it may pass
            if str(error) != self._trouble:
                notes.note("checkpoints: %s" % error)
            self._trouble = str(error)


def hurry(folder: str) -> None:
    """Ranks were asked to save to ``folder``, and somebody waits for the manifest: look without long pauses."""
    with contextlib.suppress(OSError, WorkerError):  # it is found all the same, only later
        fs.private_dir(os.path.join(folder, FOLDER))
        fs.write_json(os.path.join(folder, FOLDER, ASKED), {}, durable=False)


class _Pace:
    """When the next look is due. All looks together take ``KEEPER_SHARE`` of a core. Hashing and copying do not count,
    since that is done once for each checkpoint. For ``timeout`` seconds after a ``hurry`` the pauses are short."""

    def __init__(self, folder: str, timeout: float) -> None:
        self._mark, self._timeout = os.path.join(folder, FOLDER, ASKED), timeout
        self._asked, self._hurry_until = self._stamp(), 0.0
        self._looked, self._cost = float("-inf"), 0.0

    def looked(self, cost: float) -> None:
        """The look that took ``cost`` seconds is over."""
        self._looked, self._cost = time.monotonic(), cost

    def left(self) -> float:
        """Seconds until the next one."""
        now, asked = time.monotonic(), self._stamp()
        if asked != self._asked:
            self._asked, self._hurry_until = asked, now + self._timeout
        pause = KEEPER_LOOK_S if now < self._hurry_until else max(KEEPER_LOOK_S, self._cost / KEEPER_SHARE)
        return self._looked + pause - now

    def _stamp(self) -> Optional[Tuple[int, int]]:
        try:
            found = os.stat(self._mark)
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino


class _Words:
    """What the supervisor says."""

    def __init__(self) -> None:
        self._rest = b""
        self._lines: List[bytes] = []

    def wait(self, timeout: Optional[float] = None) -> Optional[Dict[str, Any]]:
        """The next word; an empty one when none came in time, None when none will come."""
        if not self._lines and select.select([0], [], [], timeout)[0]:
            data = os.read(0, 1 << 20)
            if not data:
                return None
            *self._lines, self._rest = (self._rest + data).split(b"\n")
        return json.loads(self._lines.pop(0)) if self._lines else {} if timeout is not None else self.wait()


def _say(**word: Any) -> None:
    os.write(1, json.dumps(word).encode("ascii") + b"\n")


def _replication(order: Dict[str, Any]) -> Optional[Replication]:
    """The copies on other hosts; None for a run that has none."""
    copying = order.get("copying")
    if copying is None:
        return None
    folder = JobFolder(copying["base"], copying["job"], order["host"])
    try:
        found = Replication.of(folder, copying)
    except OSError as error:
        notes.note("checkpoints are not copied to other hosts: %s" % error)
        return None
    found.start()
    _say(port=found.port)
    return found


def _keeper(order: Dict[str, Any], replication: Optional[Replication], read_on: Callable[[int], None]) -> Keeper:
    how = {} if replication is None else {"copying": replication.copying}
    return Keeper(
        order["folder"], order["host"], since=order["since"], read_on=read_on, attempt=attempt_of(order), **how
    )


def _no_copies(entry: str, version: str) -> bool:
    """Of a run without copies the version itself is all of them."""
    return True


def _turn(
    keeper: Keeper, order: Dict[str, Any], ended: Optional[bool], replication: Optional[Replication] = None
) -> None:
    """One look. What follows from a new manifest belongs here."""
    if keeper.look(ended):
        elsewhere, holders = ({}, 1) if replication is None else (replication.elsewhere(), replication.holders)
        keeper.tidy(order["keep"], order["outputs"], elsewhere, holders)
    if replication is not None:
        replication.removed(keeper.gone)
        keeper.gone = []
