"""The document that the agents of a run agree on. Each change replaces the whole document. Pure data."""

from __future__ import annotations

import copy
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

Mark = Tuple[int, int]  # term and version of a proposal; a greater mark is newer
Json = Dict[str, Any]
Cause = Mapping[str, Any]  # outcome.py


class AgreedAttempt(NamedTuple):
    """One attempt. ``hosts`` are in the order of node ranks. ``cause`` is ``None`` after a success and before the end.
    ``set_aside``: {"host", "why"} of each host that does not take part in the next attempt."""

    number: int
    hosts: Tuple[str, ...]
    master_port: int
    gang_port: int
    started: str  # ISO 8601, by the leader's clock
    ended: Optional[str] = None
    cause: Optional[Cause] = None
    set_aside: Tuple[Mapping[str, str], ...] = ()

    def to_json(self) -> Json:
        found = self._asdict()
        found.update(hosts=list(self.hosts), set_aside=[dict(one) for one in self.set_aside])
        return {"attempt": found.pop("number"), **found}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> AgreedAttempt:
        given = {name: told[name] for name in cls._fields if name in told}
        given.update(hosts=tuple(told["hosts"]), set_aside=tuple(told.get("set_aside") or ()))
        return cls(number=int(told["attempt"]), **given)


class CheckpointChoice(NamedTuple):
    """The checkpoints that an attempt resumes from: names, and the SHA-256 of the whole list of file transfers."""

    digest: str
    entries: Tuple[str, ...]


class ResumePlan(NamedTuple):
    """The checkpoint from which an attempt resumes.

    ``sources``: the hosts with checkpoints that count. ``choice``: ``None`` until the attempt's first host has chosen.
    """

    attempt: int
    sources: Tuple[str, ...]
    choice: Optional[CheckpointChoice] = None

    def to_json(self) -> Json:
        choice = None if self.choice is None else {"digest": self.choice.digest, "entries": list(self.choice.entries)}
        return {"attempt": self.attempt, "sources": list(self.sources), "choice": choice}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> ResumePlan:
        return cls(int(told["attempt"]), tuple(told["sources"]), choice_from(told["choice"]))


def choice_from(told: Optional[Mapping[str, Any]]) -> Optional[CheckpointChoice]:
    """Return a choice from its JSON form."""
    return None if told is None else CheckpointChoice(str(told["digest"]), tuple(told["entries"]))


class Document(NamedTuple):
    """The state of a run with restarts.

    ``live``: whether the newest attempt may have ranks. ``go``: number of the newest attempt whose ranks may start.
    ``set_aside``: excluded host -> reason, for all later attempts. ``over``: {"state", "cause"} once the run has ended.
    """

    attempts: Tuple[AgreedAttempt, ...]
    live: bool
    go: int
    set_aside: Mapping[str, str] = {}
    over: Optional[Mapping[str, Any]] = None
    resume: Optional[ResumePlan] = None

    @property
    def last(self) -> AgreedAttempt:
        return self.attempts[-1]

    def with_last(self, attempt: AgreedAttempt) -> Document:
        return self._replace(attempts=(*self.attempts[:-1], attempt))

    def to_json(self) -> Json:
        resume = None if self.resume is None else self.resume.to_json()
        attempts = [one.to_json() for one in self.attempts]
        return {**self._asdict(), "attempts": attempts, "set_aside": dict(self.set_aside), "resume": resume}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Document:
        return cls(
            tuple(map(AgreedAttempt.from_json, told["attempts"])),
            bool(told["live"]),
            int(told["go"]),
            dict(told["set_aside"]),
            told["over"],
            None if told.get("resume") is None else ResumePlan.from_json(told["resume"]),
        )

    @classmethod
    def first(cls, attempt: Mapping[str, Any]) -> Document:
        """Return the document of a run that has just been started: its first attempt may begin."""
        begun = AgreedAttempt.from_json(attempt)
        return cls((begun,), True, begun.number)


class Proposal(NamedTuple):
    """A document with the leader's term. It is committed once a majority of the hosts has it on disk."""

    term: int
    version: int
    document: Document

    @property
    def mark(self) -> Mark:
        return self.term, self.version

    def to_json(self) -> Json:
        """Return the form for the disk and for other hosts: each host's name once, and spans of these names.

        The document has the hosts of every attempt. With thousands of hosts their names would not fit into a message.
        """
        document = self.document.to_json()
        names = list(dict.fromkeys(host for values in _host_lists(document) for host in values))
        numbers = {host: number for number, host in enumerate(names)}
        for values in _host_lists(document):
            values[:] = _spans([numbers[host] for host in values])
        return {"term": self.term, "version": self.version, "hosts": names, "document": document}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Proposal:
        document = copy.deepcopy(told["document"])
        for values in _host_lists(document):
            values[:] = [told["hosts"][number] for first, last in values for number in range(first, last + 1)]
        return cls(int(told["term"]), int(told["version"]), Document.from_json(document))


def _host_lists(document: Json) -> List[List[Any]]:
    resume = document["resume"]
    return [*(attempt["hosts"] for attempt in document["attempts"]), *([resume["sources"]] if resume else [])]


def _spans(numbers: Sequence[int]) -> List[Tuple[int, int]]:
    """Return runs of consecutive numbers as their first and last number."""
    found: List[Tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] + 1 == number:
            found[-1] = found[-1][0], number
        else:
            found.append((number, number))
    return found


class Ballot(NamedTuple):
    """The durable state of a host: on disk before any message that depends on it leaves the host."""

    term: int
    voted: Optional[str]
    proposal: Proposal

    def to_json(self) -> Json:
        return {"term": self.term, "voted": self.voted, "proposal": self.proposal.to_json()}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Ballot:
        return cls(int(told["term"]), told["voted"], Proposal.from_json(told["proposal"]))

    @classmethod
    def first(cls, leader: str, document: Document) -> Ballot:
        """Return the state of every host at the start: each host has voted for ``leader`` in term 1."""
        return cls(1, leader, Proposal(1, 1, document))
