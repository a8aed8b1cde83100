"""Why a run failed on a node, read from what its processes left behind. Pure."""

from __future__ import annotations

import math
import re
import signal
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ddpctl_worker.record.lines import STDERR, STDOUT
from ddpctl_worker.run import words
from ddpctl_worker.run.limits import (
    EXCEPTION_QUIET_S,
    HUNG_EXIT_S,
    LAUNCHER_SIGNALS_S,
    OOM_BEFORE_DEATH_S,
    PEER_FAILURE_LINES,
    QUOTE_CHARACTERS,
    SUSPECT_TRACEBACK_S,
)
from ddpctl_worker.run.words import Words
from ddpctl_worker.wire.contract import DISK_FULL, EXITED, OOM, SIGNALED

_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded|\[Errno 28\]|\[Errno 122\]")
_NO_SCRIPT = re.compile(r"can't open file '?(?P<file>.+?)'?: \[Errno 2\]")
_LAUNCHER_ERROR = re.compile(r"^\S*?(?:run|launch)\.py: error: (.+)$", re.M)


class Evidence(NamedTuple):
    """What is known when a launcher has ended, or a rank."""

    status: Optional[int]  # wait status of the launcher, as os.waitpid gives it; None: it still runs
    tails: Mapping[Tuple[Optional[int], str], str]  # (local rank or None, stream) -> the end of its output
    ranks: Mapping[int, int]  # local rank -> rank
    error_file: Optional[Dict[str, Any]]  # what torch wrote to TORCHELASTIC_ERROR_FILE
    now: float  # wall clock, as all times here
    oom: Sequence[Tuple[float, float]] = ()  # between which times the kernel has killed something for memory
    deaths: Mapping[int, Tuple[Optional[int], float]] = {}  # local rank -> wait status (None: not known), time
    tracebacks: Mapping[int, float] = {}  # local rank -> when it wrote its last traceback
    said: Mapping[Tuple[int, str], float] = {}  # (local rank, stream) -> when it last wrote there
    plain: bool = False  # no launcher of torch's stands above the rank: nothing here has ended it


class Failure(NamedTuple):
    """A cause in the contract's fields, less host and time."""

    rank: Optional[int]
    exit_code: Optional[int]
    signal: Optional[str]
    reason: str
    message: str
    traceback: Optional[str]
    victim: bool  # another rank's failure brought it about
    when: Optional[float] = None  # wall clock of the failure itself, where it is known
    suspect: bool = False  # a rank that has not failed, as far as can be told

    @property
    def early(self) -> bool:  # it did not fail: it ended too early for the others
        return self.suspect and self.exit_code == 0

    @property
    def code(self) -> Optional[int]:
        """As a shell's parent sees it: negative for a signal."""
        if self.signal is None:
            return self.exit_code
        return -getattr(signal, self.signal, 0) or None


class _Death(NamedTuple):
    """A process that failed: a rank, or (``local`` is None) one that cannot be told from the launcher."""

    local: Optional[int]
    rank: Optional[int]
    code: Optional[int]  # negative for a signal
    root: bool = True  # torch's report calls it the root cause

    @property
    def who(self) -> str:
        return "the launcher" if self.rank is None else "rank %d" % self.rank

    @property
    def signal(self) -> Optional[str]:
        return signal_name(-self.code) if self.code is not None and self.code < 0 else None


def candidates(seen: Evidence) -> List[Failure]:
    """Everything that may have been the failure of this node, the likeliest first, or a rank that ended too early.

    Not simply the one that torch names: it looks at its ranks in turns, and may see the victims first.
    """
    seen = seen._replace(deaths=_completed(seen))
    failed = _failed_ranks(seen)
    made = [(_of_death(one, seen), one.root) for one in failed] or [(one, True) for one in _of_launcher(seen)]
    if failed or not seen.status:
        made += [(one, False) for one in _living(seen, {one.local for one in failed} | set(seen.deaths))]
    if all(one.victim for one, _ in made):
        made += [(one, False) for one in _ended_early(seen)]
    made.sort(key=lambda one: (one[0].victim, one[0].suspect, _or_late(one[0].when), not one[1]))
    return [verdict for verdict, _ in made]


def _completed(seen: Evidence) -> Dict[int, Tuple[Optional[int], float]]:
    """The deaths; a rank that its launcher collected before its wait status could be read had ended with 0 when the
    launcher's report names others only."""
    reported = {local for _, local, _, _ in words.failures(seen.tails.get((None, STDERR), ""))}
    return {
        local: (0 if status is None and reported and local not in reported else status, at)
        for local, (status, at) in seen.deaths.items()
    }


def _or_late(when: Optional[float]) -> float:
    return math.inf if when is None else when


def _failed_ranks(seen: Evidence) -> List[_Death]:
    """Every rank that is known to have failed: by torch's report, or by how its process ended."""
    found: Dict[int, _Death] = {}
    for local, (status, _) in seen.deaths.items():
        if status:
            found[local] = _Death(local, seen.ranks.get(local), code_of(status), seen.plain)
    first = words.first_failure(seen.tails.get((None, STDERR), ""))
    if first is not None and seen.deaths.get(first[0], (0, 0.0))[0] is None:  # its launcher was quicker to collect it
        found[first[0]] = _Death(first[0], seen.ranks.get(first[0]), first[1])
    for rank, local, code, root in words.failures(seen.tails.get((None, STDERR), "")):
        found[local] = _Death(local, rank, code, root)
    return list(found.values())


def _of_launcher(seen: Evidence) -> List[Failure]:
    """For a launcher that ended before its ranks said anything."""
    if not seen.status:
        return []
    code = code_of(seen.status)
    if code < 0:
        return [_of_death(_Death(None, None, code), seen)]
    old = words.old_exit_code(seen.tails.get((None, STDERR), ""))
    local = _guess_local(seen)
    rank = None if local is None else seen.ranks.get(local)
    return [_of_death(_Death(local, rank, code if old is None else old), seen)]


def _of_death(one: _Death, seen: Evidence) -> Failure:
    text = _text_of(seen, one.local)
    own = words.read(text)
    if own.traceback is None and one.root:
        own = _from_error_file(seen.error_file, own)
    # A process that a signal has ended did not end of an exception that it survived.
    final = _ended_it(own, one.local, seen)
    raised = own.traceback is not None and (one.signal is None or final)
    peers = None
    if raised or one.signal in (None, "SIGABRT"):  # torch's watchdog ends a rank whose peers are gone by an abort
        peers = words.peer_words(own.error if raised else "\n".join(own.rest[-PEER_FAILURE_LINES:]))
    ended = one.signal == "SIGTERM" and not one.root and not raised
    died = seen.deaths.get(one.local, (0, None))[1] if one.local is not None else None
    reason, detail = _reason(one, seen, own, raised, seen.now if died is None else died, peers, text)
    times = [died]
    if one.local is not None and raised and (final or died is None):
        times.append(seen.tracebacks.get(one.local))
    note = " (a peer failed or hung first)" if peers else " (its launcher ended it after another failure)"
    return Failure(
        one.rank,
        None if one.signal else one.code,
        one.signal,
        reason,
        words.one_line(one.who + detail, 400 - len(note)) + (note if peers or ended else ""),
        own.traceback if raised or not one.signal else None,
        bool(peers) or ended,
        min([at for at in times if at is not None], default=None),
    )


def _reason(
    one: _Death, seen: Evidence, own: Words, raised: bool, at: float, peers: Optional[str], text: str
) -> Tuple[str, str]:
    """The reason, and what became of the process."""
    how = " was killed by %s" % one.signal if one.signal else " exited with code %s" % one.code
    if raised:
        reason = DISK_FULL if _NO_SPACE.search(own.error) else SIGNALED if one.signal else EXITED
        return reason, "%s%s %s" % (how, " after" if one.signal else ":", _shown(own.error))
    if one.signal == "SIGKILL":
        if any(start <= at and at - OOM_BEFORE_DEATH_S <= end for start, end in seen.oom):
            return OOM, how + ": the kernel ran out of memory and killed it"
        how += ", not by ddpctl (the OOM killer? see dmesg)"
    reason = SIGNALED if one.signal else EXITED
    said = _known_words(text, seen) if not one.signal else None
    if said or peers:
        return reason, "%s: %s" % (how, said or peers)
    last = _last_line(seen, one.local, own)
    return reason, how + ((": " if one.rank is None else "; last line: ") + last if last else "")


def _living(seen: Evidence, dead: Set[Optional[int]]) -> List[Failure]:
    """Ranks that have raised an exception and hang in their exit, while others die of it."""
    found = []
    for local, at in seen.tracebacks.items():
        own = words.read(seen.tails.get((local, STDERR), ""))
        if (
            local in dead
            or not _ended_it(own, local, seen)
            or words.peer_words(own.error)
            or seen.now - at < HUNG_EXIT_S
        ):
            continue
        went_on = seen.said.get((local, STDOUT), 0.0) > at + EXCEPTION_QUIET_S or seen.now - at > SUSPECT_TRACEBACK_S
        if went_on and not own.uncaught:
            continue
        rank = seen.ranks.get(local)
        who = "a rank" if rank is None else "rank %d" % rank
        still = "has not ended" if seen.status is None else "was not seen to end"
        text = "%s %s, %.0f s after %s" % (who, still, seen.now - at, _shown(own.error))
        reason = DISK_FULL if _NO_SPACE.search(own.error) else EXITED
        message = words.one_line(text)
        found.append(Failure(rank, None, None, reason, message, own.traceback, False, at, not own.uncaught))
    return found


def _early(rank: Optional[int], at: float) -> Failure:
    return Failure(rank, 0, None, EXITED, "ended with exit code 0", None, False, at, suspect=True)


def _ended_early(seen: Evidence) -> List[Failure]:
    """The first rank that had ended with exit code 0 when the others failed: they waited for it in a collective.

    One that ended later may have been told to by its launcher.
    """
    failed = min([at for status, at in seen.deaths.values() if status != 0], default=seen.now)
    done = [
        (at, local) for local, (status, at) in seen.deaths.items() if status == 0 and at <= failed + LAUNCHER_SIGNALS_S
    ]
    return [_early(seen.ranks.get(local), at) for at, local in sorted(done)[:1]]


def _ended_it(own: Words, local: Optional[int], seen: Evidence) -> bool:
    at = None if local is None else seen.tracebacks.get(local)
    return own.ended_it(local is None or at is None or seen.said.get((local, STDERR), 0.0) <= at + EXCEPTION_QUIET_S)


def _shown(error: str) -> str:
    """An exception without the C++ stack that torch hangs below it."""
    return error.split("\nException raised from")[0]


def code_of(status: int) -> int:
    """The exit code of a wait status, negative for a signal."""
    return -(status & 0x7F) or status >> 8 & 0xFF


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number


def _guess_local(seen: Evidence) -> Optional[int]:
    """The local rank with a traceback when exactly one has one: the launcher's report does not name it."""
    found = [local for (local, stream), text in seen.tails.items() if local is not None and words.TRACEBACK in text]
    return found[0] if len(found) == 1 else None


def _text_of(seen: Evidence, local: Optional[int]) -> str:
    """Where to look for words: the failed rank's stderr, or the launcher's when ranks have no pipes of their own."""
    own = seen.tails.get((local, STDERR), "") if local is not None else ""
    if own.strip():
        return own
    return seen.tails.get((None, STDERR), "")


def _known_words(text: str, seen: Evidence) -> Optional[str]:
    """What caused a failure without a traceback, where that is clear."""
    missing = _NO_SCRIPT.search(text)
    if missing:
        return "there is no script %s on this node" % missing.group("file")
    refused = _LAUNCHER_ERROR.search(seen.tails.get((None, STDERR), ""))
    return "the launcher refused its arguments: %s" % refused.group(1) if refused else None


def _last_line(seen: Evidence, local: Optional[int], own: Words) -> str:
    """The last thing that the process said; of a rank that said nothing on stderr, on stdout."""
    if local is not None and (local, STDERR) in seen.tails:
        said = words.read(seen.tails[local, STDERR]).rest or words.read(seen.tails.get((local, STDOUT), "")).rest
    else:  # anybody's
        said = [] if words.ROOT.search(seen.tails.get((None, STDERR), "")) else own.rest
    return words.one_line(said[-1], QUOTE_CHARACTERS) if said else ""


def _from_error_file(content: Optional[Dict[str, Any]], own: Words) -> Words:
    """The traceback that a script decorated with torch's @record left."""
    message = (content or {}).get("message")
    if not isinstance(message, dict):
        return own
    extra = message.get("extraInfo")
    trace = extra.get("py_callstack") if isinstance(extra, dict) else None
    if not trace:
        return own
    found = str(trace).rstrip()
    return Words(found, words.read(found).error or found.split("\n")[-1].strip(), True, own.rest)
