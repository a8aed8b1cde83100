"""The values that launchers and ranks share: keys and values at the launcher of node 0, on the master port."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

from . import DistNetworkError


class Server:
    """Listens on all addresses, as torch does, and serves each client in a thread of its own."""

    def __init__(self, port: int) -> None:
        self._values: dict[str, Any] = {}
        self._changed = threading.Condition()
        try:
            self._socket = _listen(port)
        except OSError as error:
            raise DistNetworkError(
                "The server socket has failed to listen on any local network address. "
                f"port: {port}, useIpv6: false, code: -{error.errno}, name: EADDRINUSE, message: address already in use"
            ) from None
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        port: int = self._socket.getsockname()[1]
        return port

    def _accept(self) -> None:
        while True:
            client = self._socket.accept()[0]
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, client.makefile("rw") as file:
            try:
                for line in file:
                    file.write(json.dumps(self._answer(*json.loads(line))) + "\n")
                    file.flush()
            except OSError:  # the client has ended
                return

    def _answer(self, verb: str, key: str, value: Any) -> Any:
        with self._changed:
            if verb == "get":
                self._changed.wait_for(lambda: key in self._values)
            else:
                self._values[key] = value + self._values.get(key, 0) if verb == "add" else value
                self._changed.notify_all()
            return self._values[key]


def _listen(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=2048)
    return socket.create_server(("", port), backlog=2048)


class Store:
    """A client. It waits for the server for ``timeout`` seconds, and as long for each value."""

    def __init__(self, address: str, port: int, timeout: float) -> None:
        until = time.monotonic() + timeout
        while True:
            try:
                self._socket = socket.create_connection((address.strip("[]"), port), 10)
                break
            except OSError as error:
                if time.monotonic() > until:
                    raise DistNetworkError(
                        f"The client socket has timed out after {timeout * 1000:.0f}ms while trying to connect to "
                        f"({address}, {port}): {error}"
                    ) from None
                time.sleep(0.1)
        self._socket.settimeout(timeout)
        self._file = self._socket.makefile("rw")

    def set(self, key: str, value: Any) -> None:
        self._ask("set", key, value)

    def add(self, key: str, number: int) -> int:
        return int(self._ask("add", key, number))

    def get(self, key: str) -> Any:
        """Return the value once a client has set it."""
        return self._ask("get", key)

    def wait(self, key: str, timeout: float) -> None:
        self._socket.settimeout(timeout)
        self._ask("get", key)

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def _ask(self, verb: str, key: str, value: Any = None) -> Any:
        try:
            self._file.write(json.dumps([verb, key, value]) + "\n")
            self._file.flush()
            line = self._file.readline()
        except OSError as error:
            raise DistNetworkError(f"Failed to {verb} {key}: {error}") from None
        if not line:
            raise DistNetworkError(f"Failed to {verb} {key}: Connection was closed by the store")
        return json.loads(line)
