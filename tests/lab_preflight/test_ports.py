"""Blocked and foreign ports on real hosts: each fault gives exactly its finding, and the printed command fixes it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.lab import Host, Lab
from tests.lab_preflight.preflight import PORT, RANGE, command, infos, preflight, run_fix, trouble, where

SILENT = """
import socket, time
listener = socket.create_server(("", 4242))
print("up", flush=True)
held = []
while True:
    held.append(listener.accept())
"""
TALKATIVE = """
import socket
listener = socket.create_server(("", 4242))
print("up", flush=True)
while True:
    connection, _ = listener.accept()
    connection.sendall(b"220 mail.example ESMTP\\r\\n")
    connection.close()
"""


@pytest.fixture(autouse=True)
def _tidy(lab3: Lab) -> Iterator[None]:
    yield
    for host in lab3:
        host.clear_firewall()
        host.kill_processes()


def serve(host: Host, argv: list[str], port: int) -> None:
    """A program that listens on the port until the test ends."""
    host.popen(argv)
    for _ in range(1200):
        if not host.port_free(port):
            return
        time.sleep(0.05)
    raise AssertionError(f"{argv} does not listen")


def clean(lab: Lab) -> None:
    assert where(trouble(preflight(lab))) == []


@pytest.mark.parametrize(
    ("rule", "status"),
    [
        ("drop", "dropped"),
        pytest.param(
            "reject with tcp reset",
            "refused",
            marks=pytest.mark.full(
                covered_by="tests/worker/machine/test_network.py::test_other_host_other_preflight_and_nobody"
            ),
        ),
        ("reject with icmpx type admin-prohibited", "rejected"),
    ],
)
def test_master_port_blocked_for_all(lab3: Lab, rule: str, status: str) -> None:
    lab3[0].firewall(f"tcp dport {PORT} {rule}")
    report = preflight(lab3)
    (found,) = trouble(report)
    assert where([found]) == [("mesh.ports", "error", "node0", None)]
    assert found.evidence["status"] == status
    assert found.evidence["peers"] == ["node1", "node2"]
    assert f"tcp dport {PORT}" in found.message
    assert report.exit_code == 3
    run_fix(found, lab3[0])
    clean(lab3)


def test_master_port_blocked_for_one(lab3: Lab) -> None:
    lab3[0].drop(port=PORT, from_=lab3[2])
    (found,) = trouble(preflight(lab3))
    assert where([found]) == [("mesh.ports", "error", "node0", "node2")]
    assert lab3[1].address not in str(found.command)
    run_fix(found, lab3[0])
    clean(lab3)


@pytest.mark.full(covered_by="tests/lab_preflight/test_ports.py::test_ephemeral_range_blocked_in_one_direction")
def test_ephemeral_range_blocked(lab3: Lab) -> None:
    lab3[0].drop(port=RANGE)
    (found,) = trouble(preflight(lab3))
    assert where([found]) == [("mesh.ports", "error", "node0", None)]
    assert str(PORT) not in str(found.command)
    run_fix(found, lab3[0])
    clean(lab3)


def test_stateless_rule_that_stops_the_answers_too(lab3: Lab) -> None:
    """A rule that closes a port range without a look at the state also stops answers on the node's connections."""
    lab3[2].drop(port=RANGE)
    (found,) = trouble(preflight(lab3))
    assert where([found]) == [("mesh.ports", "error", "node2", None)]
    run_fix(found, lab3[2])
    clean(lab3)


def test_ephemeral_range_blocked_in_one_direction(lab3: Lab) -> None:
    lab3[1].drop(port=RANGE, from_=lab3[2])
    report = command(lab3)
    (found,) = trouble(report)
    assert where([found]) == [("mesh.ports", "error", "node1", "node2")]
    assert "network mesh  1 error" in report.stderr
    run_fix(found, lab3[1])
    clean(lab3)


def test_direction_that_gloo_never_uses_is_an_info(lab3: Lab) -> None:
    """The node with the highest address never listens under gloo."""
    lab3[2].firewall(f"ct state new tcp dport {RANGE} drop")
    report = command(lab3)
    assert where(trouble(report)) == []
    (found,) = infos(report)
    assert where([found]) == [("mesh.ports", "info", "node2", None)]
    assert "gloo" in found.message
    assert "NCCL" in found.message
    assert report.exit_code == 0
    assert "network mesh  ok" in report.stderr


def test_outgoing_rule(lab3: Lab) -> None:
    lab3[1].firewall(f"tcp dport {PORT} drop", chain="output")
    (found,) = trouble(preflight(lab3))
    assert where([found]) == [("mesh.ports", "error", "node1", "node0")]
    run_fix(found, lab3[1])
    clean(lab3)


@pytest.mark.full(covered_by="tests/lab_preflight/test_ports.py::test_stateless_rule_that_stops_the_answers_too")
def test_answers_dropped_on_their_way_back(lab3: Lab) -> None:
    lab3[1].firewall(f"tcp sport {PORT} drop")
    (found,) = trouble(preflight(lab3))
    assert where([found]) == [("mesh.ports", "error", "node1", "node0")]
    run_fix(found, lab3[1])
    clean(lab3)


def test_server_with_a_closed_firewall(lab3: Lab) -> None:
    """The rules of many servers: established connections, loopback and SSH come in, nothing else."""
    lab3[0].run(
        ["nft", "-f", "-"],
        stdin="""
        table inet filter {
          set trusted { type ipv4_addr; elements = { 192.0.2.1 } }
          chain services { tcp dport { 22, 80 } accept; }
          chain input {
            type filter hook input priority filter; policy drop;
            ct state vmap { established : accept, related : accept, invalid : drop }
            iifname "lo" accept
            ip saddr @trusted accept
            ip protocol icmp accept
            jump services
            limit rate 1/second log prefix "dropped: "
          }
        }
        """,
    )
    (found,) = trouble(preflight(lab3))
    assert where([found]) == [("mesh.ports", "error", "node0", None)]
    assert "policy drop" in found.message
    run_fix(found, lab3[0])
    clean(lab3)


CLOSED = ("ct state established,related accept", 'iifname "lo" accept', "tcp dport 1024-65535 drop")
RESTARTS = {"train": {"script": "train.py", "code": None, "restarts": 2, "nodes": ["node0", "node1"]}}


def test_what_restarts_need_is_open_on_every_host(lab3: Lab) -> None:
    """An agent listens on each, and any may be the next master; once fixed, it is."""
    for host in lab3:
        for rule in CLOSED:
            host.firewall(rule)
    found = trouble(preflight(lab3, jobs=RESTARTS))
    assert where(found) == [("mesh.ports", "error", host.name, None) for host in lab3]
    assert all("(for restarts)" in one.message and "29500-29999" in (one.command or "") for one in found)
    assert "ephemeral" in found[-1].message
    for one, host in zip(found, lab3, strict=True):
        run_fix(one, host)
    assert where(trouble(preflight(lab3, jobs=RESTARTS))) == []


@pytest.mark.full(covered_by="tests/checks/test_firewall.py::test_fix_for_nft_goes_before_whatever_drops")
def test_two_chains_that_both_block(lab3: Lab) -> None:
    """A packet that a chain accepts still goes to the next chain: the fix opens both."""
    for name, priority in (("first", -10), ("second", 10)):
        lab3[0].run(
            ["nft", "-f", "-"],
            stdin=f"""
            table inet {name} {{
              chain input {{ type filter hook input priority {priority}; tcp dport {PORT} drop; }}
            }}
            """,
        )
    (found,) = trouble(preflight(lab3))
    run_fix(found, lab3[0])
    clean(lab3)


def test_iptables(lab3: Lab) -> None:
    lab3[0].run(
        "iptables -N GUARD && iptables -A GUARD -p tcp -m multiport --dports 22,80 -j ACCEPT && "
        "iptables -A GUARD -p tcp -m tcp --dport 1024: -m comment --comment 'no games' -j REJECT && "
        "iptables -A INPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT && iptables -A INPUT -j GUARD"
    )
    (found,) = trouble(preflight(lab3))
    assert where([found]) == [("mesh.ports", "error", "node0", None)]
    assert "no games" in found.message
    assert "iptables" in str(found.command)
    run_fix(found, lab3[0])
    clean(lab3)


def test_filter_between_the_nodes(lab3: Lab) -> None:
    """No rule on either host: the switch does it."""
    lab3.switch.call(
        ["nft", "-f", "-"],
        stdin=f"""
        table bridge guard {{
          chain forward {{ type filter hook forward priority 0; ip daddr {lab3[0].address} tcp dport {PORT} drop; }}
        }}
        """,
    )
    try:
        (found,) = trouble(preflight(lab3))
    finally:
        lab3.switch.call(["nft", "delete", "table", "bridge", "guard"])
    assert where([found]) == [("mesh.ports", "error", "node0", None)]
    assert "between the nodes" in found.message


def test_rules_are_read_by_sudo_where_a_login_may(lab3: Lab) -> None:
    """sudo reads the rules if it needs no password. A login without that right gets a message about root, and no rule
    is named.
    """
    for host in lab3:
        host.add_user("ada")
    lab3[0].firewall(f"tcp dport {PORT} drop")
    (found,) = trouble(preflight(lab3, defaults={"user": "ada"}))
    assert "can only be read by root" in found.message
    assert found.command is None
    lab3[0].write("/etc/sudoers.d/ada", "ada ALL=(root) NOPASSWD: /usr/sbin/nft -j list ruleset\n", 0o440)
    (found,) = trouble(preflight(lab3, defaults={"user": "ada"}))
    assert "nft on node0 does it: inet" in found.message
    assert str(found.command).startswith("sudo nft ")
    run_fix(found, lab3[0])
    assert where(trouble(preflight(lab3, defaults={"user": "ada"}))) == []


@pytest.mark.parametrize(
    ("program", "status"),
    [
        (SILENT, "silent"),
        pytest.param(
            TALKATIVE,
            "foreign",
            marks=pytest.mark.full(covered_by="tests/worker/machine/test_network.py::test_other_program"),
        ),
    ],
)
def test_foreign_program_behind_a_forwarding(lab3: Lab, program: str, status: str) -> None:
    """The port is free to bind, and yet a container's forwarding takes every connection."""
    serve(lab3[0], ["/usr/bin/python3", "-c", program], 4242)
    lab3[0].run(
        ["nft", "-f", "-"],
        stdin=f"""
        table ip forwarding {{
          chain prerouting {{ type nat hook prerouting priority dstnat; tcp dport {PORT} redirect to :4242; }}
        }}
        """,
    )
    (found,) = trouble(preflight(lab3))
    assert where([found]) == [("mesh.identity", "error", "node0", None)]
    assert found.evidence["status"] == status
    assert str(PORT) in found.message


def test_wrong_host_behind_a_forwarding(lab3: Lab) -> None:
    target = lab3[2].address
    lab3[0].run("sysctl -qw net.ipv4.ip_forward=1")
    lab3[0].run(
        ["nft", "-f", "-"],
        stdin=f"""
        table ip forwarding {{
          chain prerouting {{
            type nat hook prerouting priority dstnat;
            ip saddr {lab3[1].address} tcp dport {PORT} dnat to {target}
          }}
          chain postrouting {{ type nat hook postrouting priority srcnat; ip daddr {target} masquerade; }}
        }}
        """,
    )
    (found,) = trouble(preflight(lab3))
    assert where([found]) == [("mesh.identity", "error", "node0", "node1")]
    assert "node2 answered" in found.message
