"""Plain commands on a host: fabric's `run` and `sudo` over ddpctl's own login.

Fabric alone would do what ddpctl must not: read its own configuration and ssh_config, accept any host key, log in, wait
without a deadline, keep all output. Only ``Transport.run`` imports this module. The pipe of the worker stays a raw
channel.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import fabric
import paramiko
from fabric.runners import Remote
from invoke.context import Context
from invoke.exceptions import AuthFailure, CommandTimedOut, Failure, ResponseNotAccepted
from invoke.runners import Local, Runner

from ddpctl.errors import RemoteError
from ddpctl.spec.command import Ran
from ddpctl.transport.exec_guard import guarded
from ddpctl.transport.limits import CHANNEL_S, ENDING_S, OUTPUT_BYTES, POLL_S, PROMPT_BYTES
from ddpctl.transport.link import HopLogin
from ddpctl.transport.pipe import Tail
from ddpctl.transport.route import Hop

# Random, so that no program can print it and be given the password.
PROMPT = f"[ddpctl {secrets.token_hex(16)}]"


class _Bounded(Runner):
    """Additions to both runners of fabric.

    - The output is bounded.
    - One deadline holds for the command and its output.
    - sudo gets the password once.
    """

    read_chunk_size = 1 << 15
    _until: float | None = None
    _late = False

    def start_timer(self, timeout: float | None) -> None:
        """Store the deadline for ``wait``: fabric would start a thread for each host."""
        self._until = None if timeout is None else time.monotonic() + timeout

    @property
    def timed_out(self) -> bool:
        return self._late

    def wait(self) -> None:
        """Wait until the command and its output have ended; after the deadline, end the command (exec_guard.py)."""
        if not self._over(self._until):
            self._late = True
            with suppress(OSError, EOFError, paramiko.SSHException):
                self.close_proc_stdin()
            if not self._over(time.monotonic() + ENDING_S):
                self.kill()

    def _over(self, until: float | None) -> bool:
        """Wait until the command and its output have ended; False: the time is over.

        True also after a reader failed, which happens after a wrong password.
        """
        while not self.has_dead_threads:
            reading = [thread for thread in self.threads.values() if thread.is_alive()]
            if not reading and self.process_is_finished:
                return True
            if until is not None and time.monotonic() >= until:
                return False
            if reading:
                reading[0].join(POLL_S)
            else:
                time.sleep(self.input_sleep)
        return True

    def _handle_output(self, buffer_: list[str], hide: bool, output: Any, reader: Callable[[int], bytes]) -> None:
        """Collect the end of a stream and decode it in one piece, so that no character is cut in two."""
        tail, total = Tail(OUTPUT_BYTES), 0
        while data := reader(self.read_chunk_size):
            tail.add(data)
            total += len(data)
            if self.watchers and total <= PROMPT_BYTES:
                self.respond([self.decode(tail.get())])
        if total > OUTPUT_BYTES:
            buffer_.append(f"[{total - OUTPUT_BYTES} earlier bytes were left out]\n")
        buffer_.append(self.decode(tail.get()))

    def respond(self, buffer_: list[str]) -> None:
        """Answer sudo's prompt once. A second prompt, in any language, means a wrong password."""
        if buffer_[0].count(PROMPT) > 1:
            raise ResponseNotAccepted
        super().respond(buffer_)


class _OnHost(_Bounded, Remote):  # type: ignore[misc]  # fabric has no types
    """A command on a channel of a ``NodeConnection``."""

    def start(self, command: str, shell: str, env: dict[str, str]) -> None:
        _refuse(env)
        super().start(command, shell, {})

    def send_start_message(self, command: str) -> None:
        self.context.link.execute(self.channel, command)

    def stop(self) -> None:
        super().stop()
        if hasattr(self, "channel"):
            self.context.end_session(self.channel)


class _Here(_Bounded, Local):
    """A command on this machine, in its own session: Ctrl-C on the terminal does not reach it."""

    process: Any

    def start(self, command: str, shell: str, env: dict[str, str]) -> None:
        _refuse(env)
        with self.context.starting:
            self.process = subprocess.Popen(
                [*self.context.starter, command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=Path.home(),
                start_new_session=True,
            )
            self.context.running.add(self)

    def stop(self) -> None:
        super().stop()
        self.context.running.discard(self)
        if hasattr(self, "process"):
            for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
                stream.close()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(4 * ENDING_S)

    def kill(self) -> None:
        """Do nothing: the command's input has ended, and the guard shell ends the rest (exec_guard.py)."""


class _ByOpenSSH(_Here):
    """A command on a host: ssh, a process of this machine, runs it there."""

    def kill(self) -> None:
        """End ssh, which may wait for ever for a connection that is dead."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)


def _refuse(env: dict[str, str]) -> None:
    """Refuse environment variables, which fabric would write unquoted into a shell line."""
    if env:
        raise TypeError("env= is refused: name variables in the command (`env NAME=VALUE ...`)")


# Shared by all hosts. Lazy and with an empty ssh_config: fabric reads no file and no environment variable.
def _configure(local: type[Runner]) -> fabric.Config:
    run = {"hide": True, "warn": True, "pty": False, "in_stream": False, "encoding": "utf-8", "replace_env": True}
    overrides = {"run": run, "sudo": {"prompt": PROMPT}, "runners": {"remote": _OnHost, "local": local}}
    return fabric.Config(lazy=True, ssh_config=paramiko.SSHConfig(), overrides=overrides)


CONFIG, CONFIG_BY_OPENSSH = _configure(_Here), _configure(_ByOpenSSH)


class NodeConnection(fabric.Connection):  # type: ignore[misc]
    """fabric's connection on a login of ddpctl, with its host keys, identities, jump hosts and passwords.

    ``connect`` returns the host's login, which its owner closes. ``reclaim``: see ``Slots.take``.
    """

    link: HopLogin
    # fabric assigns it; undeclared, it would become a change of the configuration that all hosts share
    inline_ssh_env = None
    # fabric stores undeclared names in its configuration
    _connect: Callable[[], HopLogin] = None  # type: ignore[assignment]
    _reclaim: Callable[[], None] = None  # type: ignore[assignment]
    _channels: dict[paramiko.Channel, HopLogin] = {}  # noqa: RUF012  # as above; __init__ makes one per instance

    def __init__(self, hop: Hop, connect: Callable[[], HopLogin], reclaim: Callable[[], None]) -> None:
        super().__init__(hop.address, user=hop.user, port=hop.port, config=CONFIG, gateway=False, forward_agent=False)
        self._connect, self._reclaim, self._channels = connect, reclaim, {}
        self._set(link=None)

    def open(self) -> None:
        """Log in, unless there is a connection.

        Raises:
            ConnectError: the host could not be reached, or refused the login.
        """
        link = self._connect()
        self._set(link=link)
        self.transport = link.connection

    def create_session(self) -> paramiko.Channel:
        """Return a channel, once a slot is free.

        Raises:
            LinkLost, RemoteError: as for ``HopLogin.session``.
        """
        link = self.link
        channel = link.session(CHANNEL_S, self._reclaim)
        self._channels[channel] = link
        return channel

    def end_session(self, channel: paramiko.Channel) -> None:
        """Free the slot of a channel. A second call does nothing."""
        link = self._channels.pop(channel, None)
        if link is not None:
            link.end_session(channel)

    def close(self) -> None:
        """End the running commands and wait for their ends. The owner closes the connection."""
        channels = list(self._channels)
        for channel in channels:
            with suppress(OSError, EOFError, paramiko.SSHException):
                channel.shutdown_write()
        until = time.monotonic() + ENDING_S
        for channel in channels:
            channel.status_event.wait(max(0.0, until - time.monotonic()))


class ThisMachine(Context):
    """Commands on this machine (``connection: local``)."""

    settings = CONFIG
    starter: Sequence[str] = ("/bin/sh", "-c")  # the words before a command line
    running: set[_Here] = set()  # noqa: RUF012  # see NodeConnection
    starting: threading.Lock = None  # type: ignore[assignment]  # from the start of a process until it is in ``running``

    def __init__(self) -> None:
        super().__init__(self.settings)
        self.running, self.starting = set(), threading.Lock()

    def close(self) -> None:
        """End the running commands and wait for their ends."""
        with self.starting:
            runners = list(self.running)
        for runner in runners:
            with suppress(OSError):
                runner.close_proc_stdin()
        until = time.monotonic() + ENDING_S
        for runner in runners:
            with suppress(subprocess.TimeoutExpired):
                runner.process.wait(max(0.0, until - time.monotonic()))


class OverOpenSSH(ThisMachine):
    """Commands on a host whose connection OpenSSH holds."""

    settings = CONFIG_BY_OPENSSH

    def close(self) -> None:
        super().close()
        with self.starting:
            runners = list(self.running)
        for runner in runners:
            runner.kill()


def run(node: Context, argv: Sequence[str], timeout: float | None, password: str | None) -> Ran:
    """Do ``Transport.run`` on a ``NodeConnection`` or on ``ThisMachine``."""
    line = guarded(argv)
    result: Any
    try:
        if password:
            result = node.sudo(line, password=password, timeout=timeout)
        else:
            # `exec`: sshd then starts the guard shell directly, and its session holds no other process.
            result = node.run(f"sudo -n {line}" if password == "" else f"exec {line}", timeout=timeout)
    except CommandTimedOut as late:
        return _ran(late.result, f"did not end within {timeout:g} s and was ended")
    except AuthFailure:
        raise RemoteError("sudo does not accept the password", kind="sudo_password") from None
    except Failure as failure:
        raise RemoteError(f"the command could not be run ({failure.reason})") from None
    code = result.exited
    if code is None or code < 0:
        raise RemoteError("the command ended without an exit status", kind="no_exit_status")
    return _ran(result)


def _ran(result: Any, error: str | None = None) -> Ran:
    stderr = result.stderr.replace(PROMPT, "")
    return Ran(None if error else result.exited, result.stdout, stderr, error)
