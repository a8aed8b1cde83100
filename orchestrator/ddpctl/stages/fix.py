"""Runs the fixes of preflight that are commands on their hosts, and reads firewall rules that only root may read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from ddpctl.checks.firewall import is_readable
from ddpctl.errors import ConnectError, DdpctlError, RemoteError
from ddpctl.spec.autofix import Applied, Fix
from ddpctl.spec.command import Ran
from ddpctl.spec.event import StageEnded, StageStarted, Tell, counting
from ddpctl.spec.fold import group_by
from ddpctl.stages.execute import Sudo
from ddpctl.stages.limits import FIX_S, ROOT_FIREWALL_S
from ddpctl.transport.base import Fleet, Transport
from ddpctl.transport.limits import OUTPUT_BYTES

# As the worker's `firewall` verb reads them.
_RULES = {"nft": ("nft", "-j", "list", "ruleset"), "iptables": ("iptables-save",), "ip6tables": ("ip6tables-save",)}


def apply(fixes: Sequence[Fix], fleet: Fleet, tell: Tell, sudo: Sudo) -> list[Applied]:
    """Run the fixes: the hosts work at the same time, each host in order. Then close the connections.

    Raises:
        RemoteError: no valid password for sudo was given; no host was changed.
    """
    by_host = group_by(lambda fix: fix.host, fixes)
    sudo.prepare(fleet, {fix.host for fix in fixes if fix.wants_root})
    tell(StageStarted("fix", len(by_host)))
    outcome = fleet.map(
        lambda transport: [_applied(fix, transport, sudo) for fix in by_host[transport.host]],
        by_host,
        on_done=counting("fix", len(by_host), tell),
    )
    done = [
        applied
        for host, own in by_host.items()
        for applied in outcome.results.get(host)
        or [Applied(fix, Ran(None, error=str(outcome.errors[host]))) for fix in own]
    ]
    for host in by_host:
        fleet.transport(host).close()  # a changed limit holds from the next login on
    tell(StageEnded("fix", all(applied.ran.ok for applied in done)))
    return done


def _applied(fix: Fix, transport: Transport, sudo: Sudo) -> Applied:
    argv = ("sh", "-c", fix.command)
    try:
        if fix.wants_root:
            return Applied(fix, sudo.run(transport, argv, FIX_S))
        return Applied(fix, transport.run(argv, timeout=FIX_S))
    except (ConnectError, RemoteError) as error:  # the host's next fixes are tried all the same, but not after Ctrl-C
        return Applied(fix, Ran(None, error=str(error)))


def read_closed(
    dumps: Mapping[str, Mapping[str, Any]], fleet: Fleet, sudo: Sudo | None
) -> dict[str, Mapping[str, Any]]:
    """Return ``dumps`` with rules that only root may read, read again with ``sudo`` if its password is given."""
    closed = [host for host, dump in dumps.items() if dump.get("uid") != 0 and not is_readable(dump)]
    if sudo is None or not closed:
        return dict(dumps)

    def read(transport: Transport) -> Mapping[str, Any]:
        texts: dict[str, Any] = {}
        for tool, argv in _RULES.items():
            ran = sudo.run(transport, argv, ROOT_FIREWALL_S)
            if ran.ok and len(ran.stdout) < OUTPUT_BYTES:  # part of the rules would mislead
                texts[tool] = ran.stdout
        return {**dumps[transport.host], **texts}

    with suppress(DdpctlError):
        sudo.prepare(fleet, closed)
        return {**dumps, **fleet.map(read, closed).results}
    return dict(dumps)
