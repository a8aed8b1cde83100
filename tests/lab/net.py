"""The network of a lab: a switch in a network namespace of its own, a cable to each host and a cable to this machine.

Only the end of the last cable is in this machine's network: neither its firewall nor its bridge settings touch the
traffic between hosts, and all the rest is gone when the switch's process is.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

from tests.lab.claim import PREFIX, Claim
from tests.lab.process import ENVIRON, Identity, LabError, Text, call

IPV6 = int(IPv6Address("fddd:6c61:62::"))  # of the addresses reserved for private use


@dataclass(frozen=True)
class Cable:
    """The first end in a host, the second in a port of the switch."""

    interface: str  # eth0, eth1: its name in the host
    segment: int  # 0: the segment that this machine is on; 1: the segment among hosts
    port: str
    address: str

    @property
    def mac(self) -> str:
        """The same after every boot, as on real hardware: a new address would make the neighbours' ARP tables stale."""
        return ":".join(["02", "dd", *(f"{byte:02x}" for byte in ip_address(self.address).packed[-4:])])

    @property
    def network_address(self) -> str:
        """The address with the length of its network's prefix."""
        return with_prefix(self.address)


class Switch:
    """The switch of a lab: segment 0 with this machine at address 1, and segment 1 for hosts only."""

    def __init__(self, claim: Claim, *, detached: bool, ipv6: bool = False) -> None:
        self.claim = claim
        self.ipv6 = ipv6
        self.process = self._start(claim, [claim.lock] if detached else [])

    @staticmethod
    def _start(claim: Claim, pass_fds: list[int]) -> subprocess.Popen[str]:
        """A detached switch holds the lab's lock too: the lab then lives as long as the switch.

        Its environment is its own, as that of the hosts: a lab may outlive the test that was the first to need it.
        """
        process = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo up; exec sleep infinity"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            pass_fds=pass_fds,
            env=ENVIRON,
        )
        claim.record(Identity.of(process.pid))
        assert process.stdout is not None
        with process.stdout:
            if process.stdout.readline() != "up\n":
                raise LabError("no network namespace for the switch: is this root, on a kernel that has them?")
        return process

    def power_on(self) -> None:
        """Both segments, and the cable to this machine."""
        device = self.claim.device
        self.ip(*(f"link add sw{n} type bridge" for n in (0, 1)), *(f"link set sw{n} up" for n in (0, 1)))
        call(["ip", "link", "add", device, "type", "veth", "peer", "name", "uplink", "netns", str(self.process.pid)])
        self.ip("link set uplink master sw0 up")
        at_once = ["nodad"] if self.ipv6 else []  # without a search for duplicates
        call(["ip", "address", "add", with_prefix(self.address(0, 1)), "dev", device, *at_once])
        call(["ip", "link", "set", device, "up"])
        # What is meant for the hosts' own network must not leave by this machine's default route.
        call(["ip", "route", "replace", "unreachable", self.claim.private_network])

    def address(self, segment: int, number: int) -> str:
        """An IPv6 address ends in the bytes of the IPv4 address that the place would have."""
        address = self.claim.networks[segment][number]
        return str(IPv6Address(IPV6 + int(address)) if self.ipv6 else address)

    def connect(self, cables: Iterable[tuple[Cable, int]]) -> None:
        """Put cables into hosts, each known by a process in it."""
        lines = []
        for cable, pid in cables:
            lines += [
                f"link add {cable.port} type veth peer name {cable.interface} address {cable.mac} netns {pid}",
                f"link set {cable.port} master sw{cable.segment} up",
            ]
        self.ip(*lines)

    def ip(self, *lines: str, check: bool = True) -> Text:
        """Commands of ip, all in one process."""
        return self.call(["ip", "-batch", "-"], stdin="\n".join(lines) + "\n", check=check)

    def power_off(self) -> None:
        Identity.of(self.process.pid).kill()
        self.process.wait()

    def call(self, argv: list[str], *, stdin: str | None = None, check: bool = True) -> Text:
        return call(["nsenter", "-t", str(self.process.pid), "-n", *argv], stdin=stdin, check=check)


def with_prefix(address: str) -> str:
    """The address with the length of its network's prefix, as `ip` takes it."""
    known = ip_address(address)
    return f"{known}/{PREFIX + known.max_prefixlen - 32}"
