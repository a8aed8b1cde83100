"""One agent's view of the run, what can happen to it, and what it wants done. Pure data; step.py has the rules.

All times are seconds since boot, of this host's own clock. No clock of two hosts is compared.
"""

from __future__ import annotations

from typing import Any, FrozenSet, Mapping, NamedTuple, Optional, Tuple, Union

from ddpctl_worker.agent.policy import Rules
from ddpctl_worker.record.document import Ballot, CheckpointChoice, Document, Json, Mark, choice_from

NEVER = float("-inf")


class Config(NamedTuple):
    """What never changes. ``hosts``: all that vote, in the order of the inventory; ``first``: the number of the run's
    first attempt; ``resumes``: checkpoints are put in place before later ones; ``grace``: the job's, to end (s)."""

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
    """How far this host's part of attempt ``number`` is. ``moved`` counts bytes and steps of its preparation.
    ``reaches``: the hosts out of the attempt whose checkpoints it can get, once its own are hashed; ``choice``: as the
    attempt's first host; ``end``: its exit record in short (part.brief)."""

    number: int
    moved: int = 0
    reaches: Optional[Tuple[str, ...]] = None
    choice: Optional[CheckpointChoice] = None
    restored: bool = False
    end: Optional[Mapping[str, Any]] = None


# The steps of a part, in their order.
COLLECT, CHOOSE, RESTORE, START = 1, 2, 3, 4


class OwnPart(NamedTuple):
    """This host's part of an attempt: the last step that was ordered, and how far it is."""

    number: int
    ordered: int
    progress: PartProgress
    call_off_at: Optional[float] = None  # the attempt is over elsewhere, and nothing else ends this part

    @property
    def runs(self) -> bool:
        return self.ordered == START and self.progress.end is None


class Report(NamedTuple):
    """What a host says to the leader of itself, about the newest ``attempt`` of its proposal.

    ``clear``: nothing of this attempt runs there or ever will.
    """

    attempt: int
    clear: bool
    moved: int = 0
    reaches: Optional[Tuple[str, ...]] = None
    choice: Optional[CheckpointChoice] = None
    ready: bool = False
    waits: bool = False  # for another host, and so it is not to blame
    end: Optional[Mapping[str, Any]] = None

    def to_json(self) -> Json:
        choice = None if self.choice is None else {"digest": self.choice.digest, "entries": list(self.choice.entries)}
        return {**self._asdict(), "choice": choice}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Report:
        found = cls(**{name: told[name] for name in cls._fields if name in told})
        reaches = None if found.reaches is None else tuple(found.reaches)
        return found._replace(reaches=reaches, choice=choice_from(told.get("choice")))


class Follower(NamedTuple):
    """A host as the leader knows it in this term; nothing of it outlives the term."""

    stamp: float = NEVER  # the newest answer of the leader that the host has heard, by the leader's clock
    asked: float = NEVER  # when it asked last
    granted: float = NEVER  # until when the leader has let it rely on there being no other leader
    have: Mark = (0, 0)
    knows: Mark = (0, 0)  # the newest proposal that it knows to be committed
    report: Optional[Report] = None


class Headway(NamedTuple):
    """Who holds up attempt ``attempt``: what each host had moved, and since when; and the words for it."""

    attempt: int = 0
    begun: float = NEVER
    moved: Mapping[str, Tuple[int, float]] = {}
    words: Mapping[str, str] = {}  # they stay the same while nothing changes, since they are written to disk
    waits: Optional[str] = None


class Search(NamedTuple):
    """For the hosts and ports of the next attempt. ``mark``: of the proposal that it belongs to."""

    mark: Mark
    until: float
    usable: Tuple[str, ...] = ()
    convicted: Mapping[str, str] = {}
    hosts: Tuple[str, ...] = ()


class Lead(NamedTuple):
    """What only the leader knows. It begins empty with every term."""

    since: float
    followers: Mapping[str, Follower]
    granted: float = NEVER  # to this host itself
    withheld: FrozenSet[str] = frozenset()  # the hosts whose lease is to run out
    stopping: Optional[float] = None  # since when the attempt is to end
    ended: Optional[float] = None  # since when it has
    next_at: Optional[float] = None  # not before this the next one
    search: Optional[Search] = None
    headway: Headway = Headway()


class Candidacy(NamedTuple):
    """``kind``: "pre" asks whether there would be enough votes in ``term``, "vote" asks for them."""

    kind: str
    term: int
    votes: FrozenSet[str]


class State(NamedTuple):
    config: Config
    ballot: Ballot
    heard: float  # the leader; or when this agent began: what it had promised before is not known any more
    stand_at: float  # when it asks for votes
    poll_at: float  # when it asks the leader, or for one
    looked: float  # when its disk answered last
    together: float  # when this host was last part of a majority
    committed: Mark = (0, 0)  # the newest proposal that is known to be committed
    leader: Optional[str] = None
    stamp: Optional[Tuple[int, float]] = None  # the leader's term, and its clock when it last answered
    lease: float = NEVER  # until when this host's ranks may run
    renewed: float = NEVER  # the end of the lease that the part was given last
    promised: float = NEVER  # as the leader: until when it has let others rely on there being no other leader
    candidacy: Optional[Candidacy] = None
    lead: Optional[Lead] = None
    part: Optional[OwnPart] = None
    stop: Optional[Mapping[str, Any]] = None  # the word of a kill, or of an end from outside
    stop_by: Optional[float] = None  # until then the others may take the word
    over_since: Optional[float] = None
    cut_off: Optional[float] = None  # since when this host is not part of a majority
    cut_off_told: bool = False
    announced: int = 0  # the newest attempt that somebody was notified of
    answered: Mapping[str, float] = {}  # when each other host last did
    note: Optional[str] = None  # what the status says of this host
    done: bool = False

    @property
    def host(self) -> str:
        return self.config.host

    @property
    def document(self) -> Document:
        return self.ballot.proposal.document

    @property
    def agreed(self) -> bool:
        """Whether the newest proposal that this host has is committed."""
        return self.committed == self.ballot.proposal.mark

    @property
    def report(self) -> Report:
        """What the leader hears of this host. Nothing follows from a proposal that may still be rolled back."""
        document, part = self.document, self.part
        number = document.last.number
        if part is None or part.number != number:
            ended = part is None or part.progress.end is not None
            return Report(number, ended and self.agreed and not document.live)
        told = part.progress
        waits = part.ordered < START and told.end is None and not told.restored and _waits(part, document)
        return Report(
            number, told.end is not None, told.moved, told.reaches, told.choice, told.restored, waits, told.end
        )


def _waits(part: OwnPart, document: Document) -> bool:
    """Whether the part has done what it was ordered to do."""
    if part.ordered == COLLECT:
        return part.progress.reaches is not None
    return part.ordered == CHOOSE and part.progress.choice is not None


# --- what can happen


class Tick(NamedTuple):
    """Time has passed."""


class Looked(NamedTuple):
    """The disk has answered. ``stop``: somebody ends the run here; ``progress``: of the newest part."""

    stop: Optional[Mapping[str, Any]]
    progress: Optional[PartProgress]


class PeerAsked(NamedTuple):
    """Another agent asks; a ``Reply`` follows."""

    host: str
    question: Mapping[str, Any]


class PeerAnswered(NamedTuple):
    """``question`` was sent at ``asked``."""

    host: str
    question: Mapping[str, Any]
    answer: Mapping[str, Any]
    asked: float


class LinksChecked(NamedTuple):
    """``cut``: pairs of hosts without a connection."""

    mark: Mark
    cut: FrozenSet[FrozenSet[str]]


class PortsFound(NamedTuple):
    """Two free ports on ``host``, for torch and for the gang; None: it gave none."""

    mark: Mark
    host: str
    ports: Optional[Tuple[int, int]]


Fact = Union[Tick, Looked, PeerAsked, PeerAnswered, LinksChecked, PortsFound]


class Event(NamedTuple):
    """``fact`` at ``now``. ``wall``: the time of day (Unix seconds), for records. ``chance``: drawn from [0, 1)."""

    now: float
    wall: float
    chance: float
    fact: Fact


# --- what it wants done, in this order


class Save(NamedTuple):
    """Before anything else leaves this host. Where it fails, the whole step has not happened."""

    ballot: Ballot


class Reply(NamedTuple):
    """None: this host gives no answer."""

    answer: Optional[Mapping[str, Any]]


class Ask(NamedTuple):
    """Each answer is an event. Nobody waits for them all."""

    hosts: Tuple[str, ...]
    question: Mapping[str, Any]


class Renew(NamedTuple):
    """The ranks of the part may run until then."""

    number: int
    until: float


class Collect(NamedTuple):
    """Hash what this host has, and see whose checkpoints it can get."""

    number: int
    hosts: Tuple[str, ...]


class Choose(NamedTuple):
    """Choose the checkpoints for all hosts of the attempt, from those of ``sources``."""

    number: int
    hosts: Tuple[str, ...]
    sources: Tuple[str, ...]


class RestorePart(NamedTuple):
    """Put in place what ``choice`` says; the attempt's first host has the whole of it."""

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
    """The part is not wanted any more, and has not begun: its preparation ends."""

    number: int


class CheckLinks(NamedTuple):
    """Every host looks at every other host."""

    hosts: Tuple[str, ...]
    mark: Mark


class FindPorts(NamedTuple):
    host: str
    prefer: int
    mark: Mark


class Announce(NamedTuple):
    """For the job's notifiers (run/notifying.py)."""

    event: Mapping[str, Any]


class Say(NamedTuple):
    """What the status says of this host; None: nothing."""

    note: Optional[str]


class Log(NamedTuple):
    text: str


class EndRun(NamedTuple):
    """The run is over here: end what runs, and record it. ``grace``: None is the job's own."""

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
