"""ProxyCommand: a command of the user's ssh_config whose stdin and stdout are the connection."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from contextlib import suppress

from ddpctl.errors import Unreachable
from ddpctl.transport.dial import Dropped
from ddpctl.transport.limits import CONNECT_S, FIRST_BYTE_S
from ddpctl.transport.pipe import Tail
from ddpctl.transport.route import Hop


class ProxySocket:
    """What paramiko needs of a socket, over a child's pipes. (paramiko's own waits for full buffers.)"""

    def __init__(self, hop: Hop) -> None:
        self._timeout: float | None = None
        self._closed = False
        # As ssh(1) does it: the user's own line, from the user's own file, in the user's shell.
        self._child = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {hop.proxy_command}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            bufsize=0,
        )
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        assert self._child.stderr is not None
        self._in, self._out, self._err = self._child.stdin, self._child.stdout, self._child.stderr
        os.set_blocking(self._in.fileno(), False)
        os.set_blocking(self._err.fileno(), False)
        self._tail = Tail(4096)
        try:
            self._await_first_byte(hop)
        except BaseException:
            self.close()
            raise

    def _await_first_byte(self, hop: Hop) -> None:
        if not self._ready(self._out.fileno(), select.POLLIN, CONNECT_S + FIRST_BYTE_S):
            raise Unreachable(f"no answer through ProxyCommand `{hop.proxy_command}`", hint="try it by hand")
        self._head = os.read(self._out.fileno(), 1 << 15)
        if not self._head:
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(1.0)
            if self._child.returncode:
                said = self._said()
                raise Unreachable(
                    f"ProxyCommand `{hop.proxy_command}` ended with status {self._child.returncode}"
                    + (f": {said}" if said else ""),
                    hint="try it by hand",
                )
            raise Dropped

    def _said(self) -> str:
        self._drain()
        lines = self._tail.get().decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def _drain(self) -> None:
        """stderr must not fill up and stop the command."""
        with suppress(BlockingIOError, ValueError, OSError):
            self._tail.add(os.read(self._err.fileno(), 4096))

    @staticmethod
    def _ready(fd: int, event: int, timeout: float | None) -> bool:
        poll = select.poll()
        poll.register(fd, event)
        return bool(poll.poll(None if timeout is None else timeout * 1000))

    def settimeout(self, timeout: float | None) -> None:
        self._timeout = timeout

    def gettimeout(self) -> float | None:
        return self._timeout

    def send(self, data: bytes) -> int:
        if not self._ready(self._in.fileno(), select.POLLOUT, self._timeout):
            raise TimeoutError
        return os.write(self._in.fileno(), data[: 1 << 15])

    def recv(self, size: int) -> bytes:
        if self._head:
            data, self._head = self._head[:size], self._head[size:]
            return data
        self._drain()
        if not self._ready(self._out.fileno(), select.POLLIN, self._timeout):
            raise TimeoutError
        return os.read(self._out.fileno(), size)

    def shutdown(self, _how: int) -> None:
        self._end()

    def _end(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGTERM)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._end()
        until = time.monotonic() + 1.0
        while self._child.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        if self._child.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait(5)
        for stream in (self._in, self._out, self._err):
            stream.close()
