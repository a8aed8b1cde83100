"""The supervisor's handle on the keeper of a job's checkpoints (keeper_process.py), which is a process beside it.

No stop of the job signals the keeper, and the run waits for the keeper's end only for a while.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Tuple

from ddpctl_worker.machine import child, fs, notes
from ddpctl_worker.record.paths import RunPaths
from ddpctl_worker.rules.entries import FOLDER
from ddpctl_worker.run.limits import FILE_TIME_S, KEEPER_GONE_S, KEEPERS_MEET_S, LAST_KEEPER_LOOK_S
from ddpctl_worker.wire.channel import WorkerError

if TYPE_CHECKING:
    from ddpctl_worker.checkpoint.replicate import Servers

KEEPER = "ddpctl_worker.run.keeper_process"  # by name: its imports are half of all that a supervisor would load
ASKED = "asked"  # a file beside the manifests, rewritten when ranks are asked to save


class KeeperHandle:
    """The supervisor's handle on the keeper.

    ``order``: the keeper's; ``None`` for a run without checkpoints. ``top``: the run's folder.
    """

    def __init__(self, order: Optional[Dict[str, Any]], top: str) -> None:
        self._order = order
        self._strangers = RunPaths(top).strangers("keeper")
        copying = (self._order or {}).get("copying") or {}
        self._others = len(copying.get("hosts") or ()) - 1  # hosts that exchange copies with this host
        self._since = time.time() - FILE_TIME_S
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._until: Optional[float] = None  # end of the last look
        self._killed_at: Optional[float] = None
        self._reader: Optional[child.MessageReader] = None
        self._writer: Optional[child.MessageWriter] = None
        self._met: Servers = {}
        self._meet_until: Optional[float] = None
        self._ranks: Tuple[Optional[float], float] = (None, 0.0)  # as last sent to the keeper
        self._trouble = ""
        self.port: Optional[int] = None  # where this host serves its checkpoints to the other hosts
        self.lingers = False  # the keeper continues after the run
        self.ended_at: Optional[str] = None  # when the keeper died, although the run went on
        self.unfinished: List[Dict[str, Any]] = []  # files that the end of the ranks has cut off

    def start(self) -> None:
        """Start the keeper, right before the ranks. Without a keeper a run has no manifests, and continues."""
        if self._order is None:
            return
        try:
            pipe = subprocess.PIPE
            keeper = subprocess.Popen(
                child.command(KEEPER), stdin=pipe, stdout=pipe, start_new_session=True, close_fds=True
            )
        except OSError as error:
            notes.note("nobody keeps the checkpoints: %s" % error)
            self.ended_at = notes.now_iso()
            return
        keeper.returncode = 0  # the supervisor reaps every child itself
        assert keeper.stdin is not None
        assert keeper.stdout is not None
        self._reader = child.MessageReader(keeper.stdout.fileno())
        self._writer = child.MessageWriter(keeper.stdin.fileno())
        self._process = keeper
        self._send({**self._order, "since": self._since, "strangers": self._strangers})
        self._order.pop("copying", None)  # a secret

    def listen(self) -> None:
        """Read the keeper's messages."""
        if self._process is None or self._reader is None:
            return
        for message in self._reader.receive(0.0):
            self.port = message.get("port", self.port)
            self.lingers = bool(message.get("lingers", self.lingers))
            self.unfinished = list(message.get("unfinished", self.unfinished))

    def connect_replicas(self, servers: Servers) -> None:
        """Send where the other hosts serve their checkpoints. If the pipe is full, a later call sends the rest."""
        if self.port is None or self._process is None or self._writer is None:
            return
        for host, place in servers.items():
            message = {"servers": {host: place}}
            if self._met.get(host) == place or len(child.encode(message)) > select.PIPE_BUF:  # no host is that long
                continue
            with contextlib.suppress(BrokenPipeError):  # the keeper has ended, and will be reaped
                if not self._writer.offer(message):
                    return
            self._met[host] = place

    def has_met(self, servers: Servers) -> bool:
        """Return whether every host knows where the other hosts serve, or KEEPERS_MEET_S are over.

        A short run may end before; after it no host can send its address any more.
        """
        known = self.port is not None and len(servers) >= self._others
        if self._process is None or self._others < 1 or known:
            return True
        self._meet_until = self._meet_until or time.monotonic() + KEEPERS_MEET_S
        return time.monotonic() > self._meet_until

    def report_death(self, died: Optional[float], restarted: float) -> None:
        """Send when the first of the current ranks died, and when the launcher last restarted ranks (Unix seconds)."""
        if self._process is None or self._writer is None:
            return
        try:
            if (died, restarted) == self._ranks:
                self._writer.flush()
            elif self._writer.offer({"died": died, "since": restarted}):  # otherwise at the next turn
                self._ranks = (died, restarted)
        except OSError as error:
            self._note_deaf(error)
            self._ranks = (died, restarted)

    def settled(self, succeeded: bool, linger: bool = False, seconds: float = LAST_KEEPER_LOOK_S) -> bool:
        """Return whether the last look is over, or was given up after ``seconds``. The first call begins it.

        With ``linger`` the keeper stays until other hosts have copies of the checkpoints that the last look found.
        After a success it also finishes the look itself.
        """
        self.listen()
        if self._process is None or self.lingers:
            return True
        now = time.monotonic()
        if self._until is None:
            self._until = now + seconds
            self._send({"ended": succeeded, "linger": linger})
        else:
            self._flush()
        if now < self._until:
            return False
        if succeeded and linger:
            notes.note("the last look at the checkpoints takes long, and continues after the run")
            self.lingers = True
            return True
        if self._killed_at is None:
            self._killed_at = now
            notes.note("the last look at the checkpoints took too long and was ended; the next start has another")
            os.kill(self._process.pid, signal.SIGKILL)
        return now - self._killed_at > KEEPER_GONE_S

    def ended(self, pid: int) -> bool:
        """Forget the keeper if ``pid``, which was just reaped, is its pid; return whether the run goes on without."""
        if self._process is not None and self._process.pid == pid:
            self.listen()  # its last messages
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()
            self._process = None
            if self._until is None:
                notes.note("nobody keeps the checkpoints any more: the process %d has ended" % pid)
                self.ended_at = notes.now_iso()
                return True
        return False

    def pids(self) -> List[int]:
        """Return the keeper's pid, which a stop of the job spares."""
        return [self._process.pid] if self._process is not None else []

    def stuck(self) -> List[int]:
        """Return the keeper's pid if it outlives the run: it lingers, or a hung disk keeps it after SIGKILL."""
        late = self._killed_at is not None and time.monotonic() - self._killed_at > KEEPER_GONE_S
        return self.pids() if late or self.lingers else []

    def _send(self, message: child.Message) -> None:
        assert self._writer is not None
        try:
            self._writer.send(message)
        except OSError as error:
            self._note_deaf(error)

    def _flush(self) -> None:
        assert self._writer is not None
        with contextlib.suppress(BrokenPipeError):  # the keeper has ended, and will be reaped
            self._writer.flush()

    def _note_deaf(self, error: OSError) -> None:
        text = "the keeper of the checkpoints does not listen: %s" % error
        if text != self._trouble:
            notes.note(text)
        self._trouble = text


def look_soon(folder: str) -> None:
    """Have the keeper look at ``folder`` without long pauses: ranks were asked to save, and a user waits."""
    with contextlib.suppress(OSError, WorkerError):  # the keeper finds the checkpoint anyway, only later
        fs.private_dir(os.path.join(folder, FOLDER))
        fs.write_json(os.path.join(folder, FOLDER, ASKED), {}, durable=False)
