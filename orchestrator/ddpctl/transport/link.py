"""An authenticated SSH connection: commands and tunnels over it, never more at once than sshd allows."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import paramiko
from paramiko.common import cMSG_CHANNEL_REQUEST

from ddpctl.errors import ConnectError, LinkLost, RemoteError, Unreachable
from ddpctl.transport.dial import Dropped, silent_server
from ddpctl.transport.limits import (
    CHANNEL_READ_BYTES,
    CHANNEL_S,
    CHANNEL_WRITE_BYTES,
    CHANNELS,
    DYING_S,
    FIRST_BYTE_S,
    POLL_S,
    SESSION_PAUSE_S,
    SESSION_RETRIES,
)
from ddpctl.transport.pipe import Tail
from ddpctl.transport.route import Hop
from ddpctl_worker.wire.contract import BUSY


class Connection(paramiko.Transport):
    """An SSH connection with three changes to paramiko's.

    - An idle connection wakes up once a second instead of ten times: hundreds of connections are held open.
    - A refused channel is reported to the thread that asked for it, with the server's reason. paramiko keeps one
      exception per connection, so that of two refused channels the first would get the second's reason.
    - The reading thread survives an error of the socket while it closes it.
    """

    _active_check_timeout = 1.0
    preferred_keys: tuple[str, ...] = ()  # host key algorithms; paramiko would always offer certificates, and last
    active: bool  # set by paramiko, missing in its stubs

    def __init__(self, sock: Any) -> None:
        self._refusals: dict[int, paramiko.ChannelException] = {}
        self._asking = threading.local()
        super().__init__(sock)
        # The reading thread closes the packetizer last, and then wakes the threads that wait. Through a jump host the
        # socket is a channel of another connection, which may be gone. Its error must not end the reading thread before
        # that.
        self._close_packetizer = self.packetizer.close
        self.packetizer.close = self._closed_quietly  # type: ignore[method-assign]

    def _closed_quietly(self) -> None:
        with suppress(OSError, EOFError, paramiko.SSHException):
            self._close_packetizer()

    def _next_channel(self) -> int:
        """Called by open_channel on the requesting thread."""
        number: int = super()._next_channel()  # type: ignore[misc]
        self._asking.number = number
        return number

    def _parse_channel_open_failure(self, message: paramiko.Message) -> None:
        """Called on the reading thread."""
        number, code, text = message.get_int(), message.get_int(), message.get_text()
        with self.lock:
            self._refusals[number] = paramiko.ChannelException(code, text)
            self._channels.delete(number)  # type: ignore[attr-defined]
            event = self.channel_events.pop(number, None)
        if event is not None:
            event.set()

    def get_exception(self) -> Exception | None:
        """Return why the last request of this thread failed, and forget it."""
        number = getattr(self._asking, "number", None)
        if number is not None and number in self._refusals:
            return self._refusals.pop(number)
        return super().get_exception()

    def hang_up(self) -> None:
        """End the connection at once. A second call does nothing.

        The socket may be a channel of another connection that has already ended. Then each step can fail, and the next
        step is still taken.
        """
        steps: tuple[Callable[[], object], ...] = (
            lambda: self.sock.shutdown(2),  # wakes the reading thread, which closing alone does not
            self.close,
            self.sock.close,
        )
        for step in steps:
            with suppress(OSError, EOFError, paramiko.SSHException):
                step()


_OPEN_FAILED_CONNECT = 2  # RFC 4254: SSH_OPEN_CONNECT_FAILED
_OPEN_PROHIBITED = 1  # SSH_OPEN_ADMINISTRATIVELY_PROHIBITED


class Slots:
    """Bounds the commands on a connection, and lowers the bound when the server refuses a session."""

    def __init__(self, limit: int = CHANNELS) -> None:
        self._limit = limit
        self._used = 0
        self._free = threading.Condition()

    def take(self, timeout: float, reclaim: Callable[[], None]) -> bool:
        """Take a slot within ``timeout`` seconds; False: all slots stayed in use.

        ``reclaim`` frees a slot that is kept in reserve, if there is one.
        """
        until = time.monotonic() + timeout
        with self._free:
            while self._used >= self._limit:
                reclaim()
                if self._used < self._limit:
                    break
                left = until - time.monotonic()
                if left <= 0:
                    return False
                self._free.wait(min(left, POLL_S))
            self._used += 1
            return True

    def give(self) -> None:
        with self._free:
            self._used -= 1
            self._free.notify()

    def shrink(self) -> bool:
        """Lower the bound after the server refused a session. False: no other command was running."""
        with self._free:
            self._limit = max(1, self._used - 1)
            return self._used > 1


class HopLogin:
    """A logged-in connection to ``hop``."""

    def __init__(self, hop: Hop, connection: Connection) -> None:
        self.hop = hop
        self.connection = connection
        self._slots = Slots()

    @property
    def alive(self) -> bool:
        return self.connection.is_active()

    def has_died(self) -> bool:
        """Return whether the connection is dead, or dies within DYING_S.

        paramiko ends the channels of a connection shortly before the connection.
        """
        until = time.monotonic() + DYING_S
        while self.alive and time.monotonic() < until:
            time.sleep(0.01)
        return not self.alive

    def start(self, line: str, timeout: float, reclaim: Callable[[], None]) -> ChannelPipe:
        """Run a shell line in a new session.

        Raises:
            LinkLost, RemoteError: as for ``session``.
        """
        channel = self.session(timeout, reclaim)
        try:
            self.execute(channel, line)
        except BaseException:
            self.end_session(channel)
            raise
        return ChannelPipe(self, channel)

    def session(self, timeout: float, reclaim: Callable[[], None]) -> paramiko.Channel:
        """Return a channel for a command; wait at most ``timeout`` seconds for a free slot.

        ``reclaim``: see ``Slots.take``.

        Raises:
            LinkLost: the connection is dead; no command ran.
            RemoteError: the server opens no session.
        """
        until = time.monotonic() + timeout
        alone = 0
        while True:
            if not self._slots.take(max(0.0, until - time.monotonic()), reclaim):
                raise RemoteError(f"{CHANNELS} commands have been running there for {timeout:g} s", kind=BUSY)
            try:
                return self.connection.open_session(timeout=CHANNEL_S)
            except paramiko.ChannelException as error:
                alone += not self._slots.shrink()
                self._slots.give()
                if alone > SESSION_RETRIES or time.monotonic() > until:
                    raise RemoteError(
                        f"sshd opens no session ({error.text})",
                        kind="no_session",
                        hint="raise MaxSessions in sshd_config there, or see its log",
                    ) from None
                time.sleep(SESSION_PAUSE_S)
            except (paramiko.SSHException, EOFError, OSError) as error:
                self._slots.give()
                raise self.lost_error(error) from None
            except BaseException:
                self._slots.give()
                raise

    def execute(self, channel: paramiko.Channel, line: str) -> None:
        """Request the run of ``line`` without waiting for the reply.

        exec_command() waits for ever when the connection dies at that moment. A server that refuses closes the channel,
        which the reader sees.

        Raises:
            LinkLost: the connection is dead.
        """
        message = paramiko.Message()
        message.add_byte(cMSG_CHANNEL_REQUEST)
        message.add_int(channel.remote_chanid)
        message.add_string("exec")
        message.add_boolean(True)
        message.add_string(line)
        try:
            self.connection._send_user_message(message)  # type: ignore[attr-defined]  # as paramiko's Channel does
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise self.lost_error(error) from None

    def end_session(self, channel: paramiko.Channel) -> None:
        """Close the session's channel and free its slot. Call it once per session."""
        with suppress(paramiko.SSHException, EOFError, OSError):
            channel.close()
        self._slots.give()

    def tunnel(self, target: Hop) -> paramiko.Channel:
        """Return a connection from this hop to ``target``, on which the server there has begun to speak.

        Raises:
            ConnectError: the connection cannot be made.
            Dropped: the server hung up at once.
        """
        try:
            channel = self.connection.open_channel(
                "direct-tcpip", (target.address, target.port), ("127.0.0.1", 0), timeout=CHANNEL_S
            )
        except paramiko.ChannelException as error:
            raise self._no_tunnel(target, error) from None
        except (paramiko.SSHException, EOFError, OSError) as error:
            if self.alive:  # the jump host is still trying to connect
                raise Unreachable(
                    f"no answer from {target.where} through {self.hop.label} within {CHANNEL_S:g} s",
                    hint=f"is the host up, and can {self.hop.label} reach it?",
                ) from None
            raise self.lost_error(error) from None
        spoke = threading.Event()
        channel.in_buffer.set_event(spoke)
        if not spoke.wait(FIRST_BYTE_S):
            channel.close()
            raise silent_server(target)
        if not channel.recv_ready():
            channel.close()
            raise Dropped
        return channel

    def _no_tunnel(self, target: Hop, error: paramiko.ChannelException) -> ConnectError:
        if error.code == _OPEN_PROHIBITED:
            return Unreachable(
                f"{self.hop.label} does not forward to {target.where} ({error.text})",
                hint=f"set `AllowTcpForwarding yes` in sshd_config on {self.hop.label}",
            )
        why = "cannot connect" if error.code == _OPEN_FAILED_CONNECT else "opens no tunnel"
        return Unreachable(
            f"{self.hop.label} {why} to {target.where} ({error.text})",
            hint=f"is the host up, and can {self.hop.label} reach it by that name and port?",
        )

    def lost_error(self, error: object = None) -> LinkLost:
        detail = f" ({error})" if error and str(error) else ""
        return LinkLost(f"the connection is lost{detail}", hint="check the host and the network to it")

    def close(self) -> None:
        self.connection.hang_up()


class ChannelPipe:
    """The streams of a command on a channel of a login."""

    def __init__(self, link: HopLogin, channel: paramiko.Channel) -> None:
        self._link, self._channel = link, channel
        channel.settimeout(POLL_S)
        self._tail = Tail()
        self._lock = threading.Lock()
        self._open = True

    def send(self, data: memoryview, timeout: float) -> int:
        try:
            taken = self._channel.send(bytes(data[:CHANNEL_WRITE_BYTES]))
        except TimeoutError:
            return 0
        except (paramiko.SSHException, EOFError, OSError):
            taken = 0
        if not taken:
            raise BrokenPipeError
        return taken

    def end_input(self) -> None:
        with suppress(paramiko.SSHException, EOFError, OSError):
            self._channel.shutdown_write()

    def recv(self, timeout: float) -> bytes | None:
        self._channel.settimeout(timeout)
        try:
            data = self._channel.recv(CHANNEL_READ_BYTES)
        except TimeoutError:
            data = None
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise self._link.lost_error(error) from None
        self._drain()
        if data == b"" and not self._channel.eof_received and self._link.has_died():
            raise self._link.lost_error()
        return data

    def _drain(self) -> None:
        """Read stderr. It shares the window with stdout: unread, it would stop stdout."""
        while self._channel.recv_stderr_ready():
            self._tail.add(self._channel.recv_stderr(CHANNEL_READ_BYTES))

    def stderr(self) -> bytes:
        self._drain()
        return self._tail.get()

    def exit_code(self, timeout: float) -> int:
        self._channel.status_event.wait(timeout)
        code = int(self._channel.exit_status)
        if code < 0 and self._link.has_died():
            raise self._link.lost_error()
        return code

    def close(self, *, lost: bool = False) -> None:
        with self._lock:
            if not self._open:
                return
            self._open = False
        if lost:
            self._link.close()  # a write may hang in the connection, and then a proper close would hang too
        self._link.end_session(self._channel)
