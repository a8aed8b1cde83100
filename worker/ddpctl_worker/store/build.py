"""Builds a wheel from a source distribution on this node, for nodes of its kind.

The controller sends the source and the wheels that its build needs into the store; no index is asked. uv runs the
package's build backend in an environment of its own, and the wheel goes back to the controller.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sysconfig
import tempfile
import zipfile
from typing import Any, Dict, List, Optional

from ddpctl_worker.machine import fs
from ddpctl_worker.store.blobs import blob_path, discard_if_corrupt
from ddpctl_worker.store.install import DamagedInstall, fill_environment
from ddpctl_worker.store.limits import BUILD_S, READ_BYTES
from ddpctl_worker.store.tools import program
from ddpctl_worker.store.unpack import unpack
from ddpctl_worker.store.uv import Uv, UvFailed, place_wheels, run_watched
from ddpctl_worker.wire.channel import Channel, WorkerError
from ddpctl_worker.wire.contract import BUILD, CORRUPT, INSTALL

# Variables of the login that a build may use: paths and options of compilers and CUDA.
_LOGIN = ("CC", "CXX", "CFLAGS", "CXXFLAGS", "LDFLAGS", "CUDA_HOME", "CUDA_PATH", "LD_LIBRARY_PATH", "MAX_JOBS")

# PEP 517: further requirements of the backend. argv: output file, backend, folders with the backend.
_ASK = """
import importlib, json, sys
sys.path[:0] = sys.argv[3:]
module, _, name = sys.argv[2].partition(":")
backend = importlib.import_module(module)
for part in filter(None, name.split(".")):
    backend = getattr(backend, part)
hook = getattr(backend, "get_requires_for_build_wheel", None)
with open(sys.argv[1], "w") as file:
    json.dump(list(hook()) if hook else [], file)
"""


def build(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """``{"source": {"hash", "name"}, "lock", "lock_hash", "wheels": [{"hash", "name"}], "uv": {"hash", "kind"},
    "requires": [requirement], "backend", "backend_path": [folder], "env": {name: value}}``.

    Returns ``{"needs": [requirement]}`` if the backend asks for more than ``requires``; else sends the wheel's bytes in
    frames, and returns ``{"name", "hash", "size"}``.

    Raises:
        WorkerError: corrupt, the source has not arrived; install, or build, with the end of the output.
    """
    base_dir = request["base_dir"]
    envs = fs.own_folder(base_dir, "envs")
    with fs.lock_shared(os.path.join(envs, fs.ENVS), channel):  # gc must not remove these files meanwhile
        place = tempfile.mkdtemp(prefix="build-", suffix=".tmp", dir=envs)
        try:
            return _build(request, base_dir, place, channel)
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _build(request: Dict[str, Any], base_dir: str, place: str, channel: Channel) -> Dict[str, Any]:
    uv = Uv(program(base_dir, "uv", request["uv"]), fs.own_folder(base_dir, "uv-cache"), channel, BUILD_S)
    tree = _source(base_dir, request["source"], place)
    env = os.path.join(place, "env")
    try:
        fill_environment(uv, env, place_wheels(base_dir, request["wheels"]), request)
    except (UvFailed, DamagedInstall) as failed:
        raise WorkerError(INSTALL, "what the build needs cannot be installed: %s" % failed) from None
    login = {name: os.environ[name] for name in _LOGIN if name in os.environ}
    bin_folder = os.path.join(env, "bin")
    path = os.pathsep.join([bin_folder, os.environ.get("PATH", os.defpath)])
    variables = dict(login, PATH=path, VIRTUAL_ENV=env, TMPDIR=place, **request.get("env", {}))
    python, out = os.path.join(bin_folder, "python"), os.path.join(place, "out")
    command = ["build", "--wheel", "--no-build-isolation", "--no-create-gitignore", "--python", python]
    try:
        more = [need for need in _asks(python, request, tree, variables, channel) if need not in request["requires"]]
        if more:
            return {"needs": more}
        uv.run([*command, "--out-dir", out, tree], variables)
    except UvFailed as failed:
        raise WorkerError(BUILD, failed.output or str(failed), _missing(variables)) from None
    return _send(out, channel)


def _source(base_dir: str, source: Dict[str, str], place: str) -> str:
    """Unpack the source; return its top folder."""
    blob = blob_path(base_dir, source["hash"])
    if not os.path.exists(blob) or discard_if_corrupt(base_dir, source["hash"]):
        raise WorkerError(CORRUPT, "%s has not arrived" % source["name"], "run the same command again")
    folder = os.path.join(place, "source")
    if zipfile.is_zipfile(blob):
        with zipfile.ZipFile(blob) as archive:
            archive.extractall(folder)
    else:
        unpack(blob, folder)
    inner = os.listdir(folder)
    return os.path.join(folder, inner[0]) if len(inner) == 1 else folder


def _asks(python: str, request: Dict[str, Any], tree: str, env: Dict[str, str], channel: Channel) -> List[str]:
    """Return the further requirements of the backend."""
    answer = os.path.join(os.path.dirname(tree), ".asks.json")
    folders = [os.path.join(tree, inside) for inside in request["backend_path"]]
    run_watched([python, "-c", _ASK, answer, request["backend"], *folders], env, channel, BUILD_S, cwd=tree)
    with open(answer) as file:
        return [str(need) for need in json.load(file)]


def _missing(env: Dict[str, str]) -> Optional[str]:
    """Return how to install a missing C compiler or Python.h; ``None``: both are there."""
    compiler = env.get("CC", "").split(" ")[0] or "cc"
    if not any(shutil.which(name, path=env["PATH"]) for name in (compiler, "gcc", "clang")):
        return "there is no C compiler: apt install gcc python3-dev, or dnf install gcc python3-devel"
    if not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")):
        return "there is no Python.h: apt install python3-dev, or dnf install python3-devel"
    return None


def _send(out: str, channel: Channel) -> Dict[str, Any]:
    wheels = [name for name in os.listdir(out) if name.endswith(".whl")] if os.path.isdir(out) else []
    if len(wheels) != 1:
        raise WorkerError(BUILD, "the build left %d wheels" % len(wheels))
    sha = hashlib.sha256()
    size = 0
    with open(os.path.join(out, wheels[0]), "rb") as file:
        for piece in iter(lambda: file.read(READ_BYTES), b""):
            sha.update(piece)
            size += len(piece)
            channel.send({"piece": size}, piece)
    return {"name": wheels[0], "hash": sha.hexdigest(), "size": size}
