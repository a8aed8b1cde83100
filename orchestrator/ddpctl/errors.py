"""The errors of ddpctl, as one tree of classes. Each class has its exit code.

    DdpctlError                    1
    ├── UsageError                 2   bad usage, inventory or job file
    │   └── InventoryError         2   ... with file, line, column and the path of the key
    ├── PreflightFailed            3   a check found an error; nothing was started
    ├── ConnectError               4   a host could not be reached or refused the login
    │   ├── NameUnknown            4   the name has no address
    │   ├── Unreachable            4   no route, refused, timed out, or silent
    │   ├── HostKeyUnknown         4   known_hosts has no key of this host
    │   ├── HostKeyChanged         4   known_hosts has another key of this host
    │   ├── AuthRefused            4   the host accepts none of your keys
    │   ├── AgentSilent            4   the SSH agent that holds your keys does not answer
    │   ├── ShellBroken            4   login works, but the shell exits or never runs the command
    │   └── LinkLost               4   the connection died while in use
    ├── RemoteError                1   the worker on a node answered with an error
    │   ├── AnswerLate             4   the answer did not come in time, or the call made no progress
    │   └── PythonMissing          3   no usable interpreter on the node
    ├── ProvisionError             5   environment or code could not be put in place
    │   └── FileDamaged            5   ... because a file does not match its hash; sending it again may help
    ├── Survivors                  6   a process survived a kill
    ├── NoSuchJob                  7   no node knows the job
    ├── HostsInUse                 8   the slots that the job needs are not free
    ├── HostsFailed                *   several hosts failed, each with its own error
    ├── JobFailed                  1   the job ran and failed, was killed, or was lost
    ├── NotSaved                   1   a requested checkpoint was not saved
    ├── InternalFault              1   a mistake of ddpctl itself
    └── Interrupted                130

``error.summary`` says where and why in one line, ``error.hint`` is the next step, and ``str(error)`` is both.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from ddpctl_worker.wire.contract import TIMEOUT


class DdpctlError(Exception):
    """The base class. ``message`` is the cause, ``hint`` the next step, ``host`` the place (None: this machine)."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None, host: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.host = host

    @property
    def summary(self) -> str:
        """Return where and why, in one line."""
        where = f"{self.host}: " if self.host else ""
        return f"{where}{' '.join(self.message.split())}"

    def __str__(self) -> str:
        return f"{self.summary}; {' '.join(self.hint.split())}" if self.hint else self.summary


class UsageError(DdpctlError):
    """Bad usage, inventory or job file; found before a host is contacted wherever that is possible."""

    exit_code = 2


class InventoryError(UsageError):
    """A fault in an inventory file, at ``file:line:column`` (line and column from 1) and the path of the key.

    ``others`` are the further faults in that file.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str,
        line: int | None = None,
        column: int | None = None,
        path: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.file, self.line, self.column, self.path = file, line, column, path
        self.further: tuple[InventoryError, ...] = ()

    @property
    def summary(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        key = f"{self.path}: " if self.path else ""
        return f"{place}: {key}{super().summary}"


class PreflightFailed(DdpctlError):
    """A check found an error; nothing was started."""

    exit_code = 3


class ConnectError(DdpctlError):
    """A host could not be reached or refused the login."""

    exit_code = 4


class NameUnknown(ConnectError):
    """The host's name has no address."""


class Unreachable(ConnectError):
    """No route, connection refused, timed out, or connected and silent."""


class HostKeyUnknown(ConnectError):
    """known_hosts has no key of this host."""


class HostKeyChanged(ConnectError):
    """known_hosts has another key of this host. ddpctl neither continues nor replaces the key."""


class AuthRefused(ConnectError):
    """The host accepts none of your keys."""


class AgentSilent(ConnectError):
    """The SSH agent that holds your keys does not answer. The host is not at fault."""


class ShellBroken(ConnectError):
    """Login works, but the login shell exits or never runs the command."""


class LinkLost(ConnectError):
    """The connection died while in use."""


class RemoteError(DdpctlError):
    """The worker on a node answered with an error of its own; ``kind`` is its machine-readable name."""

    def __init__(self, message: str, *, kind: str = "error", hint: str | None = None, host: str | None = None) -> None:
        super().__init__(message, hint=hint, host=host)
        self.kind = kind


class AnswerLate(RemoteError):
    """The worker did not answer in time, or a call made no progress. Nothing is known about the job."""

    exit_code = ConnectError.exit_code

    def __init__(self, message: str, *, hint: str | None = None, host: str | None = None) -> None:
        super().__init__(message, kind=TIMEOUT, hint=hint, host=host)


class PythonMissing(RemoteError):
    """No usable interpreter on the node."""

    exit_code = 3


class ProvisionError(DdpctlError):
    """Environment or code could not be put in place."""

    exit_code = 5


class FileDamaged(ProvisionError):
    """A file, received or on disk, does not match its hash."""


class Survivors(DdpctlError):
    """A process survived a kill."""

    exit_code = 6


class NoSuchJob(DdpctlError):
    """No node knows the job."""

    exit_code = 7


class HostsInUse(DdpctlError):
    """The slots that the job needs are not free. ``lines`` name each holder."""

    exit_code = 8

    def __init__(self, message: str, lines: Sequence[str], *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.lines = tuple(lines)

    def __str__(self) -> str:
        return "\n".join([self.summary, *self.lines, str(self.hint)])


class HostsFailed(DdpctlError):
    """Several hosts failed; ``errors`` has the error of each host.

    The exit code is the highest code of these errors. A host that could not be reached outranks all other errors, as
    nothing is known about it.
    """

    def __init__(self, message: str, errors: Mapping[str, DdpctlError], *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.errors = dict(errors)
        codes = {error.exit_code for error in errors.values()}
        self.exit_code = ConnectError.exit_code if ConnectError.exit_code in codes else max(codes, default=1)

    def __str__(self) -> str:
        return "\n".join([self.message, *(str(error) for error in self.errors.values())])


class JobFailed(DdpctlError):
    """The job ran and failed, was killed, or was lost."""


class NotSaved(DdpctlError):
    """The ranks could not be asked for a checkpoint, or did not save it."""


class InternalFault(DdpctlError):
    """A mistake of ddpctl itself: ``__cause__`` is the unexpected exception."""


def to_ddpctl_error(error: Exception, host: str | None = None) -> DdpctlError:
    """Turn any exception into a DdpctlError, so that a mistake in serving ``host`` does not stop the other hosts."""
    if isinstance(error, DdpctlError):
        error.host = error.host or host
        return error
    if isinstance(error, OSError) and (variable := _variable_of(error.filename)):
        hint = f"set {variable} to a folder that this account can write"
        return UsageError(f"{error.filename}: {error.strerror}", hint=hint)
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({PurePath(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    fault = InternalFault(
        f"internal error: {type(error).__name__}: {error}{where}",
        hint="re-run with --debug and report the output",
        host=host,
    )
    fault.__cause__ = error
    return fault


def _variable_of(path: object) -> str | None:
    """Return the variable that moves the folder of this machine in which ``path`` lies: the cache or the records."""
    import platformdirs  # only after an error

    folders = {"XDG_CACHE_HOME": platformdirs.user_cache_path(), "XDG_STATE_HOME": platformdirs.user_state_path()}
    if not isinstance(path, str | PurePath):
        return None
    return next((name for name, folder in folders.items() if folder in (PurePath(path), *PurePath(path).parents)), None)


class Interrupted(DdpctlError):
    """Ctrl-C."""

    exit_code = 130


def is_interrupt(error: BaseException) -> bool:
    """Return whether Ctrl-C, or a signal that counts as Ctrl-C, caused this exception.

    pydantic catches a KeyboardInterrupt while it builds or runs a serializer, and names it in an exception of its own.
    A ValidationError only quotes its input, which may hold that name.
    """
    kind = type(error)
    serializing = kind.__module__.startswith("pydantic_core") and kind.__name__ != "ValidationError"
    named = serializing and KeyboardInterrupt.__name__ in str(error)
    return named or isinstance(error, KeyboardInterrupt | Interrupted)
