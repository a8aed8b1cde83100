"""The job's files on this node, and a real import of the modules that its script imports."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import sys
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

from ddpctl_worker.facts import program_seconds
from ddpctl_worker.facts.env import site_folders
from ddpctl_worker.facts.limits import COUNT_S, HASHED_BYTES, MOST_FILES, SCRIPT_BYTES
from ddpctl_worker.facts.torch import cache_file, fingerprint, remember, stamp
from ddpctl_worker.machine import tool
from ddpctl_worker.machine.fs import read_optional, read_text
from ddpctl_worker.machine.proc import boot_id

_CODE = (".py", ".pyx", ".json", ".yaml", ".yml", ".toml", ".cfg", ".ini", ".sh", ".cu", ".cpp")
_SKIPPED = frozenset({".git", "__pycache__", ".venv", "venv", "node_modules", ".mypy_cache", ".pytest_cache"})
_MARK = "DDPCTL-MODULES "
_AT = "DDPCTL-MODULE "
# The kinds of failure that a guard catches: ``except ModuleNotFoundError``, and ``except ImportError``.
_CAUGHT = {"missing": ("missing",), "import": ("missing", "import")}
# Runs in a process of its own. argv: the statements. Prints the number of each statement, and all failures at the end.
PROGRAM = r"""
import json, sys, traceback, warnings
warnings.simplefilter("ignore")
out, failed = sys.stdout, []
machinery = ("ddpctl", "importlib", "_frozen_importlib")
sys.path[:] = [place for place in sys.path if place]  # not the folder in which this happens to run
sys.stdout = sys.stderr
def last(error):
    return "%s: %s" % (type(error).__name__, (str(error).strip().splitlines() or [""])[-1][:500])
for number, statement in enumerate(sys.argv[1:]):
    out.write("\nDDPCTL-MODULE %d\n" % number)
    out.flush()
    try:
        exec(statement, {"__name__": "ddpctl"})
    except BaseException as error:
        kinds = ((ModuleNotFoundError, "missing"), (ImportError, "import"))
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        names = [(frame.f_globals.get("__name__") or "").split(".")[0] for frame in frames]
        failed.append({
            "statement": statement,
            "error": last(error),
            "kind": next((word for kind, word in kinds if isinstance(error, kind)), "other"),
            "missing": getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None,
            "through": [name for name in dict.fromkeys(names[1:]) if name and name not in machinery],
        })
out.write("\nDDPCTL-MODULES " + json.dumps(failed) + "\n")
out.flush()
import os
os._exit(0)
"""


def path(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """Return the kind of ``params["path"]`` (relative to ``params["workdir"]``), and whether it is readable.

    A folder also has its number of files and bytes. ``complete``: false if COUNT_S was too short to count all.
    """
    where = absolute(params["path"], params.get("workdir"))
    found: Dict[str, Any] = {"path": where, "exists": os.path.exists(where), "kind": None, "readable": False}
    if not found["exists"]:
        found["link"] = os.readlink(where) if os.path.islink(where) else None
        return found
    folder = os.path.isdir(where)
    found["kind"] = "folder" if folder else "file"
    found["readable"] = os.access(where, os.R_OK | (os.X_OK if folder else 0))
    if folder and found["readable"]:
        found.update(_count(where))
    elif not folder:
        found.update(files=1, bytes=os.path.getsize(where), complete=True)
    return found


def script(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """Return the hash and the text (at most SCRIPT_BYTES) of a script that is already on the node."""
    where = absolute(params["path"], params.get("workdir"))
    if not os.path.isfile(where):
        return {"path": where, "exists": os.path.exists(where), "sha256": None, "text": None}
    with open(where, "rb") as file:
        data = file.read(HASHED_BYTES)
    text = data[:SCRIPT_BYTES].decode("utf-8", "replace")
    return {"path": where, "exists": True, "sha256": hashlib.sha256(data).hexdigest(), "text": text}


def tree(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """Return a hash over the names and contents of a folder's code files, and the commit that git has checked out."""
    root = absolute(params["path"], None)
    digest = hashlib.sha256()
    count, size, complete = 0, 0, True
    until = time.monotonic() + COUNT_S
    for name, status in _files(root):
        if not name.endswith(_CODE):
            continue
        count, size = count + 1, size + status.st_size
        if count > MOST_FILES or size > HASHED_BYTES or time.monotonic() > until:
            complete = False
            break
        with open(name, "rb") as file:
            content = hashlib.sha256(file.read()).hexdigest()
        digest.update(("%s\0%s\n" % (os.path.relpath(name, root), content)).encode("utf-8", "surrogateescape"))
    return {
        "path": root,
        "exists": os.path.isdir(root),
        "hash": digest.hexdigest() if complete else None,
        "files": count,
        "git": git_commit(root),
    }


def git_commit(folder: str) -> Optional[str]:
    """Return the commit of HEAD, read from git's files: the program git may be missing."""
    git = os.path.join(folder, ".git")
    head = read_text(os.path.join(git, "HEAD")).strip()
    if not head.startswith("ref: "):
        return head or None
    name = head[5:]
    loose = read_text(os.path.join(git, name)).strip()
    if loose:
        return loose
    for line in read_text(os.path.join(git, "packed-refs")).splitlines():
        if line.endswith(" " + name):
            return line.split(" ", 1)[0]
    return None


def absolute(name: str, workdir: Optional[str]) -> str:
    """Return a path of the inventory as an absolute path on this node."""
    return os.path.normpath(os.path.join(os.path.expanduser(workdir or "~"), os.path.expanduser(name)))


def _count(root: str) -> Dict[str, Any]:
    count, size = 0, 0
    until = time.monotonic() + COUNT_S
    for _, status in _files(root):
        count, size = count + 1, size + status.st_size
        if count >= MOST_FILES or time.monotonic() > until:
            return {"files": count, "bytes": size, "complete": False}
    return {"files": count, "bytes": size, "complete": True}


def _files(root: str) -> Iterator[Tuple[str, os.stat_result]]:
    """Yield every regular file below a folder, in the same order on every node."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED)
        for name in sorted(names):
            full = os.path.join(folder, name)
            try:
                status = os.stat(full)
            except OSError:  # a dangling link, or removed meanwhile
                continue
            yield full, status


def modules(params: Dict[str, Any], context: Dict[str, Any]) -> Dict[str, Any]:
    """Run the import statements ``params["statements"]`` in the order of the script, and return the failures.

        env       the variables of the job
        beside    folders of the job's own code here; their modules are never imported, as they may begin to train
        python    the job's interpreter, unless it runs this worker
        guards    statement -> the failures that the script survives

    ``failed`` holds each failure. ``error``: the process did not get to the end; ``at``: the statement where it
    stopped. A success is remembered, also if the script survives all failures. Any other failure is tried again the
    next time.
    """
    beside = params.get("beside") or []
    statements = [
        each for each in params["statements"] if not any(_lies_in(folder, each.split()[1]) for folder in beside)
    ]
    if not statements:
        return {"failed": [], "error": None, "cached": True}
    env = {str(k): str(v) for k, v in (params.get("env") or {}).items()}
    python = str(params.get("python") or sys.executable)
    key = _key(python, statements, env)
    cache = cache_file("modules", context)
    known = read_optional(cache)
    if key in known:
        return {"failed": [], "error": None, "cached": True}
    said = tool.run(
        [python, "-c", PROGRAM, *statements],
        timeout=program_seconds(context),
        env=dict(env, OMP_NUM_THREADS="1"),
        cwd="/",
    )
    value = _value(said, statements)
    guards = params.get("guards") or {}
    survived = [fail["kind"] in _CAUGHT.get(str(guards.get(fail["statement"])), ()) for fail in value["failed"]]
    if value["error"] is None and all(survived):
        remember(cache, known, key, {})
    return dict(value, cached=False)


def _value(said: Dict[str, Any], statements: List[str]) -> Dict[str, Any]:
    """Return the process's answer, or how it ended without an answer."""
    at: Optional[str] = None
    for line in said["stdout"].splitlines():
        if line.startswith(_MARK):
            return {"failed": json.loads(line[len(_MARK) :]), "error": None, "seconds": said["seconds"]}
        if line.startswith(_AT):
            at = statements[int(line[len(_AT) :])]
    if said["timed_out"]:
        error = "did not end within %.0f s" % said["seconds"]
    elif said["code"] is not None and said["code"] < 0:
        error = "the interpreter was ended by signal %d" % -said["code"]
    else:
        error = tool.last_stderr_line(said)
    return {"failed": [], "error": error, "at": at, "timed_out": said["timed_out"], "seconds": said["seconds"]}


def _key(python: str, statements: List[str], env: Dict[str, str]) -> str:
    """Return a hash that changes with the environment, the modules and the machine (its libraries)."""
    parts: List[Any] = [python, statements, boot_id(), os.uname().nodename]
    if python == sys.executable:
        path = env.get("PYTHONPATH", os.environ.get("PYTHONPATH"))
        tops = sorted({statement.split()[1].split(".")[0] for statement in statements})
        parts.append(fingerprint(dict(env, PYTHONPATH=path) if path else env))
        for folder in site_folders(path):
            parts.append([stamp(os.path.join(folder, top, "__init__.py")) for top in tops])
            parts.append([stamp(os.path.join(folder, top + ".py")) for top in tops])
    else:  # an environment that ddpctl built: named by its content, and never changed
        parts += [stamp(python), stamp(os.path.join(os.path.dirname(os.path.dirname(python)), "pyvenv.cfg"))]
        parts.append(sorted(env.items()))
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _lies_in(folder: str, module: str) -> bool:
    """Return whether an import with this folder on the path may find the module there."""
    place = os.path.join(os.path.expanduser(folder), module.split(".")[0])
    found = (glob.glob(glob.escape(place) + pattern) for pattern in (".*.so", ".so", "/*.py"))
    return os.path.exists(place + ".py") or any(found)
