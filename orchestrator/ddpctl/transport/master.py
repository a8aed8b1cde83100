"""Connections that OpenSSH's ssh holds, for hosts that need more than ddpctl's own client can do.

Such needs are second factors, GSSAPI, PKCS#11, security keys, and options of ssh_config that ddpctl does not follow. An
ssh process logs in and keeps the connection (ControlMaster). Each command is another ssh process, which uses that
connection through a socket. An open ControlMaster of the user is used instead, and left open.

A shell beside the ssh process that keeps the connection reads a pipe of ddpctl. If ddpctl dies, the shell reads the end
of the pipe and ends that process.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from ddpctl.errors import (
    AuthRefused,
    ConnectError,
    HostKeyChanged,
    HostKeyUnknown,
    LinkLost,
    NameUnknown,
    RemoteError,
    Unreachable,
)
from ddpctl.transport.asked_config import read_options, run_ssh
from ddpctl.transport.askpass import Askpass
from ddpctl.transport.bootstrap import last_line
from ddpctl.transport.identities import DEFAULT_KEYS
from ddpctl.transport.jumps import JumpHosts
from ddpctl.transport.limits import (
    CHANNELS,
    CONTROL_CHECK_S,
    DYING_S,
    EXIT_CODE_S,
    NOISE_BYTES,
    OPENSSH_LOGIN_S,
    OPENSSH_LOOK_S,
    POLL_S,
    PROXIES,
)
from ddpctl.transport.link import Slots
from ddpctl.transport.local import ProcessPipe
from ddpctl.transport.openssh import CommandLines, Options, share_options
from ddpctl.transport.prompts import Banners, Prompter, Say
from ddpctl.transport.route import Hop
from ddpctl.transport.ssh_words import first_value
from ddpctl_worker.wire.contract import BUSY

# Runs its arguments (ssh), and ends them once its own input ends. It ends when they end, with their exit status.
_GUARD = (
    'exec 3<&0 </dev/null; "$@" & ssh=$!; { cat <&3 >/dev/null; kill $ssh; } 2>/dev/null & '
    "watch=$!; wait $ssh; code=$?; kill $watch 2>/dev/null; exit $code"
)
_KEEPER = "exec cat"  # holds a session on a connection of the user
SSH_FAILED = 255  # ssh's exit status where it has no connection
_SECURITY_KEYS = ("~/.ssh/id_ecdsa_sk", "~/.ssh/id_ed25519_sk")
_PARENT_LETTERS = 60  # of the folder above the sockets: a socket's path has 107 at most, and ssh appends a suffix


def needs_openssh(hop: Hop) -> bool:
    """Return whether only OpenSSH can reach this server, or the inventory says so."""
    if hop.transport == "paramiko":
        return False
    return any(each.transport == "openssh" or each.openssh_options or _uses_security_key(each) for each in hop.chain)


def _uses_security_key(hop: Hop) -> bool:
    if hop.identities:
        return any(_public_type(path).startswith("sk-") for path in hop.identities)
    if any(os.path.exists(Path(path).expanduser()) for path in DEFAULT_KEYS):
        return False
    return any(os.path.exists(Path(path).expanduser()) for path in _SECURITY_KEYS)


def _public_type(path: str) -> str:
    try:
        return Path(f"{path}.pub").read_text("ascii", "replace").partition(" ")[0]
    except OSError:
        return ""


class Master:
    """A connection that an ssh process holds. ``shared``: the options for ssh to use it."""

    def __init__(self, hop: Hop, keeper: ProcessPipe, lines: CommandLines, shared: Options) -> None:
        self.hop = hop
        self.shared = shared
        self._keeper, self._lines = keeper, lines
        self._slots = Slots()

    @property
    def alive(self) -> bool:
        return self._keeper.exit_code(0.0) < 0

    def has_died(self) -> bool:
        """Return whether the connection is dead, or dies within DYING_S."""
        return self._keeper.exit_code(DYING_S) >= 0

    @property
    def command_words(self) -> list[str]:
        """The command line that runs a command on the host, up to that command."""
        return self._lines.command(self.hop, self.shared)

    def start(self, line: str, timeout: float, reclaim: Callable[[], None]) -> SessionPipe:
        """Run a shell line in a new session.

        Raises:
            LinkLost: the connection is dead; no command ran.
            RemoteError: all sessions are in use for ``timeout`` seconds.
        """
        self.take_slot(timeout, reclaim)
        try:
            return SessionPipe(self, [*self.command_words, line])
        except BaseException:
            self.give_slot()
            raise

    def take_slot(self, timeout: float, reclaim: Callable[[], None]) -> None:
        """Wait for the right to open a session; raises as ``start``."""
        if not self.alive:
            raise self.lost_error()
        if not self._slots.take(timeout, reclaim):
            raise RemoteError(f"{CHANNELS} commands have been running there for {timeout:g} s", kind=BUSY)

    def give_slot(self) -> None:
        self._slots.give()

    @contextmanager
    def session(self, timeout: float, reclaim: Callable[[], None]) -> Iterator[list[str]]:
        """Yield ``command_words`` while there is a free session; raises as ``start``."""
        self.take_slot(timeout, reclaim)
        try:
            yield self.command_words
        finally:
            self.give_slot()

    def no_session_error(self) -> RemoteError:
        """Return the error of a session that sshd refused; fewer sessions are opened from now on."""
        self._slots.shrink()
        return RemoteError("sshd opens no session", kind="no_session", hint="raise MaxSessions in sshd_config there")

    def lost_error(self) -> LinkLost:
        said = last_line(self._keeper.stderr())
        return LinkLost(
            "the connection is lost" + (f" ({said})" if said else ""), hint="check the host and the network to it"
        )

    def close(self) -> None:
        self._keeper.close()


class SessionPipe(ProcessPipe):
    """The streams of a command on a connection that OpenSSH holds."""

    def __init__(self, master: Master, words: list[str]) -> None:
        self._master = master
        self._freed = threading.Lock()
        super().__init__(words, folder=".")

    def recv(self, timeout: float) -> bytes | None:
        data = super().recv(timeout)
        if data == b"" and self.exit_code(EXIT_CODE_S) == SSH_FAILED:
            if self._master.has_died():
                raise self._master.lost_error()
            if was_refused(self.stderr()):
                raise self._master.no_session_error()
        return data

    def close(self, *, lost: bool = False) -> None:
        super().close(lost=lost)
        if lost:
            self._master.close()
        if self._freed.acquire(blocking=False):
            self._master.give_slot()


def was_refused(stderr: bytes) -> bool:
    """Return whether ssh reports that sshd refused a session on the shared connection."""
    return b"Session open refused" in stderr


class Masters:
    """Opens the connections that OpenSSH holds for a fleet. ``prompter``: None where no person can be asked."""

    def __init__(self, config: str | None, prompter: Prompter | None, say: Say) -> None:
        self._lines = CommandLines(config)
        self._prompter, self._say = prompter, say
        self._banners = Banners(say)
        self._lock = threading.Lock()
        self._turn = threading.BoundedSemaphore(PROXIES)
        self._alone = threading.Lock()  # held by a login while it is not known whether logins ask, or if they do
        self._asks: bool | None = None if prompter is not None else False
        self._folder: Path | None = None
        self._askpass: Askpass | None = None
        self._number = 0
        self._jumps = JumpHosts(self.connect)
        self._shared: dict[str, Hop] = {}  # ControlPath of the user -> the server that uses it
        self._starting: set[ProcessPipe] = set()
        self._closed = False

    def connect(self, hop: Hop) -> Master:
        """Log in to ``hop``, through its jump hosts.

        Where logins ask a person, one login runs at a time: sshd gives a login two minutes.

        Raises:
            ConnectError: with the cause and the next step; the caller adds the host.
        """
        found = self._find_open_connection(hop)
        if found is not None:
            return found
        jump = self._jumps.connection(hop.via).shared if hop.via is not None else {}
        with self._turn, self._alone if self._asks is not False else nullcontext():
            master = self._login(hop, jump)
            self._asks = self._askpass is not None and self._askpass.has_asked
            return master

    def through_jump(self, hop: Hop) -> Hop:
        """Return the way to ``hop`` by a ProxyCommand, over a connection to its jump host that OpenSSH holds.

        Raises:
            ConnectError: as ``connect``, about the jump host.
        """
        assert hop.via is not None
        command = self._lines.tunnel(hop, self._jumps.connection(hop.via).shared)
        return replace(hop, via=None, proxy_command=command)

    def _login(self, hop: Hop, jump: Options) -> Master:
        asked = self._prompter is not None
        control = self._socket()
        environment = self._questions().environment(hop.label) if asked else {}
        words = self._lines.login(hop, jump, ask=asked, control=control)
        command = ["/bin/sh", "-c", _GUARD, "sh", *words]
        return self._hold(hop, command, environment, share_options(control), lambda _output: Path(control).exists())

    def _find_open_connection(self, hop: Hop) -> Master | None:
        """Return an open connection of the user (ControlMaster) to exactly this server; ``None``: there is none.

        A ControlPath that does not tell servers apart is used for a single server of the fleet. The socket of another
        account is not used: ssh does not look whose it is.
        """
        shown = read_options(self._lines.users_own(hop))
        path = first_value(shown, "controlpath", "none")
        try:
            owner = Path(path).stat().st_uid if path != "none" else None
        except OSError:  # there is no such connection
            owner = None
        if owner is None:
            return None
        if owner != os.geteuid():
            self._say(f"{hop.label}: the ControlPath {path} belongs to another account and is not used")
            return None
        target = tuple(first_value(shown, key, "") for key in ("hostname", "port", "user"))
        if target != (hop.address, str(hop.port), hop.user):
            return None
        with self._lock:
            if self._shared.setdefault(path, hop) != hop:
                return None
        shared = share_options(path)
        words = self._lines.command(hop, shared)
        try:
            if run_ssh([words[0], "-O", "check", *words[1:]], CONTROL_CHECK_S).returncode != 0:
                return None
        except Unreachable:  # the process that holds it does not answer
            return None
        mark = f"ddpctl {secrets.token_hex(16)}\n".encode("ascii")
        return self._hold(hop, [*words, _KEEPER], {}, shared, lambda output: mark in output, mark)

    def _hold(
        self,
        hop: Hop,
        command: list[str],
        environment: dict[str, str],
        shared: Options,
        is_ready: Callable[[bytes], bool],
        mark: bytes = b"",
    ) -> Master:
        """Start the process that holds a connection, and wait until ``is_ready`` of its output is true.

        ``mark``: sent as its input.
        """
        keeper = self._start(command, environment)
        try:
            if mark:
                with suppress(BrokenPipeError):
                    keeper.send(memoryview(mark), POLL_S)
            self._await_login(hop, keeper, is_ready)
            with self._lock:
                if self._closed:
                    raise LinkLost("the connections are being closed")
            return Master(hop, keeper, self._lines, shared)
        except BaseException:
            keeper.close()
            raise
        finally:
            with self._lock:
                self._starting.discard(keeper)

    def _start(self, words: list[str], environment: dict[str, str]) -> ProcessPipe:
        with self._lock:
            if self._closed:
                raise LinkLost("the connections are being closed")
            try:
                keeper = ProcessPipe(words, environment, ".")  # relative names in ssh_config count from here
            except OSError as error:
                raise Unreachable(f"ssh cannot be started: {error.strerror}", hint="check `ulimit -n`") from None
            self._starting.add(keeper)
            return keeper

    def _await_login(self, hop: Hop, keeper: ProcessPipe, is_ready: Callable[[bytes], bool]) -> None:
        """Wait until the connection stands. A person may answer questions meanwhile.

        ``is_ready`` gets the output so far.
        """
        heard = bytearray()
        shown = 0

        def show() -> None:
            nonlocal shown
            said = keeper.stderr()
            self._banners.heard(hop, said[shown:].decode("utf-8", "replace"))
            shown = len(said)

        if self._askpass is not None:
            self._askpass.show_first(hop.label, show)
        until = time.monotonic() + OPENSSH_LOGIN_S
        while not is_ready(bytes(heard)):
            data = keeper.recv(OPENSSH_LOOK_S)
            if data:
                heard += data
                if len(heard) > NOISE_BYTES:
                    raise Unreachable(
                        f"the login shell of {hop.login} prints more than {NOISE_BYTES >> 20} MiB",
                        hint="see what its profile (~/.bashrc) prints when it is not interactive",
                    )
            elif data is not None:
                keeper.exit_code(EXIT_CODE_S)
                raise self._read_refusal(hop, keeper.stderr().decode("utf-8", "replace"))
            if self._askpass is not None and self._askpass.is_asking(hop.label):
                until = time.monotonic() + OPENSSH_LOGIN_S
            elif time.monotonic() > until:
                said = last_line(keeper.stderr(), bytes(heard))
                raise Unreachable(
                    f"ssh has not logged in to {hop.login} after {OPENSSH_LOGIN_S:g} s" + (f": {said}" if said else ""),
                    hint=f"try `ssh {hop.label}`",
                )
        show()

    def _read_refusal(self, hop: Hop, said: str) -> ConnectError:
        if self._askpass is not None and self._askpass.gave_up:
            return AuthRefused(f"{hop.login} asked a question that was not answered", hint="repeat the command")
        return read_refusal(hop, said, asked=self._prompter is not None)

    def _socket(self) -> str:
        folder = self._own_folder()
        with self._lock:
            self._number += 1
            return str(folder / f"m{self._number}")

    def _questions(self) -> Askpass:
        folder = self._own_folder()
        with self._lock:
            if self._askpass is None:
                assert self._prompter is not None
                self._askpass = Askpass(folder, self._prompter, self._say)
            if not self._askpass.can_run:
                raise Unreachable(f"no program can run in {folder}, so ssh cannot ask", hint="set TMPDIR")
            return self._askpass

    def _own_folder(self) -> Path:
        """Return the folder for the sockets, which only this account can enter."""
        with self._lock:
            if self._closed:
                raise LinkLost("the connections are being closed")
            if self._folder is None:
                parent = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
                usable = len(parent) <= _PARENT_LETTERS and os.access(parent, os.W_OK)
                self._folder = Path(tempfile.mkdtemp(prefix="ddpctl-", dir=parent if usable else "/tmp"))
            return self._folder

    def close(self) -> None:
        """Close the jump hosts, end the logins in progress, take no more questions, and remove the sockets."""
        with self._lock:
            self._closed = True
            folder, askpass, starting = self._folder, self._askpass, list(self._starting)
            self._folder = None
        for keeper in starting:
            keeper.close()
        self._jumps.close()
        if askpass is not None:
            askpass.close()
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)


# What ssh prints -> the error that it means, the first match first (sshconnect.c and ssh.c of OpenSSH 7.6 to 10).
_KEY_CHANGED = re.compile(
    r"IDENTIFICATION HAS CHANGED|REVOKED HOST KEY|host key .* has changed|revoked by file|in revoked keys file",
    re.IGNORECASE,
)
_KEY_UNKNOWN = re.compile(r"Host key verification failed|No .* host key is known for", re.IGNORECASE)
_NAME_UNKNOWN = re.compile(r"Could not resolve hostname", re.IGNORECASE)
_DENIED = re.compile(r"Permission denied \(|Too many authentication failures|no more authentication", re.IGNORECASE)


def read_refusal(hop: Hop, said: str, *, asked: bool) -> ConnectError:
    """Return the error that ssh's words mean. ``asked``: whether ssh could ask a person."""
    words = last_line(said.encode())
    quoted = f": {words}" if words else ""
    if _KEY_CHANGED.search(said):
        return HostKeyChanged(
            f"the host key of {hop.known_as} has changed or is revoked{quoted}; "
            "somebody may be intercepting the connection",
            hint=f"compare it with the host's own key, and see `ssh {hop.label}`",
        )
    if _KEY_UNKNOWN.search(said):
        return HostKeyUnknown(f"the host key of {hop.known_as} is not known{quoted}", hint="run `ddpctl trust`")
    if _NAME_UNKNOWN.search(said):
        hint = f"check the name, or give `address:` for {hop.label} in the inventory"
        return NameUnknown(f"no address is known for {hop.address}", hint=hint)
    if _DENIED.search(said):
        alone = "" if asked else "; without a terminal no question could be asked"
        return AuthRefused(
            f"{hop.login} refuses the login{quoted}{alone}",
            hint=f"try `ssh {hop.label}`; a ControlMaster in ssh_config keeps a login for later commands",
        )
    return Unreachable(f"ssh has no connection to {hop.where}{quoted}", hint=f"try `ssh {hop.label}`")
