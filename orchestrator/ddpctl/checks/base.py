"""A check is a question and a verdict, both pure.

``ask`` names what a host must be asked (the worker answers all questions of all checks in one round trip);
``judge`` sees every host's answers at once, so that values are compared there, and returns findings. The stage does
the timing, the deadlines and the logging once for all checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ddpctl.errors import DdpctlError
from ddpctl.spec.finding import Finding
from ddpctl.spec.imports import Imports
from ddpctl.spec.mesh import Mesh


@dataclass(frozen=True)
class Question:
    """What the worker's ``probe`` verb is asked: a question's name there, its parameters, a deadline in seconds.

    Two checks that ask the same thing share one answer: ``key`` is name plus parameters.
    """

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    deadline: float = 5.0

    @property
    def key(self) -> str:
        if not self.params:
            return self.name
        return self.name + ":" + ",".join(f"{k}={self.params[k]!r}" for k in sorted(self.params))


@dataclass(frozen=True)
class Answer:
    """What a host answered: ``value`` when ok, otherwise ``error`` (and ``timed_out`` when the deadline passed)."""

    ok: bool
    value: Any = None
    error: str | None = None
    timed_out: bool = False
    seconds: float = 0.0


@dataclass(frozen=True)
class Target:
    """A host as the checks see it: the inventory's facts about it and what the job wants from it."""

    name: str
    address: str
    python: str
    base_dir: str
    nproc: int | None = None  # processes of the job here; None: as many as GPUs
    node_rank: int | None = None
    fabric_address: str | None = None
    interface: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    local: bool = False
    environment: str | None = None  # the interpreter of a managed environment, once it is there


@dataclass(frozen=True)
class Want:
    """What the job needs, None where no job was named."""

    job: str | None = None
    script: str | None = None
    workdir: str | None = None  # a folder on the node, when the code is not sent
    launcher: str = "auto"
    master: str | None = None
    master_port: int | None = None
    managed: bool = False  # ddpctl builds the environment: what is installed on the node does not matter
    packages: tuple[str, ...] = ()  # requirement strings that must be equal everywhere
    data: tuple[str, ...] = ()
    free_disk_gb: float | None = None
    backend: str | None = None  # nccl, gloo, or None: by the presence of GPUs
    rendezvous: str = "static"  # static, c10d or etcd-v2
    fabric_names: tuple[str, ...] = ()  # fabric addresses of the inventory that are names
    imports: Imports | None = None  # what the job's program imports; None: not known


@dataclass(frozen=True)
class Timing:
    """Four moments of one ``probe`` call, seconds since the epoch: ``asked`` and ``answered`` on our clock (just before
    the call and just after its reply), ``received`` and ``sent`` on the host's (both are in the reply)."""

    asked: float
    received: float
    sent: float
    answered: float

    @property
    def offset(self) -> float:
        """How far the host's clock is ahead of ours, seconds: the midpoint rule, right to within ``uncertainty``."""
        return ((self.received - self.asked) + (self.sent - self.answered)) / 2

    @property
    def uncertainty(self) -> float:
        """Half of the time that the call spent on the way (connecting included), seconds, never negative."""
        return max(0.0, (self.answered - self.asked) - (self.sent - self.received)) / 2


@dataclass(frozen=True, eq=False)  # one that is equal to itself alone, so that what is read from it can be kept
class View:
    """Everything a verdict may look at: the hosts in order, the job's wishes, and each host's answers by question key.

    A host that could not be asked at all has no answers but an entry in ``errors``; only the checks of connection.py
    look there, every other check simply passes over it. ``timings`` holds the moments of each host's probe call.
    ``mesh`` is what the nodes saw of each other (None: not measured), ``firewalls`` the raw rules of hosts that a
    connection failed on, ``rehearsal`` what each host says about the deep rehearsal (None: not done).
    """

    targets: tuple[Target, ...]
    want: Want
    answers: Mapping[str, Mapping[str, Answer]]
    errors: Mapping[str, DdpctlError] = field(default_factory=dict)
    timings: Mapping[str, Timing] = field(default_factory=dict)
    mesh: Mesh | None = None
    firewalls: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rehearsal: Mapping[str, Mapping[str, Any]] | None = None

    def answer(self, host: str, question: Question) -> Answer | None:
        return self.answers.get(host, {}).get(question.key)

    def value(self, host: str, question: Question) -> Any:
        """What the host answered; None where it was not asked or could not tell."""
        answer = self.answer(host, question)
        return answer.value if answer is not None and answer.ok else None

    def values_of(self, question: Question) -> dict[str, Any]:
        """host -> value, for every host that answered this very question well."""
        return self.values(lambda target, want: question)

    def values(self, ask: Callable[[Target, Want], Question | None]) -> dict[str, Any]:
        """host -> value, for every host that answered this question well."""
        found: dict[str, Any] = {}
        for target in self.targets:
            question = ask(target, self.want)
            answer = self.answer(target.name, question) if question else None
            if answer is not None and answer.ok:
                found[target.name] = answer.value
        return found


@dataclass(frozen=True)
class Doc:
    """A check's section in docs/checks.md: cause, symptom as people meet it, fix, and whether it ever ran for real."""

    cause: str
    symptom: str
    fix: str
    verified: str = "lab"  # "lab", "recorded output only", ...


def everywhere(view: View) -> Mapping[str, str]:
    """The check applies to every host."""
    return {}


@dataclass(frozen=True)
class Check:
    """One entry of the catalogue.

    ``exempt`` says where the check does not apply, host -> why ("no GPU found"). What could not be looked at on a host
    is an UNKNOWN finding of ``judge``. A host of either kind is not among those that passed.
    """

    id: str
    title: str
    ask: Callable[[Target, Want], Iterable[Question]]
    judge: Callable[[View], Iterable[Finding]]
    doc: Doc
    exempt: Callable[[View], Mapping[str, str]] = everywhere
