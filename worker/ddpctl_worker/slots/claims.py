"""The claims of this host: the holders of its slots; and how a run takes and leaves its slots."""

from __future__ import annotations

import contextlib
import os
from typing import Any, Callable, Dict, Iterator, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from ddpctl_worker.facts import user_name
from ddpctl_worker.machine import notes
from ddpctl_worker.rules.slots import SlotEntry, choose_slots
from ddpctl_worker.slots.devices import Devices, GpusUnknown, Slot, choose_pool, find_devices, variables
from ddpctl_worker.slots.folder import LockedClaim, SlotsFolder, UnusableFolder, read_settings
from ddpctl_worker.slots.limits import MOST_BOOTTIME_S, MOST_SLOTS, SHOWN_LETTERS
from ddpctl_worker.wire.channel import WorkerError
from ddpctl_worker.wire.contract import IN_USE

NEW_CLAIM = "(new)"  # the name of an entry that has no claim yet


class Wish(NamedTuple):
    """The slots that a run wants: ``each`` and ``nodes`` as in ``find_devices``, ``nproc`` slots (``None``: all)."""

    each: Optional[int]
    nodes: int
    nproc: Optional[int]


class Hold(NamedTuple):
    """The slots of a run, in the process that has taken them. ``fds`` hold the locks, ``env`` names the GPUs.

    ``why_not``: no slot could be claimed here, and the run starts without.
    """

    fds: Tuple[int, ...] = ()
    path: Optional[str] = None
    env: Mapping[str, str] = {}
    why_not: Optional[str] = None

    def to_json(self) -> Dict[str, Any]:
        return {"fds": list(self.fds), "path": self.path, "env": dict(self.env)}

    @contextlib.contextmanager
    def handing_over(self) -> Iterator[None]:
        """Close this process's descriptors after a start that has given them to the run's own processes."""
        failed = True
        try:
            yield
            failed = False
        finally:
            self.close(over=failed)

    def close(self, *, over: bool) -> None:
        """Close this process's descriptors. ``over``: no other process of the run has them, so the claim is removed."""
        leave(self.to_json(), over=over)


def wish_of(run: Mapping[str, Any]) -> Optional[Wish]:
    """Return the wish in a run's record, or ``None``: the run wants no slots."""
    slots = run.get("slots")
    if not slots:
        return None
    nproc = run.get("nproc")
    return Wish(slots["count"], int(slots["nodes"]), None if nproc is None else int(nproc))


def leave(held: Mapping[str, Any], *, over: bool) -> None:
    """Leave the slots of ``Hold.to_json``, once. ``over``: the run has ended here, so its claim is removed, too."""
    if over and held.get("path"):
        with contextlib.suppress(OSError):
            os.unlink(held["path"])
    close_all(held.get("fds", []))


def close_all(fds: List[int]) -> None:
    """Close these descriptors, and empty the list."""
    while fds:
        os.close(fds.pop())


def keep_private(held: Mapping[str, Any]) -> None:
    """Keep the descriptors from the programs that this process starts: only ddpctl's processes hold slots."""
    for fd in held.get("fds", ()):
        os.set_inheritable(fd, False)


def want(devices: Devices, wish: Wish, env: Mapping[str, str], entry: SlotEntry) -> SlotEntry:
    """Return ``entry`` with the slots that it may take, and their number.

    A run with more processes than slots takes the host as a whole.
    """
    pool = tuple(slot.id for slot in choose_pool(devices, env))
    return entry._replace(pool=pool, want=min(len(pool), wish.nproc or len(pool)))


def new_entry(run: Mapping[str, Any]) -> SlotEntry:
    """Return the entry of a run that has no claim on this host yet."""
    name = "%s.%s" % (run["run"], run["host"])
    return SlotEntry(name, str(run["run"]), user_name(), notes.boottime(), 0, ())


def entries_of(claims: Sequence[LockedClaim]) -> List[SlotEntry]:
    """Return the claims for the rules.

    A run that has slots here already, for another host of its inventory that is this machine, is ready for more.
    """
    entries = [_entry_of(claim) for claim in claims]
    holding = {(entry.account, entry.run) for entry in entries if entry.held}
    return [entry._replace(ready=entry.ready or (entry.account, entry.run) in holding) for entry in entries]


def _entry_of(claim: LockedClaim) -> SlotEntry:
    """Return an entry. Another account may have written anything: a wrong value counts as missing."""
    value = claim.value
    run, since, wanted = (value.get(key) for key in ("run", "boottime", "want"))
    return SlotEntry(
        claim.name,
        run[:SHOWN_LETTERS] if isinstance(run, str) else "",
        user_name(claim.uid),
        float(since) if isinstance(since, (int, float)) and 0 <= since <= MOST_BOOTTIME_S else 0.0,
        wanted if isinstance(wanted, int) and 0 <= wanted < MOST_SLOTS else 0,
        _ids(value.get("pool")),
        tuple(slot.id for slot in slots_of(value)),
        value.get("ready") is not False,
    )


def slots_of(value: Mapping[str, Any]) -> List[Slot]:
    """Return the slots that a claim names as held."""
    slots = value.get("slots")
    pairs = slots.items() if isinstance(slots, dict) else ()
    return [
        Slot(name[:SHOWN_LETTERS], index)
        for name, index in pairs
        if isinstance(index, int) and not isinstance(index, bool) and 0 <= index < MOST_SLOTS
    ]


def _ids(value: Any) -> Tuple[str, ...]:
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


class Decision(NamedTuple):
    """The state of this host under the lock of its slots. ``own``: the entry of the run, ``entries``: all claims."""

    folder: SlotsFolder
    devices: Devices
    limit: Optional[int]
    own: SlotEntry
    entries: Sequence[SlotEntry]


def claim(run: Mapping[str, Any], env: Mapping[str, str], decide: Callable[[Decision], Hold]) -> Optional[Hold]:
    """Return what ``decide`` takes for ``run`` on this host; ``None`` if the run has a claim here already.

    ``env``: the environment of the run's processes.

    Raises:
        WorkerError: the folder is not safe.
    """
    wish = wish_of(run)
    if wish is None:
        return Hold()
    try:
        settings = read_settings()
        devices = find_devices(wish.each, wish.nodes)
        with contextlib.closing(SlotsFolder(settings.folder)) as folder, folder.decision():
            folder.remove_old()
            entries = entries_of(folder.claims())
            own = want(devices, wish, env, new_entry(run))
            if any(entry.name == own.name for entry in entries):
                return None
            return decide(Decision(folder, devices, settings.limit, own, entries))
    except (UnusableFolder, GpusUnknown) as why:
        notes.note("no slot was claimed: %s" % why)
        return Hold(why_not=str(why))


def take(run: Mapping[str, Any], env: Mapping[str, str]) -> Optional[Hold]:
    """Take the slots that ``run`` wants on this host. Arguments and result as in ``claim``.

    Raises:
        WorkerError: IN_USE, they are not free; or the folder is not safe.
    """
    return claim(run, env, lambda found: _take(run, env, found))


def _take(run: Mapping[str, Any], env: Mapping[str, str], found: Decision) -> Hold:
    folder, own = found.folder, found.own
    slots, fds = take_slots(folder, own, found.entries, found.devices, found.limit)
    if slots is None:
        raise WorkerError(IN_USE, "its slots are in use", "`ddpctl ps` shows by whom")
    try:
        fds.append(folder.write_claim(own.name, describe(run, own, slots)))
    except BaseException:
        close_all(fds)
        raise
    return Hold(tuple(fds), folder.claim_path(own.name), variables(found.devices, env, slots) if slots else {})


def take_slots(
    folder: SlotsFolder, own: SlotEntry, entries: Sequence[SlotEntry], devices: Devices, limit: Optional[int]
) -> Tuple[Optional[Tuple[Slot, ...]], List[int]]:
    """Choose and lock the slots of ``own``; return them, and the descriptors of the locks. ``None``: it must wait."""
    taken = {foreign.slot for foreign in devices.foreign}
    by_id = {slot.id: slot for slot in devices.slots}
    fds: List[int] = []
    try:
        while own.want:
            chosen = choose_slots(own, entries, taken, limit)
            missed = _lock_all(folder, chosen, fds)
            if missed is None:
                return tuple(by_id[slot] for slot in chosen) or None, fds
            taken.add(missed)  # a process without a readable claim holds it
    except BaseException:  # such as a full disk
        close_all(fds)
        raise
    return (), fds


def _lock_all(folder: SlotsFolder, chosen: Tuple[str, ...], fds: List[int]) -> Optional[str]:
    """Lock all slots, and add their descriptors to ``fds``. If a slot is locked already, lock no slot and return it."""
    for slot in chosen:
        fd = folder.take_slot(slot)
        if fd is None:
            close_all(fds)
            return slot
        fds.append(fd)
    return None


def describe(run: Mapping[str, Any], own: SlotEntry, slots: Tuple[Slot, ...]) -> Dict[str, Any]:
    """Return the content of a claim: what every account of this host may know of the run."""
    return {
        **{key: run.get(key) for key in ("run", "job", "cluster", "project", "host", "hosts", "origin", "created")},
        "boottime": own.since,
        "want": own.want,
        "pool": list(own.pool),
        "ready": own.ready,
        "slots": {slot.id: slot.number for slot in slots},
    }
