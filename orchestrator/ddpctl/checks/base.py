"""The types of a check: its question, its verdict, and the data that the verdict reads.

``ask`` returns the questions for a host; the worker answers the questions of all checks in one round trip. ``judge``
sees the answers of all hosts at once, so that it can compare them, and returns findings. Both are pure. Timing,
deadlines and logging are in the stage, once for all checks.

The id of a check names its file: ``login.kill`` is in login.py, ``host.*`` in host.py, host_disk.py, host_limits.py
or host_slots.py, ``gpu.xid`` in gpu/.
The name of a question is the name of a fact of the worker, in worker/ddpctl_worker/facts/.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ddpctl.errors import DdpctlError, RemoteError
from ddpctl.spec.backend import backend_of
from ddpctl.spec.fabric import is_literal
from ddpctl.spec.finding import Finding
from ddpctl.spec.host import Host
from ddpctl.spec.imports import Imports
from ddpctl.spec.inventory import Inventory
from ddpctl.spec.job import JobSpec
from ddpctl.spec.mesh import Mesh
from ddpctl.spec.origin import JobId
from ddpctl.spec.question import Answer, Question
from ddpctl.spec.script import ScriptFacts
from ddpctl.spec.self_spawning import processes_text
from ddpctl.spec.slots import HostSlots


@dataclass(frozen=True)
class Target:
    """A host for the checks: its entry in the inventory, and the part of the job that runs there."""

    name: str
    address: str
    python: str
    base_dir: str
    nproc: int | None = None  # processes of the job on this host; None: as many as GPUs
    fabric_address: str | None = None
    interface: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    local: bool = False
    environment: str | None = None  # the interpreter of a managed environment, after its installation

    @classmethod
    def all(cls, hosts: Sequence[Host], job: JobSpec | None, nproc: int | None = None) -> tuple[Target, ...]:
        """Return the targets of ``hosts`` in node rank order, the master first."""
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
        """Processes of the job on this host; 1 where the number is not known yet."""
        return max(1, self.nproc or 1)


@dataclass(frozen=True)
class Requirements:
    """The requirements of the job. A field is None if no job is named."""

    job: JobId | None = None
    script: str | None = None
    workdir: str | None = None  # a folder on the node, if ddpctl does not send the code
    master: str | None = None
    master_port: int | None = None
    managed: bool = False  # ddpctl builds the environment, so the node's packages do not matter
    packages: tuple[str, ...] = ()  # requirements with equal versions on all hosts
    data: tuple[str, ...] = ()
    free_disk_gb: float | None = None
    backend: str | None = None  # nccl or gloo; None: nccl where there are GPUs
    rendezvous: str = "static"  # static or c10d
    copies: bool = False  # hosts keep copies of each other's checkpoints
    agents: bool = False  # the job has restarts: every host has an agent and may become the master
    fabric_names: tuple[str, ...] = ()  # fabric addresses of the inventory that are names
    imports: Imports | None = None  # imports of the job's program; None: not known
    # file and line that name the backend, unless the arguments name it
    backend_place: str | None = None
    processes: str | None = None  # how the processes start, if torch's launcher does not start them

    @classmethod
    def of(
        cls,
        inventory: Inventory,
        job: JobSpec | None,
        hosts: Sequence[Host],
        imports: Imports | None = None,
        facts: ScriptFacts | None = None,
    ) -> Requirements:
        """Return the job's requirements for its nodes; the first of ``hosts`` is the master.

        Without a job, return the requirements that every job has.
        """
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
            data=(*job.requires.data, *job.links.values()),
            free_disk_gb=job.requires.free_disk_gb,
            **cls.of_script(job, facts, len(hosts)),
            rendezvous=job.rendezvous,
            copies=job.checkpoint.replicas > 0,
            agents=job.most_restarts > 0,
            imports=imports,
        )

    @staticmethod
    def of_script(job: JobSpec, facts: ScriptFacts | None, hosts: int) -> dict[str, Any]:
        """Return the fields that the job's script and arguments decide, for that number of hosts."""
        script = facts.backend if facts is not None else None
        backend = backend_of(job.args, script)
        named = script is not None and backend_of(job.args) is None and backend == script.name
        place = script.place if script is not None and named else None
        return {"backend": backend, "backend_place": place, "processes": processes_text(job, facts, hosts)}


@dataclass(frozen=True)
class Timing:
    """Four moments of a ``probe`` call, in seconds since the epoch.

    ``asked`` and ``answered`` are on this machine's clock, just before the call and just after its reply. ``received``
    and ``sent`` are on the host's clock and come with the reply.
    """

    asked: float
    received: float
    sent: float
    answered: float

    @property
    def offset(self) -> float:
        """Seconds that the host's clock is ahead: the midpoint rule, exact to within ``uncertainty``."""
        return ((self.received - self.asked) + (self.sent - self.answered)) / 2

    @property
    def uncertainty(self) -> float:
        """Half of the call's time on the way (connecting included), in seconds, never negative."""
        return max(0.0, (self.answered - self.asked) - (self.sent - self.received)) / 2


@dataclass(frozen=True, eq=False)  # equal only to itself, so that results read from it can be cached
class View:
    """All input of a verdict: the hosts in order, the job's requirements, and each host's answers by question key.

    - ``errors``: hosts that could not be asked at all. They have no answers. Only the checks of ssh.py read the errors.
    - ``timings``: the moments of each host's probe call.
    - ``mesh``: the connections between the nodes, if they were measured.
    - ``firewalls``: the raw rules of the hosts at both ends of failed connections.
    - ``rehearsal``: each host's result of the rehearsal, if there was a rehearsal.
    - ``slots``: the slots of each host that was asked for them, and whether the job fits; or the host's error.
    """

    targets: tuple[Target, ...]
    requirements: Requirements
    answers: Mapping[str, Mapping[str, Answer]]
    errors: Mapping[str, DdpctlError] = field(default_factory=dict)
    timings: Mapping[str, Timing] = field(default_factory=dict)
    mesh: Mesh | None = None
    firewalls: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    rehearsal: Mapping[str, Mapping[str, Any]] | None = None
    slots: Mapping[str, HostSlots | RemoteError] = field(default_factory=dict)

    def answer(self, host: str, question: Question) -> Answer | None:
        return self.answers.get(host, {}).get(question.key)

    def value(self, host: str, question: Question) -> Any:
        """Return the host's answer, if the host was asked and could answer."""
        answer = self.answer(host, question)
        return answer.value if answer is not None and answer.ok else None

    def values(self, ask: Question | Callable[[Target, Requirements], Question | None]) -> dict[str, Any]:
        """Return host -> value for every host that answered this question."""
        found: dict[str, Any] = {}
        for target in self.targets:
            question = ask if isinstance(ask, Question) else ask(target, self.requirements)
            answer = self.answer(target.name, question) if question else None
            if answer is not None and answer.ok:
                found[target.name] = answer.value
        return found

    def named(self, host: str, name: str) -> Any:
        """Return the host's answer to the question of this name, whatever its parameters, as ``value`` does."""
        answers = self.answers.get(host, {}).items()
        return next((a.value for key, a in answers if a.ok and key.partition(":")[0] == name), None)

    def target(self, host: str) -> Target:
        return self._by_name[host]

    @cached_property
    def _by_name(self) -> Mapping[str, Target]:
        return {target.name: target for target in self.targets}


Ask = Callable[[Target, Requirements], Question | tuple[Question, ...] | None]
ON_HOSTS = "on test hosts"
RECORDED = "recorded output only"
NO_HARDWARE = f"{RECORDED}, never real hardware"


@dataclass(frozen=True)
class Check:
    """An entry of the catalogue: questions, a verdict, and a section of docs/checks.md.

    - ``ask`` holds questions, and functions that return a host's questions (None: the host is not asked).
    - ``judge`` sees every host's answers and returns findings (see report.py); ``findings`` adds the check's id. A host
      that could not be examined gets an UNKNOWN finding.
    - ``exempt`` returns host -> reason for the hosts where the check does not apply ("no GPU found"). Such a host, like
      a host with an UNKNOWN finding, does not count as passed.
    - ``title`` completes *passes when ...* in docs/checks.md.
    - ``cause``, ``symptom`` (as users meet it) and ``fix`` are for docs/checks.md.
    - ``seen`` says where the check has found its fault: ON_HOSTS if a test injects the fault on lab hosts.
    """

    id: str
    title: str
    judge: Callable[[View], Iterable[Finding]]
    ask: tuple[Question | Ask, ...] = ()
    exempt: Callable[[View], Mapping[str, str]] = lambda view: {}  # by default the check applies everywhere
    cause: str = ""
    symptom: str = ""
    fix: str = ""
    seen: str = RECORDED

    def questions(self, target: Target, want: Requirements) -> tuple[Question, ...]:
        """Return the questions for this host."""
        found: list[Question] = []
        for item in self.ask:
            made = item if isinstance(item, Question) else item(target, want)
            found += made if isinstance(made, tuple) else () if made is None else (made,)
        return tuple(found)

    def findings(self, view: View) -> list[Finding]:
        """Return the findings of ``judge`` with the check's id."""
        return [replace(found, check=self.id) for found in self.judge(view)]
