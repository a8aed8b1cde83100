"""Tables of the kernel's network that a big job fills."""

from __future__ import annotations

from collections.abc import Iterable

from ddpctl.checks.base import Check, Doc, Question, Target, View, Want
from ddpctl.checks.limits import ranks
from ddpctl.checks.shell import as_root
from ddpctl.spec.finding import Finding, Severity

TABLES = Question("tables")
NEARLY_FULL = 0.9
_REBOOT = "it lasts until the next reboot: write it into /etc/sysctl.d as well"


def _ask(target: Target, want: Want) -> Iterable[Question]:
    return (TABLES,)


def _judge(view: View) -> Iterable[Finding]:
    world = sum(ranks(target) for target in view.targets)
    for host, found in view.values_of(TABLES).items():
        used, most, queue = found["conntrack"], found["conntrack_max"], found["somaxconn"]
        if used is not None and most and used > NEARLY_FULL * most:
            yield Finding(
                "host.network",
                Severity.WARNING,
                f"the firewall's connection table is nearly full: {used:.0f} of {most:.0f}; when it is full, new "
                "connections are dropped",
                host,
                fix=_REBOOT,
                command=as_root(view, host, f"sysctl -w net.netfilter.nf_conntrack_max={2 * int(most)}"),
                evidence=found,
            )
        if queue is not None and queue < world and host == view.want.master:
            yield Finding(
                "host.network",
                Severity.WARNING,
                f"the master takes {queue:.0f} connections at a time (somaxconn), and {world} processes come at once: "
                "some are made to wait",
                host,
                fix=_REBOOT,
                command=as_root(view, host, f"sysctl -w net.core.somaxconn={max(4096, 2 * world)}"),
                evidence=found,
            )


CHECKS = (
    Check(
        "host.network",
        "the kernel's network tables have room",
        _ask,
        _judge,
        Doc(
            cause="The connection table of the firewall (nf_conntrack) is nearly full, or the queue of connections "
            "that the master's store may have (net.core.somaxconn) is shorter than the number of processes.",
            symptom="nf_conntrack: table full, dropping packet; Connection timed out at random; a slow rendezvous",
            fix="`sysctl -w net.netfilter.nf_conntrack_max=...`, `sysctl -w net.core.somaxconn=4096`.",
            verified="recorded output only",
        ),
    ),
)
