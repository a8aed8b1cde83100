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


def given_up(run: Dict[str, Any], error: str) -> Optional[GivenUp]:
    """What ``error``, of a launcher of ``run``, comes from; None: from something else."""
    if run["rendezvous"] == "static":
        return None
    if _STORE.search(error):
        keeper, host, place = str(run["hosts"][0]), run["host"], (run.get("master_addr"), run.get("master_port"))
        text = (
            "the launcher on %s, which hosts the c10d store (%s:%s), does not answer %s: that host is down or cut off, "
            "or its launcher has ended; torch's elastic agent cannot do without it"
        )
        return GivenUp(keeper, NODE_LOST, text % (keeper, *place, host))
    if _TIMEOUT.search(error):
        least, limit = run.get("min_nodes") or run["nnodes"], run["timeouts"]["start"]
        text = "%s waited %g s (timeouts.start) for the other nodes, and there were not %s together"
        return GivenUp(run["host"], RENDEZVOUS_TIMEOUT, text % (run["host"], limit, least))
    return None
