"""Twenty ways for a file to be wrong: no package is installed, and each is named. Called as by the orchestrator."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uv

from ddpctl.environment.lock import Lock, Wheel
from ddpctl.environment.platforms import Platform
from tests.environment.support import make_wheel

pytestmark = pytest.mark.slow

HERE = Platform("x86_64", (sys.version_info[0], sys.version_info[1]), 36)


WORKER = Path(__file__).parents[3] / "worker"


def call(base: Path, verb: str, **args: Any) -> dict[str, Any]:
    """Call a verb of a real worker process. Its stdin stays open until the answer, as with a live orchestrator."""
    with subprocess.Popen(
        [sys.executable, "-m", "ddpctl_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={"PYTHONPATH": str(WORKER), "PATH": os.environ["PATH"]},
    ) as worker:
        assert worker.stdin
        assert worker.stdout
        worker.stdin.write(json.dumps({"verb": verb, "host": "n", "base_dir": str(base), **args}).encode() + b"\n")
        worker.stdin.flush()
        for line in worker.stdout:
            frame: dict[str, Any] = json.loads(line)
            if "ok" in frame:
                return frame
    raise AssertionError("no answer")


class Node:
    """A base_dir, the wheels that were meant for it, and the request that installs them."""

    def __init__(self, folder: Path) -> None:
        self.base, self.wheels = folder / "base", folder / "wheels"
        self.wheels.mkdir()
        self.alpha = make_wheel(self.wheels, "alpha", ballast=os.urandom(50_000))
        self.beta = make_wheel(self.wheels, "beta", "1.2")
        self.paths = {"alpha": self.alpha, "beta": self.beta}
        self.uv = Path(uv.find_uv_bin())
        self.uv_hash = sha(self.uv)
        self.lock = Lock(HERE, tuple(self.wheel(path) for path in self.paths.values()), "")
        self.base.mkdir(mode=0o700)
        store = self.base / "store"
        store.mkdir(mode=0o700)
        for path in (*self.paths.values(), self.uv):
            shutil.copyfile(path, store / sha(path))

    @staticmethod
    def wheel(path: Path) -> Wheel:
        name, version = path.name.split("-")[:2]
        return Wheel(name, version, path.name, sha(path), str(path))

    def blob(self, name: str) -> Path:
        """The file in the store that should be a wheel."""
        return self.base / "store" / next(wheel.sha256 for wheel in self.lock.wheels if wheel.name == name)

    def request(self) -> dict[str, Any]:
        return {
            "lock": self.lock.node_text,
            "lock_hash": self.lock.lock_hash,
            "wheels": [{"hash": wheel.sha256, "name": wheel.filename} for wheel in self.lock.wheels],
            "uv": {"hash": self.uv_hash, "kind": "binary"},
            "imports": ["alpha"],
        }

    def install(self, **changed: Any) -> dict[str, Any]:
        return call(self.base, "install", **{**self.request(), **changed})

    def environments(self) -> list[str]:
        folder = self.base / "envs"
        return sorted(path.name for path in folder.glob("[0-9a-f]*")) if folder.is_dir() else []


def sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_what_is_right_is_installed_and_reused(node: Node) -> None:
    first = node.install()["result"]
    assert first["reused"] is False
    assert first["versions"]["alpha"] == "1.0"
    assert node.environments() == [first["env"]]
    installed = {path: path.lstat().st_ino for path in (node.base / "envs" / first["env"]).rglob("*")}
    assert installed
    again = node.install()["result"]
    assert (again["reused"], again["python"]) == (True, first["python"])
    assert {path: path.lstat().st_ino for path in installed} == installed
    said = subprocess.run(
        [first["python"], "-c", "import beta; print(beta.__version__)"], capture_output=True, check=True
    )
    assert said.stdout == b"1.2\n"


def flip(path: Path, place: float) -> None:
    data = bytearray(path.read_bytes())
    data[int(place * (len(data) - 1))] ^= 0x10
    path.write_bytes(bytes(data))


def cut(path: Path, part: float) -> None:
    path.write_bytes(path.read_bytes()[: int(part * path.stat().st_size)])


def swap(node: Node) -> None:
    """A proper wheel of the same name and version with other code in it."""
    evil = make_wheel(node.wheels, "alpha", code="import os; os.mkdir('/tmp/ddpctl-owned')")
    shutil.copyfile(evil, node.blob("alpha"))


def exchange(node: Node) -> None:
    one, other = node.blob("alpha").read_bytes(), node.blob("beta").read_bytes()
    node.blob("alpha").write_bytes(other)
    node.blob("beta").write_bytes(one)


def append(node: Node) -> None:
    with zipfile.ZipFile(node.blob("alpha"), "a") as archive:
        archive.writestr("sitecustomize.py", "import os; os.mkdir('/tmp/ddpctl-owned')")


def link_away(node: Node) -> None:
    elsewhere = node.wheels / "elsewhere.whl"
    shutil.copyfile(node.blob("alpha"), elsewhere)
    node.blob("alpha").unlink()
    node.blob("alpha").symlink_to(elsewhere)


BLOBS: dict[str, tuple[Callable[[Node], object], str]] = {
    "bit flipped at the start": (lambda node: flip(node.blob("alpha"), 0.0), "alpha"),
    "bit flipped in the middle": (lambda node: flip(node.blob("alpha"), 0.5), "alpha"),
    "bit flipped near the end": (lambda node: flip(node.blob("alpha"), 0.97), "alpha"),
    "bit flipped in the last byte": (lambda node: flip(node.blob("alpha"), 1.0), "alpha"),
    "bit flipped in another wheel": (lambda node: flip(node.blob("beta"), 0.3), "beta"),
    "half of it": (lambda node: cut(node.blob("alpha"), 0.5), "alpha"),
    "nothing of it": (lambda node: cut(node.blob("alpha"), 0.0), "alpha"),
    "all but a byte": (lambda node: cut(node.blob("beta"), 0.9999), "beta"),
    "another wheel of the same name": (swap, "alpha"),
    "two wheels exchanged": (exchange, "alpha"),
    "a file more in it": (append, "alpha"),
    "missing": (lambda node: node.blob("beta").unlink(), "beta"),
    "a symlink in its place": (link_away, "symbolic link"),
    "uv itself changed": (lambda node: flip(node.base / "store" / node.uv_hash, 0.4), "uv"),
}


@pytest.mark.parametrize("what", BLOBS)
def test_a_wrong_file_is_named_and_nothing_is_installed(node: Node, what: str) -> None:
    damage, name = BLOBS[what]
    damage(node)
    answer = node.install()
    assert answer["ok"] is False
    assert answer["error"]["kind"] in ("corrupt", "unsafe_path")
    assert name in answer["error"]["message"]
    assert node.environments() == []
    assert not Path("/tmp/ddpctl-owned").exists()
    # and once the right files are there, it works
    for path in (*node.paths.values(), node.uv):
        blob = node.base / "store" / sha(path)
        if not what.startswith("another wheel"):
            blob.unlink(missing_ok=True)
            shutil.copyfile(path, blob)
    if not what.startswith("another wheel"):
        assert node.install()["ok"]


def test_a_tampered_lock_is_refused(node: Node) -> None:
    text = node.lock.node_text.replace(node.lock.wheels[0].sha256, "0" * 64, 1)
    answer = node.install(lock=text)
    assert (answer["error"]["kind"], node.environments()) == ("corrupt", [])
    assert "lock" in answer["error"]["message"]


def test_a_lock_whose_hashes_were_changed_along_with_its_own_is_refused_by_uv(node: Node) -> None:
    text = node.lock.node_text.replace(f'sha256 = "{node.lock.wheels[0].sha256}"', f'sha256 = "{"0" * 64}"')
    answer = node.install(lock=text, lock_hash=hashlib.sha256(text.encode()).hexdigest())
    assert "alpha" in answer["error"]["message"]
    assert node.environments() == []


def test_a_wheel_for_another_machine_is_refused(node: Node) -> None:
    wrong = make_wheel(node.wheels, "delta", tag="cp311-cp311-manylinux_2_28_aarch64")
    shutil.copyfile(wrong, node.base / "store" / sha(wrong))
    node.lock = Lock(HERE, (*node.lock.wheels, node.wheel(wrong)), "")
    answer = node.install()
    assert "delta" in answer["error"]["message"]
    assert node.environments() == []


@pytest.mark.parametrize("folder", ["envs", "wheels", "uv-cache", "tools", "store"])
def test_a_symlink_in_the_way_is_refused(node: Node, tmp_path: Path, folder: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    if (node.base / folder).exists():
        (node.base / folder).rename(tmp_path / "away")
    (node.base / folder).symlink_to(elsewhere)
    answer = node.install()
    assert answer["error"]["kind"] == "unsafe_path"
    assert folder in answer["error"]["message"]
    assert list(elsewhere.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder away needs root")
@pytest.mark.parametrize("folder", ["envs", "wheels", "uv-cache", "tools"])
def test_another_users_folder_is_refused(node: Node, folder: str) -> None:
    (node.base / folder).mkdir(mode=0o700)
    os.chown(node.base / folder, 4321, 4321)
    answer = node.install()
    assert answer["error"]["kind"] == "unsafe_path"
    assert "4321" in answer["error"]["message"]


@pytest.mark.parametrize("name", ["../alpha.whl", "a/b.whl", "-x.whl", "alpha.tar.gz", ".whl", "a\nb.whl"])
def test_only_the_name_of_a_wheel_is_a_name(node: Node, name: str) -> None:
    wheels = node.request()["wheels"]
    wheels[0]["name"] = name
    assert node.install(wheels=wheels)["error"]["kind"] == "bad_request"


def test_two_runs_that_install_at_once_get_one_environment(node: Node) -> None:
    answers: list[dict[str, Any]] = []
    threads = [threading.Thread(target=lambda: answers.append(node.install())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [answer["ok"] for answer in answers] == [True] * 4
    assert sorted(answer["result"]["reused"] for answer in answers) == [False, True, True, True]
    assert len(node.environments()) == 1


def test_a_build_that_was_killed_is_swept_away(node: Node) -> None:
    env = node.install()["result"]["env"]
    folder = node.base / "envs"
    (folder / env).rename(folder / f"{env}.0badf00d.tmp")
    assert node.install()["ok"]
    assert node.environments() == [env]


def test_an_environment_that_somebody_changed_is_built_anew(node: Node) -> None:
    made = node.install()["result"]
    site = next((node.base / "envs" / made["env"]).glob("lib/*/site-packages"))
    shutil.rmtree(site / "beta-1.2.dist-info")
    again = node.install()["result"]
    assert again["reused"] is False
    assert (site / "beta-1.2.dist-info").is_dir()


def test_a_cache_that_lost_bytes_in_a_crash_is_not_trusted(node: Node) -> None:
    node.install()
    shutil.rmtree(node.base / "envs")
    for path in (node.base / "uv-cache").rglob("ballast.bin"):
        os.truncate(path, 10)
    made = node.install()["result"]
    inside = next((node.base / "envs" / made["env"]).glob("lib/*/site-packages/alpha/ballast.bin"))
    assert inside.stat().st_size == 50_000
