"""Which rule blocks, and the exact command for each kind of firewall. The lab runs such commands for real."""

from __future__ import annotations

import ipaddress
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.checks import firewall
from ddpctl.checks.firewall import Packet, tool
from ddpctl.checks.firewall.iptables import base_chains

PEERS = ["10.0.0.2", "10.0.0.3"]
PORTS = [(29500, 29500), (32768, 60999)]
SYN = Packet("10.0.0.2", "10.0.0.1", 45000, 29500)

UFW = """\
*filter
:INPUT DROP [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:ufw-before-input - [0:0]
:ufw-user-input - [0:0]
:ufw-after-input - [0:0]
:ufw-skip-to-policy-input - [0:0]
:ufw-not-local - [0:0]
-A INPUT -j ufw-before-input
-A INPUT -j ufw-after-input
-A ufw-before-input -i lo -j ACCEPT
-A ufw-before-input -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A ufw-before-input -m conntrack --ctstate INVALID -j DROP
-A ufw-before-input -p icmp -m icmp --icmp-type 8 -j ACCEPT
-A ufw-before-input -j ufw-not-local
-A ufw-before-input -d 224.0.0.251/32 -p udp -m udp --dport 5353 -j ACCEPT
-A ufw-before-input -j ufw-user-input
-A ufw-after-input -p udp -m udp --dport 137 -j ufw-skip-to-policy-input
-A ufw-not-local -m addrtype --dst-type LOCAL -j RETURN
-A ufw-not-local -m limit --limit 3/min --limit-burst 10 -j LOG
-A ufw-not-local -m addrtype --dst-type UNICAST -j RETURN
-A ufw-skip-to-policy-input -j DROP
-A ufw-user-input -p tcp -m tcp --dport 22 -j ACCEPT
COMMIT
"""


def nft(*rules: dict[str, Any] | list[dict[str, Any]], policy: str = "accept", table: str = "filter") -> dict[str, Any]:
    """A host with a single input chain in nftables."""
    place = {"family": "inet", "table": table, "chain": "input"}
    items: list[dict[str, Any]] = [
        {"metainfo": {"json_schema_version": 1}},
        {"table": {"family": "inet", "name": table}},
        {"chain": {"family": "inet", "table": table, "name": "input", "type": "filter", "hook": "input", "prio": 0}},
    ]
    items[-1]["chain"]["policy"] = policy
    items += [{"rule": {**place, "expr": rule if isinstance(rule, list) else [rule]}} for rule in rules]
    return {"uid": 0, "nft": json.dumps({"nftables": items})}


def base(name: str, hook: str, priority: int) -> dict[str, Any]:
    keys = {"family": "inet", "table": "firewalld", "name": name, "type": "filter", "hook": hook, "policy": "accept"}
    return {"chain": {**keys, "prio": priority}}


def rule(chain: str, *words: dict[str, Any]) -> dict[str, Any]:
    return {"rule": {"family": "inet", "table": "firewalld", "chain": chain, "expr": list(words)}}


def dport(value: Any, op: str = "==") -> dict[str, Any]:
    return {"match": {"op": op, "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": value}}


DROP: dict[str, Any] = {"drop": None}
ACCEPT: dict[str, Any] = {"accept": None}


def blocks(dump: dict[str, Any], packet: Packet = SYN) -> list[str]:
    return [block.rule for block in firewall.find_blocks(dump, packet, "input")]


@pytest.mark.parametrize(
    "match",
    [
        dport(29500),
        dport({"range": [29000, 30000]}),
        dport({"set": [22, {"range": [29400, 29600]}]}),
        dport(22, "!="),
        dport(1023, ">"),
    ],
)
def test_rules_that_match(match: dict[str, Any]) -> None:
    assert len(blocks(nft([match, DROP]))) == 1


@pytest.mark.parametrize("match", [dport(29501), dport({"set": [22, 80]}), dport(29500, "!="), dport(30000, ">=")])
def test_rules_that_do_not(match: dict[str, Any]) -> None:
    assert blocks(nft([match, DROP])) == []


def test_first_match_wins_and_the_policy_comes_last() -> None:
    assert blocks(nft([dport(29500), ACCEPT], DROP)) == []
    assert blocks(nft(DROP, [dport(29500), ACCEPT])) == ["drop"]
    assert blocks(nft([dport(22), ACCEPT], policy="drop")) == ["policy drop"]


def test_rule_that_cannot_be_judged_counts_when_nothing_certain_does() -> None:
    limited = [{"limit": {"rate": 1, "per": "second"}}, DROP]
    (block,) = firewall.find_blocks(nft(limited), SYN, "input")
    assert not block.certain


def test_fix_for_nft_goes_before_whatever_drops() -> None:
    dump = nft([dport(22), ACCEPT], policy="drop")
    found = firewall.find_blocks(dump, SYN, "input")
    assert firewall.opening_commands(dump, found, "input", PEERS, PORTS)[0] == (
        "nft 'insert rule inet filter input ip saddr 10.0.0.2/31 tcp dport { 29500, 32768-60999 } accept'"
    )


def test_fix_for_ufw() -> None:
    dump = {"uid": 1000, "iptables": UFW, "ip6tables": "", "ufw": True}
    found = firewall.find_blocks(dump, SYN, "input")
    assert [(block.rule, block.certain) for block in found] == [("policy drop", True)]
    command, note = firewall.opening_commands(dump, found, "input", ["10.0.0.2"], PORTS)
    assert command == "sudo ufw prepend allow proto tcp from 10.0.0.2 to any port 29500,32768:60999"
    assert "keeps it" in note
    assert firewall.find_blocks(dump, Packet("10.0.0.2", "10.0.0.1", 45000, 22), "input") == ()
    assert firewall.find_blocks(dump, Packet("10.0.0.2", "10.0.0.1", 22, 45000, "established"), "input") == ()


def test_fix_for_firewalld_is_for_the_zone_that_the_packet_went_through() -> None:
    """Rules as firewalld 0.9 makes them: the zone's chain lets through the packets that it knows, the base chain
    rejects.
    """
    fib = {"fib": {"result": "oif", "flags": ["saddr", "mark", "iif"]}}
    reverse_path = {"match": {"op": "==", "left": fib, "right": False}}
    eth0 = {"match": {"op": "==", "left": {"meta": {"key": "iifname"}}, "right": "eth0"}}
    reject = {"reject": {"type": "icmpx", "expr": "admin-prohibited"}}
    items = [
        base("filter_PREROUTING", "prerouting", 10),
        rule("filter_PREROUTING", reverse_path, DROP),
        base("filter_INPUT", "input", 10),
        rule("filter_INPUT", {"jump": {"target": "filter_INPUT_POLICIES_pre"}}),
        rule("filter_INPUT", {"jump": {"target": "filter_INPUT_ZONES"}}),
        rule("filter_INPUT", reject),
        rule("filter_INPUT_POLICIES_pre", {"jump": {"target": "filter_IN_policy_allow-host-ipv6"}}),
        rule("filter_IN_policy_allow-host-ipv6", dport(9), ACCEPT),
        rule("filter_INPUT_ZONES", eth0, {"goto": {"target": "filter_IN_work-gpu"}}),
        rule("filter_INPUT_ZONES", {"goto": {"target": "filter_IN_public"}}),
        rule("filter_IN_work-gpu", {"jump": {"target": "filter_IN_work-gpu_allow"}}),
        rule("filter_IN_work-gpu_allow", dport(22), ACCEPT),
        rule("filter_IN_public", dport(22), ACCEPT),
    ]
    dump = {"uid": 0, "nft": json.dumps({"nftables": items}), "firewalld": True}
    for peer, me in (("10.0.0.2", "10.0.0.1"), ("fd00::2", "fd00::1")):
        (found,) = firewall.find_blocks(dump, Packet(peer, me, 45000, 29500), "input", interface="eth0")
        assert (found.zone, found.certain) == ("work-gpu", True)
        command, _ = firewall.opening_commands(dump, [found], "input", [peer], [(29500, 29500)])
        family = "ipv6" if ":" in peer else "ipv4"
        assert command == (
            f'firewall-cmd --permanent --zone=work-gpu --add-rich-rule=\'rule family="{family}" source '
            f'address="{peer}" port port="29500" protocol="tcp" accept\' && firewall-cmd --reload'
        )
    (other,) = firewall.find_blocks(dump, SYN, "input", interface="eth1")
    assert other.zone == "public"
    assert (
        firewall.opening_commands(dump, [other], "output", PEERS, PORTS)[0] is None
    )  # rich rules are for incoming packets


def test_reverse_path_filters_are_not_to_blame() -> None:
    rules = "-A PREROUTING -m rpfilter --validmark --invert -j DROP"
    dump = {"uid": 0, "iptables": f"*raw\n:PREROUTING ACCEPT [0:0]\n{rules}\nCOMMIT\n"}
    assert firewall.find_blocks(dump, SYN, "input") == ()


def test_rule_of_an_address_set_is_possible_and_no_more() -> None:
    """crowdsec's: only the kernel knows the members of the set."""
    text = "*filter\n:INPUT {}\n-A INPUT -m set --match-set {} src -j {}\nCOMMIT\n"
    (drop,) = firewall.find_blocks({"iptables": text.format("ACCEPT", "crowdsec-blacklists", "DROP")}, SYN, "input")
    assert not drop.certain
    (policy,) = firewall.find_blocks({"iptables": text.format("DROP", "trusted", "ACCEPT")}, SYN, "input")
    assert (policy.rule, policy.certain) == ("policy drop", False)


def test_many_nodes_of_one_network_are_let_in_by_one_rule_that_says_what_it_opens() -> None:
    dump = {"uid": 0, "iptables": UFW, "ip6tables": "", "ufw": True}
    found = firewall.find_blocks(dump, SYN, "input")
    peers = [f"10.0.0.{n}" for n in range(2, 200, 2)]
    command, note = firewall.opening_commands(dump, found, "input", peers, [(29500, 29500)], ["10.0.0.1/24"])
    assert command == "ufw prepend allow proto tcp from 10.0.0.0/24 to any port 29500"
    assert "to all of 10.0.0.0/24" in note
    command, note = firewall.opening_commands(
        dump, found, "input", [*peers, "10.9.9.9"], [(29500, 29500)], ["10.0.0.1/24"]
    )
    assert str(command).count("ufw prepend") == 100
    assert "to all of" not in note


def test_fix_for_iptables_in_its_own_table() -> None:
    text = "*raw\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -p tcp -m tcp --dport 29500 -j DROP\nCOMMIT\n"
    dump = {"uid": 0, "iptables": text}
    found = firewall.find_blocks(dump, SYN, "input")
    command, note = firewall.opening_commands(dump, found, "input", PEERS, [(29500, 29500)])
    assert command == "iptables -w 5 -t raw -I PREROUTING 1 -p tcp -s 10.0.0.2/31 -m multiport --dports 29500 -j ACCEPT"
    assert "lost at a reboot" in note


def test_negations_of_iptables() -> None:
    def stops(rule: str) -> bool:
        (chain,) = base_chains(f"*filter\n:INPUT ACCEPT [0:0]\n-A INPUT {rule} -j DROP\nCOMMIT\n", "ip")
        return bool(firewall.find_blocks({"iptables": ""}, SYN, "input")) or bool(
            firewall.find_blocks(
                {"iptables": f"*filter\n:INPUT ACCEPT [0:0]\n-A INPUT {rule} -j DROP\nCOMMIT\n"}, SYN, chain.hook
            )
        )

    assert stops("! -s 10.0.0.9/32")
    assert not stops("! -s 10.0.0.0/24")
    assert stops("-p tcp -m tcp ! --dport 22")
    assert stops("-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -m comment --comment '-j ACCEPT'")
    assert not stops("-p udp")
    assert stops("-s 10.0.0.0/24,192.168.0.0/16 -p tcp")


@pytest.mark.parametrize("op", ["==", "!=", ">"])
@pytest.mark.parametrize("protocol", ["udp", "sctp"])
def test_match_on_the_header_of_another_protocol_holds_for_no_tcp_packet(protocol: str, op: str) -> None:
    left = {"payload": {"protocol": protocol, "field": "dport"}}
    assert blocks(nft([{"match": {"op": op, "left": left, "right": 53}}, DROP])) == []


def test_chains_that_call_each_other_without_end_are_walked_to_an_end() -> None:
    """No kernel takes such rules; a node that lies may print them."""
    calls = "-A INPUT -j sub\n" + "-A sub -j sub\n" * 4
    text = f"*filter\n:INPUT DROP [0:0]\n:sub - [0:0]\n{calls}COMMIT\n"
    assert blocks({"iptables": text}) == ["policy drop"]


def test_nothing_read_means_nothing_said_but_where_to_look() -> None:
    assert firewall.find_blocks({}, SYN, "input") == ()
    assert not firewall.is_readable({"uid": 1000, "errors": {"nft": "Operation not permitted"}})
    command, words = firewall.opening_commands({"uid": 1000}, (), "input", PEERS, PORTS)
    assert command is None
    assert "29500" in words
    assert "10.0.0.2, 10.0.0.3" in words
    assert "ufw prepend allow" in str(
        firewall.opening_commands({"uid": 1000, "ufw": True}, (), "input", PEERS, PORTS)[0]
    )
    assert "root" in firewall.why_unread({"uid": 1000, "errors": {"nft": "Operation not permitted"}})
    assert "nor iptables-save" in firewall.why_unread({"uid": 0, "errors": {}})


addresses = st.lists(st.ip_addresses(v=4).map(str), min_size=1, max_size=30, unique=True)


@given(addresses)
def test_let_in_are_the_cluster_s_addresses_and_no_other(peers: list[str]) -> None:
    nets = [ipaddress.ip_network(text) for text in tool.collapse_sources(peers, 4)]
    assert sum(net.num_addresses for net in nets) == len(peers)
    assert all(any(ipaddress.ip_address(peer) in net for net in nets) for peer in peers)


@given(st.lists(st.tuples(st.integers(1, 65535), st.integers(0, 300)), min_size=1, max_size=40))
def test_port_spans_keep_their_ports(spans: list[tuple[int, int]]) -> None:
    wanted = {port for low, more in spans for port in range(low, min(low + more, 65535) + 1)}
    merged = tool.merge_spans((low, min(low + more, 65535)) for low, more in spans)
    assert {port for low, high in merged for port in range(low, high + 1)} == wanted
    assert all(high + 1 < low for (_, high), (low, _) in pairwise(merged))
