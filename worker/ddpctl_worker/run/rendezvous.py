"""Why torch's own elastic agent gives up, in words that name the place. Pure.

Its exceptions say that a connection has failed, not to where, and each node has one of its own.
"""

from __future__ import annotations

import re
from typing import Any, Dict, NamedTuple, Optional

from ddpctl_worker.contract import NODE_LOST, RENDEZVOUS_TIMEOUT

_STORE = re.compile(r"RendezvousConnectionError: .*C10d store", re.S)
_TIMEOUT = re.compile(r"\bRendezvousTimeoutError\b")


class GivenUp(NamedTuple):
    """A part of a cause: which host, in which of the contract's words, and why."""

    host: str
    reason: str
    message: str


def store_keeper(run: Dict[str, Any]) -> Optional[str]:
    """The host whose launcher has the c10d store in it; None: there is none."""
    return str((run.get("hosts") or [run["host"]])[0]) if run.get("rendezvous") == "c10d" else None


def store_lost(run: Dict[str, Any], keeper: str) -> GivenUp:
    """``keeper`` does not answer this node."""
    text = (
        "the launcher on %s, which hosts the c10d store (%s), does not answer %s: that host is down or cut off, or its "
        "launcher has ended; torch's elastic agent cannot do without it"
    )
    return GivenUp(keeper, NODE_LOST, text % (keeper, _place(run), run["host"]))


def _place(run: Dict[str, Any]) -> str:
    return "%s:%s" % (run.get("master_addr"), run.get("master_port"))


def given_up(run: Dict[str, Any], error: str) -> Optional[GivenUp]:
    """What ``error``, of a launcher of ``run``, comes from; None: from something else."""
    if run.get("rendezvous", "static") == "static":
        return None
    keeper = store_keeper(run)
    if keeper is not None and _STORE.search(error):
        return store_lost(run, keeper)
    if _TIMEOUT.search(error):
        least, limit = run.get("min_nodes") or run.get("nnodes"), (run.get("timeouts") or {}).get("start") or 0
        text = "%s waited %g s (timeouts.start) for the other nodes, and there were not %s together"
        return GivenUp(run["host"], RENDEZVOUS_TIMEOUT, text % (run["host"], limit, least))
    return None
