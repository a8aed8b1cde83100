"""A locked environment on this node, from wheels that lie in the store: ``<base_dir>/envs/<id>``.

It is built in a folder of its own with the uv that came along, offline and with every hash checked, tried out, and
only then renamed to its name; so whatever has that name is complete. Files are hard links into uv's cache below
base_dir: a second environment with the same wheels costs almost nothing.
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
from ddpctl_worker.store.tools import program
from ddpctl_worker.store.uv import Uv, UvFailed, place_wheels, run_watched, unpacked_size
from ddpctl_worker.wire.channel import Channel, WorkerError
from ddpctl_worker.wire.contract import BAD_REQUEST, CORRUPT, IMPORT, INSTALL

MARKER = "ddpctl.json"
INSTALL_S = 900.0
IMPORT_S = 600.0
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

    Returns ``{"python", "env", "versions", "reused", "seconds"}``; the environment has been imported from once.
    """
    begun = time.monotonic()
    lock = request["lock"]
    if hashlib.sha256(lock.encode("utf-8")).hexdigest() != request["lock_hash"]:
        raise WorkerError(CORRUPT, "the lock arrived damaged", "run the same command again")
    base_dir = request["base_dir"]
    name = environment_id(request["lock_hash"])
    with _claimed(base_dir, name, channel):
        marker = usable(base_dir, name)
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
    """The lock's hash, and a mark of the interpreter below it: another Python makes another environment."""
    base = "%s %s" % (os.path.realpath(sys.executable), sys.version)
    return "%s-%s" % (lock_hash[:40], hashlib.sha256(base.encode("utf-8")).hexdigest()[:8])


def usable(base_dir: str, name: str) -> Optional[Dict[str, Any]]:
    """The marker of a complete environment whose packages are those that were installed; None where there is none."""
    path = os.path.join(fs.own_folder(base_dir, "envs"), name)
    marker = fs.read_optional(os.path.join(path, MARKER))
    if not marker:
        return None
    site = os.path.join(path, marker["site"])
    if not os.access(os.path.join(path, "bin", "python"), os.X_OK) or packages(site) != marker["packages"]:
        return None
    os.utime(os.path.join(path, MARKER))  # when it was used last, for gc
    return marker


def packages(site: str) -> List[str]:
    """What is installed in a site-packages folder, by the names of its metadata folders."""
    try:
        return sorted(entry for entry in os.listdir(site) if entry.endswith(".dist-info"))
    except OSError:
        return []


@contextlib.contextmanager
def _claimed(base_dir: str, name: str, channel: Channel) -> Iterator[None]:
    """Only one run at a time makes this environment; another one that wants the same waits and finds it made."""
    envs = fs.own_folder(base_dir, "envs")
    # The first lock is shared with every other installation and keeps `gc` from taking what is just being used.
    no_gc = fs.shared(os.path.join(envs, fs.ENVS), channel)
    mine = fs.alone(os.path.join(envs, "." + name + ".lock"), channel)
    with no_gc, mine:
        yield


def _build(request: Dict[str, Any], base_dir: str, name: str, channel: Channel) -> Dict[str, Any]:
    envs = fs.own_folder(base_dir, "envs")
    for entry in os.listdir(envs):
        if entry.startswith(name + ".") and entry.endswith(".tmp"):
            shutil.rmtree(os.path.join(envs, entry))  # of a build that was killed: we hold the claim
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
                fill(uv, place, folder, request)
                break
            except UvFailed as failed:
                _blame(base_dir, wheels, failed)
            except Damaged as damaged:
                # uv's cache lost something (a power cut before it reached the disk): once more, with a new one.
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
        _to_disk(place)
        final = os.path.join(envs, name)
        if os.path.lexists(final):
            shutil.rmtree(final)  # not usable any more, or we would not be here
        os.rename(place, final)
        fs.sync_folder(envs)
        return marker
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise


class Damaged(Exception):
    """An installed file has another size than its package says."""


def fill(uv: Uv, place: str, folder: str, request: Dict[str, Any]) -> None:
    """A fresh environment with exactly the lock's packages."""
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
    """Every file is there with the size that its package's RECORD gives. Raises Damaged, naming the first that is not.

    Their hashes were checked when the wheel was unpacked into the cache; a size tells what a crash did since.
    """
    for info in packages(site):
        try:
            with open(os.path.join(site, info, "RECORD"), encoding="utf-8") as file:
                rows = [line.rstrip("\n").rsplit(",", 2) for line in file]
        except OSError:
            raise Damaged("%s of %s is missing" % ("RECORD", info)) from None
        for row in rows:
            if len(row) != 3 or not row[2].isdigit():
                continue
            path = os.path.join(site, row[0].strip('"').replace('""', '"'))
            try:
                size = os.stat(path).st_size
            except OSError:
                raise Damaged("%s of %s is missing" % (row[0], info)) from None
            if size != int(row[2]):
                raise Damaged("%s of %s has %d bytes instead of %s" % (row[0], info, size, row[2]))


def _blame(base_dir: str, wheels: List[Dict[str, str]], failed: UvFailed) -> None:
    """uv could not install: is it one of our files? Always raises."""
    rotten = [wheel["name"] for wheel in wheels if discard_if_corrupt(base_dir, wheel["hash"])]
    if rotten:
        raise WorkerError(
            CORRUPT,
            "%s had changed on this disk and was removed" % ", ".join(rotten),
            "run the same command again: it is sent again",
        )
    raise WorkerError(INSTALL, "uv could not install: %s" % failed)


def _known_wheels(envs: str) -> "set[str]":
    """Hashes of wheels that some environment here has already: they lie unpacked in the cache."""
    markers = (fs.read_optional(os.path.join(envs, entry, MARKER)) for entry in os.listdir(envs))
    return {wheel for marker in markers for wheel in marker.get("wheels", ())}


def _to_disk(path: str) -> None:
    """Everything written so far reaches the disk before the environment gets its name."""
    import ctypes

    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None)
        if not hasattr(libc, "syncfs") or libc.syncfs(fd) != 0:
            os.sync()
    finally:
        os.close(fd)


def try_out(python: str, imports: List[str], channel: Channel) -> Dict[str, str]:
    """Import ``imports``; returns versions by module, and ``python``, ``cuda`` and ``nccl`` where there are any.

    Raises:
        WorkerError: an import fails; the last line of its traceback is in the message.
    """
    env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH") if name in os.environ}
    try:
        said = run_watched([python, "-I", "-c", _PROGRAM, *imports], env, channel, IMPORT_S)
    except UvFailed as failed:
        raise WorkerError(IMPORT, "the environment does not work here: %s" % str(failed)[-600:]) from None
    found: Dict[str, Any] = json.loads(said.decode("utf-8").splitlines()[-1])
    return {str(key): str(value) for key, value in found.items()}
