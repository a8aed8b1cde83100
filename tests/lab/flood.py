"""A stranger on the hosts' network: it holds idle connections to ports, opens new connections all the time, and never
sends a byte.
"""

from __future__ import annotations

from collections.abc import Iterable

from tests.lab.host import Host

# Arguments: idle connections to each end, new connections a second to all ends, their number, ADDRESS:PORT...
FLOOD = """
import collections, selectors, socket, sys, time
idle, rate, total = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
ends = [(one.rpartition(":")[0], int(one.rpartition(":")[2])) for one in sys.argv[4:]]
held = {end: collections.deque() for end in ends}
made = 0
def connect(end):
    global made
    sock = socket.socket()
    sock.setblocking(False)
    sock.connect_ex(end)
    held[end].append(sock)
    if len(held[end]) > idle:
        held[end].popleft().close()
    made += 1
for _ in range(idle):
    for end in ends:
        connect(end)
    time.sleep(0.002)
print("holds", made, flush=True)
began, first = time.monotonic(), made
while made - first < total:
    for end in ends:
        connect(end)
    time.sleep(max(0.0, (made - first) / rate - (time.monotonic() - began)))
print("made", made, flush=True)
"""


def listening(host: Host) -> list[int]:
    """The ports on which programs wait for connections on the hosts' network, sshd's apart."""
    lines = host.run("ss -ltnH").stdout.splitlines()
    ends = [line.split()[3].rpartition(":") for line in lines]
    return sorted({int(port) for address, _, port in ends if port != "22" and not address.startswith("127.")})


def flood(stranger: Host, hosts: Iterable[Host], idle: int, rate: float, total: int) -> str:
    """Every port of these hosts, from ``stranger``; its report at its end."""
    ends = [f"{host.fabric_address}:{port}" for host in hosts for port in listening(host)]
    assert ends
    command = ["/usr/bin/python3", "-c", FLOOD, str(idle), str(rate), str(total), *ends]
    said: str = stranger.run(command, timeout=total / rate + 60).stdout
    return said
