"""The real ufw on a real host: a port that it blocks is reported as ufw's, and ufw's own command opens it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab import Lab
from tests.lab_preflight.preflight import PORT, preflight, run_fix, trouble, where


@pytest.fixture
def guarded(lab3: Lab) -> Iterator[Lab]:
    """node0 accepts SSH and no other connection, as on a well-kept server."""
    lab3[0].run("ufw allow 22/tcp && ufw --force enable")
    yield lab3
    lab3[0].run("ufw --force reset && nft flush ruleset")


def test_what_ufw_blocks_ufw_opens(guarded: Lab) -> None:
    (found,) = trouble(preflight(guarded))
    assert where([found]) == [("mesh.ports", "error", "node0", None)]
    assert found.evidence["peers"] == ["node1", "node2"]
    assert "ufw prepend allow proto tcp" in str(found.command)
    assert guarded[1].address in str(found.command)
    run_fix(found, guarded[0])
    assert where(trouble(preflight(guarded))) == []
    assert f"{PORT}" in guarded[0].run("ufw status").stdout


@pytest.mark.full(covered_by="tests/checks/test_firewall.py::test_fix_for_ufw")
def test_a_rule_of_the_users_own_in_ufw(guarded: Lab) -> None:
    """A deny rule that an administrator added comes before an allow rule that is only appended: the fix goes to the
    front.
    """
    guarded[0].run(f"ufw default allow incoming && ufw deny proto tcp to any port {PORT}")
    (found,) = trouble(preflight(guarded))
    assert where([found]) == [("mesh.ports", "error", "node0", None)]
    run_fix(found, guarded[0])
    assert where(trouble(preflight(guarded))) == []
