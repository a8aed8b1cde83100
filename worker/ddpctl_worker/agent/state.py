"""The state of an agent, the events that reach it, and the actions that it wants. Pure data; step.py has the rules.

All times are seconds since the boot of this host. Clocks of two hosts are never compared.
"""

from __future__ import annotations

from typing import Any, FrozenSet, Mapping, NamedTuple, Optional, Tuple, Union

from ddpctl_worker.agent.policy import Rules
from ddpctl_worker.record.document import Ballot, CheckpointChoice, Document, Json, Mark, choice_from

NEVER = float("-inf")


class Config(NamedTuple):
    """The constants of a run.

    ``hosts``: all voting hosts, in the order of the inventory. ``first``: the number of the run's first attempt.
    ``resumes``: checkpoints are put in place before later attempts. ``grace``: the job's, in seconds.
    """

    host: str
    hosts: Tuple[str, ...]
    rules: Rules
    job: str
    first: int = 1
    resumes: bool = False
    grace: float = 30.0
    poll_every: float = 1.0

    @property
    def majority(self) -> int:
        return len(self.hosts) // 2 + 1

    @property
    def others(self) -> Tuple[str, ...]:
        return tuple(host for host in self.hosts if host != self.host)


class PartProgress(NamedTuple):
    """The progress of this host's part of attempt ``number``.

    ``moved``: bytes and steps of its preparation so far.
    ``reaches``: hosts outside the attempt whose checkpoints it can fetch, once its own are hashed.
    ``choice``: set by the first host of the attempt.
    ``end``: its exit record in short (part.shorten_progress).
    """

    number: int
    moved: int = 0
    reaches: Optional[Tuple[str, ...]] = None
    choice: Optional[CheckpointChoice] = None
    restored: bool = False
    end: Optional[Mapping[str, Any]] = None


# The steps of a part, in their order.
COLLECT, CHOOSE, RESTORE, START = 1, 2, 3, 4


class OwnPart(NamedTuple):
    """This host's part of an attempt: the last step that was ordered, and its progress."""

    number: int
    ordered: int
    progress: PartProgress
    call_off_at: Optional[float] = None  # when the part is stopped, because the attempt is over elsewhere

    @property
    def runs(self) -> bool:
        return self.ordered == START and self.progress.end is None


class Report(NamedTuple):
    """The report of a host to the leader, about the newest ``attempt`` in the host's document.

    ``clear``: no process of this attempt runs there or will ever run there.
    """

    attempt: int
    idle: bool
    moved: int = 0
    reaches: Optional[Tuple[str, ...]] = None
    choice: Optional[CheckpointChoice] = None
    ready: bool = False
    waits: bool = False  # it waits for another host, so it is not at fault
    end: Optional[Mapping[str, Any]] = None

    def to_json(self) -> Json:
        choice = None if self.choice is None else {"digest": self.choice.digest, "entries": list(self.choice.entries)}
        return {**self._asdict(), "choice": choice}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Report:
        report = cls(**{name: data[name] for name in cls._fields if name in data})
        reaches = None if report.reaches is None else tuple(report.reaches)
        return report._replace(reaches=reaches, choice=choice_from(data.get("choice")))


class Follower(NamedTuple):
    """A host as the leader knows it. Every term begins with empty entries."""

    stamp: float = NEVER  # the newest answer of the leader that the host has heard, by the leader's clock
    asked: float = NEVER  # when it asked last
    granted: float = NEVER  # the end of the authority that the leader has passed on to it
    have: Mark = (0, 0)  # its newest proposal
    knows: Mark = (0, 0)  # its newest proposal that it knows to be committed
    report: Optional[Report] = None


class Preparing(NamedTuple):
    """The hosts that hold up attempt ``attempt``: the progress of each host, its last change, and words about it."""

    attempt: int = 0
    begun: float = NEVER
    moved: Mapping[str, Tuple[int, float]] = {}
    words: Mapping[str, str] = {}  # without a running count of seconds, since each change is written to disk
    waits: Optional[str] = None


class Search(NamedTuple):
    """The search for the hosts and ports of the next attempt. ``mark``: the proposal to which it belongs."""

    mark: Mark
    until: float
    usable: Tuple[str, ...] = ()
    convicted: Mapping[str, str] = {}
    hosts: Tuple[str, ...] = ()


class Lead(NamedTuple):
    """The facts that only the leader has. Every term begins with an empty Lead."""

    since: float
    followers: Mapping[str, Follower]
    granted: float = NEVER  # the end of the authority that this host itself relies on
    withheld: FrozenSet[str] = frozenset()  # hosts that get no new lease
    stopping: Optional[float] = None  # since when the attempt is being ended
    ended: Optional[float] = None  # since when the attempt is over
    next_at: Optional[float] = None  # the earliest time of the next attempt
    search: Optional[Search] = None
    preparing: Preparing = Preparing()


class Candidacy(NamedTuple):
    """The stand of this host for election in ``term``. ``kind``: "pre" for the pre-vote, "vote" for the vote."""

    kind: str
    term: int
    votes: FrozenSet[str]


class State(NamedTuple):
    config: Config
    ballot: Ballot
    heard: float  # when the leader was heard last; at first the agent's start, since earlier promises are forgotten
    stand_at: float  # when it asks for votes
    poll_at: float  # when it asks the leader, or looks for the leader
    looked: float  # when its disk answered last
    together: float  # when this host was last part of a majority
    committed: Mark = (0, 0)  # the newest proposal that is known to be committed
    leader: Optional[str] = None
    stamp: Optional[Tuple[int, float]] = None  # the leader's term, and its clock when it last answered
    lease: float = NEVER  # until when this host's ranks may run
    renewed: float = NEVER  # the lease that the part has
    promised: float = NEVER  # as the leader: the end of the authority that it has passed on to any host
    candidacy: Optional[Candidacy] = None
    lead: Optional[Lead] = None
    part: Optional[OwnPart] = None
    stop: Optional[Mapping[str, Any]] = None  # the order of a kill, or the end by another process
    stop_by: Optional[float] = None  # until when the other hosts may learn of the kill
    over_since: Optional[float] = None
    cut_off: Optional[float] = None  # since when this host is not part of a majority
    cut_off_announced: bool = False
    announced: int = 0  # the newest attempt of which the user was notified
    answered: Mapping[str, float] = {}  # when each other host answered last
    note: Optional[str] = None  # the note in this host's status
    done: bool = False

    @property
    def host(self) -> str:
        return self.config.host

    @property
    def document(self) -> Document:
        return self.ballot.proposal.document

    @property
    def agreed(self) -> bool:
        """Return whether the newest proposal of this host is committed."""
        return self.committed == self.ballot.proposal.mark

    @property
    def report(self) -> Report:
        """Return this host's report to the leader.

        The report is based on committed proposals only, because any other proposal may still be rolled back.
        """
        document, part = self.document, self.part
        number = document.last.number
        if part is None or part.number != number:
            ended = part is None or part.progress.end is not None
            return Report(number, ended and self.agreed and not document.live)
        own = part.progress
        waits = part.ordered < START and own.end is None and not own.restored and _waits(part, document)
        return Report(number, own.end is not None, own.moved, own.reaches, own.choice, own.restored, waits, own.end)


def _waits(part: OwnPart, document: Document) -> bool:
    """Return whether the part has done the step that was ordered."""
    if part.ordered == COLLECT:
        return part.progress.reaches is not None
    return part.ordered == CHOOSE and part.progress.choice is not None


# --- events


class Tick(NamedTuple):
    """Time has passed."""


class Looked(NamedTuple):
    """The disk has answered. ``stop``: the order to end the run here. ``progress``: of the newest part."""

    stop: Optional[Mapping[str, Any]]
    progress: Optional[PartProgress]


class PeerAsked(NamedTuple):
    """Another agent asks; a ``Reply`` follows."""

    host: str
    question: Mapping[str, Any]


class PeerAnswered(NamedTuple):
    """An agent has answered ``question``, which was sent at ``asked``."""

    host: str
    question: Mapping[str, Any]
    answer: Mapping[str, Any]
    asked: float


class LinksChecked(NamedTuple):
    """The links have been checked. ``cut``: pairs of hosts without a connection."""

    mark: Mark
    cut: FrozenSet[FrozenSet[str]]


class PortsFound(NamedTuple):
    """Two free ports on ``host``, for torch and for the gang; ``None`` if it gave no ports."""

    mark: Mark
    host: str
    ports: Optional[Tuple[int, int]]


Fact = Union[Tick, Looked, PeerAsked, PeerAnswered, LinksChecked, PortsFound]


class Event(NamedTuple):
    """A ``fact`` at the time ``now``.

    ``wall``: the time of day (Unix seconds), for records. ``chance``: a random number in [0, 1).
    """

    now: float
    wall: float
    chance: float
    fact: Fact


# --- actions, in this order


class Save(NamedTuple):
    """Store the ballot before anything leaves this host. If that fails, the whole step has not happened."""

    ballot: Ballot


class Reply(NamedTuple):
    """Answer the asking agent; with ``None`` this host gives no answer."""

    answer: Optional[Mapping[str, Any]]


class Ask(NamedTuple):
    """Ask these hosts. Each answer is an event of its own; the step does not wait for the answers."""

    hosts: Tuple[str, ...]
    question: Mapping[str, Any]


class Renew(NamedTuple):
    """Let the ranks of the part run until ``until``."""

    number: int
    until: float


class Collect(NamedTuple):
    """Hash the checkpoints of this host, and list the hosts outside the attempt with checkpoints that it can fetch."""

    number: int
    hosts: Tuple[str, ...]


class Choose(NamedTuple):
    """Choose the checkpoints for all hosts of the attempt, among the checkpoints of ``sources``."""

    number: int
    hosts: Tuple[str, ...]
    sources: Tuple[str, ...]


class RestorePart(NamedTuple):
    """Put the files of ``choice`` in place; the attempt's first host has the details of the choice."""

    number: int
    hosts: Tuple[str, ...]
    choice: CheckpointChoice


class StartPart(NamedTuple):
    number: int
    until: float  # the lease


class CallOff(NamedTuple):
    """End a part whose attempt is over elsewhere, with the job's own grace."""

    number: int


class Drop(NamedTuple):
    """Drop a part that has not begun and is not wanted any more: its preparation ends."""

    number: int


class CheckLinks(NamedTuple):
    """Have every host check its links to all other hosts."""

    hosts: Tuple[str, ...]
    mark: Mark


class FindPorts(NamedTuple):
    host: str
    prefer: int
    mark: Mark


class Announce(NamedTuple):
    """Pass an event to the job's notifiers (run/notifying.py)."""

    event: Mapping[str, Any]


class Say(NamedTuple):
    """Set the note in this host's status; ``None`` removes it."""

    note: Optional[str]


class Log(NamedTuple):
    text: str


class EndRun(NamedTuple):
    """End the run here: stop the ranks, and record the end. ``grace``: ``None`` means the job's own."""

    state: str
    cause: Optional[Mapping[str, Any]]
    grace: Optional[float]


Action = Union[
    Save,
    Reply,
    Ask,
    Renew,
    Collect,
    Choose,
    RestorePart,
    StartPart,
    CallOff,
    Drop,
    CheckLinks,
    FindPorts,
    Announce,
    Say,
    Log,
    EndRun,
]
Actions = Tuple[Action, ...]
