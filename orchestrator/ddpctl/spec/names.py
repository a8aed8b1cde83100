"""What a run is called: the name that ``up --name`` gives it, and the beginning of its id. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from ddpctl.errors import UsageError
from ddpctl.spec.limits import MOST_RUN_IDS
from ddpctl.spec.values import NAME_RULE, is_name

_RUN_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{6}")  # as cli/session.py makes them


def check_run_name(name: str, job: str, jobs: Collection[str]) -> None:
    """Refuse a name for a run of ``job`` that would mean something else too; ``jobs`` are those of the inventory.

    Raises:
        UsageError: it is no name, has the form of a run id, or is another job's.
    """
    if not is_name(name):
        raise UsageError(f"--name {name!r} is not a valid name", hint=NAME_RULE)
    if _RUN_ID.fullmatch(name):
        raise UsageError(f"--name {name} has the form of a run id", hint="choose another name, such as train-lr01")
    if name != job and name in jobs:
        raise UsageError(
            f"--name {name} is another job of this inventory, whose runs and checkpoints go by that name",
            hint=f"choose another name, or run that job: --job {name}",
        )


def name_taken(name: str, where: str) -> UsageError:
    """Why a run cannot be called ``name``; ``where`` says which live run has the name."""
    return UsageError(
        f"{name} is live: {where}; nothing was started",
        hint=f"follow it: ddpctl attach {name}; end it: ddpctl kill {name}; or choose another --name",
    )


def ambiguous(word: str, runs: Iterable[str]) -> UsageError:
    """Why ``word`` means no run: it is the beginning of several ids."""
    found = sorted(runs, reverse=True)
    more = f" and {len(found) - MOST_RUN_IDS} older ones" if len(found) > MOST_RUN_IDS else ""
    return UsageError(
        f"{word} is the beginning of {len(found)} run ids: {', '.join(found[:MOST_RUN_IDS])}{more}",
        hint="type more of the id",
    )
