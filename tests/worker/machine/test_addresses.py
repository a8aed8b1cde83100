"""Which addresses of this node count, from the kernel's own messages."""

from __future__ import annotations

import socket
import struct

import pytest

from ddpctl_worker.machine import net

GLOBAL, LINK = 0, 253
TENTATIVE = 0x40


def message(address: str, prefix: int, scope: int, flags: int = 0) -> bytes:
    """The body of RTM_NEWADDR for an address of lo."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    raw = socket.inet_pton(family, address)
    head = struct.pack("=BBBBI", family, prefix, flags, scope, socket.if_nametoindex("lo"))
    return head + struct.pack("=HH", 4 + len(raw), 2 if family == socket.AF_INET else 1) + raw


@pytest.mark.parametrize(
    ("address", "prefix", "scope", "flags", "counts"),
    [
        ("10.0.0.1", 24, GLOBAL, 0, True),
        ("169.254.35.62", 16, LINK, 0, True),  # two machines linked by a cable: netplan's link-local
        ("192.168.1.1", 24, LINK, 0, True),
        ("fd00::1", 64, GLOBAL, 0, True),
        ("fe80::1", 64, LINK, 0, False),
        ("10.0.0.1", 24, GLOBAL, TENTATIVE, False),
    ],
)
def test_which_addresses_count(address: str, prefix: int, scope: int, flags: int, counts: bool) -> None:
    found = net._address_message(message(address, prefix, scope, flags))
    family = 6 if ":" in address else 4
    assert found == ((family, prefix, "lo", address) if counts else None)
