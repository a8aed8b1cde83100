"""Names of runs: the name given by ``up --name``, and the beginning of a run id. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

from ddpctl.errors import UsageError
from ddpctl.spec.limits import MOST_RUN_IDS
from ddpctl.spec.values import NAME_RULE, is_name

_RUN_ID = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{6}")  # as cli/session.py makes them


def check_run_name(name: str, job: str, jobs: Collection[str]) -> None:
    """Refuse an ambiguous or invalid name for a run of ``job``; ``jobs`` are the names of the inventory's jobs.

    Raises:
        UsageError: the name is invalid, has the form of a run id, or is the name of another job.
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
    """Return the error for a name that a live run has; ``where`` describes that run."""
    return UsageError(
        f"{name} is live: {where}; nothing was started",
        hint=f"{how_to_go_on(name)}; or choose another --name",
    )


def how_to_go_on(run: str, *, queued: bool = False) -> str:
    """Return the commands for a live run that is not followed; ``run`` is its name or id.

    ``queued``: the run waits in line for its slots.
    """
    end = "take it out of the line" if queued else "end it"
    return f"follow it: ddpctl attach {run}; {end}: ddpctl kill {run}"


def ambiguous(word: str, runs: Iterable[str]) -> UsageError:
    """Return the error for a word that is the beginning of several run ids."""
    found = sorted(runs, reverse=True)
    more = f" and {len(found) - MOST_RUN_IDS} older ones" if len(found) > MOST_RUN_IDS else ""
    return UsageError(
        f"{word} is the beginning of {len(found)} run ids: {', '.join(found[:MOST_RUN_IDS])}{more}",
        hint="type more of the id",
    )
