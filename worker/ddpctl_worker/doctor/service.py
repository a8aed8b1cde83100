"""The doctor verb, and the supervisor's end of it: a Unix socket below the run's folder.

The supervisor looks, because it may: where Yama guards memory, only a rank's supervisor can read its stack. Where that
does not answer, the verb looks by itself. Of a run that has ended the last look is told, which was taken before its
processes were stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import time
from threading import Thread
from typing import Any, Callable, Dict, List, Optional

from ddpctl_worker import fs
from ddpctl_worker.channel import Channel
from ddpctl_worker.contract import TERMINAL
from ddpctl_worker.doctor import dumps, flight, look, server
from ddpctl_worker.doctor.look import Subject, Tools
from ddpctl_worker.doctor.watch import ENTRIES, shortened
from ddpctl_worker.notes import note
from ddpctl_worker.paths import RunPaths
from ddpctl_worker.run import processes, ranks
from ddpctl_worker.run.record import named_by
from ddpctl_worker.run.status import node_status

ANSWER_S = 5.0  # of the supervisor; a look takes a second, and three where a rank does not answer
READ_S = 5.0  # for the dumps of a node; one of 2000 collectives takes 0.1 to 0.6 s
MOST = 3 << 20  # bytes of an answer: a message to the controller may have 4 MiB
SHORTENED = "the look at it is shortened: with all of it the node's answer is too long"


def doctor(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """The verb: {"looks": [Look], "state", "ended": whether they are from before the run's end, "slow": [...]}"""
    paths, run = named_by(request)
    status = node_status(paths)
    found: Dict[str, Any] = {"state": status["state"], "ended": status["state"] in TERMINAL, "looks": [], "slow": []}
    if found["ended"]:
        told: Optional[Dict[str, Any]] = fs.read_optional(paths.last_look)
    else:
        told = ask(paths.doctor_socket)
    found["looks"] = _list(told.get("looks")) if told is not None else fitting(_by_itself(paths, run))
    found["slow"] = _list((told or {}).get("slow"))
    if found["ended"]:
        _add_dumps(paths, found["looks"])
    for one in found["looks"]:
        one["host"] = str(run["host"])
    return found


def _add_dumps(paths: RunPaths, looks: List[Dict[str, Any]]) -> None:
    """torch's own dumps, for ranks whose last look has no collectives: of NCCL's a healthy job is not asked."""
    until = time.monotonic() + READ_S
    for one in looks:
        if one.get("groups"):
            continue
        try:
            found = dumps.of_rank(paths.dumps, int(one["rank"]), until)
        except (OSError, ValueError) as error:
            text = "torch's dump doctor/nccl/rank_%s: %s" % (one["rank"], getattr(error, "strerror", None) or error)
            one["missing"] = [*(one.get("missing") or ()), text]
            continue
        if found:
            one.update(groups=flight.to_json(found, ENTRIES), dumped=True)
            one["missing"] = [line for line in one.get("missing") or () if line != look.NO_RECORD]


def _list(value: Any) -> List[Dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def fitting(looks: List[Dict[str, Any]], most: int = MOST) -> List[Dict[str, Any]]:
    """The looks in ``most`` bytes: whole, shortened, or without stacks and collectives."""
    for less in (dict, shortened, _barely):
        made = [less(one) for one in looks]
        if less is not dict:
            made = [dict(one, missing=[*(one.get("missing") or ()), SHORTENED]) for one in made]
        if len(json.dumps(made)) <= most:
            break
    return made


def _barely(one: Dict[str, Any]) -> Dict[str, Any]:
    return {name: value for name, value in one.items() if not isinstance(value, (dict, list))}


def _by_itself(paths: RunPaths, run: Dict[str, Any]) -> List[Dict[str, Any]]:
    """Without the supervisor: the ranks below the launcher."""
    launcher = processes.from_json(fs.read_optional(paths.state).get("launcher"))
    if launcher is None or not processes.is_alive(launcher):
        return []
    found = [Subject(one.rank, one.local_rank, one.pid) for one in ranks.find(launcher.pid, {})]
    why = "the run's supervisor did not answer" if run.get("doctor") else "the doctor is off for this job"
    return look.look(found, Tools(paths.doctor, None, asked=True, no_py_spy=why))


def ask(path: str, seconds: float = ANSWER_S) -> Optional[Dict[str, Any]]:
    """What the supervisor answers; None when it does not."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(seconds)
        try:
            with _short(path) as short:
                sock.connect(short)
            return _object(server.read(sock, seconds))
        except (OSError, ValueError, RecursionError):
            return None


def _object(text: bytes) -> Optional[Dict[str, Any]]:
    made = json.loads(text)
    return made if isinstance(made, dict) else None


@contextlib.contextmanager
def _short(path: str) -> Any:
    """The path through its folder's descriptor: a socket's path ends at 107 bytes."""
    place = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield "/proc/self/fd/%d/%s" % (place, os.path.basename(path))
    finally:
        os.close(place)


class Desk:
    """Answers who connects, in a thread of its own, with what ``tell`` gives then."""

    def __init__(self, path: str, tell: Callable[[], Dict[str, Any]]) -> None:
        self._path, self._tell = path, tell
        self._socket: Optional[socket.socket] = None

    def open(self) -> None:
        """Where the file system takes no socket, the verb looks by itself."""
        sock = socket.socket(socket.AF_UNIX)
        try:
            with _short(self._path) as short:
                sock.bind(short)
            sock.listen(16)
        except OSError as error:
            sock.close()
            note("doctor: nobody can ask here: %s" % error)
            return
        self._socket = sock
        Thread(target=self._serve, name="desk", daemon=True).start()

    def _serve(self) -> None:
        assert self._socket is not None
        while True:
            try:
                line, _ = self._socket.accept()
            except OSError:
                return
            Thread(target=self._answer, args=(line,), name="desk-answer", daemon=True).start()

    def _answer(self, line: socket.socket) -> None:
        with line:
            line.settimeout(ANSWER_S)
            try:
                if _same_user(line):
                    told = self._tell()
                    line.sendall(json.dumps(dict(told, looks=fitting(told["looks"]))).encode("ascii"))
            except Exception as error:  # who asked has gone, or the look failed: it looks by itself
                note("doctor: %r" % error)


def _same_user(line: socket.socket) -> bool:
    """The folder is closed to others already; this holds where somebody has opened it."""
    found = struct.unpack("3i", line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return found[1] in (os.geteuid(), 0)
