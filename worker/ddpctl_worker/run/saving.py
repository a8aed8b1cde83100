"""Has the ranks of all nodes save a checkpoint before a machine shuts down.

A machine that shuts down sends its supervisor SIGTERM. The supervisor asks the ranks of its node to save, and has the
supervisors of the other nodes do the same. Then it waits until a node has a new checkpoint and no node is still
writing, or until the time that a shutdown leaves is over. A rank that does not handle the signal never gets it
(ask_to_save.py).
"""

from __future__ import annotations

import time
from threading import Thread
from typing import Any, Callable, Dict, Optional

from ddpctl_worker.checkpoint.fresh import NewestSave
from ddpctl_worker.gang.base import Gang
from ddpctl_worker.machine import notes
from ddpctl_worker.record.ranks import Roster
from ddpctl_worker.record.runrecord import RunRecord
from ddpctl_worker.run import ask_to_save
from ddpctl_worker.run.limits import SAVED_LOOK_S, SHUTDOWN_SAVE_S

SAVE, SAVING, SAVED = "save", "saving", "saved"  # the messages between nodes


class Saving:
    """``folder``: where the ranks here save. ``changed`` is called when ``over`` may have changed."""

    def __init__(
        self,
        run: RunRecord,
        folder: Optional[str],
        roster: Roster,
        gang: Optional[Gang],
        changed: Callable[[], None],
    ) -> None:
        self._settings: Dict[str, Any] = run.get("checkpoint") or {}
        self._host: str = run["host"]
        self._folder, self._roster, self._gang, self._changed = folder, roster, gang, changed
        self._until: Optional[float] = None  # None before ``begin``
        self._over = False
        self._nodes: Dict[str, str] = {}  # host -> SAVING or SAVED
        if gang is not None:
            gang.on_message(self._hear)

    def begin(self) -> None:
        """Ask all ranks of the run on all nodes to save. Does not wait."""
        self._say({"what": SAVE})
        self._ask_here()

    @property
    def over(self) -> bool:
        """Return whether the stop need not wait for a checkpoint, or need not wait longer."""
        return self._over or self._until is None or time.monotonic() >= self._until

    def _ask_here(self) -> None:
        if self._until is not None or not self._settings or not self._folder:
            return
        self._until = time.monotonic() + min(float(self._settings["timeout"]), SHUTDOWN_SAVE_S)
        try:
            Thread(target=self._run, name="saving", daemon=True).start()  # its disk may hang
        except RuntimeError as error:  # the user's limit of threads
            self._end("no thread: %s" % error)

    def _hear(self, host: str, word: Dict[str, Any]) -> None:
        """Take a message of another node. Runs in the gang's thread."""
        what, host = word.get("what"), str(word.get("of") or host)
        if what not in (SAVE, SAVING, SAVED):
            return
        if self._gang is not None and self._gang.is_hub:
            self._say({"what": what, "of": host})  # a member's message reaches only the hub
        if what == SAVE:
            self._ask_here()
        else:
            self._nodes[host] = what

    def _run(self) -> None:
        try:
            self._ask_and_wait()
        except Exception as error:
            self._end("no checkpoint: %s" % notes.trace(error))

    def _ask_and_wait(self) -> None:
        assert self._folder is not None
        fresh = NewestSave(self._folder)
        ranks = self._roster.alive()
        number = ask_to_save.signal_number(self._settings["signal"])
        deaf = ask_to_save.ranks_without_handler(ranks, number) or ask_to_save.send_signal(ranks, number)
        if not ranks:
            self._end("no checkpoint: no rank runs here")
        elif deaf:
            who = ", ".join(str(rank.rank) for rank in deaf)
            self._end("no checkpoint: rank %s does not handle %s" % (who, self._settings["signal"]))
        while not self.over:
            name = fresh.look()
            if name is not None or fresh.changing:
                self._tell(SAVING if name is None else SAVED)
            found = dict(self._nodes)
            if SAVED in found.values() and SAVING not in found.values():
                self._end("saved on %s" % ", ".join(sorted(found)))
            time.sleep(SAVED_LOOK_S)

    def _tell(self, what: str) -> None:
        if self._nodes.get(self._host) != what:
            self._nodes[self._host] = what
            self._say({"what": what})

    def _say(self, word: Dict[str, Any]) -> None:
        if self._gang is not None:
            self._gang.broadcast(word)

    def _end(self, why: str) -> None:
        if not self._over and self._until is not None:
            notes.note("before the end: %s" % why)
        self._over = True
        self._changed()
