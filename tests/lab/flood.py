"""A stranger on the hosts' network: it holds idle connections to ports, opens new connections all the time, and never
sends a byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tests.lab.host import Host

# Arguments: idle connections to each end, new connections a second to all ends, their number, own addresses with commas
# (nothing: the usual address), ADDRESS:PORT...
FLOOD = """
import collections, itertools, socket, struct, sys, time
idle, rate, total = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
sources = itertools.cycle(sys.argv[4].split(","))
ends = [(one.rpartition(":")[0], int(one.rpartition(":")[2])) for one in sys.argv[5:]]
held = {end: collections.deque() for end in ends}
made = established = 0
def connect(end):
    global made
    sock = socket.socket()
    sock.setblocking(False)
    # A reset at the close: no port of this host stays taken.
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    source = next(sources)
    if source:
        sock.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT: a port may serve several ends
        sock.bind((source, 0))
    sock.connect_ex(end)
    held[end].append(sock)
    if len(held[end]) > idle:
        close(held[end].popleft())
    made += 1
def close(sock):
    global established
    state = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    established += state in (1, 8)  # established, or closed by the other side since
    sock.close()
for _ in range(idle):
    for end in ends:
        connect(end)
    time.sleep(0.002)
print("holds", made, flush=True)
began, first, ring = time.monotonic(), made, itertools.cycle(ends)
while made - first < total:
    for _ in range(min(total, int((time.monotonic() - began) * rate)) - (made - first)):
        connect(next(ring))
    time.sleep(0.005)
for sock in itertools.chain(*held.values()):
    close(sock)
print("made", made, "established", established, "seconds", time.monotonic() - began, flush=True)
"""


def listening(host: Host) -> list[int]:
    """The ports on which programs wait for connections on the hosts' network, sshd's apart."""
    lines = host.run("ss -ltnH").stdout.splitlines()
    ends = [line.split()[3].rpartition(":") for line in lines]
    return sorted({int(port) for address, _, port in ends if port != "22" and not address.startswith("127.")})


def flood_command(ends: Iterable[str], idle: int, rate: float, total: int, sources: Sequence[str] = ()) -> list[str]:
    """The command of a flood of ``ends`` (ADDRESS:PORT), for the stranger's host. ``sources``: own addresses."""
    return ["/usr/bin/python3", "-c", FLOOD, str(idle), str(rate), str(total), ",".join(sources), *ends]


def flood(stranger: Host, hosts: Iterable[Host], idle: int, rate: float, total: int) -> str:
    """Every port of these hosts, from ``stranger``; its report at its end."""
    ends = [f"{host.fabric_address}:{port}" for host in hosts for port in listening(host)]
    assert ends
    said: str = stranger.run(flood_command(ends, idle, rate, total), timeout=total / rate + 60).stdout
    return said
