"""Hosts that could not be asked: each named while they are few, a single finding for many with the same trouble."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ddpctl.checks import ssh
from ddpctl.checks.base import Requirements, Target, View
from ddpctl.checks.limits import ALIKE_HOSTS
from ddpctl.errors import AuthRefused, DdpctlError, Unreachable
from ddpctl.spec.finding import Finding


def findings(errors: dict[str, DdpctlError]) -> list[Finding]:
    view = View(tuple(Target(name, name, "python3", "~/d") for name in errors), Requirements(), {}, errors)
    return [found for check in ssh.CHECKS if check.id in ("ssh.connect", "ssh.auth") for found in check.judge(view)]


def refused(host: str) -> DdpctlError:
    return Unreachable(f"10.0.0.{host[4:]}:22 refuses the connection", hint=f"is sshd running on {host}?")


def test_many_hosts_with_the_same_trouble_are_one_finding_and_the_others_stay() -> None:
    names = [f"node{number}" for number in range(ALIKE_HOSTS)]
    (other, many) = findings({"odd": Unreachable("no route to odd")} | {name: refused(name) for name in names})
    assert (other.host, other.message) == ("odd", "no route to odd")
    assert many.host is None
    assert many.hosts == tuple(names)
    assert many.message == f"{ALIKE_HOSTS} hosts, for example node0: 10.0.0.0:22 refuses the connection"
    assert many.fix == "is sshd running on HOST?"


@given(st.integers(0, 40), st.integers(0, 40))
def test_no_host_is_left_out_or_named_twice(down: int, locked: int) -> None:
    errors: dict[str, DdpctlError] = {f"node{number}": refused(f"node{number}") for number in range(down)}
    errors |= {f"lock{number}": AuthRefused("no key of ours is accepted") for number in range(locked)}
    found = findings(errors)
    assert sorted(host for finding in found for host in finding.hosts) == sorted(errors)
    assert len(found) <= 2 * (ALIKE_HOSTS - 1)
