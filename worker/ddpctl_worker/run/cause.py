"""Decides why a run failed on a node, from the output and the wait statuses of its processes. Pure."""

from __future__ import annotations

import math
import re
import signal
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ddpctl_worker.machine.cgroup import Limit
from ddpctl_worker.record.lines import STDERR, STDOUT
from ddpctl_worker.record.outcome import Blame
from ddpctl_worker.run import last_output
from ddpctl_worker.run.aborts import CRASHES, find_last_words
from ddpctl_worker.run.last_output import LastOutput
from ddpctl_worker.run.limits import (
    EXCEPTION_QUIET_S,
    HUNG_EXIT_S,
    LAUNCHER_SIGNALS_S,
    OOM_BEFORE_DEATH_S,
    PEER_FAILURE_LINES,
    QUOTE_CHARACTERS,
    SUSPECT_TRACEBACK_S,
)
from ddpctl_worker.run.nccl import describe_nccl_error, read_nccl_error
from ddpctl_worker.run.no_space import DISK, describe_full, find_full
from ddpctl_worker.run.shelltext import BEFORE_ENDED
from ddpctl_worker.wire.contract import DISK_FULL, EXITED, OOM, SIGNALED, SPAWN_FAILED

_FAILED_WRITE = re.compile(r"PytorchStreamWriter failed writing file.*")
# torch's watchdog names the collective that was not done in time.
_LATE = re.compile(r"collective operation timeout: \w+\(SeqNum=(?P<number>\d+), OpType=(?P<kind>\w+)")
_GROUP = re.compile(r"\[PG (?:ID )?\d+(?: PG GUID \w+)? ?\((?P<group>\S+)\) Rank \d+\] Process group watchdog")
# Exceptions, and the lines above each that say more than the exception.
_ABOVE = (
    (re.compile(r"DataLoader worker"), re.compile(r"insufficient shared memory \(shm\)")),
    (re.compile(r"device-side assert"), re.compile(r"Assertion `.+` failed")),
)
# The same advice after every error of CUDA.
_ADVICE = re.compile(
    r"CUDA kernel errors might be|For debugging consider passing|Compile with .?TORCH_USE_CUDA_DSA|Device-side assert"
)
# The words of Python, glibc, OpenBLAS, OpenMP and bash for a refused process or thread.
_REFUSED_TASK = re.compile(
    r"can't start new thread|Resource temporarily unavailable|Thread creation failed|pthread_create", re.IGNORECASE
)
_UNIT = re.compile(r"\.(?:slice|scope|service)$")
_NO_SCRIPT = re.compile(r"can't open file '?(?P<file>.+?)'?: \[Errno 2\]")
_LAUNCHER_ERROR = re.compile(r"^\S*?(?:run|launch)\.py: error: (.+)$", re.M)


class Evidence(NamedTuple):
    """The evidence once a launcher or a rank has ended. Times are Unix seconds."""

    status: Optional[int]  # wait status of the launcher; None: it still runs
    tails: Mapping[Tuple[Optional[int], str], str]  # (local rank or None, stream) -> the end of its output
    ranks: Mapping[int, int]  # local rank -> rank
    error_file: Optional[Dict[str, Any]]  # the content of TORCHELASTIC_ERROR_FILE
    now: float
    oom: Sequence[Tuple[float, float]] = ()  # intervals in which the kernel killed a process for memory
    deaths: Mapping[int, Tuple[Optional[int], float]] = {}  # local rank -> (wait status, None: unknown; time)
    tracebacks: Mapping[int, float] = {}  # local rank -> time of its last traceback
    said: Mapping[Tuple[int, str], float] = {}  # (local rank, stream) -> time of its last output
    pids: Mapping[int, int] = {}  # local rank -> pid
    plain: bool = False  # the rank has no launcher of torch above it, so no launcher has ended it
    oom_limit: Optional[Limit] = None  # the memory limit of a control group that was reached meanwhile
    task_limit: Optional[Limit] = None  # the limit by which the kernel has refused a process or thread meanwhile
    limits: Mapping[str, str] = {}  # of resources whose end looks like a full disk; see no_space.py


class Failure(NamedTuple):
    """A cause in the contract's fields, without the host."""

    rank: Optional[int]
    exit_code: Optional[int]
    signal: Optional[str]
    reason: str
    message: str
    traceback: Optional[str]
    victim: bool  # caused by another rank's failure
    when: Optional[float] = None  # Unix seconds of the failure, if known
    suspect: bool = False  # no failure is proved
    in_time: Optional[Tuple[int, ...]] = None  # after a time-out in a collective: the ranks here without a time-out

    @property
    def early(self) -> bool:
        """Return whether the rank did not fail, but ended while the other ranks still needed it."""
        return self.suspect and self.exit_code == 0

    @property
    def code(self) -> Optional[int]:
        """Return the exit code, or the negative number of the signal."""
        if self.signal is None:
            return self.exit_code
        return -getattr(signal, self.signal, 0) or None


class _Death(NamedTuple):
    """A process that failed: a rank, or with ``local`` ``None`` a process that may be the launcher itself."""

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
    """Return all possible failures of this node, the likeliest first. A rank that ended too early is possible too.

    The rank that torch names is not always the first to fail: torch polls its ranks, and may see the victims first.
    """
    seen = seen._replace(deaths=_completed(seen))
    failed = _failed_ranks(seen)
    made = [(_of_death(death, seen), death.root) for death in failed]
    made = made or [(failure, True) for failure in _of_before(seen) or _of_launcher(seen)]
    if failed or not seen.status:
        dead = {death.local for death in failed} | set(seen.deaths)
        made += [(failure, False) for failure in _living(seen, dead)]
    if all(failure.victim for failure, _ in made):
        made += [(failure, False) for failure in _ended_early(seen)]
    made.sort(key=lambda pair: (_blame(pair[0]), not pair[1]))
    failures = [failure for failure, _ in made]
    in_time = _find_ranks_in_time(failures, seen)
    return [failure._replace(in_time=in_time if failure.victim else None) for failure in failures]


def _find_ranks_in_time(failures: Sequence[Failure], seen: Evidence) -> Optional[Tuple[int, ...]]:
    """Return the ranks here in which no collective timed out: they live, or their launcher ended them.

    ``None``: a rank failed in another way, or the ranks have no pipes of their own, so that it is not known.
    """
    output = {rank: seen.tails.get((local, STDERR)) for local, rank in seen.ranks.items()}
    in_time = {rank for rank, text in output.items() if text is not None and not _LATE.search(text)}
    other = {failure.rank for failure in failures if not (failure.victim and failure.signal == "SIGTERM")} & in_time
    return None if other or None in output.values() or len(in_time) == len(output) else tuple(sorted(in_time))


def _completed(seen: Evidence) -> Dict[int, Tuple[Optional[int], float]]:
    """Return the deaths with wait statuses completed.

    If the launcher reaped a rank first, its status is unknown. It is 0 if the launcher's report names only other ranks.
    """
    reported = {local for _, local, _, _ in last_output.find_failures(seen.tails.get((None, STDERR), ""))}
    return {
        local: (0 if status is None and reported and local not in reported else status, at)
        for local, (status, at) in seen.deaths.items()
    }


def _blame(failure: Failure) -> Blame:
    when = math.inf if failure.when is None else failure.when
    return Blame(failure.victim, failure.suspect, failure.early, when)


def _failed_ranks(seen: Evidence) -> List[_Death]:
    """Return the ranks that failed according to torch's report or to their wait status."""
    found: Dict[int, _Death] = {}
    for local, (status, _) in seen.deaths.items():
        if status:
            found[local] = _Death(local, seen.ranks.get(local), code_of(status), seen.plain)
    first = last_output.find_first_failure(seen.tails.get((None, STDERR), ""))
    if first is not None and seen.deaths.get(first[0], (0, 0.0))[0] is None:  # the launcher reaped it first
        found[first[0]] = _Death(first[0], seen.ranks.get(first[0]), first[1])
    for rank, local, code, root in last_output.find_failures(seen.tails.get((None, STDERR), "")):
        found[local] = _Death(local, rank, code, root)
    unseen = None if found else find_unseen_failure(seen)
    if unseen is not None:
        found[unseen] = _Death(unseen, seen.ranks.get(unseen), None)
    return list(found.values())


def find_unseen_failure(seen: Evidence) -> Optional[int]:
    """Return the local rank that failed with a status that only its launcher knows; ``None`` without such a failure.

    A launcher ends the living ranks within a moment of a failure. So the failure is the last unknown death among the
    ranks that the launcher did not end. An earlier unknown death is a rank that ended with exit code 0.
    """
    ended = last_output.find_ended_ranks(seen.tails.get((None, STDERR), ""))
    unknown = [
        (at, local)
        for local, (status, at) in seen.deaths.items()
        if status is None and seen.pids.get(local) not in ended
    ]
    return max(unknown)[1] if ended and unknown else None


def _of_launcher(seen: Evidence) -> List[Failure]:
    """Return the failure of a launcher that ended although no rank failed."""
    if not seen.status:
        return []
    code = code_of(seen.status)
    if code < 0:
        return [_of_death(_Death(None, None, code), seen)]
    old = last_output.old_exit_code(seen.tails.get((None, STDERR), ""))
    local = _guess_local(seen)
    rank = None if local is None else seen.ranks.get(local)
    return [_of_death(_Death(local, rank, code if old is None else old), seen)]


def _of_before(seen: Evidence) -> List[Failure]:
    """Return the failure of the job's ``before``: the launcher's shell has ended without the launcher."""
    text = seen.tails.get((None, STDERR), "")
    ended = BEFORE_ENDED.search(text)
    if not seen.status or ended is None:
        return []
    last = last_output.shorten_to_line(text[: ended.start()].strip().rpartition("\n")[2])
    message = "`before` ended with exit code %s%s" % (ended["code"], "; last line: %s" % last if last else "")
    return [Failure(None, int(ended["code"]), None, SPAWN_FAILED, message, None, False)]


def _of_death(death: _Death, seen: Evidence) -> Failure:
    text = _text_of(seen, death.local)
    own = last_output.read_last_output(text)
    if own.traceback is None and death.root:
        own = _from_error_file(seen.error_file, own)
    # If a signal ended the process, its traceback may be of an exception that it had handled.
    final = _ended_it(own, death.local, seen)
    raised = own.traceback is not None and (death.signal is None or final)
    peers = None
    if raised or death.signal in (None, "SIGABRT"):  # torch's watchdog aborts a rank after the loss of a peer
        peers = _find_peer_failure(own.error if raised else "\n".join(own.rest[-PEER_FAILURE_LINES:]), text)
        named = last_output.find_failed_ranks(text) if raised else []
        if named and death.rank not in (None, *named):
            peers = "it names rank %d" % named[0]
    ended = death.signal == "SIGTERM" and not death.root and not raised
    died = seen.deaths.get(death.local, (0, None))[1] if death.local is not None else None
    reason, detail = _reason(death, seen, own, raised, seen.now if died is None else died, peers, text)
    times = [died]
    if death.local is not None and raised and (final or died is None):
        times.append(seen.tracebacks.get(death.local))
    note = " (a peer failed or hung first)" if peers else " (its launcher ended it after another failure)"
    if not peers and not ended:
        note = _why_refused(seen.task_limit, "\n".join([detail, *own.rest[-PEER_FAILURE_LINES:]]))
        note = note or (describe_full(_find_full(own), seen.limits) if raised else "")
    return Failure(
        death.rank,
        None if death.signal else death.code,
        death.signal,
        reason,
        last_output.shorten_to_line(death.who + detail, 400 - len(note)) + note,
        own.traceback if raised or not death.signal else None,
        bool(peers) or ended,
        min([at for at in times if at is not None], default=None),
    )


def _find_peer_failure(error: str, text: str) -> Optional[str]:
    """Return the words by which a rank reports the failure of a peer. NCCL's reason counts more than its class."""
    reason = read_nccl_error(error, last_output.without_prefixes(text))
    if reason is not None:
        return reason.words if reason.of_peer else None
    words, late, group = last_output.find_peer_failure(error), _LATE.search(error), _GROUP.search(error)
    if not words or late is None:
        return words
    where = "" if group is None or group["group"] == "default_pg" else " of group %s" % group["group"]
    return "%s in %s #%s%s" % (words, late["kind"], late["number"], where)


def _reason(
    death: _Death, seen: Evidence, own: LastOutput, raised: bool, at: float, peers: Optional[str], text: str
) -> Tuple[str, str]:
    """Return the contract's reason, and the end of the message."""
    how = " was killed by %s" % death.signal if death.signal else " exited with code %s" % death.code
    if death.code is None:
        how = " failed (only its launcher knows the exit code)"
    if raised:
        reason = DISK_FULL if _find_full(own) == DISK else SIGNALED if death.signal else EXITED
        return reason, "%s%s %s" % (how, " after" if death.signal else ":", _shown(own, text))
    if death.signal == "SIGKILL":
        if any(start <= at and at - OOM_BEFORE_DEATH_S <= end for start, end in seen.oom):
            return OOM, how + _why_oom(seen.oom_limit)
        how += ", not by ddpctl (the OOM killer? see dmesg)"
    reason = SIGNALED if death.signal else EXITED
    said = _known_words(text, seen) if not death.signal else None
    if death.signal in CRASHES and not peers:
        said = find_last_words(death.signal, last_output.without_prefixes(text))
    if said or peers:
        return reason, "%s: %s" % (how, said or peers)
    last = _last_line(seen, death.local, own)
    return reason, how + ((": " if death.rank is None else "; last line: ") + last if last else "")


def _why_oom(limit: Optional[Limit]) -> str:
    if limit is None:
        return ": the kernel ran out of memory and killed it"
    group, name = _name_limit(limit, "MemoryMax")
    return ": the memory limit of %s (%d MB%s) was reached, and the kernel killed it" % (group, limit.most >> 20, name)


def _why_refused(limit: Optional[Limit], said: str) -> str:
    if limit is None or not _REFUSED_TASK.search(said):
        return ""
    group, name = _name_limit(limit, "TasksMax")
    return " (%s allows %d processes and threads%s)" % (group, limit.most, name)


def _name_limit(limit: Limit, name: str) -> Tuple[str, str]:
    """Return words for the control group, and systemd's name of the limit where the group is a unit."""
    group = limit.group.rpartition("/")[2]
    return "control group %s" % group if group else "its control group", ", " + name if _UNIT.search(group) else ""


def _living(seen: Evidence, dead: Set[Optional[int]]) -> List[Failure]:
    """Return the ranks that raised an exception and hang in their exit while their peers die."""
    found = []
    for local, at in seen.tracebacks.items():
        own = last_output.read_last_output(seen.tails.get((local, STDERR), ""))
        if (
            local in dead
            or not _ended_it(own, local, seen)
            or last_output.find_peer_failure(own.error)
            or seen.now - at < HUNG_EXIT_S
        ):
            continue
        went_on = seen.said.get((local, STDOUT), 0.0) > at + EXCEPTION_QUIET_S or seen.now - at > SUSPECT_TRACEBACK_S
        if went_on and not own.uncaught:
            continue
        rank = seen.ranks.get(local)
        who = "a rank" if rank is None else "rank %d" % rank
        still = "has not ended" if seen.status is None else "was not seen to end"
        output = seen.tails.get((local, STDERR), "")
        text = "%s %s, %.0f s after %s" % (who, still, seen.now - at, _shown(own, output))
        full = _find_full(own)
        reason, note = DISK_FULL if full == DISK else EXITED, describe_full(full, seen.limits)
        message = last_output.shorten_to_line(text, 400 - len(note)) + note
        found.append(Failure(rank, None, None, reason, message, own.traceback, False, at, not own.uncaught))
    return found


def _early(rank: Optional[int], at: float) -> Failure:
    return Failure(rank, 0, None, EXITED, "ended with exit code 0", None, False, at, suspect=True)


def _ended_early(seen: Evidence) -> List[Failure]:
    """Return the first rank that ended with exit code 0 before the other ranks failed in a collective with it.

    A rank that ended later may have been signalled by its launcher.
    """
    failed = min([at for status, at in seen.deaths.values() if status != 0], default=seen.now)
    done = [
        (at, local) for local, (status, at) in seen.deaths.items() if status == 0 and at <= failed + LAUNCHER_SIGNALS_S
    ]
    return [_early(seen.ranks.get(local), at) for at, local in sorted(done)[:1]]


def _ended_it(own: LastOutput, local: Optional[int], seen: Evidence) -> bool:
    at = None if local is None else seen.tracebacks.get(local)
    return own.ended_it(local is None or at is None or seen.said.get((local, STDERR), 0.0) <= at + EXCEPTION_QUIET_S)


def _find_full(own: LastOutput) -> Optional[str]:
    """Return the resource without room that is the cause of the exception, or of an exception before it."""
    return find_full(own.traceback or own.error)


def _shown(own: LastOutput, text: str) -> str:
    """Return the exception without the C++ stack and the advice that torch appends, and with the reason above it."""
    output = last_output.without_prefixes(text)
    shown = describe_nccl_error(own.error, output)
    if shown is None:
        lines = own.error.split("\nException raised from")[0].split("\n")
        shown = "\n".join(line for line in lines if not _ADVICE.match(line))
    reasons = [_last_match(_FAILED_WRITE, own.traceback or "")]
    reasons += [_last_match(line, output) for error, line in _ABOVE if error.search(own.error)]
    above = next(filter(None, reasons), "")
    return shown if above in shown else "%s (%s)" % (shown, above)


def _last_match(pattern: "re.Pattern[str]", text: str) -> str:
    found = pattern.findall(text)
    return str(found[-1]).strip() if found else ""


def code_of(status: int) -> int:
    """Return the exit code of a wait status, or the negative number of the signal."""
    return -(status & 0x7F) or status >> 8 & 0xFF


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number


def _guess_local(seen: Evidence) -> Optional[int]:
    """Return the only local rank with a traceback; ``None`` if there are more. The launcher's report names no rank."""
    found = [
        local for (local, stream), text in seen.tails.items() if local is not None and last_output.TRACEBACK in text
    ]
    return found[0] if len(found) == 1 else None


def _text_of(seen: Evidence, local: Optional[int]) -> str:
    """Return the failed rank's stderr, or the launcher's where ranks have no pipes of their own."""
    own = seen.tails.get((local, STDERR), "") if local is not None else ""
    if own.strip():
        return own
    return seen.tails.get((None, STDERR), "")


def _known_words(text: str, seen: Evidence) -> Optional[str]:
    """Return the cause of a failure without a traceback, if the output names it."""
    missing = _NO_SCRIPT.search(text)
    if missing:
        return "there is no script %s on this node" % missing.group("file")
    refused = _LAUNCHER_ERROR.search(seen.tails.get((None, STDERR), ""))
    return "the launcher refused its arguments: %s" % refused.group(1) if refused else None


def _last_line(seen: Evidence, local: Optional[int], own: LastOutput) -> str:
    """Return the last line that the process wrote: on stderr, or on stdout if a rank's stderr is empty."""
    if local is not None and (local, STDERR) in seen.tails:
        said = (
            last_output.read_last_output(seen.tails[local, STDERR]).rest
            or last_output.read_last_output(seen.tails.get((local, STDOUT), "")).rest
        )
    else:  # any rank may have written it
        said = [] if last_output.ROOT.search(seen.tails.get((None, STDERR), "")) else own.rest
    return last_output.shorten_to_line(said[-1], QUOTE_CHARACTERS) if said else ""


def _from_error_file(content: Optional[Dict[str, Any]], own: LastOutput) -> LastOutput:
    """Return the traceback that torch's @record decorator saved, else ``own``."""
    message = (content or {}).get("message")
    if not isinstance(message, dict):
        return own
    extra = message.get("extraInfo")
    trace = extra.get("py_callstack") if isinstance(extra, dict) else None
    if not trace:
        return own
    found = str(trace).rstrip()
    return LastOutput(found, last_output.read_last_output(found).error or found.split("\n")[-1].strip(), True, own.rest)
