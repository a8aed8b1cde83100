"""Files of one spread while they arrive on this node: one thread writes them, others serve them to peers."""

from __future__ import annotations

import threading
from typing import Any, Dict, List, Optional, Tuple

from ddpctl_worker.machine.fs import own_folder
from ddpctl_worker.store.blobs import Part, blob_size, open_blob, require_space
from ddpctl_worker.wire.channel import WorkerError


class IncomingFile:
    """One file, of which ``done`` bytes are here. ``generation`` counts its restarts from byte 0."""

    def __init__(self, sha256: str, size: int, name: str) -> None:
        self.sha256, self.size, self.name = sha256, size, name
        self.part: Optional[Part] = None
        self.done = 0
        self.complete = False
        self.failed = False
        self.generation = 0


class Incoming:
    """All files of a spread, in order. One thread writes, many threads read; ``changed`` is lock and signal."""

    def __init__(self, base_dir: str, files: List[Dict[str, Any]]) -> None:
        """Find complete blobs and parts that can be continued.

        Raises:
            WorkerError: unsafe_path, or no_space for all missing bytes.
        """
        self.base_dir = base_dir
        self.changed = threading.Condition()
        self.items = {item["hash"]: IncomingFile(item["hash"], int(item["size"]), item["name"]) for item in files}
        self.found = 0  # bytes that were here before, unfinished files included
        for item in self.items.values():
            self._look_up(item)
        missing = sum(item.size - item.done for item in self.items.values())
        if missing:
            require_space(own_folder(base_dir, "store"), missing)

    def _look_up(self, item: IncomingFile) -> None:
        if blob_size(self.base_dir, item.sha256) is not None:
            item.complete, item.done = True, item.size
        else:
            item.part = Part(self.base_dir, item.sha256, item.size)
            item.done = item.part.done
        self.found += item.done

    def pending(self) -> List[IncomingFile]:
        return [item for item in self.items.values() if not item.complete]

    @property
    def done(self) -> int:
        """Bytes of all files that are here."""
        return sum(item.done for item in self.items.values())

    def append(self, item: IncomingFile, data: bytes) -> None:
        """Append bytes to a file, and wake the readers that wait for them."""
        assert item.part is not None
        item.part.write(data)
        with self.changed:
            item.done = item.part.done
            self.changed.notify_all()

    def finish(self, item: IncomingFile) -> None:
        """Verify a file with all its bytes, and give it its name.

        Raises:
            WorkerError: corrupt; the file then restarts from byte 0, for its readers too.
        """
        assert item.part is not None
        try:
            item.part.commit()
        except WorkerError:
            with self.changed:
                item.part = Part(self.base_dir, item.sha256, item.size, fresh=True)
                item.done = 0
                item.generation += 1
                self.changed.notify_all()
            raise
        with self.changed:
            item.complete, item.part = True, None
            self.changed.notify_all()

    def fail(self) -> None:
        """Mark all unfinished files as failed: their readers go to other nodes."""
        with self.changed:
            for item in self.pending():
                item.failed = True
            self.changed.notify_all()

    def close(self) -> None:
        """Keep unfinished files for a later resume."""
        self.fail()
        for item in self.pending():
            if item.part is not None:
                item.part.keep()

    def open(self, item: IncomingFile) -> Tuple[Optional[int], int]:
        """Return a descriptor that reads the file from its start, and the generation.

        ``None`` instead: the file failed.
        """
        with self.changed:
            if item.failed:
                return None, item.generation
            if item.part is not None and not item.complete:
                return item.part.read_fd(), item.generation
        return open_blob(self.base_dir, item.sha256), item.generation

    def wait(self, item: IncomingFile, offset: int, generation: int, timeout: float) -> Optional[int]:
        """Return ``done`` once it exceeds ``offset``, or after ``timeout`` s.

        ``None``: the file failed or restarted.
        """
        with self.changed:
            self.changed.wait_for(
                lambda: item.done > offset or item.failed or item.generation != generation, timeout=timeout
            )
            if item.failed or item.generation != generation:
                return None
            return item.done
