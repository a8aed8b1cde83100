"""Where a connection failed: at the end whose firewall drops it, or at the far end, or between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpctl.checks import firewall
from ddpctl.checks.base import View
from ddpctl.checks.firewall import BlockingRule, Packet
from ddpctl.checks.mesh import interface_of
from ddpctl.spec.fold import by
from ddpctl.spec.mesh import OK, Dial, Mesh
from ddpctl_worker.wire.contract import DROPPED, ERROR, NO_ROUTE, REFUSED, REJECTED

SOURCE_PORT = 45000  # stands for any port that a dialer's kernel picks
FILTERED = frozenset({REFUSED, REJECTED, DROPPED})  # what a firewall can do to a connection
BLOCKED = FILTERED | {ERROR}


@dataclass(frozen=True)
class BlockedDial:
    """A blocked connection: ``host`` is where it is blocked, ``other`` the far end.

    ``reply``: it is the answer that is stopped."""

    dial: Dial
    host: str
    other: str
    blocks: tuple[BlockingRule, ...]
    hook: str
    reply: bool = False

    @property
    def certain(self) -> bool:
        """Rules that do it were read; else they may, or nothing is known."""
        return any(block.certain for block in self.blocks)

    @property
    def outgoing(self) -> bool:
        return self.host == self.dial.dialer


def faults(view: View, mesh: Mesh) -> tuple[BlockedDial, ...]:
    """Every blocked connection that is not the mere echo of a missing route back, with its culprit."""
    no_route_back = {(dial.peer, dial.dialer) for dial in mesh.dials if dial.status == NO_ROUTE}
    blocked = [d for d in mesh.dials if d.status in BLOCKED and (d.dialer, d.peer) not in no_route_back]
    lost = _silent_dialers(mesh, blocked)
    found = (_fault(view, mesh, dial, lost) for dial in blocked if not wrong_address(mesh, dial.peer))
    return tuple(fault for fault in found if fault.certain or fault.dial not in mesh.crowded_out)


def hosts_to_read(mesh: Mesh) -> tuple[str, ...]:
    """The hosts whose firewalls may explain a failed connection: both ends of it."""
    ends = [host for dial in mesh.dials if dial.status in FILTERED for host in (dial.peer, dial.dialer)]
    return tuple(dict.fromkeys(ends))


def wrong_address(mesh: Mesh, peer: str) -> bool:
    """The others reach this node at another address: that is told once, by fabric.address."""
    return bool(mesh.reached.get(peer))


def _silent_dialers(mesh: Mesh, blocked: Sequence[Dial]) -> set[str]:
    """Nodes from which nothing gets anywhere while others do get to the same targets: the fault is at their end."""
    failed = {dialer: {dial.peer for dial in dials} for dialer, dials in by(lambda d: d.dialer, blocked).items()}
    through = [dial for dial in mesh.dials if dial.status == OK]
    heard, arrived = {dial.dialer for dial in through}, {dial.peer for dial in through}
    return {dialer for dialer, peers in failed.items() if len(peers) > 1 and peers <= arrived and dialer not in heard}


def _fault(view: View, mesh: Mesh, dial: Dial, lost: set[str]) -> BlockedDial:
    """The end whose firewall drops the packet on its way there or the answer on its way back; else the far end."""
    fabric = mesh.fabric.get(dial.dialer)
    mine = dial.local or (fabric.address if fabric else "")
    there = Packet(mine, dial.address, SOURCE_PORT, dial.port, "new")
    back = Packet(dial.address, mine, dial.port, SOURCE_PORT, "established")
    chains = (
        (dial.peer, "input", there),
        (dial.dialer, "output", there),
        (dial.dialer, "input", back),
        (dial.peer, "output", back),
    )
    found = []
    for host, hook, packet in chains:
        interface = dial.interface if host == dial.dialer else interface_of(mesh, host)
        every = firewall.blocking(view.firewalls.get(host, {}), packet, hook, interface=interface)
        found.append((host, hook, packet, every))
    for certain in (True, False):
        for host, hook, packet, every in found:
            blocks = tuple(block for block in every if block.certain or not certain)
            if blocks:
                other = dial.dialer if host == dial.peer else dial.peer
                return BlockedDial(dial, host, other, blocks, hook, reply=packet is back)
    if dial.dialer in lost:
        return BlockedDial(dial, dial.dialer, dial.peer, (), "output")
    return BlockedDial(dial, dial.peer, dial.dialer, (), "input")
