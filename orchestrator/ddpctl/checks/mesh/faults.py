"""Finds where a connection failed: at the end with a firewall that drops it, at the far end, or in between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ddpctl.checks import firewall
from ddpctl.checks.base import View
from ddpctl.checks.firewall import BlockingRule, Packet
from ddpctl.checks.mesh import interface_of
from ddpctl.spec.fold import group_by
from ddpctl.spec.mesh import OK, Dial, Mesh
from ddpctl_worker.wire.contract import DROPPED, ERROR, NO_ROUTE, REFUSED, REJECTED

SOURCE_PORT = 45000  # represents any port that a dialer's kernel picks
FILTERED = frozenset({REFUSED, REJECTED, DROPPED})  # effects of a firewall on a connection
BLOCKED = FILTERED | {ERROR}


@dataclass(frozen=True)
class BlockedDial:
    """A blocked connection: ``host`` is where it is blocked, ``other`` the far end.

    ``reply``: the reply is blocked, not the request.
    """

    dial: Dial
    host: str
    other: str
    blocks: tuple[BlockingRule, ...]
    hook: str
    reply: bool = False

    @property
    def certain(self) -> bool:
        """Whether known rules block it. If not, rules may block it, or nothing is known."""
        return any(block.certain for block in self.blocks)

    @property
    def outgoing(self) -> bool:
        return self.host == self.dial.dialer


def find_faults(view: View, mesh: Mesh) -> tuple[BlockedDial, ...]:
    """Return every blocked connection with its culprit, except effects of a missing route back."""
    no_route_back = {(dial.peer, dial.dialer) for dial in mesh.dials if dial.status == NO_ROUTE}
    blocked = [d for d in mesh.dials if d.status in BLOCKED and (d.dialer, d.peer) not in no_route_back]
    lost = _silent_dialers(mesh, blocked)
    found = (_fault(view, mesh, dial, lost) for dial in blocked if not find_wrong_address(mesh, dial.peer))
    return tuple(fault for fault in found if fault.certain or fault.dial not in mesh.crowded_out)


def hosts_to_read(mesh: Mesh) -> tuple[str, ...]:
    """Return the hosts where a firewall may explain a failed connection: both of its ends."""
    ends = [host for dial in mesh.dials if dial.status in FILTERED for host in (dial.peer, dial.dialer)]
    return tuple(dict.fromkeys(ends))


def find_wrong_address(mesh: Mesh, peer: str) -> bool:
    """Return whether the nodes reach this peer at another address, which fabric.address reports once."""
    return bool(mesh.reached.get(peer))


def _silent_dialers(mesh: Mesh, blocked: Sequence[Dial]) -> set[str]:
    """Return the nodes that reach no target while other nodes reach the same targets.

    The fault is then at the dialer's end.
    """
    failed = {dialer: {dial.peer for dial in dials} for dialer, dials in group_by(lambda d: d.dialer, blocked).items()}
    through = [dial for dial in mesh.dials if dial.status == OK]
    dialers, reached = {dial.dialer for dial in through}, {dial.peer for dial in through}
    return {dialer for dialer, peers in failed.items() if len(peers) > 1 and peers <= reached and dialer not in dialers}


def _fault(view: View, mesh: Mesh, dial: Dial, lost: set[str]) -> BlockedDial:
    """Return the end with a firewall that drops the packet or the reply; if neither has, the far end."""
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
        every = firewall.find_blocks(view.firewalls.get(host, {}), packet, hook, interface=interface)
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
