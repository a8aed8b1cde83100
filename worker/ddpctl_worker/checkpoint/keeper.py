"""Looks at a job's folder for checkpoints while the job runs, and writes a manifest for each complete checkpoint.

A version counts once it has not changed for two seconds. The keeper pins the files of that version (pins.py), so that
the next rename does not end the wait. Then it hashes and copies the pinned version, and takes the newest version next.

An unchanged file may still be the torn file of a killed writer. So these conditions hold, too:

- A folder with shards of torch.distributed.checkpoint has all shards that its index names.
- A file of torch.save, safetensors or JSON is not cut, as its own format says (whole.py). For files from before this
  run, the checksums in a file of torch.save are compared as well, because a power cut may have damaged them.
- Any other file counts once it has stopped changing while all ranks were alive and no process had it open for writing,
  or once all ranks have ended well. If a rank died meanwhile, files accepted after its death are withdrawn.
- A folder waits while one of its files still belongs to the save before (rules/saves.py).

After the end of the ranks no file changes any more, so the last look does not wait. A version that was accepted and not
hashed yet is noted (accepted.py), and the next run accepts it as long as it has not changed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from functools import partial
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Set, Tuple

from ddpctl_worker.checkpoint import manifest
from ddpctl_worker.checkpoint.accepted import AcceptedEntries
from ddpctl_worker.checkpoint.fencing import find_newer_attempt, read_begun
from ddpctl_worker.checkpoint.folder import files_below, list_entries
from ddpctl_worker.checkpoint.keep import list_too_old
from ddpctl_worker.checkpoint.limits import DEATH_CLOCK_S, KEEPER_LOOK_S, MOST_UNFINISHED, SET_BACK_S
from ddpctl_worker.checkpoint.listing import read_checkpoints
from ddpctl_worker.checkpoint.pins import find_pin, pin, pinned_path, read_pin, unpin, unpin_unknown
from ddpctl_worker.checkpoint.whole import is_complete, is_damaged
from ddpctl_worker.machine import notes
from ddpctl_worker.machine.proc import bytes_written
from ddpctl_worker.rules.attempts import BEFORE_ANY, AttemptId, attempt_of
from ddpctl_worker.rules.complete import Manifest
from ddpctl_worker.rules.entries import FOLDER, Files, Stamp, is_hidden, is_log, is_of_torch, series_of, step_of
from ddpctl_worker.rules.order import moment_of
from ddpctl_worker.rules.saves import SaveCounter, find_left_behind
from ddpctl_worker.rules.unite import unite

NO_LINKS = (errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES)


class Version(NamedTuple):
    """One version of an entry. ``place``: the folder with its pins; ``None``: the files lie under their own names."""

    entry: str
    files: Files
    place: Optional[str]

    def paths(self, folder: str) -> Dict[str, str]:
        if self.place is not None:
            return {path: pinned_path(self.place, path) for path in self.files}
        return {path: manifest.file_of(folder, self.entry, path) for path in self.files}


class Keeper:
    """The checkpoints that ``host`` writes to ``folder``.

    ``since``: start of the ranks (wall clock). ``read_on`` is called with the number of bytes hashed, and may call
    ``note_death`` and ``look_at``. ``attempt``: the attempt that writes now; ``None``: the last attempt that began.
    ``copying(entry, version)``: whether that version is still being copied.
    """

    def __init__(
        self,
        folder: str,
        host: str,
        *,
        since: float,
        read_on: Optional[manifest.Tell] = None,
        attempt: Optional[AttemptId] = None,
        copying: Callable[[str, str], bool] = lambda entry, version: False,
    ) -> None:
        self._read_on, self._copying = read_on, copying
        self._folder, self._host = folder, host
        self._since, self._since_boot = since, _boot_time(since)
        self._known = {one["entry"]: one for one in manifest.read_all(folder)}
        self._begun = read_begun(folder)
        self._before = {
            _path(entry, name): one for entry, files in self._begun.files.items() for name, one in files.items()
        }
        self._attempt = self._begun.attempt if attempt is None else attempt
        self._saves = SaveCounter(self._begun, self._known_saves())
        self._seen: Dict[str, Tuple[Files, float]] = {}  # files, and since when they are unchanged
        self._pins: Dict[str, Tuple[Version, float]] = {}  # pinned version, and since when
        self._refused: Dict[str, Files] = {}  # versions that are not whole
        self._told: Dict[str, str] = {}  # the last error of each entry
        self._links = True  # whether the file system has hard links
        self._told_clock = False
        self._died: Optional[float] = None  # wall-clock time of the first death
        self._guessed: Dict[str, float] = {}  # accepted because unchanged, and when (monotonic)
        self._accepted = AcceptedEntries(folder)
        self._silent: Set[str] = set()  # entries whose format does not say whether they are whole
        self._withdrawn: Set[str] = set()  # withdrawn since this look began
        self.cost = 0.0  # seconds of the last look, without copying and hashing
        self.gone: List[str] = []  # entries with a manifest that were removed, by ddpctl or by a user
        self._sweep()

    @property
    def manifests(self) -> Mapping[str, Manifest]:
        """Return the manifests of this host by entry."""
        return self._known

    def note_written(self) -> Dict[str, int]:
        """Return the saves of this attempt: entry -> time of its newest file (ns)."""
        found = {}
        for entry, (files, _) in self._seen.items():
            new = [one.mtime_ns for path, one in files.items() if not self._begun.found(entry, path, one)]
            if new:
                found[entry] = max(new)
        return found

    def note_death(self, died: Optional[float], since: float) -> None:
        """Take note of the first death among the ranks (wall clock; ``None``: all live).

        ``since``: the last restart of a rank by the launcher (wall clock), 0.0 if there was no restart.
        Files accepted after the death are withdrawn.

        Raises:
            OSError, WorkerError: the disk does not take it. It holds for this process all the same.
        """
        late: List[str] = []
        if died is not None and self._died is None:
            # The clock may have been set since an entry was accepted, but hardly since the death.
            until = time.monotonic() - (time.time() - died) - DEATH_CLOCK_S
            late = [entry for entry, at in self._guessed.items() if at >= until]
            for entry in late:
                notes.note("checkpoint %s is not complete: it was being written when a rank ended" % entry)
                manifest.discard(self._folder, entry)
                self._known.pop(entry, None)
            self._withdrawn.update(late)
        if since not in (0.0, self._since):  # the clock may have been set since a restart that is known
            self._since, self._since_boot = since, _boot_time(since)
        self._died = died
        self._refused.clear()
        self._accepted.withdraw(late)

    def look(self, ended: Optional[bool] = None) -> List[Manifest]:
        """Write the missing manifests and return them.

        ``ended``: ``None`` while ranks live, then whether all of them ended well.
        """
        self._withdrawn.clear()
        written = [self._take(version, ended) for version in self.look_at(ended)]
        return [one for one in written if one is not None]

    def list_unfinished(self) -> List[Dict[str, Any]]:
        """Return the files that the end of the ranks has cut off, as ``{"path", "bytes"}``; called once no rank lives.

        The format of a file says so. A file whose format does not say counts if it was written until the first death.
        """
        died = time.time() if self._died is None else self._died
        done = {
            _path(entry, name)
            for entry, files in list_entries(self._folder).items()
            for name in files
            if self._has(entry, files) or self._accepted.contains(entry, files)
        }
        found = []
        for path, stamp in files_below(self._folder).items():
            own = path.startswith(FOLDER + os.sep) or is_of_torch(path) or is_log(path) or path in done
            if own or self._is_older(path, stamp):
                continue
            whole = is_complete(os.path.join(self._folder, path))
            if whole is False or (whole is None and stamp.mtime_ns / 1e9 >= died - KEEPER_LOOK_S):
                found.append((stamp.mtime_ns, {"path": path, "bytes": stamp.size}))
        return [file for _, file in sorted(found, key=lambda pair: -pair[0])[:MOST_UNFINISHED]]

    def watch(self) -> None:
        """Count saves while a large file is hashed."""
        self._saves.see(list_entries(self._folder))

    def look_at(self, ended: Optional[bool] = None) -> List[Version]:
        """Return the whole versions without a manifest, reading little. They are noted, so that the next run can hash
        them if this run has no time left."""
        begun = time.monotonic()
        try:
            return self._unhashed(ended)
        finally:
            self.cost = time.monotonic() - begun

    def _unhashed(self, ended: Optional[bool]) -> List[Version]:
        found = list_entries(self._folder)
        self._saves.see(found)
        self._seen = {entry: seen for entry, seen in self._seen.items() if entry in found}
        self._refused = {entry: files for entry, files in self._refused.items() if entry in found}
        for entry in [entry for entry in self._known if entry not in found and not is_hidden(entry, found)]:
            # If the manifest is missing too, the whole folder is away and may come back.
            if os.path.exists(manifest.path_of(self._folder, entry)):
                manifest.discard(self._folder, entry)
                self._forget(entry)
        todo = []
        for entry in sorted(found, key=lambda one: _age(found[one])):
            version = self._due(entry, found[entry], ended)
            if version is not None:
                todo.append(version)
        self._note({one.entry: one.files for one in todo if one.entry in self._silent}, found)
        return todo

    def _note(self, silent: Dict[str, Files], found: Mapping[str, Files]) -> None:
        try:
            self._accepted.accept(silent, [entry for entry, files in found.items() if not self._has(entry, files)])
        except OSError as error:  # mostly they are hashed at once
            notes.note("checkpoints: %s" % error)

    def _tell_once(self, what: str, why: str) -> None:
        if self._told.get(what) != why:
            notes.note(why)
        self._told[what] = why

    def _has(self, entry: str, files: Files) -> bool:
        known = self._known.get(entry)
        return known is not None and manifest.fits(known, files)

    def _due(self, entry: str, files: Files, ended: Optional[bool]) -> Optional[Version]:
        """Return the version of an entry that needs a manifest now; ``None``: no version does."""
        settled = self._settled(entry, files)
        if self._has(entry, files):
            self._pins.pop(entry, None)
            return None
        known = self._known.get(entry)
        if ended is None and known is not None and self._copying(entry, known["version"]):
            self._pins.pop(entry, None)
            return None
        named, older = Version(entry, files, None), self._rested(entry, files)
        if ended is not None:
            versions = [named] if older is None or older.files == files else [named, older]
        elif "" in files and self._links:
            versions = [older] if older is not None else []
        else:
            versions = [named] if settled else []
        for version in versions:
            if self._is_believed(version, ended):
                return self._pinned(version)
        return None

    def _rested(self, entry: str, files: Files) -> Optional[Version]:
        """Return the pinned version of a file if it has not changed for long enough; pin the newest version if no
        version is pinned."""
        if "" not in files:
            return None
        version, since = self._pins.get(entry, (None, 0.0))
        if version is not None and version.place is not None and read_pin(version.place) == version.files:
            refused = self._refused.get(entry) == version.files
            if not (refused and version.files != files):
                return version if time.monotonic() - since >= KEEPER_LOOK_S else None
        self._pins.pop(entry, None)
        version = self._pinned(Version(entry, files, None))
        if version is not None and version.place is not None:
            self._pins[entry] = version, time.monotonic()
        return None

    def _pinned(self, version: Version) -> Optional[Version]:
        """Pin a version. Return it unpinned if the file system has no hard links; ``None`` if it has changed."""
        if version.place is not None or not self._links:
            return version
        try:
            place = pin(self._folder, version.entry, version.files)
        except OSError as error:
            if error.errno in NO_LINKS:
                self._links = False
                self._tell_once("links", "no hard links in %s: a replaced checkpoint does not count" % self._folder)
            else:  # a full disk: the version is judged under its own name
                why = "the checkpoint %s cannot be pinned: %s" % (version.entry, error)
                self._tell_once("pin " + version.entry, why)
            return version
        return None if place is None else version._replace(place=place)

    def _is_believed(self, version: Version, ended: Optional[bool]) -> bool:
        entry, files = version.entry, version.files
        if self._refused.get(entry) == files and not ended:
            return False
        try:
            believed = self._believed(version, ended)
        except FileNotFoundError:
            return False
        except OSError as error:  # retried at every look: the error may pass
            self._tell_once(entry, "checkpoint %s is not complete: it cannot be read: %s" % (entry, error))
            return False
        if believed is False:
            self._refused[entry] = files
        if believed:
            self._withdrawn.discard(entry)
        return bool(believed)

    def _take(self, version: Version, ended: Optional[bool]) -> Optional[Manifest]:
        entry, files = version.entry, version.files
        attempt, saves = self._written_by(entry, files)
        behind = find_left_behind(saves) if not ended else []
        if behind:
            why = "%s is of the save before" % behind[0]
            self._tell_once(entry, "checkpoint %s is not complete: %s" % (entry, why))
            return None
        try:
            made = manifest.make(
                version.paths(self._folder),
                entry,
                self._host,
                files,
                attempt,
                saves,
                self._read_on,
                self._ahead(entry),
            )
        except FileNotFoundError:
            return None
        except manifest.Unsettled as why:
            self._refused[entry] = files
            notes.note("checkpoint %s is not complete: %s" % (entry, why))
            return None
        except OSError as error:  # retried only after a change or at the end: the file may be large
            self._refused[entry] = files
            self._tell_once(entry, "checkpoint %s is not complete: it cannot be read: %s" % (entry, error))
            return None
        if entry in self._withdrawn or self._is_fenced():
            return None
        try:
            manifest.write(self._folder, made)
        except OSError as error:  # retried at every look: the disk is full or away, which may pass
            cause = error.strerror or str(error)  # without the name of the draft, which is another at each try
            self._tell_once(entry, "checkpoint %s is not complete: its manifest cannot be written: %s" % (entry, cause))
            return None
        self._known[entry] = made
        self._pins.pop(entry, None)
        unpin(self._folder, entry, [version.place])
        return made

    def _is_fenced(self) -> bool:
        """Whether a newer attempt has begun here: files that change now belong to it."""
        newer = find_newer_attempt(self._folder, self._attempt)
        if newer is not None:
            self._tell_once("fence", "nothing of %s is kept any more: %s has begun" % (self._attempt, newer))
        return newer is not None

    def _written_by(self, entry: str, files: Files) -> Tuple[AttemptId, Dict[str, Optional[int]]]:
        """Return the attempt that wrote the files, and the save of each file."""
        writer = self._begun.writer(entry, files)
        if writer == self._begun.attempt:
            return self._attempt, self._saves.of(entry, files)
        sure = writer == BEFORE_ANY or step_of(entry) is not None or "" in files
        return writer, dict.fromkeys(files, 1 if sure else None)

    def _known_saves(self) -> Dict[str, Dict[str, Tuple[int, int, Optional[int]]]]:
        """Return size, time and save of each file in the manifests of this attempt."""
        return {
            entry: {path: (file["size"], file["mtime_ns"], file["save"]) for path, file in one["files"].items()}
            for entry, one in self._known.items()
            if attempt_of(one) == self._attempt
        }

    def _ahead(self, entry: str) -> Optional[float]:
        """Return the time of the newest checkpoint of the series if it lies in the future: the clock was set back."""
        series = series_of(entry) or entry
        own = [one for one in self._known.values() if one["clock"] == self._host]
        times = [moment_of(one["time"]) for one in own if (series_of(one["entry"]) or one["entry"]) == series]
        newest = max(times, default=0.0)
        if newest <= time.time():
            return None
        if newest > time.time() + SET_BACK_S and not self._told_clock:
            self._told_clock = True
            notes.note("the clock was set back: new checkpoints count as newer than those with a time in the future")
        return newest

    def _settled(self, entry: str, files: Files) -> bool:
        now = time.monotonic()
        before, since = self._seen.get(entry, ({}, now))
        if before != files:
            self._seen[entry] = (files, now)
            return False
        return now - since >= KEEPER_LOOK_S

    def _believed(self, version: Version, ended: Optional[bool]) -> Optional[bool]:
        """Return whether a version is whole, as far as this host can know; ``None``: not known yet."""
        entry, files, paths = version.entry, version.files, version.paths(self._folder)
        plain = [name for name in files if not is_of_torch(name)]  # rules/complete.py judges shards and indexes
        said = {name: is_complete(paths[name]) for name in plain}
        if False in said.values():
            return False
        before = [name for name in plain if said[name] and self._is_older(_path(entry, name), files[name])]
        if any(is_damaged(paths[name], self._read_on) for name in before):
            notes.note("checkpoint %s is not complete: it has other bytes than its own checksums say" % entry)
            return False
        sharded = len(plain) < len(files)
        unsaid = [name for name in plain if said[name] is None] if sharded or "" in files else plain
        if not unsaid:
            self._silent.discard(entry)
            return True
        self._silent.add(entry)
        if self._accepted.contains(entry, files):
            return True
        if all(self._is_older(_path(entry, name), files[name]) for name in unsaid):
            return False
        if ended is not None or self._died is not None:
            return bool(ended)
        if bytes_written([paths[name] for name in unsaid]):
            return None
        self._guessed[entry] = time.monotonic()
        return True

    def _is_older(self, path: str, stamp: Stamp) -> bool:
        """Return whether a file is older than the present ranks. ``path``: below the folder."""
        # By the wall clock as it is now. That is read last, and `_boot_time` reads it first: a pause of this process
        # between the two clocks makes the start later, never earlier.
        started = self._since_boot - notes.boottime() + time.time()
        return stamp.mtime_ns / 1e9 < min(started, self._since) or self._before.get(path) == stamp

    def tidy(self, keep: int, outputs: List[str], elsewhere: Mapping[str, List[Manifest]], holders: int = 1) -> None:
        """Remove old checkpoints beyond ``keep``.

        ``elsewhere``: manifests of other hosts, because only all parts together are complete. ``holders``: number of
        hosts that should have each file. The other hosts remove their copies later.
        """
        top = os.path.dirname(self._folder)
        here, _ = read_checkpoints(top)
        for entry in list_too_old(unite({**elsewhere, self._host: here}), keep, outputs, holders):
            try:
                removed = remove_entry(self._folder, entry)
            except OSError as error:
                self._tell_once(entry, "the checkpoint %s cannot be removed: %s" % (entry, error))
                continue
            if removed:
                self._forget(entry)
                notes.note("removed the checkpoint %s: %s newer ones are kept" % (entry, keep))

    def _forget(self, entry: str) -> None:
        self._known.pop(entry, None)
        self._pins.pop(entry, None)
        unpin(self._folder, entry)
        self.gone.append(entry)

    def _sweep(self) -> None:
        """Remove the pins of an earlier keeper, except pins of versions with a manifest."""
        removals = [partial(unpin_unknown, self._folder, self._known)]
        removals += [partial(self._unpin_older, one) for one in self._known.values()]
        for remove in removals:
            try:
                remove()
            except OSError as error:
                notes.note("pinned versions of checkpoints cannot be removed: %s" % error)

    def _unpin_older(self, known: Manifest) -> None:
        unpin(self._folder, known["entry"], [find_pin(self._folder, known)])


def _path(entry: str, name: str) -> str:
    """Return the path of an entry's file below the folder."""
    return os.path.join(entry, name) if name else entry


def _boot_time(moment: float) -> float:
    """Return a recent moment of the wall clock as seconds since boot, which stay right if the clock is set later."""
    return moment - time.time() + notes.boottime()


def _age(files: Files) -> int:
    return max(stamp.mtime_ns for stamp in files.values())


def remove_entry(folder: str, entry: str) -> bool:
    """Remove an entry if it still fits its manifest; return whether it did. The manifest goes first."""
    known = manifest.read(folder, entry)
    if known is None or not manifest.fits(known, list_entries(folder).get(entry, {})):
        return False
    manifest.discard(folder, entry)
    unpin(folder, entry)
    path = os.path.join(folder, entry)
    if os.path.isdir(path):
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    return True
