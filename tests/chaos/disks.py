"""base_dir on a filesystem of its own that hangs, refuses, or is full."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from tests.chaos.fault import Fate, Fault, Scene
from tests.chaos.plan import PLAIN, THENS, TORCH
from tests.lab import Host
from tests.lab.process import call

MOUNT = "/srv/chaos"
BASE = f"{MOUNT}/base"
SIZE = 48 << 20
FREE_KB = (0, 0, 4, 16, 64, 256, 1024)  # what a full disk has left, so that it fills up at another write each time


@contextlib.contextmanager
def own_disk(host: Host, mount: str = MOUNT) -> Iterator[None]:
    """A small ext4 in a file, mounted in the host alone."""
    image = host.disk.folder / f"{mount.rpartition('/')[2]}.img"
    with open(image, "wb") as file:
        file.truncate(SIZE)
    with contextlib.ExitStack() as undo:
        undo.callback(image.unlink)
        call(["mkfs.ext4", "-q", "-m", "0", str(image)])
        device = call(["losetup", "--find", "--show", str(image)]).stdout.strip()
        undo.callback(call, ["losetup", "--detach", device], check=False)
        host.run(["mkdir", "-p", mount])
        host.run(["mount", "-o", "noatime", device, mount])
        undo.callback(host.run, ["umount", "--lazy", mount], check=False)
        yield


def frozen(scene: Scene) -> bool:
    """A writer waits in the kernel, as for a device or a server that is away."""
    scene.undo.callback(scene.victim.run, ["fsfreeze", "-u", MOUNT], check=False)
    scene.victim.run(["fsfreeze", "-f", MOUNT])
    return True


def immutable(scene: Scene) -> bool:
    """The run's folder takes nothing new."""
    path = f"{BASE}/runs/{scene.run}/{scene.victim.name}"
    if not scene.within(lambda: scene.victim.exists(path)):
        return False
    scene.undo.callback(scene.victim.run, ["chattr", "-i", path], check=False)
    scene.victim.run(["chattr", "+i", path])
    return True


def full(scene: Scene) -> bool:
    free = FREE_KB[int(scene.round.pick * len(FREE_KB)) % len(FREE_KB)]
    scene.undo.callback(scene.victim.run, ["rm", "-f", f"{MOUNT}/filler"])
    script = f"cat /dev/zero >{MOUNT}/filler; truncate -s -{free}K {MOUNT}/filler"
    scene.victim.run(script, check=False)
    return True


def faults() -> Iterator[Fault]:
    # A kill may not come through while a disk hangs or takes nothing; it must say so, and a later attempt must.
    codes = frozenset({0, 4, 6})
    table: tuple[tuple[str, Callable[[Scene], bool], float], ...] = (
        ("disk-frozen", frozen, 12.0),
        ("disk-immutable", immutable, 8.0),
        ("disk-full", full, 6.0),
    )
    for name, inject, hold in table:
        yield Fault(
            name, inject, Fate.GOES_ON, thens=THENS, hold=hold, disk=True, kill_codes=codes, jobs=(PLAIN, TORCH)
        )
