"""An environment with torch from the same wheels: ddpctl's install (uv) against venv and pip, in the same run."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from ddpctl.environment.managed import ask_platforms
from ddpctl.environment.origins import origins, pip_settings
from ddpctl.environment.resolve import LockRequest, locks_for, tool_for
from ddpctl.environment.wheelhouse import Wheelhouse
from ddpctl.spec.inventory import Environment
from tests.bench.report import Row
from tests.environment.support import fleet_of, local_inventory

PACKAGES = ("torch==2.13.0", "numpy")


def all_of(folder: Path) -> Sequence[Row]:
    environment = Environment(mode="managed", packages=PACKAGES, torch_backend="cpu")
    where = local_inventory(folder, 1, environment)
    sources = origins(environment, os.environ, pip_settings(os.environ))
    request = LockRequest(environment, sources, folder)
    with fleet_of(where) as fleet:
        platforms = ask_platforms(fleet, ["n0"]).results
        target, lock = next(iter(locks_for(request, platforms, folder / "locks", locked=False).items()))
        tool = tool_for("uv", target, request, folder / "locks")
        files = Wheelhouse(folder / "wheelhouse", sources).fetch([*lock.wheels, tool])
        order = {**lock.request(tool), "imports": ["torch"]}
        transport = fleet.transport("n0")
        for file in files.values():
            body = file.chunks()
            transport.call("store_put", {"hash": file.sha256, "size": file.size}, body=body, timeout=None)

        def install(text: str) -> float:

            named = {"lock": text, "lock_hash": hashlib.sha256(text.encode()).hexdigest()}
            return timed(lambda: transport.call("install", {**order, **named}, timeout=900))

        first = install(lock.node_text)
        second = install(lock.node_text + "\n# another environment of the same wheels\n")
        reused = install(lock.node_text)
    links = folder / "links"
    links.mkdir()
    for wheel in lock.wheels:
        (links / wheel.filename).symlink_to(files[wheel.sha256].path)
    pip = timed(lambda: by_pip(folder / "venv", links, lock.pins))
    note = f"{len(lock.wheels)} wheels, torch {lock.version('torch')}, imported once at the end; this machine's disk"
    return [
        Row("ddpctl's install, nothing there before", first, "s", note=note),
        Row("ddpctl's install, the same wheels again", second, "s", note="another environment: hard links"),
        Row("ddpctl's install, environment there", reused, "s", "1 or less", "a second `up`"),
        Row("venv and pip", pip, "s", note=note),
        Row("pip / ddpctl", pip / first, "x", note="both from nothing"),
    ]


def by_pip(place: Path, links: Path, pins: Sequence[str]) -> None:
    subprocess.run([sys.executable, "-m", "venv", place], check=True)
    python = place / "bin" / "python"
    command: list[str | Path] = [
        python,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-index",
        "--no-deps",
        "--find-links",
        links,
        *pins,
    ]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    subprocess.run(command, check=True, env={**env, "PIP_CONFIG_FILE": os.devnull})
    said = subprocess.run(
        [python, "-c", "import torch, json; print(json.dumps(torch.__version__))"], check=True, capture_output=True
    )
    assert json.loads(said.stdout)


def timed(work: Callable[[], object]) -> float:
    begun = time.monotonic()
    work()
    return time.monotonic() - begun
