"""How a worker is started: the package that a node lacks, the fixed command line, the header, the banner in answer.

Nothing of the user but the interpreter's path is in the command line. It reads one JSON line, the header, which carries
the program to run (``ddpctl_worker.wire.boot``); that receives the worker's zip where the node lacks it.
"""

from __future__ import annotations

import hashlib
import io
import json
import shlex
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.abc import Traversable
from importlib.resources import files

from ddpctl.errors import PythonMissing, RemoteError, ShellBroken
from ddpctl.transport.limits import BANNER_LINE_BYTES, NOISE_BYTES
from ddpctl_worker.wire.contract import BANNER, MIN_PYTHON

PACKAGE = "ddpctl_worker"
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest a zip can say: no clock may get into the hash
# One line without quotes that any login shell (sh, bash, zsh, fish, tcsh) would look into.
BOOTSTRAP = 'import json,sys;ddpctl=json.loads(sys.stdin.buffer.readline().decode());exec(ddpctl["program"])'

_PACKING = threading.Lock()


@dataclass(frozen=True)
class Payload:
    """What a node runs: the zip, its SHA-256 (hex), and the program that receives it there."""

    data: bytes = field(repr=False)
    sha256: str
    boot: str = field(repr=False)


def payload() -> Payload:
    """The payload of this installation: built once per process, however many hosts ask for it at once."""
    with _PACKING:  # `cache` alone lets every thread that asks before the first has finished build its own
        return _packed()


@cache
def _packed() -> Payload:
    root = files(PACKAGE)
    data = build(dict(sources(root, PACKAGE)))
    return Payload(data, hashlib.sha256(data).hexdigest(), root.joinpath("wire").joinpath("boot.py").read_text("utf-8"))


def sources(folder: Traversable, path: str) -> Iterator[tuple[str, bytes]]:
    """Every Python source below ``folder``: (name in the zip, content)."""
    for entry in folder.iterdir():
        name = f"{path}/{entry.name}"
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from sources(entry, name)
        elif entry.name.endswith(".py"):
            yield name, entry.read_bytes()


def build(content: dict[str, bytes]) -> bytes:
    """A zip that depends on names and contents only: sorted, no times, no modes of this machine."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(content):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o600 << 16
            entry.create_system = 3  # unix, whatever this machine is
            archive.writestr(entry, content[name])
    return buffer.getvalue()


def command_line(python: str) -> str:
    """The remote command line. ``~/`` in front of the interpreter means the home folder there."""
    program = '"$HOME"/' + shlex.quote(python[2:]) if python.startswith("~/") else shlex.quote(python)
    return f"{program} -I -c {shlex.quote(BOOTSTRAP)}"


def header(nonce: str, base_dir: str, package: Payload) -> bytes:
    """The line that goes first."""
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
    """Finds ``BANNER nonce word`` in what the login prints, however much noise is before it (up to 1 MiB)."""

    def __init__(self, nonce: str) -> None:
        self._mark = f"{BANNER} {nonce} ".encode("ascii")
        self._buffer = bytearray()
        self._from = 0
        self._at = -1
        self.rest = b""

    def feed(self, data: bytes) -> str | None:
        """The answer once its line is complete (``rest`` is then what follows it), None before.

        Raises:
            ShellBroken: there is no banner in the first MiB, or its line does not end.
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
        """What was printed instead of a banner, or before it."""
        return bytes(self._buffer[: self._at] if self._at >= 0 else self._buffer)


def last_line(*outputs: bytes) -> str:
    """The last line with something in it, of the first output that has one; at most 200 characters, printable."""
    for output in outputs:
        for line in reversed(output[-4096:].decode("utf-8", "replace").splitlines()):
            text = "".join(letter if letter.isprintable() else " " for letter in line).strip()
            if text:
                return text[-200:]
    return ""


def too_old(version: str, python: str) -> PythonMissing:
    """The interpreter answers, but it is too old to run the worker."""
    want = ".".join(str(part) for part in MIN_PYTHON)
    return PythonMissing(
        f"{python} is Python {version}; ddpctl needs {want} or newer there",
        kind="python_old",
        hint="name a newer interpreter with the inventory's `python:` key",
    )


def no_interpreter(python: str, missing: bool, quoted: str) -> PythonMissing:
    """``missing``, or there and of no use; ``quoted``: what was said of it."""
    what = f"there is no {python}" if missing else f"{python} cannot be executed"
    hint = "name the interpreter with the inventory's `python:` key"
    return PythonMissing(f"{what}{quoted}", kind="python_missing", hint=hint)


def no_banner(python: str, exit_code: int, stdout: bytes, stderr: bytes) -> RemoteError | ShellBroken:
    """Why the command ended without a banner: no interpreter, one from before 3.4, or a shell that does not obey."""
    said = last_line(stderr, stdout)
    quoted = f": {said}" if said else ""
    if exit_code in (126, 127):
        return no_interpreter(python, exit_code == 127, quoted)
    if exit_code == 2 and b"-I" in stderr and b"nknown option" in stderr:
        return too_old("2", python)
    how = f"exit status {exit_code}" if exit_code >= 0 else "no exit status"
    return ShellBroken(
        f"the login shell ended before it ran {python} ({how}){quoted}",
        hint="check the account's shell and what its profile (~/.bashrc) does when it is not interactive",
    )
