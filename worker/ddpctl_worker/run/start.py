"""The start verb: claims the run on this node, unpacks its code, and starts its guardian or agent.

The verb is idempotent. The claim is the rename of a complete folder. So a start that is repeated, or that races with
another start, finds either no folder or a complete record, and answers with the run's status.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import time
from typing import Any, Dict, List, Optional, Tuple

from ddpctl_worker.checkpoint import links
from ddpctl_worker.checkpoint.fencing import begin
from ddpctl_worker.checkpoint.starts import note_start
from ddpctl_worker.doctor import dumps
from ddpctl_worker.machine import child, fs, notes, proc, processes
from ddpctl_worker.machine.tool import run as run_tool
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.record import paths, record
from ddpctl_worker.record.paths import RunPaths, job_id
from ddpctl_worker.record.runrecord import REQUIRED, RunRecord
from ddpctl_worker.record.status import live_runs, node_status
from ddpctl_worker.rules.attempts import AttemptId
from ddpctl_worker.run import guardian, launcher
from ddpctl_worker.run.limits import CLEAN_UP_S, FAILED_START_S, OTHER_START_S, PY_SPY_S, STOP_BYTES
from ddpctl_worker.run.order import NotifyOrder, RunOrder
from ddpctl_worker.run.outputs import make_output_folders
from ddpctl_worker.run.shelltext import run_before
from ddpctl_worker.slots import claims
from ddpctl_worker.slots.line import line_up
from ddpctl_worker.store.data import pinned_place
from ddpctl_worker.store.remove import prune_later
from ddpctl_worker.store.tools import program
from ddpctl_worker.store.unpack import unpack
from ddpctl_worker.wire.channel import Channel, WorkerError
from ddpctl_worker.wire.contract import (
    BAD_REQUEST,
    CORRUPT,
    ENV_CHECKPOINT_DIR,
    LIVE,
    NO_SPACE,
    OS_ERROR,
    PLAIN,
    SPAWN_FAILED,
    STARTING,
    TERMINAL,
)

NAMES = ".names.lock"  # in base_dir: held by a start that demands to be the only live run of its name


def start(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """The verb: {"status": NodeStatus, "port", "beside", "unclaimed"} once the record is durable and the launcher runs,
    or failed.

    ``beside``: the other live runs of the job here. ``unclaimed``: why the run's slots could not be claimed.
    ``machine``: names this machine, also in another inventory. With ``line`` in the request the run waits for its
    slots: see the verb ``line_up``. ``line`` has the ``address`` at which the other hosts reach this host.

    Raises:
        WorkerError: LIVE, ``alone`` was asked for and another run of the job is live here; IN_USE, the slots that the
            run wants are not free; OS_ERROR, the run cannot start or would end with its login.
    """
    _check(request)
    base, run = paths.base_of(request), request["run"]
    found = paths.run_paths(base, run["run"], run["host"])
    held = _claim_alone(base, found, request, channel)
    if held is None:
        return {"status": _standing(found, channel), "port": fs.read_optional(found.state).get("port")}
    with held.handing_over():
        begin_run = _launch_waiter if request.get("line") else launch_run
        said = begin_run(dict(request, slots=held.to_json()), base, found, channel.login_umask)
    if said["refused"] is not None:
        claims.leave({"path": held.path}, over=True)
        if run.get("restart") or request.get("line") or said.get("login"):
            raise WorkerError(OS_ERROR, str(said["refused"]))
    more = {"port": said.get("port"), "beside": _beside(base, run), "unclaimed": held.why_not}
    return {"status": node_status(found), "machine": "%(boot)s/%(pids)s" % proc.machine(), **more}


def _claim_alone(base: str, found: RunPaths, request: Dict[str, Any], channel: Channel) -> Optional[claims.Hold]:
    """Claim the run; with ``alone`` in the request, only where no other run of the job is live. See ``_claim_run``."""
    if not request.get("alone"):
        return _claim_run(base, found, request)
    fs.own_folder(base)
    with fs.lock_exclusive(os.path.join(base, NAMES), channel):  # two starts at the same time take turns
        if not os.path.lexists(found.node):  # else this start is repeated
            _refuse_beside(base, request["run"])
        return _claim_run(base, found, request)


def launch_run(request: Dict[str, Any], base: str, found: RunPaths, umask: int) -> Dict[str, Any]:
    """Start the run's guardian or agent; return its answer. Without success the run has an exit record."""
    run = request["run"]
    said = _launch(request, base, found, umask)
    if said["refused"] is not None:
        _failed(found, str(said["refused"]))
    elif run.get("keep_runs") is not None:
        prune_later(base, run, found.debug_log)
    return said


def _launch_waiter(request: Dict[str, Any], base: str, found: RunPaths, umask: int) -> Dict[str, Any]:
    """Start the waiter of a run that waits for slots; it inherits the run's place in line."""
    order = {"request": request, "base": base, "top": found.top, "umask": umask}
    words = ["ddpctl-waiter", found.host, request["run"]["run"]]
    said = child.launch("ddpctl_worker.agent.waiter", order, words, request["slots"]["fds"])
    if said["refused"] is not None:
        _failed(found, str(said["refused"]))
    return said


def choices(request: Dict[str, Any]) -> Dict[str, str]:
    """Return the environment of the run, as far as it chooses GPUs."""
    return {**launcher.login_environment(), **(request.get("env") or {}), **(request.get("secrets") or {})}


def _launch(request: Dict[str, Any], base: str, found: RunPaths, umask: int) -> Dict[str, Any]:
    """Start the guardian, or the agent of a run with restarts; it inherits the slots of the run."""
    run = request["run"]
    if not run.get("restart"):
        return guardian.launch(_order(request, base, found, secrets.token_hex(16), umask))
    order = {"request": request, "base": base, "top": found.top, "umask": umask}
    words = ["ddpctl-agent", found.host, run["run"]]
    return child.launch("ddpctl_worker.agent.agent", order, words, request["slots"]["fds"])


def _refuse_beside(base: str, run: RunRecord) -> None:
    others = _beside(base, run)
    if others:
        raise WorkerError(
            LIVE,
            "run %s is live here" % others[-1],
            "end it: ddpctl kill %s; or choose another --name" % run["job"],
        )


def _beside(base: str, run: RunRecord) -> List[str]:
    return [one for one in live_runs(base, run["host"], job_id(run)) if one != run["run"]]


def start_attempt(request: Dict[str, Any], base: str, found: RunPaths, umask: int, lease: Dict[str, Any]) -> None:
    """Start this host's part of an attempt; the result is in the attempt's record.

    ``lease``: the end of the lease, and the pipes through which the agent renews it (lease.py).
    """
    run = request["run"]
    fs.own_folder(found.top, os.path.basename(os.path.dirname(found.node)))
    if not _claim(found, run):
        return
    order = _order(request, base, found, secrets.token_hex(16), umask)
    order["lease"] = lease
    refused = guardian.launch(order)["refused"]
    if refused is not None:
        _failed(found, str(refused))


def _failed(found: RunPaths, why: str) -> None:
    """Make sure that the run has an exit record: the guardian's, or a failed start with this reason."""
    begun = time.monotonic()
    while fs.read_json(found.exit) is None:
        waited = time.monotonic() - begun
        late = waited > FAILED_START_S and not processes.guardians(found.run_id, found.host)
        if late or waited > CLEAN_UP_S:
            record.write(found, outcomes.failed(outcomes.cause(found.host, SPAWN_FAILED, why)))
            return
        time.sleep(0.02)


def _check(request: Dict[str, Any]) -> None:
    run, argv = request.get("run"), request.get("argv")
    if not isinstance(run, dict) or not isinstance(argv, list) or not argv:
        raise WorkerError(BAD_REQUEST, "start needs a run and an argv")
    if run.get("host") != request.get("host"):
        raise WorkerError(BAD_REQUEST, "the run is for %r, this is %r" % (run.get("host"), request.get("host")))
    missing = [key for key in REQUIRED if run.get(key) is None]
    if missing:
        raise WorkerError(BAD_REQUEST, "the run's record lacks %s" % ", ".join(missing))
    for text in argv:
        if not isinstance(text, str) or "\0" in text:
            raise WorkerError(BAD_REQUEST, "an argument is not text, or holds a NUL byte")
    for key, text in {**(request.get("env") or {}), **(request.get("secrets") or {})}.items():
        if not isinstance(text, str) or "\0" in key + text or not key or "=" in key:
            raise WorkerError(BAD_REQUEST, "the environment variable %r is not text, or holds a NUL byte" % key)


def _claim_run(base: str, found: RunPaths, request: Dict[str, Any]) -> Optional[claims.Hold]:
    """Take the run's slots or its place in line, and put its folder in place.

    ``None``: another start has done so already.
    """
    run = request["run"]
    fs.own_folder(base, "runs", run["run"])
    if os.path.lexists(found.node):
        fs.check_own(found.node)
        return None
    held = line_up(run, choices(request)) if request.get("line") else claims.take(run, choices(request))
    if held is None:
        return None
    with contextlib.ExitStack() as undo:
        undo.callback(held.close, over=True)
        if not _claim(found, run, {found.network: request.get("network")}):
            return None
        undo.pop_all()
    return held


def _claim(found: RunPaths, run: RunRecord, more: Optional[Dict[str, Optional[Dict[str, Any]]]] = None) -> bool:
    """Put a complete folder in place; return False if the run has a folder already. ``more``: further files."""
    if os.path.lexists(found.node):
        fs.check_own(found.node)
        return False
    parent, name = os.path.split(found.node)
    aside = os.path.join(parent, ".%s.%s" % (name, secrets.token_hex(6)))

    def there(path: str) -> str:
        return os.path.join(aside, os.path.relpath(path, found.node))

    me = processes.identify(os.getpid())
    try:
        os.mkdir(aside, 0o700)
        for folder in (found.logs, found.output) if found.attempt is None else ():
            os.mkdir(there(folder), 0o700)
        os.mkdir(there(found.metrics), 0o700)
        record.make_reserve(there(found.reserve))
        record.make_reserve(there(found.stop_reserve), STOP_BYTES)
        fs.write_json(there(found.run), run)
        for path, content in (more or {}).items():
            if content is not None:
                fs.write_json(there(path), content)
        starter = {"state": STARTING, "starter": me.to_json() if me else None, "boot": proc.boot_id()}
        fs.write_json(there(found.state), dict(starter, machine=proc.machine()))
        os.rename(aside, found.node)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
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
    """Return the status of a run that another start has claimed, after that start is over."""
    deadline = time.monotonic() + OTHER_START_S
    while not os.path.lexists(found.node) and time.monotonic() < deadline:
        time.sleep(0.05)  # the other start has claimed the slots, and makes the folder now
    if fs.read_json(found.run) is None and os.path.exists(found.exit):
        raise WorkerError(BAD_REQUEST, "the run was stopped before it reached this node", "start a new one")
    while True:
        claimed = fs.read_optional(found.state).get("supervisor")  # before the status, which then names it
        status = node_status(found)
        if claimed or status["state"] in TERMINAL or channel.closed.is_set() or time.monotonic() > deadline:
            return status
        time.sleep(0.05)


def _order(request: Dict[str, Any], base: str, found: RunPaths, cookie: str, umask: int) -> RunOrder:
    """Return the guardian's order. ``refused`` in it: why this run cannot be started."""
    run = request["run"]
    shim, cwd, keeper = False, "/", None
    env = _environment(request, base, found, cookie)
    argv = launcher.expand_home(request["argv"])
    again = os.path.isdir(found.code)  # an earlier attempt may have written to it
    refused = _make_folders(run, base, found, env)
    if refused is None:
        cwd = launcher.working_folder(request.get("cwd"), found)
        refused = None if os.path.isdir(cwd) else "there is no working folder %s" % cwd
    refused = refused or _link_places(run, base, cwd)
    if refused is None:
        keeper, refused = _keeper(run, base, env.get(ENV_CHECKPOINT_DIR), cwd, again, request.get("copying"))
        if keeper is not None:
            keeper["lag"] = found.saved
    refused = refused or make_output_folders(run["outputs"], cwd)
    if refused is None:
        python = env.pop("PYTHON_EXEC", None) or argv[0]
        watched, number = bool(run.get("doctor")), record.attempt_of(run)
        rank = int(run["node_rank"]) if run.get("launcher") == PLAIN else None
        shim = launcher.make_shim(found, python, env, int(run["nproc"]), doctor=watched, attempt=number, rank=rank)
        if shim and rank is not None:
            argv = [found.shim, *argv[1:]]
        elif shim:
            env["PYTHON_EXEC"] = found.shim
    own_names = sorted([*(request.get("env") or {}), *(request.get("secrets") or {}), *request["slots"]["env"]])
    if run.get("before"):
        argv = run_before(run["before"], argv, own_names)
    return {
        "top": found.top,
        "attempt": found.attempt,
        "run": run,
        "argv": argv,
        "cwd": cwd,
        "env": env,
        "own_names": own_names,
        "cookie": cookie,
        "shim": shim,
        "refused": refused,
        "umask": umask,
        "dump_stems": dumps.users_stems(env, cwd),
        "gang_key": request.get("gang_key"),
        "notify": notifiers(request, cwd, umask),
        "keeper": keeper,
        "py_spy": _py_spy(request, base) if refused is None else None,
        "slots": request["slots"],
        "outlive": bool(request.get("outlive")),
    }


def notifiers(request: Dict[str, Any], cwd: str, umask: int) -> Optional[NotifyOrder]:
    """Return the order for the job's notifiers; ``None`` without notifiers.

    Their environment has no cookie: notifiers do not belong to the job, and a kill must not find them.
    """
    if not request.get("notify"):
        return None
    env = {**launcher.scrub_environment(launcher.login_environment()), **(request.get("secrets") or {})}
    return {"to": request["notify"], "env": env, "cwd": cwd, "umask": umask}


def _keeper(
    run: RunRecord, base: str, folder: Optional[str], cwd: str, again: bool, credentials: Optional[Dict[str, str]]
) -> Tuple[Optional[Dict[str, Any]], Optional[str]]:
    """Return the keeper's order (``None`` without one), and why the run cannot be started (``None`` if it can).

    A benchmark saves to a folder of its own, which has no keeper.
    """
    settings = run.get("checkpoint")
    if not settings or folder is None:
        return None, None
    try:
        links.link_folders(cwd, folder, settings["paths"], again)
    except (WorkerError, OSError) as error:
        return None, "a path of checkpoint.paths cannot be kept: %s" % error
    if folder != paths.checkpoint_dir(base, job_id(run), run["host"]):
        return None, None
    attempt = AttemptId(int(run["serial"]), run["run"], int(run["attempt"]))
    try:
        begin(folder, attempt)
    except (WorkerError, OSError) as error:
        return None, "the attempt cannot begin: %s" % error
    order = {"folder": folder, "host": run["host"], "outputs": list(run["outputs"]), **attempt.to_json()}
    order.update(keep=settings["keep"], timeout=settings["timeout"])
    gang = run.get("gang")
    if credentials and gang and settings["replicas"]:  # the gang says where the other hosts serve
        of_run = {"base": base, "job": job_id(run), "hosts": run["hosts"], "replicas": settings["replicas"]}
        of_run["address"] = gang["bind_addr"]
        order["copying"] = {**of_run, **credentials, **attempt.to_json()}
    return order, None


def _link_places(run: RunRecord, base: str, cwd: str) -> Optional[str]:
    """Make the links of the job's ``links``; return why a link cannot be made, or ``None``.

    A link to pushed data leads to its present version, so that a later push changes nothing for this run.
    """
    wanted = {name: os.path.expanduser(place) for name, place in (run.get("links") or {}).items()}
    try:
        links.link_places(cwd, {name: pinned_place(base, place) for name, place in wanted.items()})
    except (WorkerError, OSError) as error:
        return "a link of links cannot be made: %s" % error
    return None


def _py_spy(request: Dict[str, Any], base: str) -> Optional[str]:
    """Return the path of py-spy, or ``None``: a run starts without it too."""
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
    checkpoints = paths.checkpoint_dir(base, job_id(request["run"]), request["run"]["host"])
    env = launcher.environment(request, launcher.login_environment(), found, checkpoints, cookie)
    return {**env, **request["slots"]["env"]}


def _make_folders(run: RunRecord, base: str, found: RunPaths, env: Dict[str, str]) -> Optional[str]:
    """Make the folder for checkpoints and unpack the code; return why either failed, or ``None``."""
    try:
        what = "the folder for checkpoints could not be made"
        if ENV_CHECKPOINT_DIR in env:
            folder = fs.own_folder(base, *os.path.relpath(env[ENV_CHECKPOINT_DIR], base).split(os.sep))
            if folder == paths.checkpoint_dir(base, job_id(run), run["host"]):
                note_start(folder, run)
        what = "the code could not be unpacked"
        _unpack_code(run, base, found)
    except (WorkerError, OSError) as error:
        return "%s: %s" % (what, error)
    return None


def _unpack_code(run: RunRecord, base: str, found: RunPaths) -> None:
    code = run.get("code")
    if not code or os.path.isdir(found.code):  # an earlier attempt has unpacked it
        return
    from ddpctl_worker.store.blobs import blob_path

    archive = blob_path(base, code["hash"])
    if not os.path.exists(archive):
        raise WorkerError(CORRUPT, "the code archive %s is not on this node" % code["hash"], "push again")
    unpack(archive, found.code)
