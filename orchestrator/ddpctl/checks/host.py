"""A host's name and its clock."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import shlex
import statistics
from collections.abc import Iterable
from typing import Any

from ddpctl.checks.base import Check, Doc, Question, Target, View, Want
from ddpctl.checks.compare import where
from ddpctl.checks.connection import ask_nothing
from ddpctl.checks.shell import as_root
from ddpctl.spec.finding import Finding, Severity

MACHINE = Question("machine")
NAMES = Question("names", deadline=12.0)  # a dead DNS server answers nothing for 5 s or more
SLOW_NAMES_S = 2.0
SKEW_S = 5.0
SURE_S = 1.0  # clocks that are known better than this are told by their difference
_FIX_NAMES = "put the nodes into /etc/hosts, or a DNS server that answers into /etc/resolv.conf"
C10D_SKEW_S = 15.0  # its heartbeats are wall-clock times and expire after 3 x 5 s


def _ask_names(target: Target, want: Want) -> Iterable[Question]:
    return (NAMES,)


# --- names -----------------------------------------------------------------------------------------------------------


def _judge_hostname(view: View) -> Iterable[Finding]:
    found = view.values_of(NAMES)
    for target in view.targets:
        host, value = target.name, found.get(target.name)
        fault = None if value is None else name_fault(value)
        if value is None or fault is None:
            continue
        c10d = view.want.rendezvous == "c10d"
        harm = (
            "the c10d rendezvous hands this name to every node as MASTER_ADDR"
            if c10d
            else "harmless here, ddpctl tells gloo and NCCL the interface (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME)"
        )
        yield Finding(
            "host.hostname",
            Severity.WARNING if c10d else Severity.INFO,
            f"its name {value['hostname']} {fault}; {harm}",
            host,
            fix="cloud-init may write /etc/hosts anew at the next boot (manage_etc_hosts)",
            command=_name_it(view, target, value["hostname"]),
            evidence=value,
        )


def _name_it(view: View, target: Target, name: str) -> str:
    """Take the name off the loopback lines of /etc/hosts and give it the address that the other nodes use."""
    address = _address(view, target)
    if address is None:
        return f"grep -n {shlex.quote(name)} /etc/hosts"
    dotted = re.escape(name)
    strip = f"sed -i -E '/^(127\\.|::1)/ s/[[:space:]]{dotted}([[:space:]]|$)/\\1/' /etc/hosts"
    line = shlex.quote(f"{address} {name}")
    return f"{as_root(view, target.name, strip)} && echo {line} | {as_root(view, target.name, 'tee -a /etc/hosts')}"


def _address(view: View, target: Target) -> str | None:
    """The host's own address as the inventory or its network has it."""
    network = (a.value for key, a in view.answers.get(target.name, {}).items() if key.startswith("network") and a.ok)
    for address in (target.fabric_address, *(value.get("ssh_address") for value in network)):
        with contextlib.suppress(ValueError):
            if address and not ipaddress.ip_address(address).is_loopback:
                return str(address)
    return None


def name_fault(value: dict[str, Any]) -> str | None:
    """What is wrong with what a host's own name means there; None: it means an address of the host."""
    if not value["addresses"]:
        return f"cannot be resolved there ({value['error']})"
    first, local = value["addresses"][0], value["local"][0]
    if ipaddress.ip_address(first.partition("%")[0]).is_loopback:
        return f"means {first} there, a loopback address"
    if not local:
        return f"means {first} there, which is not an address of this host"
    return None


def _judge_resolver(view: View) -> Iterable[Finding]:
    for host, value in view.values_of(NAMES).items():
        if value["seconds"] > SLOW_NAMES_S:
            yield Finding(
                "host.resolver",
                Severity.INFO,
                f"looking up a name takes {value['seconds']:.0f} s there: a DNS server in /etc/resolv.conf does not "
                "answer; slow, not wrong: each process start waits for it",
                host,
                fix=_FIX_NAMES,
                command="cat /etc/resolv.conf",
                evidence=value,
            )
    for target in view.targets:
        answer = view.answer(target.name, NAMES)
        if answer is not None and answer.timed_out:
            yield Finding(
                "host.resolver",
                Severity.INFO,
                "looking up a name does not end there: no DNS server answers; slow, not wrong, since ddpctl uses "
                "addresses",
                target.name,
                fix=_FIX_NAMES,
                command="cat /etc/resolv.conf",
            )


# --- clocks ----------------------------------------------------------------------------------------------------------


def _judge_clock(view: View) -> Iterable[Finding]:
    """Hosts are measured against the middle of all hosts, so that a wrong clock of this machine blames nobody."""
    offsets = {host: timing.offset for host, timing in view.timings.items()}
    if not offsets:
        return
    middle = statistics.median_low(offsets.values()) if len(offsets) > 2 else 0.0
    wrong = False
    for host, offset in offsets.items():
        away = offset - middle
        sure = abs(away) - view.timings[host].uncertainty
        if sure > SKEW_S:
            wrong = True
            yield _skewed(view, host, away)
    ours = abs(middle) - max(timing.uncertainty for timing in view.timings.values())
    if ours > SKEW_S:
        wrong = True
        yield Finding(
            "host.clock",
            Severity.INFO,
            f"the hosts agree with each other, but this machine's clock is {abs(middle):.0f} s "
            f"{'behind' if middle > 0 else 'ahead'}; harmless for the job, confusing in logs",
            fix="set this machine's clock: `sudo timedatectl set-ntp true`",
            evidence={"offset_s": round(middle, 3)},
        )
    if not wrong:
        yield Finding("host.clock", Severity.OK, _agreement(view, offsets))


def _agreement(view: View, offsets: dict[str, float]) -> str:
    """How well the clocks agree, and of which hosts nobody can say so well: a slow login blurs what is measured."""
    unsure = {host: timing.uncertainty for host, timing in view.timings.items()}
    sure = [offset for host, offset in offsets.items() if unsure[host] <= SURE_S]
    blurred = [host for host in offsets if unsure[host] > SURE_S]
    said = f"clocks agree to within {max(max(sure) - min(sure), 0.1):.1f} s" if sure else "no clock is seen to be off"
    if not blurred:
        return said
    middle = statistics.median_low(sure or offsets.values())
    worst = max(abs(offsets[host] - middle) + unsure[host] for host in blurred)
    return f"{said} ({where(blurred)}: known to within {worst:.0f} s only, the login was slow)"


def _skewed(view: View, host: str, away: float) -> Finding:
    c10d = view.want.rendezvous == "c10d" and abs(away) > C10D_SKEW_S
    harm = "c10d takes such a node for dead" if c10d else "logs and certificates of the nodes do not fit together"
    return Finding(
        "host.clock",
        Severity.ERROR if c10d else Severity.WARNING,
        f"its clock is {abs(away):.1f} s {'ahead' if away > 0 else 'behind'}: {harm}",
        host,
        fix="a container has the clock of its machine: set it there",
        command=as_root(view, host, "timedatectl set-ntp true"),
        evidence={"offset_s": round(away, 3), "uncertainty_s": round(view.timings[host].uncertainty, 3)},
    )


CHECKS = (
    Check(
        "host.hostname",
        "the hostname means the host",
        _ask_names,
        _judge_hostname,
        Doc(
            cause="Debian and Ubuntu write `127.0.1.1 HOSTNAME` into /etc/hosts, so gloo listens where no other node "
            "can reach it. Or the name has no address, or one of another machine.",
            symptom="Gloo connectFullMesh failed: SO_ERROR: Connection refused, remote=[127.0.1.1]:26021; the other "
            "side is silent for five times the time-out (150 minutes)",
            fix="ddpctl names the interface to gloo and NCCL, so nothing needs to be done; without ddpctl, remove the "
            "line.",
        ),
    ),
    Check(
        "host.resolver",
        "names are looked up quickly",
        _ask_names,
        _judge_resolver,
        Doc(
            cause="A DNS server in /etc/resolv.conf does not answer. Every look-up waits for it.",
            symptom="the start takes 15 s longer; The hostname of the client socket cannot be retrieved. err=-3",
            fix="/etc/hosts with all nodes, or a DNS server that answers.",
            verified="recorded output only",
        ),
    ),
    Check(
        "host.clock",
        "clocks agree",
        ask_nothing,
        _judge_clock,
        Doc(
            cause="A clock that is seconds off. It is measured in the middle of the question's round trip and held "
            "against the middle of all hosts.",
            symptom="with c10d a healthy node is declared dead; certificates that are not valid yet; logs out of order",
            fix="`timedatectl set-ntp true`.",
            verified="recorded output only: the test machine has one clock for all hosts",
        ),
    ),
)
