"""ProxyCommand: a command of the user's ssh_config whose stdin and stdout are the connection."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import time
from contextlib import suppress

from ddpctl.errors import Unreachable
from ddpctl.transport.dial import Dropped, wait_until_readable
from ddpctl.transport.limits import CONNECT_S, FIRST_BYTE_S, PROXY_END_S, PROXY_KILL_S, PROXY_STDERR_BYTES
from ddpctl.transport.pipe import Tail
from ddpctl.transport.route import Hop
from ddpctl.transport.ssh_config import in_shell


class ProxyEnded(Dropped):
    """The command ended without output and without an error: the server, or a host on the way, hung up."""


class ProxySocket:
    """The methods of a socket that paramiko uses, on a socket pair with a child at the other end.

    paramiko's own ProxyCommand waits until buffers are full.
    """

    def __init__(self, hop: Hop) -> None:
        self._closed = False
        try:
            self._sock, theirs = socket.socketpair()
        except OSError as error:
            raise _no_start(hop, error) from None
        with theirs:
            self._child = self._started(hop, theirs)
        assert self._child.stderr is not None
        self._err = self._child.stderr
        os.set_blocking(self._err.fileno(), False)
        self._tail = Tail(PROXY_STDERR_BYTES)
        try:
            self._await_first_byte(hop)
        except BaseException:
            self.close()
            raise

    def _started(self, hop: Hop, theirs: socket.socket) -> subprocess.Popen[bytes]:
        """Start the user's own line in the user's shell, as ssh(1) does."""
        try:
            return subprocess.Popen(
                in_shell(f"exec {hop.proxy_command}"),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,
                start_new_session=True,
                bufsize=0,
            )
        except OSError as error:
            self._sock.close()
            raise _no_start(hop, error) from None

    def _await_first_byte(self, hop: Hop) -> None:
        if not wait_until_readable(self._sock, CONNECT_S + FIRST_BYTE_S):
            raise Unreachable(
                f"no answer through ProxyCommand `{hop.proxy_command}` within {CONNECT_S + FIRST_BYTE_S:g} s",
                hint="run it by hand to see why",
            )
        try:
            if self._sock.recv(1, socket.MSG_PEEK):
                return
        except OSError:
            pass
        with suppress(subprocess.TimeoutExpired):
            self._child.wait(PROXY_END_S)
        said = self._said()
        if self._child.returncode:
            raise Unreachable(
                f"ProxyCommand `{hop.proxy_command}` ended with status {self._child.returncode}"
                + (f": {said}" if said else ""),
                hint="run it by hand to see why",
            )
        raise ProxyEnded(said.encode())

    def _said(self) -> str:
        self._drain()
        lines = self._tail.get().decode("utf-8", "replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def _drain(self) -> None:
        """Read stderr, because a full pipe would stop the command."""
        with suppress(BlockingIOError, ValueError, OSError):
            self._tail.add(os.read(self._err.fileno(), PROXY_STDERR_BYTES))

    def settimeout(self, timeout: float | None) -> None:
        self._sock.settimeout(timeout)

    def send(self, data: bytes) -> int:
        return self._sock.send(data)

    def recv(self, size: int) -> bytes:
        self._drain()
        return self._sock.recv(size)

    def shutdown(self, how: int) -> None:
        with suppress(OSError):
            self._sock.shutdown(how)  # wakes the reading thread
        self._end()

    def _end(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGTERM)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._end()
        until = time.monotonic() + PROXY_END_S
        while self._child.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        if self._child.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait(PROXY_KILL_S)
        self._sock.close()
        self._err.close()


def _no_start(hop: Hop, error: OSError) -> Unreachable:
    hint = "raise `ulimit -n`" if error.errno in (errno.EMFILE, errno.ENFILE) else "run it by hand to see why"
    return Unreachable(f"ProxyCommand `{hop.proxy_command}` cannot be started: {error.strerror}", hint=hint)
