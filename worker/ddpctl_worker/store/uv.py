"""Runs ddpctl's own uv, and gives wheels their proper names."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
import zipfile
from typing import Dict, List, Optional, Set

from ddpctl_worker.machine.fs import own_folder
from ddpctl_worker.store.blobs import blob_path, blob_size
from ddpctl_worker.store.limits import OUTPUT_LETTERS, SUMMARY_LETTERS
from ddpctl_worker.wire.channel import Channel, WorkerError
from ddpctl_worker.wire.contract import BAD_REQUEST, CORRUPT, INTERRUPTED, TIMEOUT

_WHEEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]*\.whl\Z")


class UvFailed(Exception):
    """A program ended with an error. ``str()``: its output on one line; ``output``: the end of its output."""

    def __init__(self, output: str, code: int) -> None:
        self.output = output[-OUTPUT_LETTERS:]
        super().__init__(" ".join(output.split())[-SUMMARY_LETTERS:] or "exit status %d without a message" % code)


class Uv:
    """Runs uv offline, with its cache at ``cache`` and without the login's configuration."""

    def __init__(self, program: str, cache: str, channel: Channel, timeout: float) -> None:
        self._program, self._cache, self._channel, self._timeout = program, cache, channel, timeout

    def run(self, arguments: List[str], more: Optional[Dict[str, str]] = None) -> None:
        """Run uv; ``more``: environment variables. Raises as ``run_watched``."""
        env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "LC_ALL") if name in os.environ}
        env.update(UV_CACHE_DIR=self._cache, UV_OFFLINE="1", UV_NO_CONFIG="1", UV_PYTHON_DOWNLOADS="never")
        env.update(UV_NO_PROGRESS="1", UV_PREVIEW_FEATURES="pylock")
        env.update(more or {})
        run_watched([self._program, "--color", "never", *arguments], env, self._channel, self._timeout)


def run_watched(argv: List[str], env: Dict[str, str], channel: Channel, timeout: float, cwd: str = "/") -> bytes:
    """Run a program to its end, and return its stdout. Kill it and its children if the controller goes away.

    Raises:
        UvFailed: the program failed, with its stderr. WorkerError: timeout, or the controller went away.
    """
    until = time.monotonic() + timeout
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=cwd, start_new_session=True
        )
        try:
            while child.poll() is None:
                if channel.closed.wait(0.02):
                    raise WorkerError(INTERRUPTED, "the controller disconnected")
                if time.monotonic() > until:
                    raise WorkerError(TIMEOUT, "%s did not end within %g s" % (os.path.basename(argv[0]), timeout))
        finally:
            if child.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        out.seek(0)
        err.seek(0)
        if child.returncode != 0:
            raise UvFailed(err.read().decode("utf-8", "replace"), child.returncode)
        return out.read()


def place_wheels(base_dir: str, wheels: List[Dict[str, str]]) -> str:
    """Make a hard link to each wheel's blob, ``wheels/<sha256>/<name>.whl``; return the path of ``wheels``.

    A wheel always has the same path, because uv's cache goes by paths.

    Raises:
        WorkerError: bad_request, the name is no wheel's; corrupt, a blob is missing.
    """
    folder = own_folder(base_dir, "wheels")
    missing = []
    for wheel in wheels:
        if not _WHEEL_NAME.match(wheel["name"]):
            raise WorkerError(BAD_REQUEST, "not the name of a wheel: %r" % wheel["name"])
        if blob_size(base_dir, wheel["hash"]) is None:
            missing.append(wheel["name"])
            continue
        own = own_folder(base_dir, "wheels", wheel["hash"])
        _link(blob_path(base_dir, wheel["hash"]), os.path.join(own, wheel["name"]))
    if missing:
        raise WorkerError(CORRUPT, "not here: %s" % ", ".join(missing), "run the same command again")
    return folder


def _link(blob: str, path: str) -> None:
    """Make a hard link to the blob; replaces any other file of this name."""
    try:
        os.link(blob, path, follow_symlinks=False)
    except FileExistsError:
        if os.path.samestat(os.lstat(path), os.lstat(blob)):
            return
        part = "%s.%s.part" % (path, os.urandom(4).hex())
        os.link(blob, part, follow_symlinks=False)
        os.rename(part, path)


def unpacked_size(folder: str, wheels: List[Dict[str, str]], known: Set[str]) -> int:
    """Return the unpacked bytes of the wheels, without the ``known`` wheels, which the cache has already.

    Raises:
        WorkerError: corrupt, a file is no wheel.
    """
    total = 0
    for wheel in wheels:
        if wheel["hash"] in known:
            continue
        try:
            with zipfile.ZipFile(os.path.join(folder, wheel["hash"], wheel["name"])) as archive:
                total += sum(entry.file_size for entry in archive.infolist())
        except (OSError, zipfile.BadZipFile) as error:
            raise WorkerError(CORRUPT, "%s is not a wheel: %s" % (wheel["name"], error)) from None
    return total
