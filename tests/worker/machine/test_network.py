"""Listening and dialling on this machine: the side that answered, and no other client is served."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.machine import net
from ddpctl_worker.mesh import listener
from ddpctl_worker.run.ports import free_port
from ddpctl_worker.wire.channel import Channel, WorkerError

pytestmark = pytest.mark.slow

WORKER = Path(listener.__file__).parents[1]
NONCE = "ab" * 32


class Worker:
    """A worker on a verb, spoken to as the orchestrator does."""

    def __init__(self, verb: str, **args: Any) -> None:
        env = {"PYTHONPATH": str(WORKER), "PATH": os.environ["PATH"]}
        command = [sys.executable, "-m", "ddpctl_worker"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        assert self.process.stdin
        request = {"verb": verb, "base_dir": "/nowhere", **args}
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        self.process.stdin.flush()

    def frame(self) -> dict[str, Any]:
        assert self.process.stdout
        while True:
            data: dict[str, Any] = json.loads(self.process.stdout.readline())
            if "hb" not in data:
                return data

    def result(self) -> dict[str, Any]:
        data = self.frame()
        assert data["ok"], data
        result: dict[str, Any] = data["result"]
        return result

    def end(self) -> dict[str, Any]:
        """Close its stdin, as a lost connection would."""
        assert self.process.stdin
        self.process.stdin.close()
        result = self.result()
        self.close()
        return result

    def close(self) -> None:
        """End it, if it has not ended."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                pipe.close()
        self.process.kill()
        self.process.wait(60)


@pytest.fixture
def listening() -> Iterator[tuple[Worker, dict[str, Any]]]:
    worker = Worker("listen", host="a", nonce=NONCE, ports=[], samples=2)
    yield worker, worker.frame()
    worker.close()


def dial(*targets: dict[str, Any], nonce: str = NONCE, **args: Any) -> dict[str, Any]:
    worker = Worker("dial", host="b", nonce=nonce, targets=list(targets), **args)
    result = worker.result()
    worker.close()
    return result


def at(peer: str, *ports: int) -> dict[str, Any]:
    return {"peer": peer, "address": "127.0.0.1", "ports": list(ports)}


def test_right_host_answers_on_every_port_and_bulk_data_arrives(listening: tuple[Worker, dict[str, Any]]) -> None:
    worker, frame = listening
    low, high = frame["range"]
    assert all(low <= port <= high for port in frame["samples"])
    found = dial(at("a", *frame["samples"]), bytes=300_000, repeat=2)
    assert found["links"] == []
    assert [(entry[0], sorted(entry[4])) for entry in found["open"]] == [("a", frame["samples"])]
    (speed,) = found["speeds"]
    assert (speed["push"], speed["pull"]) == ("ok", "ok")
    assert speed["push_mbit"] > 0
    assert speed["rtt_ms"] >= 0
    assert worker.end()["accepted"] >= 3


def test_other_host_other_preflight_and_nobody(listening: tuple[Worker, dict[str, Any]]) -> None:
    port = listening[1]["samples"][0]
    (wrong,) = dial(at("c", port))["links"]
    assert (wrong["status"], wrong["answered"]) == ("wrong_host", "a")
    (stranger,) = dial(at("a", port), nonce="cd" * 32)["links"]
    assert stranger["status"] == "foreign"
    (nobody,) = dial(at("a", free_port({}, Channel())["port"]))["links"]
    assert (nobody["status"], nobody["errno"]) == ("refused", "ECONNREFUSED")


@pytest.mark.parametrize(("words", "status"), [(b"SSH-2.0-x\r\n", "foreign"), (b"", "closed"), (None, "silent")])
def test_other_program(words: bytes | None, status: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            held: list[socket.socket] = []
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    for connection in held:
                        connection.close()
                    return
                if words is None:
                    held.append(connection)
                    continue
                with connection:
                    connection.sendall(words)
                    connection.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        (found,) = dial(at("a", server.getsockname()[1]), answer_s=1)["links"]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(60)
    assert found["status"] == status


def test_stranger_is_not_served(listening: tuple[Worker, dict[str, Any]]) -> None:
    """A client without the key gets no data, whatever it sends."""
    port = listening[1]["samples"][0]
    for words in (b"pull 1000000\n", b"GET / HTTP/1.1\r\n\r\n", b"x" * 5000, b"DDPCTL-MESH short\n"):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
            sock.sendall(words)
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(100) == b""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        sock.sendall(b"DDPCTL-MESH " + b"0" * 32 + b"\nauth " + b"0" * 64 + b"\npull 1000\n")
        got = b""
        try:
            while chunk := sock.recv(4096):
                got += chunk
        except ConnectionResetError:
            pass
    assert got.count(b"\n") <= 1
    assert len(got) < 300


def test_listener_ends_with_its_orchestrator_and_frees_the_ports(listening: tuple[Worker, dict[str, Any]]) -> None:
    worker, frame = listening
    worker.end()
    for port in frame["samples"]:
        net.listen(port).close()


def test_port_that_is_taken_is_told_and_left_alone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        worker = Worker("listen", host="a", nonce=NONCE, ports=[port], samples=0, wait_s=0.1)
        frame = worker.frame()
        worker.end()
    assert frame["listening"] == []
    assert [entry["port"] for entry in frame["taken"]] == [port]
    assert frame["taken"][0]["errno"] == errno.EADDRINUSE


def test_key_is_needed() -> None:
    with pytest.raises(WorkerError):
        listener.listen({"host": "a", "nonce": "ab"}, Channel())


def test_addresses_of_this_machine() -> None:
    found = net.addresses()
    (loopback,) = [entry for entry in found if entry["address"] == "127.0.0.1"]
    assert (loopback["interface"], loopback["prefix"], loopback["family"]) == ("lo", 8, 4)
    assert net.source_address("127.0.0.5") is not None
