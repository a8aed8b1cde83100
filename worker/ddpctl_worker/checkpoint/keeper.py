"""Looks at a job's folder for checkpoints while the job runs, and writes a manifest for each one that is whole.

A file renamed into place is whole at once, but a name does not say how its file came there. So an entry counts once it
has not changed for two seconds. That proves nothing of a writer that was killed, and such a one is never believed:

- a folder with shards of torch.distributed.checkpoint has an index that says which shards must be there;
- a file of torch.save, of safetensors or of JSON says itself whether it is cut (whole.py), also beside such shards; of
  what was written before this run, the checksums in a file of torch.save are compared too: there may have been a power
  cut;
- of anything else it must be seen that it came to rest while every rank lived on, and that no process has it open for
  writing, or that they all ended well. Once a rank has died nothing of that kind is believed any more, and what was
  believed between that moment and the word of it is not either.

When the ranks have ended nothing changes any more, so the last look does not wait. What was believed once and has no
manifest yet (beliefs.py) is believed by the next run too, as long as it does not change.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from typing import Dict, List, Mapping, Optional, Set, Tuple

from ddpctl_worker import notes
from ddpctl_worker.checkpoint import manifest
from ddpctl_worker.checkpoint.beliefs import Beliefs
from ddpctl_worker.checkpoint.complete import APART_S, METADATA, SHARD, Manifest, moment
from ddpctl_worker.checkpoint.entries import Files, hidden, look, series_of
from ddpctl_worker.checkpoint.keep import too_old
from ddpctl_worker.checkpoint.listing import held
from ddpctl_worker.checkpoint.unite import unite
from ddpctl_worker.checkpoint.whole import damaged, whole
from ddpctl_worker.proc import written_to

COARSE_S = 0.1  # the word of a rank's death may have a time that much after it
LOOK_S = 2.0  # between two looks; an entry that is the same in both is settled
SHARE = 0.05  # of one core, at most, without hashing: a look at very many files, or on a slow disk, takes long


class Keeper:
    """The checkpoints that ``host`` writes to ``folder``. ``since``: when the ranks were started, in wall-clock time;
    ``read_on`` hears how many bytes were hashed, and may call ``heard`` and ``see``."""

    def __init__(
        self,
        folder: str,
        host: str,
        *,
        since: float,
        read_on: Optional[manifest.Tell] = None,
    ) -> None:
        self._read_on = read_on
        self._folder, self._host, self._since = folder, host, since
        self._known = {one["entry"]: one for one in manifest.read_all(folder)}
        self._seen: Dict[str, Tuple[Files, float]] = {}  # as it was, and since when it is that
        self._refused: Dict[str, Files] = {}  # will not be whole unless it changes
        self._told: Dict[str, str] = {}  # what went wrong with an entry last
        self._told_clock = False
        self._died: Optional[float] = None  # when the first rank ended, in wall-clock time
        self._guessed: Dict[str, float] = {}  # believed since it came to rest, and when (wall-clock time)
        self._beliefs = Beliefs(folder)
        self._silent: Set[str] = set()  # entries that do not say themselves whether they are all there
        self._withdrawn: Set[str] = set()  # not believed any more, since this look began
        self.cost = 0.0  # seconds that the last look took, without copying and hashing
        self.gone: List[str] = []  # entries that had a manifest and were removed, by ddpctl or anybody else

    def heard(self, died: Optional[float], since: float) -> None:
        """When the first of the ranks that were started at ``since`` ended (wall-clock time; None: all live)."""
        if died is not None and self._died is None:
            late = [entry for entry, at in self._guessed.items() if at >= died - COARSE_S]
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
        written = [self._take(entry, files) for entry, files in self.see(ended)]
        return [one for one in written if one is not None]

    def see(self, ended: Optional[bool] = None) -> List[Tuple[str, Files]]:
        """The part of a look that reads little: what is all there and has no manifest. It is known from now on, also to
        the next run, if nobody has the time to hash it."""
        begun = time.monotonic()
        try:
            return self._unhashed(ended)
        finally:
            self.cost = time.monotonic() - begun

    def _unhashed(self, ended: Optional[bool]) -> List[Tuple[str, Files]]:
        found = look(self._folder)
        self._seen = {entry: seen for entry, seen in self._seen.items() if entry in found}
        self._refused = {entry: files for entry, files in self._refused.items() if entry in found}
        for entry in [entry for entry in self._known if entry not in found and not hidden(entry, found)]:
            # Where its manifest is gone too the whole folder is away, and may come back.
            if os.path.exists(manifest.path_of(self._folder, entry)):
                manifest.discard(self._folder, entry)
                self._forget(entry)
        todo = [(entry, found[entry]) for entry in sorted(found, key=lambda one: _age(found[one]))]
        todo = [(entry, files) for entry, files in todo if self._is_due(entry, files, ended)]
        self._note({entry: files for entry, files in todo if entry in self._silent}, found)
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

    def _is_due(self, entry: str, files: Files, ended: Optional[bool]) -> bool:
        """Whether a manifest is to be made of it."""
        if self._has(entry, files) or (not self._settled(entry, files) and ended is None):
            return False
        if self._refused.get(entry) == files and not ended:
            return False
        try:
            believed = self._believed(entry, files, ended)
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

    def _take(self, entry: str, files: Files) -> Optional[Manifest]:
        try:
            since, ahead = int(self._since * 1e9), self._ahead(entry)
            made = manifest.make(self._folder, entry, self._host, files, since, self._read_on, ahead)
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
        if entry in self._withdrawn:
            return None
        manifest.write(self._folder, made)
        self._known[entry] = made
        return made

    def _ahead(self, entry: str) -> Optional[float]:
        """When the newest one of its series was written, if that is in the future: the clock was set back since."""
        series = series_of(entry) or entry
        times = [moment(one["time"]) for name, one in self._known.items() if (series_of(name) or name) == series]
        newest = max(times, default=0.0)
        if newest <= time.time():
            return None
        if newest > time.time() + APART_S and not self._told_clock:
            self._told_clock = True
            notes.note("the clock was set back: new checkpoints count as newer than those with a time in the future")
        return newest

    def _settled(self, entry: str, files: Files) -> bool:
        now = time.monotonic()
        before, since = self._seen.get(entry, ({}, now))
        if before != files:
            self._seen[entry] = (files, now)
            return False
        return now - since >= LOOK_S

    def _believed(self, entry: str, files: Files, ended: Optional[bool]) -> Optional[bool]:
        """Whether it is all that its writer meant to write, as far as this host can know; None: not yet."""
        plain = [name for name in files if not _of_torch(name)]  # unite.py compares the others
        said = {name: whole(manifest.file_of(self._folder, entry, name)) for name in plain}
        if False in said.values():
            return False
        before = [name for name in plain if said[name] and files[name].mtime_ns < self._since * 1e9]
        if any(damaged(manifest.file_of(self._folder, entry, name), self._read_on) for name in before):
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
        if written_to([manifest.file_of(self._folder, entry, name) for name in unsaid]):
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
        self.gone.append(entry)


def _age(files: Files) -> int:
    return max(stamp.mtime_ns for stamp in files.values())


def _of_torch(name: str) -> bool:
    """Whether an index says what must be in it, or it is the index."""
    return name.rpartition("/")[2] == METADATA or name.endswith(SHARD)


def remove(folder: str, entry: str) -> bool:
    """Remove an entry, unless it is no longer what its manifest says. First it is no longer known, then it is gone."""
    known = manifest.read(folder, entry)
    if known is None or not manifest.fits(known, look(folder).get(entry, {})):
        return False
    manifest.discard(folder, entry)
    path = os.path.join(folder, entry)
    if os.path.isdir(path):
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    return True
