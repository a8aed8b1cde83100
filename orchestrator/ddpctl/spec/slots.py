"""The slots of the hosts: what a run asks for, and who holds them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

from pydantic import Field

from ddpctl.spec.bounds import Count, Flag, Name, Real, Short, Small
from ddpctl.spec.values import plural
from ddpctl_worker.wire import contract

_MOST_AGE_S = 1e9  # of a claim: thirty years; a host may send anything


@dataclass(frozen=True)
class SlotWish:
    """How a node counts its slots. ``count``: the host's key ``slots``; None: auto.

    ``nodes``: the hosts of the inventory that are this machine, with ``count`` slots each.
    """

    count: int | None = None
    nodes: int = 1


ONE_SLOT = SlotWish()


@dataclass(frozen=True)
class ClaimOrigin:
    """The place where a run was started, as its claim says."""

    account: Short
    machine: Short
    folder: Short


@dataclass(frozen=True)
class Claim:
    """A claim of any account on a host, as far as the host shows it.

    - ``account``: the account on the host, from the kernel. ``mine``: it is the login's own.
    - ``place``: in the line of the host, from 1; None: it has its slots.
    """

    host: Name
    run: Name
    job: Name
    cluster: Name
    project: Name
    hosts: Annotated[tuple[Name, ...], Field(max_length=10_000)]
    account: Short
    mine: Flag
    origin: ClaimOrigin
    age_s: Annotated[Real, Field(ge=0, le=1e12)]
    slots: Annotated[tuple[Small, ...], Field(max_length=10_000)]
    want: Small
    place: Small | None


@dataclass(frozen=True)
class ForeignProgram:
    """A program on a GPU that ddpctl did not start."""

    pid: Count
    account: Short | None
    command: Short


@dataclass(frozen=True)
class SlotHolder:
    """A holder of slots that a run may take. ``claim``: its place among the claims of the host."""

    slots: Annotated[tuple[Small, ...], Field(max_length=10_000)]
    claim: Small | None
    foreign: ForeignProgram | None


@dataclass(frozen=True)
class SlotLimit:
    """The most slots that an account may hold, and the slots that the login's own holds."""

    limit: Small
    held: Small


@dataclass(frozen=True)
class HostSlots:
    """The slots of a host: their claims, and how a run fits (the worker's verb ``slots``)."""

    claims: Annotated[tuple[Claim, ...], Field(max_length=10_000)] = ()
    fits: Flag | None = None
    gpus: Flag = False
    holders: Annotated[tuple[SlotHolder, ...], Field(max_length=20_000)] = ()
    limited: SlotLimit | None = None
    trouble: Short | None = None


def _origin(claim: Claim) -> str:
    """Return ``desk:~/exp1``, or ``ann@desk:~/exp1`` where the account of the host has another name."""
    own, folder = claim.origin.account, claim.origin.folder
    for home in (f"/home/{own}", f"/Users/{own}", "/root"):
        if folder == home or folder.startswith(home + "/"):
            folder = "~" + folder[len(home) :]
            break
    return f"{own + '@' if own != claim.account else ''}{claim.origin.machine}:{folder}"


def slots_of_run(claims: Iterable[Claim], run: str) -> dict[str, list[int]]:
    """Return host -> the slots that the run has there."""
    return {claim.host: list(claim.slots) for claim in claims if claim.run == run and claim.slots}


def place_of_run(claims: Iterable[Claim], run: str) -> int | None:
    """Return the run's place in line, the last of its places on all hosts; None: it waits nowhere."""
    return max((claim.place for claim in claims if claim.run == run and claim.place), default=None)


@dataclass(frozen=True)
class OtherRun:
    """A run of another account, as its claims show it."""

    first: Claim
    claims: tuple[Claim, ...]

    @property
    def state(self) -> str:
        return contract.QUEUED if place_of_run(self.claims, self.first.run) else contract.RUNNING

    @property
    def hosts(self) -> tuple[str, ...]:
        """Return the hosts by the names of this inventory; the run's own inventory may have other names."""
        return tuple(dict.fromkeys(claim.host for claim in self.claims))

    def started(self, now: datetime) -> str:
        """Return the time of the oldest claim. The hosts send ages, since their clocks may differ from this one."""
        age_s = max(claim.age_s for claim in self.claims)
        return (now - timedelta(seconds=min(age_s, _MOST_AGE_S))).isoformat(timespec="seconds")


def other_runs(claims: Sequence[Claim], own: Collection[str]) -> list[OtherRun]:
    """Return the runs with claims that are not among ``own``, the oldest first."""
    found: dict[tuple[str, str], list[Claim]] = {}
    for claim in claims:
        if claim.run not in own:
            found.setdefault((claim.account, claim.run), []).append(claim)
    runs = [OtherRun(each[0], tuple(each)) for each in found.values()]
    return sorted(runs, key=lambda run: run.first.run)


def describe_holders(found: HostSlots) -> list[str]:
    """Return a text for each holder of slots of a host, and for each run that waits there.

    GPUs 0-3: alice, run resnet (since 2 h, from desk:~/exp1)
    """
    if found.limited is not None:
        limit = plural(found.limited.limit, "GPU" if found.gpus else "slot")
        return [f"an account may hold {limit} here (/etc/ddpctl.conf), and yours has {found.limited.held}"]
    claims = dict(enumerate(found.claims))
    lines, waiting = [], []
    for holder in found.holders:
        claim = None if holder.claim is None else claims.get(holder.claim)
        if claim and not holder.slots:
            waiting.append(claim)
        elif who := _claim(claim) if claim else _foreign(holder.foreign) if holder.foreign else None:
            lines.append(f"{slots_text(holder.slots, gpus=found.gpus)}: {who}")
    for claim in sorted(waiting, key=lambda claim: claim.place or 0):
        wanted = plural(claim.want, "GPU" if found.gpus else "slot")
        lines.append(f"waiting for {wanted}: {_claim(claim)}")
    return lines


def others_text(claim: Claim) -> str:
    """Return ``a run of another account is here: alice, run resnet (since 2 h, from desk:~/exp1)``."""
    return f"a run of another account is here: {_claim(claim)}"


def _claim(claim: Claim) -> str:
    return f"{claim.account}, run {claim.job} (since {age(claim.age_s)}, from {_origin(claim)})"


def _foreign(program: ForeignProgram) -> str:
    who = program.account or "of another container or user"
    return f"{who}, {program.command} (pid {program.pid}, not started by ddpctl)"


def slots_text(numbers: Iterable[int], *, gpus: bool) -> str:
    """Return ``GPUs 0-3``, ``GPU 2`` or ``slots 0,2``."""
    found = sorted(numbers)
    word = "GPU" if gpus else "slot"
    return f"{word}{'' if len(found) == 1 else 's'} {fold_numbers(found)}"


def fold_numbers(numbers: Iterable[int]) -> str:
    """Return ``0-3,7`` for 0, 1, 2, 3 and 7."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def age(seconds: float) -> str:
    """Return ``2 h``: the largest whole unit."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"
