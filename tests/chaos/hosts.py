"""Hosts that lose power, their network or their sshd."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from tests.chaos.fault import Fate, Fault, Scene
from tests.chaos.plan import FINISH, FINISH_FIRST, KILL, THENS, TORCH, TRAINING
from tests.lab import Host

UNREACHABLE = frozenset({0, 4})  # a kill that cannot ask a host says so; a kill that came through before is proven

REBOOT_S = 16.0  # a record that was written to less than 15 s ago is taken for another machine's


def hurt(do: Callable[[Host], object]) -> Callable[[Scene], bool]:
    """Something that the lab itself can take back."""

    def inject(scene: Scene) -> bool:
        scene.undo.callback(scene.victim.heal)
        do(scene.victim)
        return True

    return inject


def rebooted(host: Host) -> None:
    """As long as a machine takes for it."""
    host.power_off()
    time.sleep(REBOOT_S)
    host.disk.new_boot()
    host.boot()


def one_way(chain: str) -> Callable[[Scene], bool]:
    """Packets from and to the other nodes are lost on the way; this machine is not concerned."""

    def inject(scene: Scene) -> bool:
        scene.undo.callback(scene.victim.heal)
        _drop(scene.victim, scene.peers, chain)
        return True

    return inject


def link_cut(scene: Scene) -> bool:
    """Between two members: both still reach the hub."""
    first, second = scene.hosts[1], scene.hosts[2]
    scene.undo.callback(first.heal)
    _drop(first, [second], "input")
    _drop(first, [second], "output")
    return True


def _drop(host: Host, peers: list[Host], chain: str) -> None:
    field = "saddr" if chain == "input" else "daddr"
    host.firewall(*(f"ip {field} {peer.fabric_address} drop" for peer in peers), chain=chain)


def sessions_killed(scene: Scene) -> bool:
    """Every SSH session there, as a firewall or a restarted sshd would end it; the listener stays."""
    keep = {1, scene.victim.sshd_pid()}
    found = [one for one in scene.victim.processes(system=True) if one.system and one.pid not in keep]
    if found:
        scene.victim.run(["kill", "-KILL", *(str(one.pid) for one in found)], check=False)
    return bool(found)


def faults() -> Iterator[Fault]:
    yield Fault("power-loss", hurt(lambda host: host.power_off()), deaf=True, leaves=True)
    yield Fault("reboot", hurt(rebooted), leaves=True)
    yield Fault("freeze", hurt(lambda host: host.freeze()), deaf=True)
    yield Fault("cut", hurt(lambda host: host.cable(False)), deaf=True)
    thens = (FINISH, FINISH_FIRST)  # a kill looks for the host longer than a short cut may last
    yield Fault("short-cut", hurt(lambda host: host.cable(False)), Fate.GOES_ON, thens=thens, hold=8.0)
    yield Fault(
        "kill-in-cut",
        hurt(lambda host: host.cable(False)),
        Fate.EITHER,
        thens=(KILL,),
        hold=8.0,
        kill_codes=UNREACHABLE,
    )
    yield Fault("one-way-in", one_way("input"), deaf=True)
    yield Fault("one-way-out", one_way("output"), deaf=True)
    yield Fault("link-cut", link_cut, moments=(TRAINING,), jobs=(TORCH,), ends=("node1", "node2"))
    for name, do in (("no-sshd", Host.no_ssh), ("silent-sshd", Host.silent_sshd)):
        yield Fault(name, hurt(do), Fate.GOES_ON, thens=THENS, kill_codes=UNREACHABLE)
    yield Fault("sessions-killed", sessions_killed, Fate.GOES_ON, thens=THENS, hold=2.0)
