"""Finds connections of a rank whose data the other end does not acknowledge.

A firewall or NAT that has forgotten an idle connection drops its packets, while new connections work. The rank then
waits in a collective, and nothing else shows why.
"""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterable, List

from ddpctl_worker.doctor.limits import MOST_UNANSWERED, RESENT
from ddpctl_worker.machine import net, proc
from ddpctl_worker.machine.tcpstate import Row, Table


def find_unanswered(pids: Iterable[int]) -> Dict[int, List[List[Any]]]:
    """Return pid -> [local end, remote end, how often the oldest data was sent again] for each such connection."""
    rows = {row.inode: row for row in _waiting_rows() if row.again >= RESENT and not row.opening}
    found: Dict[int, List[List[Any]]] = {}
    for pid in pids if rows else ():
        with contextlib.suppress(OSError):  # the rank has ended, or /proc is hidden
            own = [rows[inode] for inode in sorted(proc.sockets(pid) & rows.keys())]
            found[pid] = [_describe(row) for row in own[:MOST_UNANSWERED]]
    return {pid: ends for pid, ends in found.items() if ends}


def _waiting_rows() -> Iterable[Row]:
    for name in net.TCP_TABLES:
        with contextlib.suppress(FileNotFoundError), open(name, "rb") as file:  # a machine without IPv6
            yield from Table().rows(file.read())


def _describe(row: Row) -> List[Any]:
    return [_end(row.local, row.port), _end(row.remote, row.far), row.again]


def _end(address: str, port: int) -> str:
    return "[%s]:%d" % (address, port) if ":" in address else "%s:%d" % (address, port)
