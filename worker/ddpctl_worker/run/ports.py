"""Finds free ports for a launch that no other run on this node is about to take, and puts them into its request."""

from __future__ import annotations

import itertools
import random
from typing import Any, Dict, Iterator, Optional, Set

from ddpctl_worker.machine.net import listen, port_range
from ddpctl_worker.record import paths
from ddpctl_worker.record.status import unfinished
from ddpctl_worker.wire.channel import Channel, WorkerError
from ddpctl_worker.wire.contract import NO_PORT, PLAIN, USUAL_PORTS


def free_port(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """Return ``count`` distinct free ports of this node; ``avoid``: ports not to return.

    First come the ports from ``prefer`` on among 29500-29999, torch's usual range. The same wish gives the same ports
    again, so a firewall that was opened once stays right. Next come ports outside the kernel's own range, from which an
    outgoing connection could take a port before the launch. A port of another live run on this node is never free: that
    run may not listen yet.

    ``exactly``: a list of ports; the answer then has its free ports.

    Raises:
        WorkerError: NO_PORT, too few ports are free.
    """
    own = request.get("own")
    taken = reserved_ports(paths.base_of(request), str(request["host"]), own) if request.get("host") else set()
    if request.get("exactly") is not None:
        return {"ports": [port for port in map(int, request["exactly"]) if port not in taken and _is_free(port)]}
    count = int(request.get("count", 1))
    prefer = int(request.get("prefer", USUAL_PORTS[0]))
    avoid = taken | {int(port) for port in request.get("avoid", ())}
    found = list(itertools.islice(filter(_is_free, _candidates(prefer, avoid)), count))
    if len(found) < count:
        raise WorkerError(
            NO_PORT, "no free TCP port between 1024 and 65535", "see what listens: ddpctl exec -- ss -ltnp"
        )
    return {"port": found[0] if found else None, "ports": found}


def move_ports(request: Dict[str, Any], master: int, gang: int) -> Dict[str, Any]:
    """Return a request of the start verb with other ports, for torch and for the gang."""
    run, argv, env = dict(request["run"]), list(request["argv"]), dict(request.get("env") or {})
    if env.get("MASTER_PORT") == str(run["master_port"]) and run.get("launcher") == PLAIN:
        env["MASTER_PORT"] = str(master)
    if run.get("launcher") != PLAIN:
        for at, word in enumerate(argv[: argv.index("--")]):  # after that the words are the script's
            if word == "--master_port":
                argv[at + 1] = str(master)
            elif word == "--rdzv_endpoint":
                argv[at + 1] = "%s:%d" % (argv[at + 1].rpartition(":")[0], master)
    run["master_port"] = master
    if run.get("gang"):
        run["gang"] = dict(run["gang"], port=gang)
    if run.get("restart"):
        first = dict(run["restart"]["first"], master_port=master, gang_port=gang)
        run["restart"] = dict(run["restart"], first=first)
    return dict(request, run=run, argv=argv, env=env)


def reserved_ports(base: str, host: str, but: Optional[str] = None) -> Set[int]:
    """Return the ports on which torch and the gang of the live runs listen on this host, now or soon.

    ``but``: a run whose ports are left out, because the request is for its next attempt.
    """
    found: Set[int] = set()
    for status in unfinished(base, host):
        run = status["record"]
        if run.get("run") == but:
            continue
        gang = run.get("gang") or {}
        mine = [run.get("master_port") if run.get("node_rank") == 0 else None]
        mine.append(gang.get("port") if gang.get("hub_host") == run.get("host") else None)
        last = (status.get("agreed") or {"attempts": [{}]})["attempts"][-1]
        if last.get("hosts", [None])[0] == run.get("host"):
            mine += [last["master_port"], last["gang_port"]]
        found.update(port for port in mine if isinstance(port, int))
    return found


def _is_free(port: int) -> bool:
    try:
        listen(port).close()
    except OSError:
        return False
    return True


def _candidates(prefer: int, avoid: Set[int]) -> Iterator[int]:
    """Yield ports, the best first. The long list of unusual ports is built only once the usual ports are used up."""
    low, high = port_range()
    first, last = USUAL_PORTS
    prefer = min(max(prefer, first), last)
    usual = [port for port in [*range(prefer, last + 1), *range(first, prefer)] if not low <= port <= high]
    yield from (port for port in usual if port not in avoid)
    others = [port for port in range(10000, 65536) if port not in avoid]
    random.shuffle(others)
    yield from sorted(others, key=lambda port: low <= port <= high)  # a stable sort keeps each part shuffled
