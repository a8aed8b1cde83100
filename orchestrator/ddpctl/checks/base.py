"""A check is a question and a verdict, both pure.

``ask`` names what a host must be asked (the worker answers all questions of all checks in one round trip);
``judge`` sees every host's answers at once, so that values are compared there, and returns findings. The stage does
the timing, the deadlines and the logging once for all checks.

The id of a check tells its file: ``login.kill`` is in login.py, ``host.shm`` in one of host*.py, ``gpu.xid`` in gpu/.
The name of a question tells the fact of the worker that answers it, in worker/ddpctl_worker/facts/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ddpctl.errors import DdpctlError
from ddpctl.spec.backend import backend_of
from ddpctl.spec.fabric import is_literal
from ddpctl.spec.finding import Finding
from ddpctl.spec.host import Host
from ddpctl.spec.imports import Imports
from ddpctl.spec.inventory import Inventory
from ddpctl.spec.job import JobSpec
from ddpctl.spec.mesh import Mesh
from ddpctl.spec.origin import JobId
from ddpctl.spec.plain import processes_text
from ddpctl.spec.question import Answer, Question
from ddpctl.spec.script import ScriptFacts


@dataclass(frozen=True)
class Target:
    """A host as the checks see it: the inventory's facts about it and what the job wants from it."""

    name: str
    address: str
    python: str
    base_dir: str
    nproc: int | None = None  # processes of the job here; None: as many as GPUs
    fabric_address: str | None = None
    interface: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    local: bool = False
    environment: str | None = None  # the interpreter of a managed environment, once it is there

    @classmethod
    def all(cls, hosts: Sequence[Host], job: JobSpec | None, nproc: int | None = None) -> tuple[Target, ...]:
        """``hosts`` in node rank order, the master first."""
        return tuple(cls._of(host, job, nproc) for host in hosts)

    @classmethod
    def _of(cls, host: Host, job: JobSpec | None, nproc: int | None) -> Target:
        wishes = (nproc, job.nproc_per_node if job else None, host.slots)
        return cls(
            name=host.name,
            address=host.address,
            python=host.python,
            base_dir=host.base_dir,
            nproc=next((wish for wish in wishes if isinstance(wish, int)), None),
            fabric_address=host.fabric_address,
            interface=host.interface,
            env={**host.env, **(job.env if job else {})},
            local=host.local,
        )

    @property
    def ranks(self) -> int:
        """Processes of the job here, at least 1; where that is not known yet, 1."""
        return max(1, self.nproc or 1)


@dataclass(frozen=True)
class Want:
    """What the job needs, None where no job was named."""

    job: JobId | None = None
    script: str | None = None
    workdir: str | None = None  # a folder on the node, when the code is not sent
    master: str | None = None
    master_port: int | None = None
    managed: bool = False  # ddpctl builds the environment: what is installed on the node does not matter
    packages: tuple[str, ...] = ()  # requirement strings that must be equal everywhere
    data: tuple[str, ...] = ()
    free_disk_gb: float | None = None
    backend: str | None = None  # nccl, gloo, or None: by the presence of GPUs
    rendezvous: str = "static"  # static or c10d
    copies: bool = False  # hosts keep copies of each other's checkpoints
    agents: bool = False  # it has restarts: an agent on every host, and any host may be the next master
    fabric_names: tuple[str, ...] = ()  # fabric addresses of the inventory that are names
    imports: Imports | None = None  # what the job's program imports; None: not known
    backend_place: str | None = None  # the file and line that name the backend; None: the arguments do, or nothing
    processes: str | None = None  # how its processes begin, where torch's launcher does not start them

    @classmethod
    def of(
        cls,
        inventory: Inventory,
        job: JobSpec | None,
        hosts: Sequence[Host],
        imports: Imports | None = None,
        facts: ScriptFacts | None = None,
    ) -> Want:
        """What the job needs of its nodes (the first of ``hosts`` is the master); without a job what any job would."""
        managed = inventory.environment.mode == "managed"
        packages = () if managed else tuple(inventory.environment.packages)
        master = hosts[0].name
        names = tuple(
            sorted({h.fabric_address for h in hosts if h.fabric_address and not is_literal(h.fabric_address)})
        )
        any_job = cls(master=master, managed=managed, packages=packages, fabric_names=names)
        if job is None:
            return any_job
        return replace(
            any_job,
            job=inventory.job_id(job.name),
            script=job.script if job.code is None else None,
            workdir=job.workdir if job.code is None else None,
            master_port=job.master_port if isinstance(job.master_port, int) else None,
            data=tuple(job.requires.data),
            free_disk_gb=job.requires.free_disk_gb,
            **cls.of_script(job, facts, len(hosts)),
            rendezvous=job.rendezvous,
            copies=job.checkpoint.replicas > 0,
            agents=job.most_restarts > 0,
            imports=imports,
        )

    @staticmethod
    def of_script(job: JobSpec, facts: ScriptFacts | None, hosts: int) -> dict[str, Any]:
        """The fields that the job's script and its arguments decide, for that number of hosts."""
        script = facts.backend if facts is not None else None
        backend = backend_of(job.args, script)
        named = script is not None and backend_of(job.args) is None and backend == script.name
        place = script.place if script is not None and named else None
        return {"backend": backend, "backend_place": place, "processes": processes_text(job, facts, hosts)}


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

    A host that could not be asked at all has no answers but an entry in ``errors``; only the checks of ssh.py
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

    def values(self, ask: Question | Callable[[Target, Want], Question | None]) -> dict[str, Any]:
        """host -> value, for every host that answered this question well."""
        found: dict[str, Any] = {}
        for target in self.targets:
            question = ask if isinstance(ask, Question) else ask(target, self.want)
            answer = self.answer(target.name, question) if question else None
            if answer is not None and answer.ok:
                found[target.name] = answer.value
        return found

    def named(self, host: str, name: str) -> Any:
        """The host's answer to the question of this name, whatever its parameters; None as in ``value``."""
        answers = self.answers.get(host, {}).items()
        return next((a.value for key, a in answers if a.ok and key.partition(":")[0] == name), None)

    def target(self, host: str) -> Target:
        return self._by_name[host]

    @cached_property
    def _by_name(self) -> Mapping[str, Target]:
        return {target.name: target for target in self.targets}


Ask = Callable[[Target, Want], Question | tuple[Question, ...] | None]
RECORDED = "recorded output only"
NO_HARDWARE = f"{RECORDED}, never real hardware"


@dataclass(frozen=True)
class Check:
    """One entry of the catalogue: a question and a verdict, with its section in docs/checks.md.

    ``ask`` holds questions, and functions that make a host's own (None: it is not asked). ``judge`` sees every host's
    answers; what it finds (see report.py) gets the check's id in ``findings``. What could not be looked at on a host is
    an UNKNOWN finding; ``exempt`` says where the check does not apply, host -> why ("no GPU found"). A host of either
    kind is not among those that passed.

    ``cause``, ``symptom`` as people meet it and ``fix`` are for the page. ``recorded`` says why the check was judged on
    recorded output only; None: it was seen to find its fault on real hosts.
    """

    id: str
    title: str
    judge: Callable[[View], Iterable[Finding]]
    ask: tuple[Question | Ask, ...] = ()
    exempt: Callable[[View], Mapping[str, str]] = lambda view: {}  # it applies everywhere
    cause: str = ""
    symptom: str = ""
    fix: str = ""
    recorded: str | None = None

    def questions(self, target: Target, want: Want) -> tuple[Question, ...]:
        """What this host is asked."""
        found: list[Question] = []
        for one in self.ask:
            made = one if isinstance(one, Question) else one(target, want)
            found += made if isinstance(made, tuple) else () if made is None else (made,)
        return tuple(found)

    def findings(self, view: View) -> list[Finding]:
        """The verdict."""
        return [replace(found, check=self.id) for found in self.judge(view)]
