"""The program of a host that was taken over: sshd runs it in place of every command (ForceCommand).

It runs the real command and changes the output as /root/hostile.json says: ``how`` is a key of ``WORKER`` and
``PLAIN``; ``verbs`` lists the affected verbs of the worker; null means all verbs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import IO, Any

ESCAPE = "\x1b]52;c;Z2FyYmxl\x07\x1b[2J"
OUTSIDE = "../../../../hostile"  # where a careless reader would write
STATES = ("running", "starting", "failed", "killed", "lost", "stopping", "pending", "queued")
TRICKLE_S = 1.0
OUT, ERR = sys.stdout.buffer, sys.stderr.buffer


def wait_until_gone() -> None:
    """Wait until the SSH session is over: then init is the parent."""
    while os.getppid() != 1:
        time.sleep(0.2)


def hang(frame: dict[str, Any], raw: bytes) -> None:
    """Say nothing more."""
    wait_until_gone()


def stall(frame: dict[str, Any], raw: bytes) -> None:
    """Send the true frames up to the result, then claim to be at work for ever."""
    if "ok" not in frame:
        send(frame, raw)
        return
    while os.getppid() != 1:
        write(b'{"hb": 1}\n')
        time.sleep(1.0)


def trickle(frame: dict[str, Any], raw: bytes) -> None:
    """Send the true answer byte by byte."""
    for byte in json.dumps(frame).encode() + b"\n" + raw:
        write(bytes([byte]))
        time.sleep(TRICKLE_S)


def flood(frame: dict[str, Any], raw: bytes) -> None:
    """Send a line without end, on both streams."""
    threading.Thread(target=flood_errors, daemon=True).start()
    while True:
        write(b"x" * 65536)


def flood_errors() -> None:
    while True:
        ERR.write(b"e" * 65536)


def lie(frame: dict[str, Any], raw: bytes) -> None:
    """Pretend success, name files outside of every folder, and hide control characters in the texts."""
    if "file" in frame:
        send({**frame, "file": {**frame["file"], "path": OUTSIDE}}, raw)
    send(change(frame), raw)


def change(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {name: change(held, name) for name, held in value.items()}
    if isinstance(value, list):
        return [change(held, key) for held in value]
    if not isinstance(value, str) or not value:
        return value
    if value in STATES:
        return "succeeded"
    if "/" in value:
        return OUTSIDE
    return value + ESCAPE if key in ("message", "detail", "text", "command", "hint") else value


def wrong_host(frame: dict[str, Any], raw: bytes) -> None:
    """Answer in the name of another host of the inventory."""
    send(json.loads(json.dumps(frame).replace("node1", "node0")), raw)


def send(frame: dict[str, Any], raw: bytes) -> None:
    write(json.dumps({**frame, **({"raw": len(raw)} if raw else {})}).encode() + b"\n" + raw)


def write(data: bytes) -> None:
    OUT.write(data)
    OUT.flush()


def print_escapes(command: str) -> None:
    sys.stderr.write(ESCAPE + "\n")
    sys.stdout.write(f"{OUTSIDE} {ESCAPE}\n")


def print_slowly(command: str) -> None:
    while True:
        write(b"x")
        time.sleep(TRICKLE_S)


def obey(command: str) -> None:
    os.execv("/bin/sh", ["sh", "-c", command])


WORKER: dict[str, Callable[[dict[str, Any], bytes], None]] = {
    "lie": lie,
    "hang": hang,
    "stall": stall,
    "trickle": trickle,
    "flood": flood,
    "wrong host": wrong_host,
}
PLAIN: dict[str, Callable[[str], None]] = {
    "lie": print_escapes,
    "hang": lambda command: wait_until_gone(),
    "stall": lambda command: wait_until_gone(),
    "trickle": print_slowly,
    "flood": lambda command: flood({}, b""),
    "wrong host": obey,
}


class TakenOver:
    """A worker whose answers are changed."""

    def __init__(self, command: str, how: str, verbs: list[str] | None) -> None:
        self.how, self.verbs = how, verbs
        self.verb = ""
        self.word: str | None = None  # of the banner
        self.greeted = threading.Event()
        self.child = subprocess.Popen(["/bin/sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        threading.Thread(target=self.pass_input, daemon=True).start()

    def pass_input(self) -> None:
        """Pass on the header, the package where the host lacks it, and the requests; remember the verb."""
        source, to = open(0, "rb"), self.child.stdin  # noqa: SIM115  # open until the end
        assert to is not None
        try:
            header = source.readline()
            self.give(to, header)
            self.greeted.wait()
            if self.word == "need":
                self.give(to, source.read(json.loads(header)["size"]))
            while line := source.readline():
                request = json.loads(line)
                self.verb = request["verb"]
                self.give(to, line)
                if not request["again"]:
                    break
            while part := source.read1(65536):
                self.give(to, part)
            to.close()
        except (OSError, ValueError):
            self.child.kill()

    def give(self, to: IO[bytes], data: bytes) -> None:
        to.write(data)
        to.flush()

    def pass_output(self) -> None:
        source = self.child.stdout
        assert source is not None
        for line in source:
            if not self.greeted.is_set():
                write(line)
                if line.startswith(b"DDPCTL/"):
                    self.word = line.split()[2].decode()
                    self.greeted.set()
                continue
            frame = json.loads(line)
            raw = source.read(frame.pop("raw", 0))
            if "ready" in frame or (self.verbs is not None and self.verb not in self.verbs):
                send(frame, raw)
            else:
                WORKER[self.how](frame, raw)


def main() -> None:
    with open("/root/hostile.json") as file:
        plan = json.load(file)
    command = os.environ.get("SSH_ORIGINAL_COMMAND", "")
    if "ddpctl=json.loads" not in command:
        if plan["verbs"] is not None:
            obey(command)
        PLAIN[plan["how"]](command)
        return
    taken = TakenOver(command, plan["how"], plan["verbs"])
    try:
        taken.pass_output()
        sys.exit(taken.child.wait())
    except BrokenPipeError:  # the controller has gone away
        os._exit(1)
    finally:
        taken.child.kill()


if __name__ == "__main__":
    main()
