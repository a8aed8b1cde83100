"""What the controller says to one node during a spread: orders at once, pieces of files in between."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from ddpctl.environment.blobs import Source
from ddpctl.transport.frames import garbled

MOST_WANTS = 1000  # that wait, beyond one of each file


class Feed:
    """The body of a node's ``spread`` call: an iterator that waits for something to say until ``close``.

    ``sent`` hears how many bytes of files were handed to the link.
    """

    def __init__(self, sources: Mapping[str, Source], sent: Callable[[int], None]) -> None:
        self._sources, self._sent = sources, sent
        self._orders: deque[bytes] = deque()
        self._wants: deque[tuple[str, int]] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def order(self, **order: Any) -> None:
        """Say something as soon as the piece that is on its way is through."""
        with self._changed:
            self._orders.append(json.dumps(order).encode("ascii") + b"\n")
            self._changed.notify()

    def want(self, files: Sequence[tuple[str, int]]) -> None:
        """The node asks for the rest of these files: (sha256, offset).

        Raises:
            RemoteError: it asks for what it was not offered, or for more than anybody needs.
        """
        offered = all(name in self._sources and offset <= self._sources[name].size for name, offset in files)
        if not offered or len(self._wants) + len(files) > MOST_WANTS + len(self._sources):
            raise garbled("it asks for files that it was not offered")
        with self._changed:
            self._wants.extend(files)
            self._changed.notify()

    def close(self) -> None:
        """Nothing more to say."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def __iter__(self) -> Iterator[bytes]:
        pieces: Iterator[bytes] = iter(())
        while True:
            with self._changed:
                order = self._orders.popleft() if self._orders else None
            say = order or next(pieces, None)
            if say is not None:
                yield say
                continue
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._orders or self._wants)
                if self._closed and not self._orders:
                    return
                if self._wants and not self._orders:
                    pieces = self._pieces(*self._wants.popleft())

    def _pieces(self, sha256: str, offset: int) -> Iterator[bytes]:
        for data in self._sources[sha256].chunks(offset):
            line = {"cmd": "data", "hash": sha256, "offset": offset, "size": len(data)}
            yield json.dumps(line).encode("ascii") + b"\n" + data
            offset += len(data)
            self._sent(len(data))
