"""Installs a locked environment on this node from wheels in the store: ``<base_dir>/envs/<id>``.

ddpctl's own uv builds it in a temporary folder, offline and with every hash checked. The environment gets its name only
after its imports have worked, so an environment with this name is complete. Files are hard links into uv's cache below
base_dir: a second environment with the same wheels takes almost no space.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import time
from typing import Any, Dict, Iterator, List, Optional

from ddpctl_worker.machine import fs
from ddpctl_worker.store.blobs import discard_if_corrupt, require_space
from ddpctl_worker.store.limits import IMPORT_LETTERS, IMPORT_S, INSTALL_S
from ddpctl_worker.store.tools import program
from ddpctl_worker.store.uv import Uv, UvFailed, place_wheels, run_watched, unpacked_size
from ddpctl_worker.wire.channel import Channel, WorkerError
from ddpctl_worker.wire.contract import BAD_REQUEST, CORRUPT, IMPORT, INSTALL

MARKER = "ddpctl.json"
# Runs in the environment's own interpreter. argv: modules to import. NCCL's version exists in CUDA builds only.
_PROGRAM = """
import importlib, json, platform, sys
found = {"python": platform.python_version()}
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    version = getattr(module, "__version__", None)
    if version is not None:
        found[name] = str(version)
    if name == "torch":
        if module.version.cuda:
            found["cuda"] = str(module.version.cuda)
        if getattr(module.distributed, "is_nccl_available", bool)():
            found["nccl"] = ".".join(str(part) for part in module.cuda.nccl.version())
print(json.dumps(found))
"""


def install(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """``{"lock": text, "lock_hash", "wheels": [{"hash", "name"}], "uv": {"hash", "kind"}, "imports": [module]}``.

    Returns ``{"python", "env", "versions", "reused", "seconds"}``. A new environment has passed its imports.

    Raises:
        WorkerError: corrupt, install, import, no_space, or the controller went away.
    """
    begun = time.monotonic()
    lock = request["lock"]
    if hashlib.sha256(lock.encode("utf-8")).hexdigest() != request["lock_hash"]:
        raise WorkerError(CORRUPT, "the lock arrived damaged", "run the same command again")
    base_dir = request["base_dir"]
    name = environment_id(request["lock_hash"])
    with _claimed(base_dir, name, channel):
        marker = is_usable(base_dir, name)
        reused = marker is not None
        if marker is None:
            marker = _build(request, base_dir, name, channel)
    path = os.path.join(fs.own_folder(base_dir, "envs"), name)
    return {
        "python": os.path.join(path, "bin", "python"),
        "env": name,
        "versions": marker["versions"],
        "reused": reused,
        "seconds": round(time.monotonic() - begun, 3),
    }


def environment_id(lock_hash: str) -> str:
    """Return the name of an environment: a hash of the lock and a hash of this Python."""
    base = "%s %s" % (os.path.realpath(sys.executable), sys.version)
    return "%s-%s" % (lock_hash[:40], hashlib.sha256(base.encode("utf-8")).hexdigest()[:8])


def is_usable(base_dir: str, name: str) -> Optional[Dict[str, Any]]:
    """Return the marker of a complete environment; ``None`` if it is missing or its packages have changed since."""
    path = os.path.join(fs.own_folder(base_dir, "envs"), name)
    marker = fs.read_optional(os.path.join(path, MARKER))
    if not marker:
        return None
    site = os.path.join(path, marker["site"])
    if not os.access(os.path.join(path, "bin", "python"), os.X_OK) or packages(site) != marker["packages"]:
        return None
    os.utime(os.path.join(path, MARKER))  # the last use, for gc
    return marker


def packages(site: str) -> List[str]:
    """Return the packages in a site-packages folder, by the names of their metadata folders."""
    try:
        return sorted(entry for entry in os.listdir(site) if entry.endswith(".dist-info"))
    except OSError:
        return []


@contextlib.contextmanager
def _claimed(base_dir: str, name: str, channel: Channel) -> Iterator[None]:
    """Hold the lock of this environment: another run that needs the same environment waits until it is made."""
    envs = fs.own_folder(base_dir, "envs")
    # All installations share the first lock, which keeps `gc` from removing files in use.
    no_gc = fs.lock_shared(os.path.join(envs, fs.ENVS), channel)
    mine = fs.lock_exclusive(os.path.join(envs, "." + name + ".lock"), channel)
    with no_gc, mine:
        yield


def _build(request: Dict[str, Any], base_dir: str, name: str, channel: Channel) -> Dict[str, Any]:
    envs = fs.own_folder(base_dir, "envs")
    for entry in os.listdir(envs):
        if entry.startswith(name + ".") and entry.endswith(".tmp"):
            shutil.rmtree(os.path.join(envs, entry))  # of a killed build: this process holds the lock
    wheels: List[Dict[str, str]] = request["wheels"]
    if not wheels:
        raise WorkerError(BAD_REQUEST, "install needs wheels")
    folder = place_wheels(base_dir, wheels)
    require_space(envs, unpacked_size(folder, wheels, _known_wheels(envs)))
    uv = Uv(program(base_dir, "uv", request["uv"]), fs.own_folder(base_dir, "uv-cache"), channel, INSTALL_S)
    place = os.path.join(envs, "%s.%s.tmp" % (name, os.urandom(4).hex()))
    try:
        for attempt in (1, 2):
            try:
                fill_environment(uv, place, folder, request)
                break
            except UvFailed as failed:
                _blame(base_dir, wheels, failed)
            except DamagedInstall as damaged:
                # uv's cache lost bytes (a power cut before they reached the disk): retry with a new cache.
                if attempt == 2:
                    raise WorkerError(CORRUPT, str(damaged), "run the same command again") from None
                shutil.rmtree(fs.own_folder(base_dir, "uv-cache"))
                fs.own_folder(base_dir, "uv-cache")
                shutil.rmtree(place)
        site = site_folder(place)
        versions = try_out(os.path.join(place, "bin", "python"), request.get("imports", []), channel)
        marker = {
            "schema": 1,
            "lock_hash": request["lock_hash"],
            "site": os.path.relpath(site, place),
            "packages": packages(site),
            "versions": versions,
            "wheels": [wheel["hash"] for wheel in wheels],
            "created": time.time(),
        }
        fs.write_json(os.path.join(place, MARKER), marker, durable=False)
        fs.sync_filesystem(place)  # before the environment gets its name
        final = os.path.join(envs, name)
        if os.path.lexists(final):
            shutil.rmtree(final)  # damaged: `usable` has refused it
        os.rename(place, final)
        fs.sync_folder(envs)
        return marker
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise


class DamagedInstall(Exception):
    """An installed file has another size than its package says."""


def fill_environment(uv: Uv, place: str, folder: str, request: Dict[str, Any]) -> None:
    """Make a new environment with exactly the lock's packages.

    Raises:
        UvFailed, Damaged, or WorkerError: the controller went away. OSError: the disk refuses the lock.
    """
    uv.run(["--quiet", "venv", "--relocatable", "--no-project", "--python", sys.executable, place])
    lock = os.path.join(folder, "pylock.%s.toml" % request["lock_hash"][:40])
    with open(lock + ".part", "w") as file:
        file.write(request["lock"])
    os.rename(lock + ".part", lock)
    python = os.path.join(place, "bin", "python")
    sync = ["--quiet", "pip", "sync", "--python", python, "--no-index", "--require-hashes", "--link-mode", "hardlink"]
    uv.run([*sync, lock])
    check_sizes(site_folder(place))


def site_folder(place: str) -> str:
    return os.path.join(place, "lib", "python%d.%d" % sys.version_info[:2], "site-packages")


def check_sizes(site: str) -> None:
    """Check every file for the size in its package's RECORD.

    The hashes were checked when the wheel was unpacked into the cache; a wrong size shows the damage of a later crash.

    Raises:
        Damaged: names the first file that is missing or has another size.
    """
    for info in packages(site):
        try:
            with open(os.path.join(site, info, "RECORD"), encoding="utf-8") as file:
                rows = [line.rstrip("\n").rsplit(",", 2) for line in file]
        except OSError:
            raise DamagedInstall("%s of %s is missing" % ("RECORD", info)) from None
        for row in rows:
            if len(row) != 3 or not row[2].isdigit():
                continue
            path = os.path.join(site, row[0].strip('"').replace('""', '"'))
            try:
                size = os.stat(path).st_size
            except OSError:
                raise DamagedInstall("%s of %s is missing" % (row[0], info)) from None
            if size != int(row[2]):
                raise DamagedInstall("%s of %s has %d bytes instead of %s" % (row[0], info, size, row[2]))


def _blame(base_dir: str, wheels: List[Dict[str, str]], failed: UvFailed) -> None:
    """Raise an error that says whether a damaged blob is why uv could not install."""
    rotten = [wheel["name"] for wheel in wheels if discard_if_corrupt(base_dir, wheel["hash"])]
    if rotten:
        raise WorkerError(
            CORRUPT,
            "%s had changed on this disk and was removed" % ", ".join(rotten),
            "run the same command again: it is sent again",
        )
    raise WorkerError(INSTALL, "uv could not install: %s" % failed)


def _known_wheels(envs: str) -> "set[str]":
    """Return the hashes of wheels that an environment here has already: they lie unpacked in the cache."""
    markers = (fs.read_optional(os.path.join(envs, entry, MARKER)) for entry in os.listdir(envs))
    return {wheel for marker in markers for wheel in marker.get("wheels", ())}


def try_out(python: str, imports: List[str], channel: Channel) -> Dict[str, str]:
    """Import ``imports``; return the versions by module, with ``python``, ``cuda`` and ``nccl`` if present.

    Raises:
        WorkerError: an import fails; the last line of its traceback is in the message.
    """
    env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH") if name in os.environ}
    try:
        output = run_watched([python, "-I", "-c", _PROGRAM, *imports], env, channel, IMPORT_S)
    except UvFailed as failed:
        raise WorkerError(IMPORT, "the environment does not work here: %s" % str(failed)[-IMPORT_LETTERS:]) from None
    versions: Dict[str, Any] = json.loads(output.decode("utf-8").splitlines()[-1])
    return {str(key): str(value) for key, value in versions.items()}
