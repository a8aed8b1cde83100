"""The folders that gc removes and keeps, on a base_dir with real environments."""

from __future__ import annotations

import datetime
import errno
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from ddpctl.environment.lock import Lock
from ddpctl_worker.store.install import MARKER
from ddpctl_worker.verbs.gc import Finder
from tests.environment.support import make_wheel
from tests.worker.store.test_install import HERE, WORKER, Node, call, sha

pytestmark = pytest.mark.slow

DAY = 86400
OLD = 30 * DAY


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """Two environments that share beta: `alpha beta` and `beta gamma`."""
    made = Node(tmp_path)
    made.install()
    gamma = make_wheel(made.wheels, "gamma", "3.0", ballast=os.urandom(80_000))
    shutil.copyfile(gamma, made.base / "store" / sha(gamma))
    first = made.lock
    made.lock = Lock(HERE, (made.wheel(made.beta), made.wheel(gamma)), "")
    assert made.install(imports=["gamma"])["ok"]
    made.lock = first
    return made


def age(path: Path, seconds: float = OLD) -> None:
    """Everything below ``path`` is that old."""
    when = time.time() - seconds
    for one in [path, *path.rglob("*")]:
        os.utime(one, (when, when), follow_symlinks=False)


def environment(node: Node, module_name: str) -> Path:
    return next(path for path in (node.base / "envs").glob("[0-9a-f]*") if list(path.glob(f"lib/*/*/{module_name}")))


def gc(node: Node, **request: Any) -> dict[str, Any]:
    result: dict[str, Any] = call(node.base, "gc", **request)["result"]
    return result


def named(result: dict[str, Any], kind: str) -> set[str]:
    return {item["name"] for item in result["items"] if item["kind"] == kind}


def add_run(
    node: Node,
    name: str,
    *,
    over: bool,
    code: str | None = None,
    ago: float = OLD,
    host: str = "n",
    ahead: float = 0.0,
) -> Path:
    """``ahead``: the seconds by which the clock of the controller is ahead of the node's clock."""
    folder = node.base / "runs" / name / host
    folder.mkdir(parents=True, mode=0o700)
    created = datetime.datetime.fromtimestamp(time.time() - ago + ahead, datetime.timezone.utc).isoformat()
    record = {
        "run": name,
        "job": "j",
        "cluster": "c",
        "project": "exp",
        "host": host,
        "node_rank": 0,
        "created": created,
    }
    (folder / "run.json").write_text(json.dumps({**record, "code": {"hash": code} if code else None}))
    (folder / "log").write_bytes(os.urandom(20_000))
    if over:
        (folder / "exit.json").write_text(json.dumps({"state": "succeeded", "exit_code": 0, "ended": created}))
    age(folder, ago)
    return folder


def without_ages(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in item.items() if key != "age_s"} for item in items]


def test_nothing_that_is_fresh_goes(node: Node) -> None:
    assert gc(node, days=0)["items"] == []


def test_what_is_old_and_unused_is_listed_first_and_goes_when_told(node: Node) -> None:
    age(node.base)
    alpha, gamma = environment(node, "alpha"), environment(node, "gamma")
    os.utime(gamma / MARKER)  # used today
    dry = gc(node)
    assert named(dry, "environment") == {alpha.name}
    assert named(dry, "wheel") >= {node.alpha.name}
    assert dry["freed"] == 0
    assert alpha.is_dir()
    before = used(node.base)
    done = gc(node, delete=True)
    assert without_ages(done["items"]) == without_ages(dry["items"])  # a second may have passed
    assert not alpha.exists()
    assert not (node.base / "store" / sha(node.alpha)).exists()
    assert (node.base / "store" / sha(node.beta)).exists()  # gamma's environment was made from it too
    assert done["freed"] == sum(item["bytes"] for item in dry["items"])
    assert before - used(node.base) == pytest.approx(done["freed"], rel=0.2)
    said = subprocess.run(
        [gamma / "bin/python", "-c", "import beta, gamma; print(gamma.__version__)"], capture_output=True
    )
    assert said.stdout == b"3.0\n"
    assert gc(node)["items"] == []


def used(base: Path) -> int:
    """Bytes on the disk, each file once."""
    return sum({info.st_ino: info.st_blocks * 512 for info in map(os.lstat, base.rglob("*"))}.values())


def test_what_went_can_come_back(node: Node) -> None:
    age(node.base)
    gc(node, delete=True)
    assert node.environments() == []
    for path in (*node.paths.values(), node.uv):
        shutil.copyfile(path, node.base / "store" / sha(path))
    assert node.install()["ok"]


def test_an_environment_that_a_process_runs_from_stays(node: Node) -> None:
    alpha = environment(node, "alpha")
    running = subprocess.Popen(
        [alpha / "bin/python", "-c", "print('up', flush=True); import time; time.sleep(600)"], stdout=subprocess.PIPE
    )
    try:
        assert running.stdout
        assert running.stdout.readline() == b"up\n"
        age(node.base)
        result = gc(node, delete=True)
        assert alpha.name in result["kept"]
        assert alpha.is_dir()
        assert node.alpha.name not in named(result, "wheel")
    finally:
        running.kill()
        running.wait()
        assert running.stdout
        running.stdout.close()


def test_a_live_run_keeps_itself_its_code_and_its_environment(node: Node) -> None:
    """Here another host's run on a shared base_dir: only its exit record could say that it is over."""
    code = hashlib.sha256(b"code").hexdigest()
    (node.base / "store" / code).write_bytes(b"code")
    age(node.base)
    alpha = environment(node, "alpha")
    os.utime(alpha / MARKER, (time.time() - 20 * DAY + 60,) * 2)
    run = add_run(node, "live", over=False, code=code, ago=20 * DAY - 120, host="other")
    result = gc(node, delete=True)
    assert run.is_dir()
    assert (node.base / "store" / code).exists()
    assert result["kept"] == [alpha.name]
    assert named(result, "run") == set()


def test_old_runs_go_with_their_code_and_young_ones_stay(node: Node) -> None:
    hashes = [hashlib.sha256(text).hexdigest() for text in (b"old", b"young")]
    for name in hashes:
        (node.base / "store" / name).write_bytes(b"x" * 5000)
        age(node.base / "store" / name)
    add_run(node, "old", over=True, code=hashes[0], ago=30 * DAY)
    young = add_run(node, "young", over=True, code=hashes[1], ago=2 * DAY)
    result = gc(node, delete=True)
    assert named(result, "run") == {"old"}
    assert young.is_dir()
    assert not (node.base / "store" / hashes[0]).exists()
    assert (node.base / "store" / hashes[1]).exists()


def test_an_old_run_that_was_lost_goes_though_nobody_wrote_its_end(node: Node) -> None:
    """A reboot ended it. Readers write nothing, so there is no exit record to tell its age by."""
    for name, ago in (("old", OLD), ("young", 2 * DAY)):
        run = add_run(node, name, over=False, ago=ago)
        who = {"boot": "an earlier one", "pid": 2, "start": 3}
        (run / "state.json").write_text(json.dumps({"boot": "an earlier one", "supervisor": who}))
        age(run, ago)
    assert named(gc(node, delete=True), "run") == {"old"}
    assert (node.base / "runs" / "young" / "n" / "run.json").exists()


def test_what_broke_off_goes_but_not_what_is_being_written(node: Node) -> None:
    store = node.base / "store"
    dead, alive = store / ("0" * 64 + ".aa.part"), store / ("1" * 64 + ".bb.part")
    for path in (dead, alive):
        path.write_bytes(b"x" * 9000)
        age(path, DAY)
    with alive.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        result = gc(node, delete=True)
    assert named(result, "part") == {dead.name}
    assert alive.exists()


def test_what_a_killed_start_or_upload_left_goes(node: Node) -> None:
    run = add_run(node, "live", over=False, ago=2 * DAY, host="other").parent
    only = node.base / "runs" / "never" / ".n.0123456789ab"
    gone = node.base / "runs" / ".gone.0123456789ab"
    leftovers = [run / ".n.0123456789ab", only, gone, node.base / "worker" / ".new-abcd"]
    young = [run / ".n.ba9876543210", node.base / "worker" / ".new-efgh"]
    for folder in (*leftovers, *young):
        folder.mkdir(parents=True, mode=0o700)
        (folder / "run.json").write_text("{}")
    for folder in leftovers:
        age(folder)
    age(only.parent)
    result = gc(node, delete=True)
    assert named(result, "part") == {folder.name for folder in leftovers}
    assert not any(folder.exists() for folder in leftovers)
    assert all(folder.exists() for folder in young)
    assert (run / "other" / "run.json").exists()
    age(only.parent)
    assert named(gc(node, delete=True), "part") == {"never"}


def test_old_workers_go_while_no_run_is_live(node: Node) -> None:
    """Other hosts of a shared base_dir may run from any of these folders."""
    old, recent = (node.base / "worker" / (letter * 64) for letter in "ab")
    for folder in (old, recent):
        (folder / "ddpctl_worker").mkdir(parents=True, mode=0o700)
        (folder / "ddpctl_worker" / "__init__.py").write_text("#" * 5000)
    age(old)
    live = add_run(node, "live", over=False, host="other")
    assert named(gc(node, delete=True), "worker") == set()
    (live / "exit.json").write_text(json.dumps({"state": "succeeded"}))
    assert named(gc(node, delete=True), "worker") == {old.name}
    assert not old.exists()
    assert recent.exists()


def test_old_tools_go_unless_a_live_run_was_started_with_them(node: Node) -> None:
    """uv and py-spy alike: another host's run on a shared base_dir may still need its py-spy."""
    paths = [node.base / "tools" / f"{name}-{letter * 64}" for name in ("uv", "py-spy") for letter in "ab"]
    for path in paths:
        path.write_bytes(b"x" * 5000)
        age(path, OLD if path.name.endswith("a") else 20 * DAY - 60)
    live = add_run(node, "live", over=False, ago=20 * DAY - 120, host="other")
    gone = {path.name for path in paths if path.name.endswith("a")}
    assert named(gc(node, delete=True), "tool") == gone
    (live / "exit.json").write_text(json.dumps({"state": "succeeded"}))
    assert named(gc(node, delete=True), "tool") == {path.name for path in paths} - gone
    assert [path for path in paths if path.exists()] == []


def test_a_live_run_keeps_its_files_though_the_controllers_clock_is_ahead(node: Node) -> None:
    """The run waited in line, and its record was written again with new ports when its turn came."""
    data = node.base / "data" / "images" / ".images" / ("d" * 64)
    tool = node.base / "tools" / f"py-spy-{'a' * 64}"
    data.mkdir(parents=True)
    tool.parent.mkdir(exist_ok=True)
    (data / "image").write_bytes(b"x" * 5000)
    used = [data.with_name(data.name + ".json"), tool]
    for path in used:
        path.write_text("{}")
        age(path, 20 * DAY + 60)
    age(data, 20 * DAY + 60)
    run = add_run(node, "live", over=False, ago=20 * DAY, host="other", ahead=2 * 3600)
    os.utime(run / "run.json", (time.time() - 19 * DAY,) * 2)
    result = gc(node, delete=True)
    assert (named(result, "data"), named(result, "tool")) == (set(), set())
    assert (data / "image").exists()
    assert all(path.exists() for path in used)


def test_a_gc_does_not_take_the_worker_that_it_is(node: Node) -> None:
    own, other = (node.base / "worker" / (letter * 64) for letter in "ab")
    for folder in (own, other):
        shutil.copytree(WORKER / "ddpctl_worker", folder / "ddpctl_worker")
        age(folder)
    request = {"verb": "gc", "host": "n", "base_dir": str(node.base), "delete": True}
    done = subprocess.run(
        [sys.executable, "-m", "ddpctl_worker"],
        input=json.dumps(request) + "\n",
        env={"PYTHONPATH": str(own), "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    assert json.loads(done.stdout.splitlines()[-1])["ok"], done
    assert own.exists()
    assert not other.exists()


def test_nothing_is_taken_while_somebody_installs(node: Node) -> None:
    age(node.base)
    with (node.base / "envs" / ".gc.lock").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        answer = call(node.base, "gc", delete=True, patience=0.3)
    assert answer["error"]["kind"] == "busy"
    assert len(node.environments()) == 2


def test_hosts_that_share_a_base_dir_take_turns(node: Node) -> None:
    """Two local hosts of an inventory may run gc at once: neither gc takes the other for an installation."""
    with (node.base / "envs" / ".gc.lock").open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        threading.Timer(0.5, fcntl.flock, (file, fcntl.LOCK_UN)).start()
        assert call(node.base, "gc")["ok"]


def test_files_that_cannot_be_read_just_now_stay(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the disk proves neither that an environment is half made nor that a host has no part of a run."""
    folder = add_run(node, "shared", over=True)
    other = add_run(node, "shared", over=False, host="other")
    version = node.base / "data" / "exp" / ".set" / "0123"
    version.mkdir(parents=True)
    version.with_suffix(".json").write_text("[]")
    age(node.base)
    alpha = environment(node, "alpha")
    unreadable = {str(other), str(alpha / MARKER), f"{version}.json"}
    os.utime(alpha / MARKER)
    os.utime(f"{version}.json")
    for name in ("stat", "lstat"):
        look = getattr(os, name)

        def fail(path: Any, *args: Any, look: Any = look, **options: Any) -> Any:
            if str(path) in unreadable:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return look(path, *args, **options)

        monkeypatch.setattr(os, name, fail)
    going = {item.path for item in Finder(str(node.base), "n", 7 * DAY).items()}
    assert not going & {str(folder.parent), str(alpha), str(version)}


def test_a_symlink_is_removed_never_followed(node: Node, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("x")
    link = node.base / "envs" / ("a" * 40)
    link.symlink_to(precious)
    age(node.base)
    gc(node, delete=True)
    assert (precious / "file").exists()
