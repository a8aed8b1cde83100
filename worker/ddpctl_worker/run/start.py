"""The start verb: claim the run on this node, put its code in place, and leave a supervisor behind.

Idempotent: the claim is the rename of a complete folder, so a start that is repeated, or raced by another, finds either
nothing or a whole record, and answers with the standing status.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import time
from typing import Any, Dict, Optional

import ddpctl_worker
from ddpctl_worker import fs, notes, paths, proc
from ddpctl_worker import outcome as outcomes
from ddpctl_worker.channel import Channel, WorkerError
from ddpctl_worker.contract import BAD_REQUEST, CORRUPT, ENV_CHECKPOINT_DIR, NO_SPACE, SPAWN_FAILED, STARTING, TERMINAL
from ddpctl_worker.doctor import dumps
from ddpctl_worker.paths import RunPaths
from ddpctl_worker.run import guardian, launcher, processes, record
from ddpctl_worker.run.status import node_status
from ddpctl_worker.store.tools import program
from ddpctl_worker.store.unpack import unpack
from ddpctl_worker.tool import run as run_tool

OTHER_START_S = 60.0  # how long to wait for a start of the same run that is under way
CLEAN_UP_S = 3.0  # how long to wait for the guardian of a supervisor that did not come up
PY_SPY_S = 5.0  # py-spy says its version in milliseconds
STOP_BYTES = 4 << 10  # room for the word of a stop


def start(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """The verb: {"status": NodeStatus} once the record is durable and the launcher runs, or could not be run."""
    _check(request)
    base, run = paths.base_of(request), request["run"]
    found = paths.run_paths(base, run["run"], run["host"])
    fs.own_folder(base, "runs", run["run"])
    if not _claim(found, run):
        return {"status": _standing(found, channel)}
    order = _order(request, base, found, channel.login_umask)
    refused = guardian.launch(order)["refused"]
    if refused is not None:
        _failed(found, str(refused))
    return {"status": node_status(found)}


def _failed(found: RunPaths, why: str) -> None:
    """The run did not begin: make sure that its record says so, and says why."""
    deadline = time.monotonic() + CLEAN_UP_S
    while fs.read_json(found.exit) is None:
        if time.monotonic() > deadline:
            record.write(found, outcomes.failed(outcomes.cause(found.host, SPAWN_FAILED, why)))
            return
        time.sleep(0.02)


def _check(request: Dict[str, Any]) -> None:
    run, argv = request.get("run"), request.get("argv")
    if not isinstance(run, dict) or not isinstance(argv, list) or not argv:
        raise WorkerError(BAD_REQUEST, "start needs a run and an argv")
    if run.get("host") != request.get("host"):
        raise WorkerError(BAD_REQUEST, "the run is for %r, this is %r" % (run.get("host"), request.get("host")))
    for text in argv:
        if not isinstance(text, str) or "\0" in text:
            raise WorkerError(BAD_REQUEST, "an argument is not text, or holds a NUL byte")
    for key, text in {**(request.get("env") or {}), **(request.get("secrets") or {})}.items():
        if not isinstance(text, str) or "\0" in key + text or not key or "=" in key:
            raise WorkerError(BAD_REQUEST, "the environment variable %r is not text, or holds a NUL byte" % key)


def _claim(found: RunPaths, run: Dict[str, Any]) -> bool:
    """Put a complete folder in place; False when there is one already."""
    if os.path.lexists(found.node):
        fs.check_own(found.node)
        return False
    aside = RunPaths(os.path.join(os.path.dirname(found.node), ".%s.%s" % (run["host"], secrets.token_hex(6))))
    me = processes.identify(os.getpid())
    try:
        os.mkdir(aside.node, 0o700)
        for folder in (aside.logs, aside.output, aside.metrics):
            os.mkdir(folder, 0o700)
        record.make_reserve(aside.reserve)
        record.make_reserve(aside.stop_reserve, STOP_BYTES)
        fs.write_json(aside.run, run)
        starter = {"state": STARTING, "starter": me.to_json() if me else None, "boot": proc.boot_id()}
        fs.write_json(aside.state, dict(starter, machine=proc.machine()))
        os.rename(aside.node, found.node)
    except OSError as error:
        shutil.rmtree(aside.node, ignore_errors=True)
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return False
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise WorkerError(
                NO_SPACE, "no space for the run's record: %s" % error, "free some space, or run ddpctl gc"
            ) from None
        raise
    fs.sync_folder(os.path.dirname(found.node))
    return True


def _standing(found: RunPaths, channel: Channel) -> Dict[str, Any]:
    """The status of a run that somebody else started; waits while that start is under way."""
    deadline = time.monotonic() + OTHER_START_S
    if fs.read_json(found.run) is None and os.path.exists(found.exit):
        raise WorkerError(BAD_REQUEST, "the run was stopped before it reached this node", "start a new one")
    while True:
        status = node_status(found)
        settled = status["state"] in TERMINAL or fs.read_optional(found.state).get("supervisor")
        if settled or channel.closed.is_set() or time.monotonic() > deadline:
            return status
        time.sleep(0.05)


def _order(request: Dict[str, Any], base: str, found: RunPaths, umask: int) -> Dict[str, Any]:
    """Everything the supervisor needs, or why this run cannot be started (``refused``)."""
    run = request["run"]
    cookie = secrets.token_hex(16)
    shim, cwd = False, "/"
    env = _environment(request, base, found, cookie)
    refused = _make_folders(run, base, found, env)
    if refused is None:
        cwd = launcher.working_folder(request.get("cwd"), found)
        refused = None if os.path.isdir(cwd) else "there is no working folder %s" % cwd
    if refused is None and request.get("python_exec"):
        python = env.pop("PYTHON_EXEC", None) or request["argv"][0]
        shim = launcher.make_shim(found, python, env, int(run["nproc"]), doctor=bool(run.get("doctor")))
        if shim:
            env["PYTHON_EXEC"] = found.shim
    return {
        "node": found.node,
        "run": run,
        "argv": request["argv"],
        "cwd": cwd,
        "env": env,
        "cookie": cookie,
        "shim": shim,
        "refused": refused,
        "umask": umask,
        "dump_stems": dumps.users_stems(env, cwd),
        "gang_key": request.get("gang_key"),
        "py_spy": _py_spy(request, base) if refused is None else None,
        "code_path": os.path.dirname(os.path.dirname(os.path.abspath(ddpctl_worker.__file__))),
    }


def _py_spy(request: Dict[str, Any], base: str) -> Optional[str]:
    """The path of py-spy, or None: a run never fails for want of it."""
    tool = request.get("py_spy")
    if not tool:
        return None
    try:
        path = program(base, "py-spy", tool)
        said = run_tool([path, "--version"], PY_SPY_S)
    except (WorkerError, OSError) as error:
        notes.note("the run has no py-spy: %s" % error)
        return None
    if said["code"] != 0:
        notes.note("the run has no py-spy: it cannot run here: %s" % (said["stderr"].strip() or said["code"]))
        return None
    return path


def _environment(request: Dict[str, Any], base: str, found: RunPaths, cookie: str) -> Dict[str, str]:
    checkpoints = paths.checkpoint_dir(base, request["run"]["job"], request["run"]["host"])
    return launcher.environment(request, launcher.login_environment(), found, checkpoints, cookie)


def _make_folders(run: Dict[str, Any], base: str, found: RunPaths, env: Dict[str, str]) -> Optional[str]:
    """The job's code and its folder for checkpoints; why one of them could not be made."""
    try:
        what = "the folder for checkpoints could not be made"
        if ENV_CHECKPOINT_DIR in env:
            fs.own_folder(base, *os.path.relpath(env[ENV_CHECKPOINT_DIR], base).split(os.sep))
        what = "the code could not be unpacked"
        _unpack_code(run, base, found)
    except (WorkerError, OSError) as error:
        return "%s: %s" % (what, error)
    return None


def _unpack_code(run: Dict[str, Any], base: str, found: RunPaths) -> None:
    code: Optional[Dict[str, Any]] = run.get("code")
    if not code:
        return
    from ddpctl_worker.store.blobs import blob_path

    archive = blob_path(base, code["hash"])
    if not os.path.exists(archive):
        raise WorkerError(CORRUPT, "the code archive %s is not on this node" % code["hash"], "push again")
    unpack(archive, found.code)
