"""Looks at a job's folder for checkpoints while the job runs, and writes a manifest for each one that is whole.

A file renamed into place is whole at once, but a name does not say how its file came there. So a version counts once it
has not changed for two seconds. A file is pinned for that (pins.py), so that the next rename does not end its time, and
a folder once it has come to rest. The pinned version is hashed and copied, then the newest one is taken. That proves
nothing of a writer that was killed, and such a one is never believed:

- a folder with shards of torch.distributed.checkpoint has an index that says which shards must be there;
- a file of torch.save, of safetensors or of JSON says itself whether it is cut (whole.py), also beside such shards; of
  what was written before this run, the checksums in a file of torch.save are compared too: there may have been a power
  cut;
- of anything else it must be seen that it came to rest while every rank lived on, and that no process has it open for
  writing, or that they all ended well. Once a rank has died nothing of that kind is believed any more, and what was
  believed between that moment and the word of it is not either;
- a folder of which a file still is of the save before (saves.py) waits for that file.

When the ranks have ended nothing changes any more, so the last look does not wait. What was believed once and has no
manifest yet (beliefs.py) is believed by the next run too, as long as it does not change.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Set, Tuple

from ddpctl_worker.checkpoint import manifest
from ddpctl_worker.checkpoint.beliefs import Beliefs
from ddpctl_worker.checkpoint.fencing import fence, read_begun
from ddpctl_worker.checkpoint.folder import list_entries
from ddpctl_worker.checkpoint.keep import too_old
from ddpctl_worker.checkpoint.limits import DEATH_CLOCK_S, KEEPER_LOOK_S, SET_BACK_S
from ddpctl_worker.checkpoint.listing import held
from ddpctl_worker.checkpoint.pins import at, entries_pinned, pin, pinned, unpin, version_at
from ddpctl_worker.checkpoint.whole import damaged, whole
from ddpctl_worker.machine import notes
from ddpctl_worker.machine.proc import written_to
from ddpctl_worker.rules.attempts import BEFORE_ANY, AttemptId, attempt_of
from ddpctl_worker.rules.complete import Manifest
from ddpctl_worker.rules.entries import Files, hidden, is_of_torch, series_of, step_of
from ddpctl_worker.rules.order import moment
from ddpctl_worker.rules.saves import SaveCounter, left_behind
from ddpctl_worker.rules.unite import unite

NO_LINKS = (errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES)


class Version(NamedTuple):
    """One version of an entry. ``place``: where it is pinned; None: it lies under its own name."""

    entry: str
    files: Files
    place: Optional[str]

    def paths(self, folder: str) -> Dict[str, str]:
        if self.place is not None:
            return {path: at(self.place, path) for path in self.files}
        return {path: manifest.file_of(folder, self.entry, path) for path in self.files}


class Keeper:
    """The checkpoints that ``host`` writes to ``folder``. ``since``: when the ranks were started, in wall-clock time;
    ``read_on`` hears how many bytes were hashed, and may call ``heard`` and ``see``. ``attempt``: the one that writes
    now; None: the last one that began. ``copying``: whether a version of an entry is still being copied."""

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
        self._folder, self._host, self._since = folder, host, since
        self._known = {one["entry"]: one for one in manifest.read_all(folder)}
        self._begun = read_begun(folder)
        self._attempt = self._begun.attempt if attempt is None else attempt
        self._saves = SaveCounter(self._begun, self._known_saves())
        self._seen: Dict[str, Tuple[Files, float]] = {}  # as it was, and since when it is that
        self._pins: Dict[str, Tuple[Version, float]] = {}  # files that are to be judged, and since when
        self._refused: Dict[str, Files] = {}  # will not be whole unless it changes
        self._told: Dict[str, str] = {}  # what went wrong with an entry last
        self._links = True  # whether the file system has hard links
        self._told_clock = False
        self._died: Optional[float] = None  # when the first rank ended, in wall-clock time
        self._guessed: Dict[str, float] = {}  # believed since it came to rest, and when (wall-clock time)
        self._beliefs = Beliefs(folder)
        self._silent: Set[str] = set()  # entries that do not say themselves whether they are all there
        self._withdrawn: Set[str] = set()  # not believed any more, since this look began
        self.cost = 0.0  # seconds that the last look took, without copying and hashing
        self.gone: List[str] = []  # entries that had a manifest and were removed, by ddpctl or anybody else
        self._sweep()

    @property
    def known(self) -> Mapping[str, Manifest]:
        """The manifests of this host, by entry."""
        return self._known

    def written(self) -> Dict[str, int]:
        """What this attempt has saved: entry -> the time of its newest file (ns)."""
        found = {}
        for entry, (files, _) in self._seen.items():
            new = [one.mtime_ns for path, one in files.items() if not self._begun.found(entry, path, one)]
            if new:
                found[entry] = max(new)
        return found

    def heard(self, died: Optional[float], since: float) -> None:
        """When the first of the ranks that were started at ``since`` ended (wall-clock time; None: all live)."""
        if died is not None and self._died is None:
            late = [entry for entry, at in self._guessed.items() if at >= died - DEATH_CLOCK_S]
            for entry in late:
                notes.note("checkpoint %s is not complete: it was being written when a rank ended" % entry)
                manifest.discard(self._folder, entry)
                self._known.pop(entry, None)
            self._withdrawn.update(late)
            self._drop(late)
        self._died, self._since = died, max(since, self._since)
        self._refused.clear()

    def _drop(self, late: List[str]) -> None:
        try:
            self._beliefs.drop(late)
        except OSError as error:
            notes.note("checkpoints: %s" % error)

    def look(self, ended: Optional[bool] = None) -> List[Manifest]:
        """Write what manifests are missing; these are returned.

        ``ended``: None while there are ranks, then whether they all ended well.
        """
        self._withdrawn.clear()
        written = [self._take(version, ended) for version in self.see(ended)]
        return [one for one in written if one is not None]

    def watch(self) -> None:
        """The part of a look that counts saves, for while a large file is hashed."""
        self._saves.see(list_entries(self._folder))

    def see(self, ended: Optional[bool] = None) -> List[Version]:
        """The part of a look that reads little: what is all there and has no manifest. It is known from now on, also to
        the next run, if nobody has the time to hash it."""
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
        for entry in [entry for entry in self._known if entry not in found and not hidden(entry, found)]:
            # Where its manifest is gone too the whole folder is away, and may come back.
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
            self._beliefs.note(silent, [entry for entry, files in found.items() if not self._has(entry, files)])
        except OSError as error:  # they are hashed at once, mostly
            notes.note("checkpoints: %s" % error)

    def _tell_once(self, what: str, why: str) -> None:
        """Not at every look."""
        if self._told.get(what) != why:
            notes.note(why)
        self._told[what] = why

    def _has(self, entry: str, files: Files) -> bool:
        """Whether there is a manifest of just that."""
        known = self._known.get(entry)
        return known is not None and manifest.fits(known, files)

    def _due(self, entry: str, files: Files, ended: Optional[bool]) -> Optional[Version]:
        """The version of an entry that a manifest is to be made of; None: there is none, or not yet."""
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
        """The version of a file that was pinned long enough ago and has not changed since; pins the newest one where
        none is."""
        if "" not in files:
            return None
        version, since = self._pins.get(entry, (None, 0.0))
        if version is not None and version.place is not None and version_at(version.place) == version.files:
            refused = self._refused.get(entry) == version.files
            if not (refused and version.files != files):
                return version if time.monotonic() - since >= KEEPER_LOOK_S else None
        self._pins.pop(entry, None)
        version = self._pinned(Version(entry, files, None))
        if version is not None and version.place is not None:
            self._pins[entry] = version, time.monotonic()
        return None

    def _pinned(self, version: Version) -> Optional[Version]:
        """The version with its links; as it is where the file system has none; None where it has changed."""
        if version.place is not None or not self._links:
            return version
        try:
            place = pin(self._folder, version.entry, version.files)
        except OSError as error:
            if error.errno in NO_LINKS:
                self._links = False
                self._tell_once("links", "no hard links in %s: a replaced checkpoint does not count" % self._folder)
            else:  # a full disk: judged under its own name
                self._tell_once(version.entry, "the checkpoint %s cannot be pinned: %s" % (version.entry, error))
            return version
        return None if place is None else version._replace(place=place)

    def _is_believed(self, version: Version, ended: Optional[bool]) -> bool:
        """Whether a manifest is to be made of it."""
        entry, files = version.entry, version.files
        if self._refused.get(entry) == files and not ended:
            return False
        try:
            believed = self._believed(version, ended)
        except FileNotFoundError:
            return False
        except OSError as error:  # asked again at every look: it may pass
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
        behind = left_behind(saves) if not ended else []
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
        except OSError as error:  # read again only after a change, or the end: it may be large
            self._refused[entry] = files
            self._tell_once(entry, "checkpoint %s is not complete: it cannot be read: %s" % (entry, error))
            return None
        if entry in self._withdrawn or self._is_fenced():
            return None
        manifest.write(self._folder, made)
        self._known[entry] = made
        self._pins.pop(entry, None)
        unpin(self._folder, entry, [version.place])
        return made

    def _is_fenced(self) -> bool:
        """Whether a newer attempt has begun here: files that change now are of that one."""
        newer = fence(self._folder, self._attempt)
        if newer is not None:
            self._tell_once("fence", "nothing of %s is kept any more: %s has begun" % (self._attempt, newer))
        return newer is not None

    def _written_by(self, entry: str, files: Files) -> Tuple[AttemptId, Dict[str, Optional[int]]]:
        """The attempt that wrote it, and the save of each file."""
        writer = self._begun.writer(entry, files)
        if writer == self._begun.attempt:
            return self._attempt, self._saves.of(entry, files)
        sure = writer == BEFORE_ANY or step_of(entry) is not None or "" in files
        return writer, dict.fromkeys(files, 1 if sure else None)

    def _known_saves(self) -> Dict[str, Dict[str, Tuple[int, int, Optional[int]]]]:
        """The save of each file in the manifests of this attempt."""
        return {
            entry: {path: (file["size"], file["mtime_ns"], file["save"]) for path, file in one["files"].items()}
            for entry, one in self._known.items()
            if attempt_of(one) == self._attempt
        }

    def _ahead(self, entry: str) -> Optional[float]:
        """When the newest one of its series was written, if that is in the future: the clock was set back since."""
        series = series_of(entry) or entry
        own = [one for one in self._known.values() if one["clock"] == self._host]
        times = [moment(one["time"]) for one in own if (series_of(one["entry"]) or one["entry"]) == series]
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
        """Whether it is all that its writer meant to write, as far as this host can know; None: not yet."""
        entry, files, paths = version.entry, version.files, version.paths(self._folder)
        plain = [name for name in files if not is_of_torch(name)]  # complete.py compares the others
        said = {name: whole(paths[name]) for name in plain}
        if False in said.values():
            return False
        before = [name for name in plain if said[name] and files[name].mtime_ns < self._since * 1e9]
        if any(damaged(paths[name], self._read_on) for name in before):
            notes.note("checkpoint %s is not complete: it has other bytes than its own checksums say" % entry)
            return False
        sharded = len(plain) < len(files)
        unsaid = [name for name in plain if said[name] is None] if sharded or "" in files else plain
        if not unsaid:
            self._silent.discard(entry)
            return True
        self._silent.add(entry)
        if self._beliefs.hold(entry, files):
            return True
        if max(files[name].mtime_ns for name in unsaid) < self._since * 1e9:
            return False
        if ended is not None or self._died is not None:
            return bool(ended)
        if written_to([paths[name] for name in unsaid]):
            return None
        self._guessed[entry] = time.time()
        return True

    def tidy(self, keep: int, outputs: List[str], elsewhere: Mapping[str, List[Manifest]], holders: int = 1) -> None:
        """Remove what is too old. ``elsewhere``: what other hosts have, since only all parts together are complete;
        ``holders``: on how many hosts each file is to lie. The copies on other hosts follow once they hear of it."""
        top = os.path.dirname(self._folder)
        here, _ = held(top)
        for entry in too_old(unite({**elsewhere, self._host: here}), keep, outputs, holders):
            try:
                removed = remove(self._folder, entry)
            except OSError as error:
                self._tell_once(entry, "the checkpoint %s cannot be removed: %s" % (entry, error))
                continue
            if removed:
                self._forget(entry)
                notes.note("removed the checkpoint %s: %s newer ones are kept" % (entry, keep))

    def _forget(self, entry: str) -> None:
        """It was removed for good."""
        self._known.pop(entry, None)
        self._pins.pop(entry, None)
        unpin(self._folder, entry)
        self.gone.append(entry)

    def _sweep(self) -> None:
        """Remove the pins that an earlier keeper left behind, but for the versions that have a manifest."""
        for entry in entries_pinned(self._folder):
            known = self._known.get(entry)
            try:
                unpin(self._folder, entry, [pinned(self._folder, known)] if known is not None else [])
            except OSError as error:
                notes.note("pinned versions of the checkpoint %s cannot be removed: %s" % (entry, error))


def _age(files: Files) -> int:
    return max(stamp.mtime_ns for stamp in files.values())


def remove(folder: str, entry: str) -> bool:
    """Remove an entry, unless it is no longer what its manifest says. First it is no longer known, then it is gone."""
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
