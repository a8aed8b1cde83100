"""The keeper of a job's checkpoints: a process beside the supervisor.

The keeper hashes and copies checkpoints, so it reads every byte. It is a process because a thread of the supervisor at
the lowest priority could hold Python's lock for long while the ranks use every core, and the supervisor's loop would
wait. The keeper does not belong to the job. keeping.py is the supervisor's handle on it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable, Dict, List, Optional, Tuple

from ddpctl_worker.checkpoint.jobfolder import JobFolder
from ddpctl_worker.checkpoint.keeper import Keeper
from ddpctl_worker.checkpoint.limits import KEEPER_LOOK_S, KEEPER_SHARE
from ddpctl_worker.checkpoint.replicate import Replication
from ddpctl_worker.gang.cutwatch import own_addresses
from ddpctl_worker.machine import child, net, notes, processes
from ddpctl_worker.machine.strangers import TALLY
from ddpctl_worker.machine.wakeup import end_with_unit
from ddpctl_worker.record.lag import Lag
from ddpctl_worker.rules.attempts import attempt_of
from ddpctl_worker.rules.entries import FOLDER
from ddpctl_worker.run.keeping import ASKED
from ddpctl_worker.run.limits import KEEPER_LINGER_S, LAST_KEEPER_LOOK_S
from ddpctl_worker.wire.channel import WorkerError


def main() -> None:
    """Run the keeper's process. Its notes go to the run's supervisor.log."""
    os.umask(0o077)
    processes.set_name("ddpctl-keeper")
    words = _Words()
    order = words.wait()
    assert order is not None
    TALLY.start(order["strangers"])
    keep(words, order)


def keep(words: "_Words", order: Dict[str, Any]) -> None:
    """Look for checkpoints until the ranks have ended, and once more then. Stop at once if the supervisor dies.

    While ranks live, nearly everything runs in a thread of the lowest priority: the ranks need the processors. The port
    and the last look have the normal priority, because the run waits for both: on a host whose processors are all busy,
    work of the lowest priority would not be done in time.
    """
    listener = _listen_for_peers(order)
    with ThreadPoolExecutor(1, initializer=_lower_priority) as background:
        looks = background.submit(_Looks, words, order, listener).result()
        background.submit(looks.watch).result()
    looks.finish()


def _lower_priority() -> None:
    """Give the lowest priority to this thread and its threads, also in the queue of a disk. Linux has it per thread."""
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)


class _Looks:
    """The keeper's loop. It reads messages during a hash too: the end of a run does not wait for a long hash."""

    def __init__(self, words: "_Words", order: Dict[str, Any], listener: Optional[socket.socket]) -> None:
        self._words, self._order = words, order
        self._replication = _replication(order, listener)
        self._keeper = _keeper(order, self._replication, self._meanwhile)
        copies = 0 if self._replication is None else self._replication.holders - 1
        self._lag = Lag(order["lag"], attempt_of(order), copies)
        self._watched = time.monotonic()
        self._pace = _Pace(order["folder"], order["timeout"])
        self._end: Optional[Dict[str, Any]] = None  # the supervisor's last message
        self._alone = False  # the supervisor is dead
        self._last_until = float("inf")  # end of the time in which the run waits for the last look
        self._trouble = ""

    def watch(self) -> None:
        """Look again and again until the ranks have ended, or the supervisor has died."""
        while self._end is None and not self._alone:
            self._hear(self._words.wait(min(KEEPER_LOOK_S, max(0.0, self._pace.left()))))
            if self._end is None and not self._alone and self._pace.left() <= 0:
                self._look()

    def finish(self) -> None:
        """Look once more after the end of the ranks, then stay until the copies are made."""
        if self._alone:
            return
        self._last_until = time.monotonic() + LAST_KEEPER_LOOK_S
        if self._ended is False:
            self._try(self._tell_unfinished)  # first: after a kill there may be no time to hash
        self._look()
        if self._replication is not None and self._end is not None and self._end.get("linger"):
            with contextlib.suppress(BrokenPipeError):  # the supervisor did not wait for this look
                _say(lingers=True)
            end_with_unit()
            self._replication.finish(KEEPER_LINGER_S, bool(self._ended))

    @property
    def _ended(self) -> Optional[bool]:
        return None if self._end is None else bool(self._end["ended"])

    def _hear(self, word: Optional[Dict[str, Any]]) -> None:
        if word is None:
            self._alone = True
        elif "ended" in word:
            self._end = word
        elif "died" in word:
            died, since = word["died"], word["since"]
            self._try(lambda: self._keeper.note_death(died, since))
        elif "servers" in word and self._replication is not None:
            self._replication.meet(word["servers"])

    def _meanwhile(self, _: int) -> None:
        """Look at the folder between two parts of a hash, and read messages.

        At the end of the run this look comes before the time for the rest of the hash is over. A last look that the run
        no longer waits for leaves the processors to other jobs again.
        """
        if time.monotonic() >= self._last_until:
            _lower_priority()
        if self._end is not None or self._alone:
            return
        if time.monotonic() - self._watched >= KEEPER_LOOK_S:
            self._watched = time.monotonic()
            self._try(self._keeper.watch)
        self._hear(self._words.wait(0.0))
        if self._end is not None:
            self._try(lambda: self._keeper.look_at(self._ended))

    def _look(self) -> None:
        self._watched = time.monotonic()
        self._try(lambda: _turn(self._keeper, self._order, self._ended, self._replication))
        self._try(self._tell_lag)
        self._pace.looked(self._keeper.cost)

    def _tell_unfinished(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            _say(unfinished=self._keeper.list_unfinished())

    def _tell_lag(self) -> None:
        copied = self._replication.copied if self._replication is not None else _no_copies
        self._lag.look(self._keeper.note_written(), self._keeper.manifests, copied)

    def _try(self, what: Callable[[], object]) -> None:
        try:
            what()
        except OSError as error:  # the disk is full or away, which may pass
            self._note_trouble(str(error))
        except WorkerError as error:  # a folder that is not safe, until a user corrects it
            self._note_trouble("%s: %s" % (error.message, error.hint) if error.hint else error.message)

    def _note_trouble(self, why: str) -> None:
        if why != self._trouble:
            notes.note("checkpoints: %s" % why)
        self._trouble = why


class _Pace:
    """The schedule of looks: all looks together take ``KEEPER_SHARE`` of a core.

    Hashing and copying do not count, since each checkpoint is hashed and copied once. For ``timeout`` seconds after a
    ``hurry`` the pauses are short.
    """

    def __init__(self, folder: str, timeout: float) -> None:
        self._mark, self._timeout = os.path.join(folder, FOLDER, ASKED), timeout
        self._asked, self._hurry_until = self._stamp(), 0.0
        self._looked, self._cost = float("-inf"), 0.0

    def looked(self, cost: float) -> None:
        """Note that a look has ended, which took ``cost`` seconds."""
        self._looked, self._cost = time.monotonic(), cost

    def left(self) -> float:
        """Return the seconds until the next look."""
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
    """The supervisor's messages, one at a time."""

    def __init__(self) -> None:
        self._reader = child.MessageReader(0)
        self._waiting: List[child.Message] = []

    def wait(self, timeout: Optional[float] = None) -> Optional[child.Message]:
        """Return the next message; ``{}`` if no message arrives in time, ``None`` after the end of the pipe."""
        while not self._waiting and not self._reader.ended:
            self._waiting = self._reader.receive(timeout)
            if timeout is not None:
                break
        if self._waiting:
            return self._waiting.pop(0)
        return None if self._reader.ended else {}


def _say(**message: Any) -> None:
    child.MessageWriter(1).send(message)


def _listen_for_peers(order: Dict[str, Any]) -> Optional[socket.socket]:
    """Listen for the hosts that copy from this host, and tell the supervisor the port. Connections wait in the backlog
    until the server runs."""
    copying = order.get("copying")
    if copying is None:
        return None
    try:
        listener = net.listen_on(_serving_address(copying["address"]))
    except OSError as error:
        notes.note("checkpoints are not copied to other hosts: %s" % error)
        return None
    _say(port=listener.getsockname()[1])
    return listener


def _replication(order: Dict[str, Any], listener: Optional[socket.socket]) -> Optional[Replication]:
    if listener is None:
        return None
    copying = order["copying"]
    folder = JobFolder(copying["base"], copying["job"], order["host"])
    try:
        found = Replication.of(folder, copying, listener)
    except OSError as error:
        listener.close()
        notes.note("checkpoints are not copied to other hosts: %s" % error)
        return None
    found.start()
    return found


def _serving_address(address: str) -> str:
    """Return the address that the gang names to the other hosts.

    Return "" (all addresses) for a loopback address, and for an address that is not this host's own (NAT).
    """
    return address if address in own_addresses() else ""


def _keeper(order: Dict[str, Any], replication: Optional[Replication], read_on: Callable[[int], None]) -> Keeper:
    how = {} if replication is None else {"copying": replication.copying}
    return Keeper(
        order["folder"], order["host"], since=order["since"], read_on=read_on, attempt=attempt_of(order), **how
    )


def _no_copies(entry: str, version: str) -> bool:
    return True


def _turn(
    keeper: Keeper, order: Dict[str, Any], ended: Optional[bool], replication: Optional[Replication] = None
) -> None:
    if keeper.look(ended):
        elsewhere, holders = ({}, 1) if replication is None else (replication.copies_elsewhere(), replication.holders)
        keeper.tidy(order["keep"], order["outputs"], elsewhere, holders)
    if replication is not None:
        replication.removed(keeper.gone)
        keeper.gone = []
