"""This machine as a host: the same worker over the pipes of a subprocess, without SSH."""

from __future__ import annotations

import os
import pwd
import select
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ddpctl.errors import RemoteError
from ddpctl.spec.command import Ran
from ddpctl.transport import conversation
from ddpctl.transport.bootstrap import BOOTSTRAP, no_interpreter_error
from ddpctl.transport.limits import LOCAL_CHUNK_BYTES, LOCAL_END_S, LOCAL_KILL_S, LOCAL_TERM_S
from ddpctl.transport.pipe import Tail
from ddpctl.transport.quiet import QuietCalls

if TYPE_CHECKING:
    from ddpctl.spec.inventory import Host
    from ddpctl.transport.node import ThisMachine


class ProcessPipe:
    """A child process in its own session: Ctrl-C on the terminal does not reach it, closing the pipe ends it."""

    def __init__(
        self, argv: list[str], environment: Mapping[str, str] | None = None, folder: str | Path | None = None
    ) -> None:
        """``environment``: variables that are added to this process's own. ``folder``: default: the home folder."""
        self._child = subprocess.Popen(
            argv,
            env={**os.environ, **environment} if environment else None,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder or Path.home(),
            start_new_session=True,
            bufsize=0,
        )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        assert self._child.stderr is not None
        self._in, self._out, self._err = self._child.stdin, self._child.stdout, self._child.stderr
        for stream in (self._in, self._out, self._err):
            os.set_blocking(stream.fileno(), False)
        self._tail = Tail()
        self._err_open = True
        self._closing = threading.Lock()
        self._in_lock = threading.Lock()

    def send(self, data: memoryview, timeout: float) -> int:
        with self._in_lock:
            if self._in.closed:
                raise BrokenPipeError
            poll = select.poll()
            poll.register(self._in, select.POLLOUT)
            if not poll.poll(timeout * 1000):
                return 0
            try:
                return os.write(self._in.fileno(), data[:LOCAL_CHUNK_BYTES])
            except BlockingIOError:
                return 0

    @property
    def closed(self) -> bool:
        return self._out.closed

    def end_input(self) -> None:
        with self._in_lock:
            self._in.close()

    def recv(self, timeout: float) -> bytes | None:
        until = time.monotonic() + timeout
        while True:
            poll = select.poll()
            poll.register(self._out, select.POLLIN)
            if self._err_open:
                poll.register(self._err, select.POLLIN)
            ready = {fd for fd, _ in poll.poll(max(0.0, until - time.monotonic()) * 1000)}
            if self._err.fileno() in ready:
                self._drain()
            if self._out.fileno() in ready:
                with suppress(BlockingIOError):
                    return os.read(self._out.fileno(), LOCAL_CHUNK_BYTES)
            if time.monotonic() >= until:
                return None

    def _drain(self) -> None:
        with suppress(BlockingIOError):
            data = os.read(self._err.fileno(), LOCAL_CHUNK_BYTES)
            self._tail.add(data)
            self._err_open = bool(data)

    def stderr(self) -> bytes:
        if not self._err.closed:
            poll = select.poll()
            poll.register(self._err, select.POLLIN)
            while self._err_open and poll.poll(0):
                self._drain()
        return self._tail.get()

    def exit_code(self, timeout: float) -> int:
        try:
            code = self._child.wait(timeout)
        except subprocess.TimeoutExpired:
            return -1
        return code if code >= 0 else 128 - code

    def close(self, *, lost: bool = False) -> None:
        with self._closing:
            if self._out.closed:
                return
            with self._in_lock:
                self._in.close()  # the end of its stdin stops the worker
            self.stderr()
            self._out.close()
            if self.exit_code(LOCAL_END_S) < 0:
                self._end()
            self.stderr()
            self._err.close()

    def _end(self) -> None:
        """End the child's session: SIGTERM, then SIGKILL."""
        for number, patience in ((signal.SIGTERM, LOCAL_TERM_S), (signal.SIGKILL, LOCAL_KILL_S)):
            with suppress(ProcessLookupError, PermissionError):  # macOS refuses to signal a zombie
                os.killpg(self._child.pid, number)
            if self.exit_code(patience) >= 0:
                return


class LocalTransport(conversation.WorkerTransport):
    """``connection: local``."""

    def __init__(self, host: Host, quiet: QuietCalls | None = None) -> None:
        super().__init__(host, quiet)
        self._open: set[ProcessPipe] = set()
        self._node: ThisMachine | None = None

    @property
    def user(self) -> str:
        try:
            return pwd.getpwuid(os.getuid()).pw_name
        except KeyError:  # an account without a name
            return str(os.getuid())

    def prepare(self) -> None:
        """Nothing to connect."""

    def _worker(self, timeout: float | None) -> ProcessPipe:
        python = self._host.python
        try:
            return self._start(
                [str(Path(python).expanduser()) if python.startswith("~") else python, "-I", "-c", BOOTSTRAP]
            )
        except OSError as error:
            unfit = no_interpreter_error(python, isinstance(error, FileNotFoundError), f": {error.strerror}")
            raise conversation.with_host(self.host, unfit) from None

    def run(self, argv: Sequence[str], *, timeout: float | None = 60.0, password: str | None = None) -> Ran:
        from ddpctl.transport import node  # fabric loads slowly and only `exec` needs it

        with self._lock:
            self._node = self._node or node.ThisMachine()
        try:
            return node.run(self._node, argv, timeout, password)
        except RemoteError as error:
            raise conversation.with_host(self.host, error) from None

    def _start(self, argv: list[str]) -> ProcessPipe:
        pipe = ProcessPipe(argv)
        with self._lock:
            self._open = {pipe, *(other for other in self._open if not other.closed)}
        return pipe

    def close(self) -> None:
        with self._lock:
            pipes, node = list(self._open), self._node
        if node is not None:
            node.close()
        for pipe in pipes:
            pipe.close()
