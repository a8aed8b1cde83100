"""Who a host is: a machine of its own, of one kind with the others."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from ddpctl.checks.base import Check, Doc, Question, Target, View, Want
from ddpctl.checks.compare import differences, where
from ddpctl.checks.host import MACHINE
from ddpctl.checks.python import PYTHON
from ddpctl.checks.shell import as_root
from ddpctl.checks.use import uses_gloo
from ddpctl.spec.finding import Finding, Severity

Machines = Mapping[str, Mapping[str, Any]]
_NEW_MACHINE_ID = "rm -f /etc/machine-id /var/lib/dbus/machine-id; systemd-machine-id-setup"


def _ask_machine(target: Target, want: Want) -> Iterable[Question]:
    return (MACHINE,)


def _ask_python(target: Target, want: Want) -> Iterable[Question]:
    return (PYTHON,)


def _judge_identity(view: View) -> Iterable[Finding]:
    machines = view.values_of(MACHINE)
    local = {target.name for target in view.targets if target.local}
    same: dict[tuple[str, str, str], list[str]] = {}
    named: dict[str, list[str]] = {}
    for host, value in machines.items():
        key = (value["boot_id"], value["hostname"], value["network_namespace"])
        same.setdefault(key, []).append(host)
    for key, hosts in same.items():
        named.setdefault(key[1], []).append(hosts[0])
        if len(hosts) > 1:
            yield _one_machine(key[1], hosts, all(host in local for host in hosts))
    for hostname, hosts in named.items():
        yield from _namesakes(view, machines, hostname, hosts)
    yield from _cloned(view, machines, [hosts[0] for hosts in same.values()])


def _namesakes(view: View, machines: Machines, hostname: str, hosts: list[str]) -> Iterable[Finding]:
    """Different machines with one hostname. NCCL takes two ranks for neighbours by hostname and boot id."""
    if len(hosts) < 2:
        return
    one_boot = len({machines[host]["boot_id"] for host in hosts}) < len(hosts)
    c10d = view.want.rendezvous == "c10d"
    harm = (
        "they share a boot id too (containers of one machine, or a snapshot started twice): NCCL takes them for one "
        "machine and tries shared memory between them"
        if one_boot
        else "the c10d rendezvous hands that name to every node as MASTER_ADDR"
        if c10d
        else "harmless for the job, NCCL looks at the boot id as well; logs cannot be told apart"
    )
    for host in [host for host in hosts if host != hostname]:
        yield Finding(
            "host.identity",
            Severity.WARNING if c10d or (one_boot and not uses_gloo(view)) else Severity.INFO,
            f"{where(hosts)} are different machines with the same hostname {hostname}; {harm}",
            host,
            fix="a container gets its name from `docker run --hostname`",
            command=as_root(view, host, f"hostnamectl set-hostname {host}"),
            evidence={"hostname": hostname, "hosts": hosts},
        )


def _cloned(view: View, machines: Machines, hosts: list[str]) -> Iterable[Finding]:
    """Machines that were copied with their /etc/machine-id. Images of containers may well have one in common."""
    known: dict[str, list[str]] = {}
    for host in hosts:
        if machines[host].get("machine_id") and not machines[host].get("container"):
            known.setdefault(machines[host]["machine_id"], []).append(host)
    for clones in known.values():
        boots = {machines[host]["boot_id"] for host in clones}
        for host in clones[1:] if len(boots) == len(clones) else ():
            yield Finding(
                "host.identity",
                Severity.WARNING,
                f"{where(clones)} have the same /etc/machine-id: a DHCP server may give them one address",
                host,
                fix="reboot it afterwards",
                command=as_root(view, host, f"sh -c {shlex.quote(_NEW_MACHINE_ID)}"),
                evidence={"hosts": clones},
            )


def _judge_arch(view: View) -> Iterable[Finding]:
    yield from differences(
        "host.arch",
        {host: value["machine"] for host, value in view.values_of(PYTHON).items()},
        what="processors of kind",
        severity=Severity.WARNING,
        fix="run the job on hosts of one kind: torch is another build on each, and they round differently",
    )


def _one_machine(hostname: str, hosts: list[str], wanted: bool) -> Finding:
    if wanted:
        message = (
            f"{where(hosts)} are this one machine, as the inventory says: good for trying things out, not for speed"
        )
        return Finding("host.identity", Severity.INFO, message, evidence={"hosts": hosts})
    return Finding(
        "host.identity",
        Severity.ERROR,
        f"{where(hosts)} are one and the same machine ({hostname}): its GPUs and ports would be used twice",
        fix=f"keep one of them in the inventory ({', '.join(hosts)}), or correct `address:`",
        evidence={"hostname": hostname, "hosts": hosts},
    )


CHECKS = (
    Check(
        "host.identity",
        "every host is a machine of its own",
        _ask_machine,
        _judge_identity,
        Doc(
            cause="Two names of the inventory are the same machine; or two cloned machines have the same machine id, "
            "or the same hostname, which harms where the boot id is one too (containers).",
            symptom="Duplicate GPU detected; address already in use; NCCL that tries shared memory between machines",
            fix="One name a machine; a hostname of its own for each.",
        ),
    ),
    Check(
        "host.arch",
        "the hosts have one kind of processor",
        _ask_python,
        _judge_arch,
        Doc(
            cause="Some hosts are x86_64, others aarch64 (Grace Hopper beside x86).",
            symptom="results that differ by host; packages that exist for one kind alone",
            fix="One kind for one job: `--nodes`, or an inventory each.",
            verified="recorded output only",
        ),
    ),
)
