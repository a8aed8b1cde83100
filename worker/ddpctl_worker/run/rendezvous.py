"""Explains why torch's elastic agent gave up, with the host's name. Pure.

The agent's exceptions say that a connection has failed, but not to which host, and every node has its own exception.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Optional

from ddpctl_worker.record.runrecord import RunRecord
from ddpctl_worker.wire.contract import NODE_LOST, RENDEZVOUS_TIMEOUT

_STORE = re.compile(r"RendezvousConnectionError: .*C10d store", re.S)
_TIMEOUT = re.compile(r"\bRendezvousTimeoutError\b")


class GivenUp(NamedTuple):
    """A part of a cause: the host, the contract's reason, and the message."""

    host: str
    reason: str
    message: str


def find_rejected_host(run: RunRecord, error: str) -> Optional[GivenUp]:
    """Return why the launcher of ``run`` gave up, by its output ``error``; ``None`` if it did not give up."""
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
