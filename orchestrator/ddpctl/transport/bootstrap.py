"""Starts a worker: the package of its code, the fixed command line, the header line, and the banner that answers.

The command line holds nothing of the user but the interpreter's path. The started command reads one line of JSON, the
header. The header carries a small program (``ddpctl_worker.wire.boot``), which receives the worker's zip where the node
lacks it.
"""

from __future__ import annotations

import hashlib
import io
import json
import shlex
import threading
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.abc import Traversable
from importlib.resources import files

from ddpctl.errors import PythonMissing, RemoteError, ShellBroken
from ddpctl.transport.limits import BANNER_LINE_BYTES, NOISE_BYTES
from ddpctl_worker.wire.contract import BANNER, MIN_PYTHON

PACKAGE = "ddpctl_worker"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date in a zip: the hash must not depend on a clock
# No quotes, and nothing that a login shell (sh, bash, zsh, fish, tcsh) would expand.
BOOTSTRAP = 'import json,sys;ddpctl=json.loads(sys.stdin.buffer.readline().decode());exec(ddpctl["program"])'

# The same for a shell: it imports the worker's code that an earlier call has left. argv: the folder of that code, then
# the arguments of open_shell.
_SHELL = (
    "import os,sys;sys.path.insert(0,os.path.expanduser(sys.argv[1]));"
    "from ddpctl_worker.run.shell import open_shell;open_shell(*sys.argv[2:])"
)

_PACKING = threading.Lock()


@dataclass(frozen=True)
class Payload:
    """The code that a node runs: the zip, its SHA-256 (hex), and the program that receives the zip."""

    data: bytes = field(repr=False)
    sha256: str
    boot: str = field(repr=False)


def payload() -> Payload:
    """Return the payload of this installation. It is built once per process, however many hosts ask at once."""
    with _PACKING:  # `cache` alone would build it once in each thread that asks before the first build is done
        return _packed()


@cache
def _packed() -> Payload:
    root = files(PACKAGE)
    data = build(dict(sources(root, PACKAGE)))
    return Payload(data, hashlib.sha256(data).hexdigest(), root.joinpath("wire").joinpath("boot.py").read_text("utf-8"))


def sources(folder: Traversable, path: str) -> Iterator[tuple[str, bytes]]:
    """Yield (name in the zip, content) of every Python source below ``folder``."""
    for entry in folder.iterdir():
        name = f"{path}/{entry.name}"
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from sources(entry, name)
        elif entry.name.endswith(".py"):
            yield name, entry.read_bytes()


def build(content: dict[str, bytes]) -> bytes:
    """Return a zip that depends only on names and contents: sorted, without this machine's times and modes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(content):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o600 << 16
            entry.create_system = 3  # Unix, on every machine
            archive.writestr(entry, content[name])
    return buffer.getvalue()


def worker_line(python: str) -> str:
    """Return the remote command line that starts a worker."""
    return interpreter_line(python, ["-I", "-c", BOOTSTRAP])


def shell_arguments(base_dir: str, run: str, host: str, rank: int) -> list[str]:
    """Return the interpreter's arguments that open a shell in the place of a rank, where a worker has run before."""
    folder = f"{base_dir}/worker/{payload().sha256}"  # as in ddpctl_worker.wire.boot
    return ["-I", "-c", _SHELL, folder, base_dir, run, host, str(rank)]


def interpreter_line(python: str, arguments: Sequence[str]) -> str:
    """Return a command line for any login shell. In the interpreter, ``~/`` means the home folder on the host."""
    word = '"$HOME"/' + shlex.quote(python[2:]) if python.startswith("~/") else shlex.quote(python)
    return f"{word} {shlex.join(arguments)}"


def header(nonce: str, base_dir: str, package: Payload) -> bytes:
    """Return the first line that goes to the started command."""
    fields = {
        "banner": BANNER,
        "nonce": nonce,
        "min_python": list(MIN_PYTHON),
        "base_dir": base_dir,
        "hash": package.sha256,
        "size": len(package.data),
        "program": package.boot,
    }
    return json.dumps(fields).encode("ascii") + b"\n"


class BannerReader:
    """Finds ``BANNER nonce word`` in the login's output, after any other output of up to 1 MiB."""

    def __init__(self, nonce: str) -> None:
        self._mark = f"{BANNER} {nonce} ".encode("ascii")
        self._buffer = bytearray()
        self._from = 0
        self._at = -1
        self.rest = b""

    def feed(self, data: bytes) -> str | None:
        """Return the banner's word once its line is complete, else None. ``rest`` is then the output after that line.

        Raises:
            ShellBroken: the first MiB holds no banner, or the banner's line does not end.
        """
        self._buffer += data
        if self._at < 0:
            self._at = self._buffer.find(self._mark, self._from)
            self._from = max(0, len(self._buffer) - len(self._mark))
        if self._at >= 0:
            start = self._at + len(self._mark)
            end = self._buffer.find(b"\n", start)
            if end >= 0:
                self.rest = bytes(self._buffer[end + 1 :])
                return self._buffer[start:end].decode("ascii", "replace").strip()
            if len(self._buffer) - start > BANNER_LINE_BYTES:
                raise ShellBroken("the worker's first line does not end")
        elif len(self._buffer) > NOISE_BYTES:
            raise ShellBroken(
                f"the login shell prints more than {NOISE_BYTES >> 20} MiB before it runs ddpctl's command",
                hint="see what its profile (~/.bashrc) prints when it is not interactive",
            )
        return None

    @property
    def noise(self) -> bytes:
        """The output before the banner, or instead of it."""
        return bytes(self._buffer[: self._at] if self._at >= 0 else self._buffer)


def last_line(*outputs: bytes) -> str:
    """Return the last line with text of the first output that has text: at most 200 printable characters."""
    for output in outputs:
        for line in reversed(output[-4096:].decode("utf-8", "replace").splitlines()):
            text = "".join(letter if letter.isprintable() else " " for letter in line).strip()
            if text:
                return text[-200:]
    return ""


def old_python_error(version: str, python: str) -> PythonMissing:
    """Return the error for an interpreter that answers but is too old for the worker."""
    want = ".".join(str(part) for part in MIN_PYTHON)
    return PythonMissing(
        f"{python} is Python {version}; ddpctl needs {want} or newer there",
        kind="python_old",
        hint="name a newer interpreter with the inventory's `python:` key",
    )


def no_interpreter_error(python: str, missing: bool, quoted: str) -> PythonMissing:
    """Return the error for an interpreter that does not exist (``missing``) or cannot be executed.

    ``quoted`` is the message of the shell or of the system.
    """
    what = f"there is no {python}" if missing else f"{python} cannot be executed"
    hint = "name the interpreter with the inventory's `python:` key"
    return PythonMissing(f"{what}{quoted}", kind="python_missing", hint=hint)


def no_banner_error(python: str, exit_code: int, stdout: bytes, stderr: bytes) -> RemoteError | ShellBroken:
    """Return the error for a command that ended without a banner.

    Causes: there is no interpreter, it is older than Python 3.4, or the login shell does not run the command.
    """
    said = last_line(stderr, stdout)
    quoted = f": {said}" if said else ""
    if exit_code in (126, 127):
        return no_interpreter_error(python, exit_code == 127, quoted)
    if exit_code == 2 and b"-I" in stderr and b"nknown option" in stderr:
        return old_python_error("2", python)
    how = f"exit status {exit_code}" if exit_code >= 0 else "no exit status"
    return ShellBroken(
        f"the login shell ended before it ran {python} ({how}){quoted}",
        hint="check the account's shell and what its profile (~/.bashrc) does when it is not interactive",
    )
