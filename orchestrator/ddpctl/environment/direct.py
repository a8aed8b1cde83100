"""Files named by their SHA-256, and the direct way from the controller into a node's store.

Only missing files are sent, each from the offset where an earlier try ended.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from ddpctl.environment.limits import CHUNK_BYTES, HOLDINGS_S, SEND_S, VERIFY_S
from ddpctl.errors import DdpctlError, FileDamaged, ProvisionError, RemoteError
from ddpctl.spec.event import Progress, Tell
from ddpctl.spec.origin import JobId
from ddpctl.spec.push import Delivery, Traffic
from ddpctl.spec.resuming import Holdings
from ddpctl.transport.base import Fleet, Transport
from ddpctl.transport.progress_clock import ProgressClock
from ddpctl_worker.wire import contract


class Source(Protocol):
    """Bytes that can be sent from any offset, any number of times; ``name`` is for messages."""

    @property
    def sha256(self) -> str: ...
    @property
    def size(self) -> int: ...
    @property
    def name(self) -> str: ...
    def chunks(self, offset: int = 0) -> Iterator[bytes]: ...


S = TypeVar("S", bound=Source)


@dataclass(frozen=True)
class FileSource:
    """A file on the controller with a known hash."""

    path: Path
    sha256: str
    size: int
    name: str

    def chunks(self, offset: int = 0) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            file.seek(offset)
            while piece := file.read(CHUNK_BYTES):
                yield piece


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        sha = hashlib.sha256()
        while piece := file.read(CHUNK_BYTES):
            sha.update(piece)
        return sha.hexdigest()


def missing_files(known: Holdings, sources: Iterable[S]) -> list[S]:
    return [source for source in sources if source.sha256 not in known.have]


def ask_holdings(
    transport: Transport, hashes: Iterable[str], *, verify: bool = False, job: JobId | None = None
) -> Holdings:
    """Ask a node which files it has, and for the checkpoints of a job.

    With ``verify`` the node reads every file again.

    Raises:
        ProvisionError, ConnectError: the node cannot answer, or cannot be reached.
    """
    request = {"hashes": sorted(set(hashes)), "verify": verify, "job_id": str(job) if job is not None else None}
    try:
        found: Holdings = transport.call("store_has", request, timeout=VERIFY_S if verify else HOLDINGS_S)
    except RemoteError as error:
        raise as_provision_error(error, transport.host) from error
    return found


def send_missing(
    transport: Transport, sources: Sequence[Source], known: Holdings, sent: Callable[[int], None] = lambda _: None
) -> None:
    """Send the files that the node lacks, one after the other; ``sent`` gets the size of each piece.

    Raises:
        ProvisionError: no space, an unsafe path, or a file that arrived changed.
        ConnectError: the connection failed.
    """
    for source in missing_files(known, sources):
        offset = min(known.partial.get(source.sha256, 0), source.size)
        try:
            try:
                _put(transport, source, offset, sent)
            except RemoteError as error:
                if error.kind != contract.CORRUPT or not offset:
                    raise
                # The partial file may be damaged, or another sender may have continued it: one try from the start.
                _put(transport, source, 0, sent)
        except RemoteError as error:
            raise as_provision_error(error, transport.host, source.name) from error


def _put(transport: Transport, source: Source, offset: int, sent: Callable[[int], None]) -> None:
    args = {"hash": source.sha256, "size": source.size, "offset": offset}
    transport.call("store_put", args, body=_counted(source.chunks(offset), sent), timeout=SEND_S, clock=ProgressClock())


def _counted(pieces: Iterator[bytes], sent: Callable[[int], None]) -> Iterator[bytes]:
    for piece in pieces:
        yield piece
        sent(len(piece))


def as_provision_error(error: RemoteError, host: str, what: str | None = None) -> DdpctlError:
    """Return the worker's error as an error with exit code 5."""
    message = f"{what}: {error.message}" if what else error.message
    kind = FileDamaged if error.kind == contract.CORRUPT else ProvisionError
    return kind(message, hint=error.hint, host=host)


def deliver(stage: str, sources: Sequence[Source], fleet: Fleet, tell: Tell, hosts: Sequence[str]) -> Delivery:
    """Send every file from the controller to every host, to as many hosts at a time as the fleet allows."""
    needed = sum(source.size for source in sources)

    def work(transport: Transport) -> Traffic:
        known = ask_holdings(transport, [source.sha256 for source in sources])
        lacking = sum(source.size for source in missing_files(known, sources))
        count = 0

        def sent(size: int) -> None:
            nonlocal count
            count += size
            tell(Progress(stage, min(needed, needed - lacking + count), needed, transport.host))

        send_missing(transport, sources, known, sent)
        tell(Progress(stage, needed, needed, transport.host))
        return Traffic(needed, count, 0, needed - lacking)

    outcome = fleet.map(work, hosts)
    return Delivery(
        Traffic.total(outcome.results.values()),
        tuple(host for host in hosts if host in outcome.results),
        outcome.errors,
    )
