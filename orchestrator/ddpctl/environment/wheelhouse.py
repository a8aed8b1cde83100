"""The controller's wheels, by hash: downloaded once for all clusters, in parallel, resumed after a failure."""

from __future__ import annotations

import os
import shutil
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx
from filelock import FileLock

from ddpctl.environment.direct import FileSource, hash_file
from ddpctl.environment.limits import DOWNLOADS, HTTP_CONNECT_S, HTTP_S
from ddpctl.environment.lock import Wheel
from ddpctl.environment.origins import Origins
from ddpctl.errors import DdpctlError, FileDamaged, InternalFault, Interrupted, ProvisionError
from ddpctl.transport.fleet import fan_out
from ddpctl.transport.limits import DOWNLOAD_PAUSE_S, DOWNLOAD_TRIES

TIMEOUT = httpx.Timeout(HTTP_S, connect=HTTP_CONNECT_S)

OnBytes = Callable[[int], None]


class Wheelhouse:
    """A ``folder`` with wheels named by their SHA-256, and `.part` files of unfinished downloads."""

    def __init__(self, folder: Path, origins: Origins) -> None:
        self._folder, self._origins = folder, origins

    def fetch(self, wheels: Sequence[Wheel], on_bytes: OnBytes = lambda _: None) -> dict[str, FileSource]:
        """Return every wheel as a file on this machine, by hash. ``on_bytes`` gets the size of each downloaded piece.

        Files that are on this machine already (a folder in find-links) are used where they are.

        Raises:
            ProvisionError: a wheel cannot be downloaded; it names the first such wheel.
            FileDamaged: the hash differs.
        """
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        client, stop = self._client(), threading.Event()
        jobs = {wheel.sha256: partial(self._one, client, wheel, on_bytes, stop) for wheel in wheels}
        try:
            found = fan_out(jobs, DOWNLOADS, _raise_error).results
        except BaseException:
            stop.set()  # no thread is awaited, as an index may be silent for long; the client stays open for them
            raise
        client.close()
        return dict(found)

    def keep(self, path: Path) -> FileSource:
        """Copy a file that was built on this machine into the wheelhouse."""
        sha256, size = hash_file(path), path.stat().st_size
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with FileLock(f"{self._folder / sha256}.lock"):
            shutil.copyfile(path, self._folder / f"{sha256}.part")
            (self._folder / f"{sha256}.part").rename(self._folder / sha256)
        return FileSource(self._folder / sha256, sha256, size, path.name)

    def verify(self, wheels: Sequence[Wheel]) -> list[str]:
        """Read the files again and return the names of damaged wheels.

        A damaged file of the wheelhouse is removed; a file elsewhere is only named.
        """
        bad = []
        for wheel in wheels:
            path = self._local(wheel) or self._folder / wheel.sha256
            if path.exists() and hash_file(path) != wheel.sha256:
                bad.append(wheel.filename)
                if path.parent == self._folder:
                    path.unlink()
        return bad

    def _client(self) -> httpx.Client:
        context = ssl.create_default_context(cafile=self._origins.certificates)
        netrc = Path.home() / ".netrc"
        return httpx.Client(
            verify=context,
            timeout=TIMEOUT,
            follow_redirects=True,
            auth=httpx.NetRCAuth() if os.path.exists(netrc) else None,
            headers={"Accept-Encoding": "identity"},  # offsets and hashes count the file's own bytes
        )

    def _one(self, client: httpx.Client, wheel: Wheel, on_bytes: OnBytes, stop: threading.Event) -> FileSource:
        local = self._local(wheel)
        if local is not None:
            if not os.path.isfile(local):
                raise ProvisionError(f"{wheel.filename} is no longer at {local}", hint="resolve again: ddpctl push")
            return FileSource(local, wheel.sha256, local.stat().st_size, wheel.filename)
        path = self._folder / wheel.sha256
        with FileLock(f"{path}.lock"):  # another ddpctl may be downloading the same wheel
            if not path.exists():
                self._download(client, wheel, path, on_bytes, stop)
        return FileSource(path, wheel.sha256, path.stat().st_size, wheel.filename)

    def _local(self, wheel: Wheel) -> Path | None:
        """Return the wheel's path if its address is on this machine."""
        parts = urlsplit(wheel.address)
        if parts.scheme == "file":
            return Path(unquote(parts.path))
        return None if parts.scheme else Path(wheel.address)

    def _download(
        self, client: httpx.Client, wheel: Wheel, path: Path, on_bytes: OnBytes, stop: threading.Event
    ) -> None:
        part = path.with_name(f"{path.name}.part")
        resumed = part.exists()
        for attempt in range(DOWNLOAD_TRIES):
            try:
                self._continue(client, wheel, part, on_bytes, stop)
                break
            except httpx.TransportError as error:
                if attempt == DOWNLOAD_TRIES - 1:
                    raise ProvisionError(
                        f"cannot download {wheel.filename}: {error or type(error).__name__}",
                        hint="check the network to the package index; what has arrived is kept",
                    ) from error
                time.sleep(DOWNLOAD_PAUSE_S * 2**attempt)
        if hash_file(part) != wheel.sha256:
            part.unlink()
            if resumed:  # the part from an earlier try may have been wrong
                self._download(client, wheel, path, on_bytes, stop)
                return
            raise FileDamaged(
                f"{wheel.filename} came from the package index with another SHA-256 than the lock says",
                hint="it was changed on the server or by a proxy: try another index_url, or make a new lock",
            )
        part.rename(path)

    def _continue(
        self, client: httpx.Client, wheel: Wheel, part: Path, on_bytes: OnBytes, stop: threading.Event
    ) -> None:
        """Continue the download at the end of the part, until ``stop`` is set.

        Raises:
            Interrupted: it is set.
        """
        _check(stop)
        have = part.stat().st_size if part.exists() else 0
        headers = {"Range": f"bytes={have}-"} if have else {}
        login = self._origins.login(wheel.address)
        auth = httpx.BasicAuth(*login) if login else httpx.USE_CLIENT_DEFAULT
        with client.stream("GET", wheel.address, headers=headers, auth=auth) as answer:
            if answer.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
                return  # the part is complete or too long: the hash decides
            if answer.status_code >= 500 or answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
                raise httpx.RemoteProtocolError(f"the package index answers {answer.status_code}")
            if answer.status_code not in (httpx.codes.OK, httpx.codes.PARTIAL_CONTENT):
                raise ProvisionError(
                    f"cannot download {wheel.filename}: the package index answers {answer.status_code} "
                    f"{answer.reason_phrase}",
                    hint="check index_url and its login, or make a new lock",
                )
            with part.open("ab" if answer.status_code == httpx.codes.PARTIAL_CONTENT else "wb") as file:
                part.chmod(0o600)
                for data in answer.iter_raw():  # unbuffered, so that a broken connection loses nothing
                    _check(stop)
                    file.write(data)
                    on_bytes(len(data))


def _check(stop: threading.Event) -> None:
    if stop.is_set():
        raise Interrupted("interrupted")


def _raise_error(_sha256: str, found: FileSource | DdpctlError) -> None:
    if isinstance(found, DdpctlError):
        found.host = None  # it is this machine
        cause = found.__cause__
        raise cause if isinstance(found, InternalFault) and isinstance(cause, OSError) else found  # such as a full disk


class Counter:
    """Adds up the sizes that several threads report, and passes the sum on."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self._tell, self._lock, self.total = tell, threading.Lock(), 0

    def __call__(self, size: int) -> None:
        with self._lock:
            self.total += size
            self._tell(self.total)
