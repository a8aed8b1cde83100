"""The fetch verb: sends a run's records, logs and outputs, each file with exactly the announced size."""

from __future__ import annotations

import glob
import hashlib
import os
import stat
import tempfile
from typing import IO, Any, Dict, Iterator, List, Optional, Set

from ddpctl_worker.checkpoint import manifest
from ddpctl_worker.checkpoint.pins import find_path_now
from ddpctl_worker.doctor import dumps
from ddpctl_worker.machine import fs
from ddpctl_worker.record.lines import decode
from ddpctl_worker.record.logs import Reader
from ddpctl_worker.record.paths import RunPaths, base_of, checkpoint_dir
from ddpctl_worker.record.record import named_by
from ddpctl_worker.run.launcher import folders_of, place_variables, working_folder
from ddpctl_worker.verbs.limits import CHUNK_BYTES
from ddpctl_worker.wire.channel import Channel, WorkerError
from ddpctl_worker.wire.contract import NO_SUCH_CHECKPOINT


def fetch(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """Send {"file"} and {"chunk"} frames, and answer with {"files", "bytes", "missing"}.

        outputs        paths or patterns below the job's working folder (default: the outputs in the record)
        ranks          send the logs of these ranks only
        outputs_only   send neither records nor logs
        have           the receiver's files from earlier calls: {name: [size, mtime_ns, SHA-256]}

    ``missing``: the outputs without a match on this node. An unchanged file of ``have`` is not sent. If a file has
    grown, its rest is sent.
    """
    paths, run = named_by(request)
    sender = _Sender(channel, request.get("have"))
    if not request.get("outputs_only"):
        _send_all_but_outputs(paths, sender, request.get("ranks"))
    for path in _walk(paths.output):
        sender.plain(path, "output/" + os.path.relpath(path, paths.output))
    outputs = request.get("outputs")
    missing = _send_outputs(paths, run.get("outputs") if outputs is None else outputs, sender)
    return {"files": sender.files, "bytes": sender.bytes, "missing": missing}


def _send_all_but_outputs(paths: RunPaths, sender: _Sender, ranks: Optional[List[int]]) -> None:
    for path in (paths.debug_log, paths.agreed, paths.notify_log):
        sender.plain(path, "record/" + os.path.basename(path))
    _send_record(paths, sender, "record/")
    for attempt in paths.attempts():
        _send_record(attempt, sender, "record/attempts/%d/" % (attempt.attempt or 1))
    _send_logs(paths, sender, ranks)
    newest = paths.newest()
    for attempt in [paths, *paths.attempts()]:
        folder = "metrics/" if attempt.attempt == newest.attempt else "metrics/attempts/%d/" % (attempt.attempt or 1)
        for path in _walk(attempt.metrics):
            sender.plain(path, folder + os.path.relpath(path, attempt.metrics))


def _send_record(paths: RunPaths, sender: _Sender, folder: str) -> None:
    for path in (paths.run, paths.state, paths.exit, paths.diagnosis, paths.last_look, paths.gpus):
        sender.plain(path, folder + os.path.basename(path))
    for path in dumps.list_dumps(paths.dumps):
        sender.plain(path, folder + "nccl/" + os.path.basename(path))


def fetch_checkpoint(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """Send {"file"} and {"chunk"} frames for the files ``paths`` of a checkpoint entry of ``writer``.

    Raises WorkerError: the entry no longer has this ``version``.
    """
    folder = checkpoint_dir(base_of(request), str(request.get("job_id") or ""), str(request.get("writer") or ""))
    entry = str(request.get("entry") or "")
    known = manifest.read(folder, entry)
    if known is None or known["version"] != request.get("version"):
        raise WorkerError(NO_SUCH_CHECKPOINT, "the checkpoint %s is no longer here as it was" % entry, "run it again")
    sender = _Sender(channel)
    for name in request.get("paths") or ():
        if name in known["files"]:
            sender.plain(find_path_now(folder, known, name), name or os.path.basename(entry))
    return {}


class _Sender:
    """Sends each file once. Of a file in ``have`` only the new part is sent."""

    def __init__(self, channel: Channel, have: Optional[Dict[str, List[Any]]] = None) -> None:
        self._channel = channel
        self._have = have or {}
        self._sent: Set[str] = set()
        self.files = 0
        self.bytes = 0

    def plain(self, path: str, name: str) -> None:
        """Send a plain file. Any other path, or a file that has vanished, is skipped."""
        if name in self._sent or self._channel.closed.is_set():
            return
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return
        with os.fdopen(fd, "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                return
            known = self._have.get(printable(name))
            if known and known[:2] == [found.st_size, found.st_mtime_ns]:
                self._sent.add(name)
                return
            offset = known[0] if known and known[0] <= found.st_size and _begins(file, known) else 0
            file.seek(offset)
            self.stream(file, name, found.st_size, stat.S_IMODE(found.st_mode), offset, found.st_mtime_ns)

    def stream(
        self, file: IO[bytes], name: str, size: int, mode: int = 0o600, offset: int = 0, mtime_ns: int = 0
    ) -> None:
        """Send the bytes from ``offset`` to ``size``.

        A file that grows meanwhile is cut at ``size``. A file that shrinks is filled with zeros.
        """
        self._sent.add(name)
        info = {"path": printable(name), "size": size, "mode": mode, "offset": offset, "mtime_ns": mtime_ns}
        self._channel.send({"file": info})
        left = size - offset
        while left and not self._channel.closed.is_set():
            piece = file.read(min(CHUNK_BYTES, left)) or b"\0" * min(CHUNK_BYTES, left)
            self._channel.send({"chunk": True}, piece)
            left -= len(piece)
        self.files += 1
        self.bytes += size - offset


def _begins(file: IO[bytes], known: List[Any]) -> bool:
    """Return whether the file begins with the receiver's part: then the file has grown, and was not replaced."""
    sha, left = hashlib.sha256(), known[0]
    while left:
        piece = file.read(min(CHUNK_BYTES, left))
        if not piece:
            return False
        sha.update(piece)
        left -= len(piece)
    return bool(sha.hexdigest() == known[2])


def printable(name: str) -> str:
    """Return the name as valid UTF-8, because the receiver may be another system."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _send_logs(paths: RunPaths, sender: _Sender, ranks: Optional[List[int]] = None) -> None:
    """Send every rank's output as plain text in its order, and the launcher's output; or only that of ``ranks``."""
    files: Dict[Optional[int], IO[bytes]] = {}
    reader = Reader(paths.logs)
    end, offset = reader.end(), 0
    try:
        while offset < end:
            batch = reader.read(offset)
            if not batch.records:
                break
            offset = batch.offset
            for _, line in batch.records:
                value = decode(line)
                if value is None:
                    continue
                rank = value.get("r")
                if ranks is not None and rank not in ranks:
                    continue
                if rank not in files:
                    files[rank] = _scratch(paths.node)
                text = value["x"].encode("utf-8", "surrogateescape") + value.get("e", "\n").encode("ascii")
                files[rank].write(text)
        for rank in sorted(files, key=lambda rank: -1 if rank is None else rank):
            size = files[rank].tell()
            files[rank].seek(0)
            name = "launcher" if rank is None else "rank-%d" % rank
            sender.stream(files[rank], "logs/%s.log" % name, size)
    finally:
        reader.close()
        for file in files.values():
            file.close()


def _scratch(folder: str) -> IO[bytes]:
    """Return a file without a name in the run's folder or, if that disk is full, in the system's."""
    try:
        return tempfile.TemporaryFile(dir=folder)
    except OSError:
        return tempfile.TemporaryFile()


def _send_outputs(paths: RunPaths, outputs: Any, sender: _Sender) -> List[str]:
    state = fs.read_json(paths.newest().state) or {}
    root = os.path.realpath(str(state.get("cwd") or working_folder(None, paths)))
    kept = _kept(paths, root)
    missing = []
    for wanted in outputs or ():
        pattern = os.path.join(root, place_variables(os.path.expanduser(str(wanted)), folders_of(paths)))
        found = sorted(glob.glob(pattern, recursive=True)) or ([pattern] if os.path.lexists(pattern) else [])
        sent = 0
        for top in found:
            for path in _walk(os.path.realpath(top) if os.path.realpath(top) in kept else top):
                name = _name_below(root, path, kept)
                if name is not None:
                    sender.plain(path, "outputs/" + name)
                    sent += 1
        if not sent:
            missing.append(str(wanted))
    return missing


def _kept(paths: RunPaths, root: str) -> Dict[str, str]:
    """Return the job's ``checkpoint.paths`` by their real paths. These links belong to ddpctl."""
    settings = (fs.read_json(paths.run) or {}).get("checkpoint") or {}
    links = [os.path.join(root, str(path).rstrip("/")) for path in settings.get("paths") or ()]
    return {os.path.realpath(link): link for link in links if os.path.islink(link)}


def _name_below(root: str, path: str, kept: Dict[str, str]) -> Optional[str]:
    """Return the name for an output, or ``None`` if a symbolic link leads it out of the working folder.

    An absolute output lies elsewhere by intent, and keeps its full path.
    """
    real = os.path.realpath(path)
    for there, link in kept.items():
        if (real + os.sep).startswith(there + os.sep):
            real = link + real[len(there) :]
    if real.startswith(root + os.sep):
        return os.path.relpath(real, root)
    return None if os.path.normpath(path).startswith(root + os.sep) else os.path.normpath(path).lstrip("/")


def _walk(top: str) -> Iterator[str]:
    """Yield every plain file at or below ``top``, without following symbolic links."""
    if os.path.islink(top):
        return
    if os.path.isfile(top):
        yield top
    for folder, names, files in os.walk(top, followlinks=False):
        names.sort()
        for name in sorted(files):
            path = os.path.join(folder, name)
            if not os.path.islink(path) and os.path.isfile(path):
                yield path
