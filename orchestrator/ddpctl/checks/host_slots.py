"""The slots of the hosts: runs of any account that the job would have to wait for, or share a host with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ddpctl.checks import report
from ddpctl.checks.base import ON_HOSTS, Check, View
from ddpctl.errors import RemoteError
from ddpctl.spec.finding import Finding
from ddpctl.spec.slots import describe_holders, others_text
from ddpctl_worker.wire.contract import UNSAFE_PATH


def _judge_slots(view: View) -> Iterable[Finding]:
    for host, found in view.slots.items():
        if isinstance(found, RemoteError):
            if found.kind == UNSAFE_PATH:
                yield report.error(host, found.message, fix=found.hint)
            else:
                yield report.unknown(host, f"not checked: {found.message}")
        elif found.trouble is not None:
            yield report.unknown(host, f"not checked: {found.trouble}")
        elif found.fits is False:
            yield report.warning(
                host,
                f"in use; {'; '.join(describe_holders(found))}",
                fix="wait in line for the slots: `ddpctl up --wait`; without it `up` starts nothing",
            )
        else:
            for claim in found.claims:
                if claim.slots and not claim.mine:
                    yield report.info(host, others_text(claim))


def _not_asked(view: View) -> Mapping[str, str]:
    return {target.name: "`up` asks for slots itself" for target in view.targets if target.name not in view.slots}


ID = "host.slots"
CHECKS = (
    Check(
        ID,
        "the job's slots are free",
        _judge_slots,
        seen=ON_HOSTS,
        exempt=_not_asked,
        cause="Another run, of any account, has the slots (GPUs) that the job takes, or a program that ddpctl did not "
        "start uses a GPU. An error means that the folder of the slots is a symbolic link, no folder or without a "
        "sticky bit, that a lock in it is no plain file, or that another account than root may write /etc/ddpctl.conf.",
        symptom="`up` ends with exit code 8; without ddpctl: CUDA out of memory at the very start",
        fix="`ddpctl up --wait` waits in line; `ddpctl ps` shows the runs of all accounts. For an error: the printed "
        "command, as root.",
    ),
)
