"""A process group for ranks that only have to meet: each has a TCP connection to rank 0, and objects go over it."""

from __future__ import annotations

import datetime
import os
import pickle
import socket
import struct
from collections.abc import MutableSequence
from typing import Any

DistError = type("DistError", (RuntimeError,), {"__module__": "torch.distributed"})
DistNetworkError = type("DistNetworkError", (DistError,), {"__module__": "torch.distributed"})
_LENGTH = struct.Struct(">Q")
_PLACE = "stand_in/rank0"  # where the store has the port of rank 0


class _Peer:
    """The other end of a connection."""

    def __init__(self, connection: socket.socket, timeout: float) -> None:
        connection.settimeout(timeout)
        self._connection = connection
        self._file = connection.makefile("rwb")

    def send(self, content: Any) -> None:
        data = pickle.dumps(content)
        try:
            self._file.write(_LENGTH.pack(len(data)) + data)
            self._file.flush()
        except OSError as error:
            raise DistNetworkError(f"Connection closed by peer: {error}") from None

    def receive(self) -> Any:
        try:
            length = self._file.read(_LENGTH.size)
            data = self._file.read(_LENGTH.unpack(length)[0]) if length else b""
        except TimeoutError:
            raise DistNetworkError("Timed out waiting for a peer") from None
        except OSError as error:
            raise DistNetworkError(f"Connection closed by peer: {error}") from None
        if not data:
            raise DistNetworkError("Connection closed by peer")
        return pickle.loads(data)

    def close(self) -> None:
        self._file.close()
        self._connection.close()


class _Group:
    """``peers``: at rank 0 the connections of all other ranks by rank; elsewhere the connection to rank 0."""

    def __init__(self, rank: int, size: int, timeout: float) -> None:
        from .store import Store

        self.rank, self.size = rank, size
        self.peers: dict[int, _Peer] = {}
        address = os.environ["MASTER_ADDR"].strip("[]")
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        store = Store(address, int(os.environ["MASTER_PORT"]), timeout)
        if rank == 0:
            with socket.create_server((address, 0), family=family, backlog=size) as server:
                server.settimeout(timeout)
                store.set(_PLACE, server.getsockname()[1])
                while len(self.peers) < size - 1:
                    peer = _Peer(server.accept()[0], timeout)
                    self.peers[peer.receive()] = peer
        else:
            self.peers[0] = _Peer(socket.create_connection((address, store.get(_PLACE)), timeout), timeout)
            self.peers[0].send(rank)
        store.close()
        self.gather(None)

    def gather(self, mine: Any) -> list[Any]:
        """The object of every rank, in the order of the ranks."""
        if self.rank:
            self.peers[0].send(mine)
            found: list[Any] = self.peers[0].receive()
            return found
        found = [mine, *(self.peers[rank].receive() for rank in range(1, self.size))]
        for peer in self.peers.values():
            peer.send(found)
        return found

    def close(self) -> None:
        for peer in self.peers.values():
            peer.close()


_group: _Group | None = None


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: datetime.timedelta = datetime.timedelta(minutes=30),
) -> None:
    global _group
    if backend not in (None, "gloo") or init_method not in (None, "env://"):
        raise ValueError(f"the stand-in for torch has gloo and env:// only, not {backend} and {init_method}")
    if _group is not None:
        raise ValueError("trying to initialize the default process group twice!")
    _group = _Group(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), timeout.total_seconds())


def destroy_process_group() -> None:
    global _group
    _the_group().close()
    _group = None


def _the_group() -> _Group:
    if _group is None:
        raise ValueError("Default process group has not been initialized, please make sure to call init_process_group.")
    return _group


def barrier() -> None:
    _the_group().gather(None)


def all_gather_object(object_list: MutableSequence[Any], obj: Any) -> None:
    object_list[:] = _the_group().gather(obj)


def get_rank() -> int:
    return _the_group().rank


def get_world_size() -> int:
    return _the_group().size


def get_backend() -> str:
    _the_group()
    return "gloo"


def is_initialized() -> bool:
    return _group is not None


def is_available() -> bool:
    return True


def is_gloo_available() -> bool:
    return True


def is_nccl_available() -> bool:
    return False


def __getattr__(name: str) -> object:
    from .. import missing  # noqa: TID252  by its name, mypy and ruff would find the real torch

    raise missing(__name__, name)
