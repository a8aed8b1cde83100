"""The hosts themselves: separate machines of one kind, with correct names and clocks.

Disks: host_disk.py. Memory, processors and limits: host_limits.py. Slots: host_slots.py.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import shlex
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from ddpctl.checks import report
from ddpctl.checks.base import ON_HOSTS, Check, Target, View
from ddpctl.checks.gpu.in_use import uses_gloo
from ddpctl.checks.limits import C10D_SKEW_S, CLOCK_SURE_S, NAMES_S, SKEW_S, SLOW_NAMES_S
from ddpctl.checks.python import PYTHON
from ddpctl.spec.finding import Finding, Severity
from ddpctl.spec.fold import group_by, name_hosts
from ddpctl.spec.question import Question

MACHINE = Question("machine")
NAMES = Question("names", deadline=NAMES_S)
_FIX_NAMES = "add the nodes to /etc/hosts, or a DNS server that answers to /etc/resolv.conf"
Machines = Mapping[str, Mapping[str, Any]]
_NEW_MACHINE_ID = "rm -f /etc/machine-id /var/lib/dbus/machine-id; systemd-machine-id-setup"


# --- machines --------------------------------------------------------------------------------------------------------


def _judge_identity(view: View) -> Iterable[Finding]:
    machines = view.values(MACHINE)
    same = group_by(
        lambda host: tuple(machines[host][key] for key in ("boot_id", "hostname", "network_namespace")), machines
    )
    for (_, hostname, _), hosts in same.items():
        if len(hosts) > 1:
            yield _one_machine(hostname, hosts, all(view.target(host).local for host in hosts))
    single = [hosts[0] for hosts in same.values()]
    for hostname, hosts in group_by(lambda host: str(machines[host]["hostname"]), single).items():
        yield from _namesakes(view, machines, hostname, hosts)
    yield from _cloned(view, machines, single)


def _namesakes(view: View, machines: Machines, hostname: str, hosts: list[str]) -> Iterable[Finding]:
    """Report different machines with one hostname. By hostname and boot id NCCL decides which ranks are neighbours."""
    if len(hosts) < 2:
        return
    one_boot = len({machines[host]["boot_id"] for host in hosts}) < len(hosts)
    c10d = view.requirements.rendezvous == "c10d"
    harm = (
        "they share a boot id too (containers of one machine, or a snapshot started twice): NCCL takes them for one "
        "machine and tries shared memory between them"
        if one_boot
        else "the c10d rendezvous hands that name to every node as MASTER_ADDR"
        if c10d
        else "harmless for the job, NCCL looks at the boot id as well; logs cannot be told apart"
    )
    for host in [host for host in hosts if host != hostname]:
        yield report.finding(
            Severity.WARNING if c10d or (one_boot and not uses_gloo(view)) else Severity.INFO,
            host,
            f"{name_hosts(hosts)} are different machines with the same hostname {hostname}; {harm}",
            fix="a container gets its name from `docker run --hostname`",
            command=report.as_root(view, host, f"hostnamectl set-hostname {host}"),
            evidence={"hostname": hostname, "hosts": hosts},
        )


def _cloned(view: View, machines: Machines, hosts: list[str]) -> Iterable[Finding]:
    """Report machines that were copied with their /etc/machine-id, but not containers: images often share an id."""
    own = [host for host in hosts if machines[host].get("machine_id") and not machines[host].get("container")]
    for clones in group_by(lambda host: machines[host]["machine_id"], own).values():
        boots = {machines[host]["boot_id"] for host in clones}
        for host in clones[1:] if len(boots) == len(clones) else ():
            yield report.warning(
                host,
                f"{name_hosts(clones)} have the same /etc/machine-id: a DHCP server may give them one address",
                fix="reboot it afterwards",
                command=report.as_root(view, host, f"sh -c {shlex.quote(_NEW_MACHINE_ID)}"),
                evidence={"hosts": clones},
            )


def _judge_arch(view: View) -> Iterable[Finding]:
    yield from report.differences(
        Severity.WARNING,
        {host: value["machine"] for host, value in view.values(PYTHON).items()},
        what="processors of kind",
        fix="run the job on hosts of one kind: each kind has a torch build of its own, and they round differently",
    )


def _one_machine(hostname: str, hosts: list[str], intended: bool) -> Finding:
    if intended:
        same = f"{name_hosts(hosts)} are this one machine, as the inventory says"
        message = f"{same}: good for trying things out, not for speed"
        return report.info(None, message, evidence={"hosts": hosts})
    return report.error(
        None,
        f"{name_hosts(hosts)} are the same machine ({hostname}): its GPUs and ports would be used twice",
        fix=f"keep one of them in the inventory ({', '.join(hosts)}), or correct `address:`",
        evidence={"hostname": hostname, "hosts": hosts},
    )


# --- names -----------------------------------------------------------------------------------------------------------


def _judge_hostname(view: View) -> Iterable[Finding]:
    found = view.values(NAMES)
    for target in view.targets:
        host, value = target.name, found.get(target.name)
        fault = None if value is None else name_fault(value)
        if value is None or fault is None:
            continue
        c10d = view.requirements.rendezvous == "c10d"
        harm = (
            "the c10d rendezvous hands this name to every node as MASTER_ADDR"
            if c10d
            else "harmless here, ddpctl tells gloo and NCCL the interface (GLOO_SOCKET_IFNAME, NCCL_SOCKET_IFNAME)"
        )
        yield report.finding(
            Severity.WARNING if c10d else Severity.INFO,
            host,
            f"its name {value['hostname']} {fault}; {harm}",
            fix="cloud-init may rewrite /etc/hosts at the next boot (manage_etc_hosts)",
            command=_give_name(view, target, value["hostname"]),
            evidence=value,
        )


def _give_name(view: View, target: Target, name: str) -> str:
    """Remove the name from the loopback lines of /etc/hosts and give it the address that other nodes use."""
    address = _address(view, target)
    if address is None:
        return f"grep -n {shlex.quote(name)} /etc/hosts"
    dotted = re.escape(name)
    strip = f"sed -i -E '/^(127\\.|::1)/ s/[[:space:]]{dotted}([[:space:]]|$)/\\1/' /etc/hosts"
    line = shlex.quote(f"{address} {name}")
    strip, add = (report.as_root(view, target.name, command) for command in (strip, "tee -a /etc/hosts"))
    return f"{strip} && echo {line} | {add}"


def _address(view: View, target: Target) -> str | None:
    """Return the host's own address, from the inventory or from its network."""
    network = view.named(target.name, "network") or {}
    for address in (target.fabric_address, network.get("ssh_address")):
        with contextlib.suppress(ValueError):
            if address and not ipaddress.ip_address(address).is_loopback:
                return str(address)
    return None


def name_fault(value: dict[str, Any]) -> str | None:
    """Return why the host's own name does not resolve to an address of the host, or None."""
    if not value["addresses"]:
        return f"cannot be resolved there ({value['error']})"
    first, local = value["addresses"][0], value["local"][0]
    if ipaddress.ip_address(first.partition("%")[0]).is_loopback:
        return f"resolves to {first} there, a loopback address"
    if not local:
        return f"resolves to {first} there, which is not an address of this host"
    return None


def _judge_resolver(view: View) -> Iterable[Finding]:
    for host, value in view.values(NAMES).items():
        if value["seconds"] > SLOW_NAMES_S:
            yield report.info(
                host,
                f"looking up a name takes {value['seconds']:.0f} s there: a DNS server in /etc/resolv.conf does not "
                "answer; slow, not wrong: each process start waits for it",
                fix=_FIX_NAMES,
                command="cat /etc/resolv.conf",
                evidence=value,
            )
    for target in view.targets:
        answer = view.answer(target.name, NAMES)
        if answer is not None and answer.timed_out:
            yield report.info(
                target.name,
                "looking up a name hangs there: no DNS server answers; slow, not wrong, since ddpctl uses addresses",
                fix=_FIX_NAMES,
                command="cat /etc/resolv.conf",
            )


# --- clocks ----------------------------------------------------------------------------------------------------------


def _judge_clock(view: View) -> Iterable[Finding]:
    """Compare each host with the median of all hosts, so that a wrong clock of this machine blames no host."""
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
        yield report.info(
            None,
            f"the hosts agree with each other, but this machine's clock is {abs(middle):.0f} s "
            f"{'slow' if middle > 0 else 'fast'}; harmless for the job, confusing in logs",
            fix="set this machine's clock: `sudo timedatectl set-ntp true`",
            evidence={"offset_s": round(middle, 3)},
        )
    if not wrong:
        yield report.ok(_agreement(view, offsets))


def _agreement(view: View, offsets: dict[str, float]) -> str:
    """Return how well the clocks agree, and for which hosts this is uncertain: a slow login blurs the measurement."""
    unsure = {host: timing.uncertainty for host, timing in view.timings.items()}
    sure = [offset for host, offset in offsets.items() if unsure[host] <= CLOCK_SURE_S]
    blurred = [host for host in offsets if unsure[host] > CLOCK_SURE_S]
    said = f"clocks agree to within {max(max(sure) - min(sure), 0.1):.1f} s" if sure else "no clock seems to be off"
    if not blurred:
        return said
    middle = statistics.median_low(sure or offsets.values())
    worst = max(abs(offsets[host] - middle) + unsure[host] for host in blurred)
    return f"{said} ({name_hosts(blurred)}: only known to within {worst:.0f} s, because the login was slow)"


def _skewed(view: View, host: str, away: float) -> Finding:
    c10d = view.requirements.rendezvous == "c10d" and abs(away) > C10D_SKEW_S
    harm = "c10d declares such a node dead" if c10d else "logs get wrong times, and certificates may look invalid"
    return report.finding(
        Severity.ERROR if c10d else Severity.WARNING,
        host,
        f"its clock is {abs(away):.1f} s {'fast' if away > 0 else 'slow'}: {harm}",
        fix="a container uses its machine's clock: set it there",
        command=report.as_root(view, host, "timedatectl set-ntp true"),
        evidence={"offset_s": round(away, 3), "uncertainty_s": round(view.timings[host].uncertainty, 3)},
    )


CHECKS = (
    Check(
        "host.identity",
        "every host is a separate machine",
        _judge_identity,
        ask=(MACHINE,),
        cause="Two names of the inventory are the same machine; or two cloned machines have the same machine id, or "
        "the same hostname, which does harm if they share a boot id too (containers).",
        symptom="Duplicate GPU detected; address already in use; NCCL that tries shared memory between machines",
        fix="List each machine once, and give each its own hostname.",
        seen=ON_HOSTS,
    ),
    Check(
        "host.arch",
        "the hosts have one kind of processor",
        _judge_arch,
        ask=(PYTHON,),
        cause="Some hosts are x86_64, and some are aarch64 (Grace Hopper beside x86).",
        symptom="results that differ by host; packages that exist for one kind only",
        fix="Run a job on one kind only: `nodes:` of the job, or an inventory for each kind.",
    ),
    Check(
        "host.hostname",
        "the hostname resolves to the host",
        _judge_hostname,
        ask=(NAMES,),
        cause="Debian and Ubuntu write `127.0.1.1 HOSTNAME` into /etc/hosts, so gloo listens where no other node can "
        "reach it. Or the name has no address, or the address of another machine.",
        symptom="Gloo connectFullMesh failed: SO_ERROR: Connection refused, remote=[127.0.1.1]:26021; the other side "
        "stays silent for five times the time-out (150 minutes)",
        fix="ddpctl names the interface to gloo and NCCL, so nothing needs to be done; without ddpctl, remove the "
        "line.",
        seen=ON_HOSTS,
    ),
    Check(
        "host.resolver",
        "names are looked up quickly",
        _judge_resolver,
        ask=(NAMES,),
        cause="A DNS server in /etc/resolv.conf does not answer. Every look-up waits for it.",
        symptom="the start takes 15 s longer; The hostname of the client socket cannot be retrieved. err=-3",
        fix="/etc/hosts with all nodes, or a DNS server that answers.",
    ),
    Check(
        "host.clock",
        "clocks agree",
        _judge_clock,
        cause="A clock that is seconds off. It is read in the middle of a round trip and compared with the "
        "median of all hosts.",
        symptom="with c10d a healthy node is declared dead; certificates that are not valid yet; logs out of order",
        fix="`timedatectl set-ntp true`.",
        seen=ON_HOSTS,
    ),
)
