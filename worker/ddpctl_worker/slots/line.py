"""The line of this host: the tickets of runs that wait for slots, and the turn of each.

A ticket is a claim without slots: its lock, too, ends with the process that keeps it.
"""

from __future__ import annotations

import contextlib
import os
from typing import Any, Dict, Mapping, Optional, Sequence

from ddpctl_worker.rules.slots import SlotEntry, choose_slots, place_in_line
from ddpctl_worker.slots.claims import (
    Decision,
    Hold,
    Wish,
    claim,
    close_all,
    describe,
    entries_of,
    new_entry,
    take_slots,
    wish_of,
)
from ddpctl_worker.slots.devices import GpusUnknown, find_devices, variables
from ddpctl_worker.slots.folder import (
    CONFIGURATION,
    LockedClaim,
    SlotsFolder,
    UnusableFolder,
    read_claim,
    read_settings,
    rewrite_claim,
)
from ddpctl_worker.wire.channel import WorkerError
from ddpctl_worker.wire.contract import IN_USE


def line_up(run: Mapping[str, Any], env: Mapping[str, str]) -> Optional[Hold]:
    """Take a place in the line of this host. Arguments and result as in ``claim``; see ``Ticket``.

    Raises:
        WorkerError: IN_USE, the run wants more slots than its account may hold; or the folder is not safe.
    """
    return claim(run, env, lambda found: _line_up(run, found))


def _line_up(run: Mapping[str, Any], found: Decision) -> Hold:
    # All parts of a run in this folder have one place: they are hosts of one machine.
    own = found.own
    places = [entry.since for entry in found.entries if (entry.run, entry.account) == (own.run, own.account)]
    own = own._replace(since=min([own.since, *places]), ready=False)
    _refuse_beyond_limit(own, found.limit)
    fd = found.folder.write_claim(own.name, describe(run, own, ()))
    return Hold((fd,), found.folder.claim_path(own.name))


def _refuse_beyond_limit(own: SlotEntry, limit: Optional[int]) -> None:
    if limit is not None and own.want > limit:
        text = "the run wants %d slots, and an account may hold %d here" % (own.want, limit)
        raise WorkerError(IN_USE, text, "use fewer processes (--nproc), or ask the administrator (%s)" % CONFIGURATION)


class Ticket:
    """The place of a run in the line of this host, in the process that keeps it. ``hold``: once it has its slots."""

    def __init__(self, run: Mapping[str, Any], env: Mapping[str, str], held: Mapping[str, Any]) -> None:
        self._run, self._env, self._held = run, env, held
        self._fd: int = held["fds"][0] if held["fds"] else -1
        self._own: Optional[SlotEntry] = None
        if self._fd >= 0:
            self._own = entries_of([LockedClaim(new_entry(run).name, os.geteuid(), read_claim(self._fd))])[0]
        self.hold = Hold(tuple(held["fds"]), held["path"])
        self.held = self._own is None or not self._own.want

    def look(self, *, ready: bool) -> str:
        """Take the slots if it is the run's turn and they are free; return what the run waits for, else "".

        ``ready``: it is the turn of this host.
        """
        wish = wish_of(self._run)
        assert wish is not None
        try:
            settings = read_settings()
            with contextlib.closing(SlotsFolder(settings.folder)) as folder:
                return self._look(folder, wish, settings.limit, ready=ready)
        except (UnusableFolder, GpusUnknown, WorkerError, OSError) as why:
            return "the slots cannot be looked at: %s" % why

    def _look(self, folder: SlotsFolder, wish: Wish, limit: Optional[int], *, ready: bool) -> str:
        assert self._own is not None
        ticket = self._own._replace(ready=ready)
        content = describe(self._run, ticket, ())
        if read_claim(self._fd) != content:  # a full disk may have damaged it
            rewrite_claim(self._fd, content)
        self._own = ticket
        entries = entries_of(folder.claims())
        own = next((entry for entry in entries if entry.name == self._own.name), self._own)
        if not choose_slots(own, entries, (), limit):
            return words(own, entries)
        devices = find_devices(wish.each, wish.nodes)  # not under the lock: the driver may take seconds
        with folder.decision():
            entries = entries_of(folder.claims())
            slots, fds = take_slots(folder, own, entries, devices, limit)
            if slots is None:
                return words(own, entries)
            try:
                rewrite_claim(self._fd, describe(self._run, own, slots))
            except BaseException:
                close_all(fds)
                raise
        self.hold = Hold((self._fd, *fds), self.hold.path, variables(devices, self._env, slots))
        self.held = True
        return ""

    def hand_over(self) -> None:
        """Close this process's descriptors: the run's own processes have them."""
        self.hold.close(over=False)

    def leave(self) -> None:
        """Leave the line, and the slots."""
        self.hold.close(over=True)


def words(own: SlotEntry, entries: Sequence[SlotEntry]) -> str:
    """Return ``place 2 in line for 4 slots; in use: 4 by alice, 2 by bob``."""
    place = place_in_line(own, entries)
    used: Dict[str, int] = {}
    for entry in entries:
        if set(entry.held) & set(own.pool):
            used[entry.account] = used.get(entry.account, 0) + len(set(entry.held) & set(own.pool))
    text = "place %d in line for %d slot%s" % (place or 1, own.want, "" if own.want == 1 else "s")
    in_use = ", ".join("%d by %s" % (count, account) for account, count in sorted(used.items()))
    return "%s; in use: %s" % (text, in_use) if in_use else text
