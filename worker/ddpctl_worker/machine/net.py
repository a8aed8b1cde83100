"""Reads this node's addresses, interfaces and TCP tables from the kernel, and opens listening sockets."""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple

from ddpctl_worker.machine.fs import read_number, read_text

_RTM_GETADDR = 22
_RTM_NEWADDR = 20
_RTM_GETNEIGHTBL = 66
_RTM_NEWNEIGHTBL = 64
_NLM_F_REQUEST_DUMP = 0x301
_NLMSG_ERROR = 2
_NLMSG_DONE = 3
_IFA_ADDRESS = 1
_IFA_LOCAL = 2
_IFA_F_TENTATIVE_OR_FAILED = 0x40 | 0x08
_NDTA_NAME = 1
_NDTA_THRESH3 = 4
_NDTA_CONFIG = 5
_NDTA_STATS = 7
_IFF_UP = 0x1
_SCOPE_LINK = 253
_DEFAULT_RANGE = (32768, 60999)
TCP_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
V4_IN_V6 = bytes(10) + b"\xff\xff"
CONNECTED, TIME_WAIT, LISTENING = "01", "06", "0A"  # states of TcpSocket


def addresses() -> List[Dict[str, Any]]:
    """Return every usable address of this node, loopback included."""
    try:
        found = list(_netlink_addresses())
    except (OSError, AttributeError):  # no AF_NETLINK on this system, or not allowed
        found = list(_fallback_addresses())
    links: Dict[str, Dict[str, Any]] = {}
    result = []
    for family, prefix, interface, address in found:
        if interface not in links:
            links[interface] = _link(interface)
        result.append(dict(links[interface], address=address, family=family, prefix=prefix, interface=interface))
    return result


def _netlink_addresses() -> Iterator[Tuple[int, int, str, str]]:
    """Yield (family, prefix length, interface, address) from RTM_GETADDR."""
    request = struct.pack("=IHHIIB3x", 20, _RTM_GETADDR, _NLM_F_REQUEST_DUMP, 1, 0, socket.AF_UNSPEC)
    for message in _dump(request, _RTM_NEWADDR):
        entry = _address_message(message)
        if entry is not None:
            yield entry


def _dump(request: bytes, wanted: int) -> Iterator[bytes]:
    """Yield the bodies of the kernel's answers that are of kind ``wanted``."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
        sock.settimeout(3)
        sock.bind((0, 0))
        sock.send(request)
        while True:
            data = sock.recv(1 << 18)
            at = 0
            while at + 16 <= len(data):
                length, kind = struct.unpack_from("=IH", data, at)
                if kind == _NLMSG_DONE:
                    return
                if kind == _NLMSG_ERROR:
                    raise OSError(errno.EIO, "the kernel refused the request")
                if kind == wanted:
                    yield data[at + 16 : at + length]
                at += (length + 3) & ~3


def _address_message(message: bytes) -> Optional[Tuple[int, int, str, str]]:
    family, prefix, flags, scope, index = struct.unpack_from("=BBBBI", message)
    if family not in (socket.AF_INET, socket.AF_INET6) or flags & _IFA_F_TENTATIVE_OR_FAILED:
        return None
    if family == socket.AF_INET6 and scope == _SCOPE_LINK:  # only an IPv6 link-local address needs an interface
        return None
    attributes = _attributes(message, 8)
    # On a point-to-point link IFA_ADDRESS is the peer's address and IFA_LOCAL ours.
    raw = attributes.get(_IFA_LOCAL) or attributes.get(_IFA_ADDRESS)
    if raw is None:
        return None
    try:
        name = socket.if_indextoname(index)
    except OSError:
        return None  # the interface has just gone
    return (4 if family == socket.AF_INET else 6), prefix, name, socket.inet_ntop(family, raw)


def _attributes(message: bytes, at: int) -> Dict[int, bytes]:
    """Return kind -> value of the attributes of a message from offset ``at`` on."""
    found: Dict[int, bytes] = {}
    while at + 4 <= len(message):
        size, kind = struct.unpack_from("=HH", message, at)
        if size < 4:
            break
        found.setdefault(kind, message[at + 4 : at + size])
        at += (size + 3) & ~3
    return found


def neighbour_table() -> Optional[Dict[str, int]]:
    """Return the state of the kernel's IPv4 neighbour (ARP) table; ``None`` if the kernel does not answer.

    All network namespaces of a machine share this table. {"limit" (gc_thresh3), "entries", "overflows" (entries that
    were refused since the boot for lack of room)}
    """
    request = struct.pack("=IHHIIB3x", 20, _RTM_GETNEIGHTBL, _NLM_F_REQUEST_DUMP, 1, 0, socket.AF_INET)
    try:
        tables = [_attributes(message, 4) for message in _dump(request, _RTM_NEWNEIGHTBL)]
        table = next(table for table in tables if table.get(_NDTA_NAME) == b"arp_cache\0" and _NDTA_STATS in table)
        (limit,) = struct.unpack_from("=I", table[_NDTA_THRESH3])
        (entries,) = struct.unpack_from("=I", table[_NDTA_CONFIG], 4)
        (overflows,) = struct.unpack_from("=Q", table[_NDTA_STATS], 80)
    except (OSError, AttributeError, StopIteration, KeyError, struct.error):
        return None
    return {"limit": limit, "entries": entries, "overflows": overflows}


def _fallback_addresses() -> Iterator[Tuple[int, int, str, str]]:
    """Yield loopback and the source address of packets to the outside, without netlink. Nothing is sent."""
    loopback = "lo0" if os.path.exists("/System/Library") else "lo"
    yield 4, 8, loopback, "127.0.0.1"
    local = source_address("192.0.2.1")
    if local is not None and not local.startswith("127."):
        yield 4, 32, "", local


def _link(interface: str) -> Dict[str, Any]:
    """Return an interface's state from sysfs; ``virtual``: it has no hardware (bridge, veth, tunnel, loopback)."""
    folder = "/sys/class/net/" + interface
    flags = read_number(folder + "/flags", 16)
    speed = read_number(folder + "/speed")
    return {
        "up": flags is None or bool(flags & _IFF_UP),
        "carrier": read_number(folder + "/carrier") != 0,
        "mtu": read_number(folder + "/mtu"),
        "speed": speed if speed and speed > 0 else None,
        "virtual": not os.path.exists(folder + "/device"),
        "bridge": os.path.exists(folder + "/bridge"),
    }


def ssh_address() -> Optional[str]:
    """Return the address of this node at which the SSH connection arrived."""
    words = os.environ.get("SSH_CONNECTION", "").split()
    return words[2].split("%")[0] if len(words) == 4 else None


def port_range() -> Tuple[int, int]:
    """Return the first and the last of the kernel's ephemeral ports, on which gloo and NCCL listen."""
    words = read_text("/proc/sys/net/ipv4/ip_local_port_range", limit=64).split()
    return (int(words[0]), int(words[1])) if len(words) == 2 else _DEFAULT_RANGE


def source_address(peer: str) -> Optional[str]:
    """Return the source address of packets to ``peer``; ``None`` without a route. Nothing is sent."""
    family = socket.AF_INET6 if ":" in peer else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((peer, 9))
            return str(sock.getsockname()[0]).split("%")[0]
    except OSError:
        return None


def silent_neighbour(peer: str) -> bool:
    """Return whether the kernel's ARP request for ``peer`` got no answer (its ARP entry is incomplete)."""
    rows = [line.split() for line in read_text("/proc/net/arp").splitlines()[1:]]
    return any(row[0] == peer and int(row[2], 16) == 0 for row in rows if len(row) >= 4)


class TcpSocket(NamedTuple):
    """A row of the kernel's tables of TCP sockets; ``inode`` 0: no process holds the socket any more."""

    address: str
    port: int
    far: int  # port at the other end
    state: str
    uid: int
    inode: int


def tcp_sockets() -> Iterator[TcpSocket]:
    """Yield every TCP socket of this network namespace."""
    for table in TCP_TABLES:
        for line in read_text(table, limit=64 << 20).splitlines()[1:]:
            row = line.split()
            (address, _, port), far = row[1].rpartition(":"), row[2].rpartition(":")[2]
            yield TcpSocket(table_address(address), int(port, 16), int(far, 16), row[3], int(row[7]), int(row[9]))


def table_address(digits: str) -> str:
    """Return the usual spelling of an address of these tables (32-bit words in the machine's byte order)."""
    words = [int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)]
    raw = struct.pack("=%dI" % len(words), *words)
    raw = raw[12:] if raw.startswith(V4_IN_V6) else raw
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)


def listen(port: int, backlog: int = 512) -> socket.socket:
    """Return a socket that listens on every address of this node, IPv4 and IPv6.

    It has SO_REUSEADDR as torch's sockets do, so a port in TIME_WAIT is free.

    Raises:
        OSError: EADDRINUSE, a program listens on this port at any address, 127.0.0.1 included.
    """
    try:
        return listen_at("::", port, backlog)
    except OSError as error:
        if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT):  # no IPv6 here
            raise
    return listen_at("0.0.0.0", port, backlog)


def listen_on(address: str, port: int = 0, backlog: int = 512) -> socket.socket:
    """A socket that listens on ``address`` alone; on every address where that is empty, or not this node's own (NAT).

    Raises OSError as ``listen`` does.
    """
    if not address:
        return listen(port, backlog)
    try:
        return listen_at(address, port, backlog)
    except OSError as error:
        unknown = isinstance(error, socket.gaierror)  # a name that this node does not know
        if not unknown and error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            raise
    return listen(port, backlog)


def listen_at(address: str, port: int, backlog: int) -> socket.socket:
    """Return a socket that listens on ``address``; ``::`` is every address."""
    six = ":" in address
    sock = socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if six:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((address, port))
        sock.listen(backlog)
        return sock
    except OSError:
        sock.close()
        raise
