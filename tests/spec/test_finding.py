"""Findings that differ only in the host they are about."""

from __future__ import annotations

from ddpctl.spec.finding import Finding, Severity


def test_host_and_peer_are_taken_out() -> None:
    finding = Finding("a.b", Severity.ERROR, "node1 cannot reach node2", "node1", "node2")
    assert finding.nameless(finding.message) == "HOST cannot reach PEER"


def test_a_name_within_another_name_is_left_alone() -> None:
    finding = Finding("a.b", Severity.ERROR, "node1 and node10, node1-old, x.node1", "node1")
    assert finding.nameless(finding.message) == "HOST and node10, node1-old, x.node1"


def test_a_finding_about_no_host_keeps_its_words() -> None:
    assert Finding("a.b", Severity.OK, "fine").nameless("all 3 hosts") == "all 3 hosts"
