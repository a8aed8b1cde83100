"""A shell in a real terminal, typed into and recorded."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Mapping
from pathlib import Path

import pexpect

COLUMNS, ROWS = 100, 26
PROMPT = "\x1b[1;34m$\x1b[0m "
KEY_S = 0.045  # between two keys, about
READ_S = 1.2  # for a person to read what a command printed
LONGEST_S = 2.0  # a pause is never shown longer than this


class Tape:
    """What the terminal showed, and when: (seconds, text)."""

    def __init__(self) -> None:
        self.events: list[tuple[float, str]] = []

    def write(self, text: str) -> None:
        self.events.append((time.monotonic(), text))

    def flush(self) -> None:
        """pexpect wants a file."""

    def text(self, title: str) -> str:
        """As asciicast v2. Long waits are cut short; the header says nothing of when and where."""
        header = {"version": 2, "width": COLUMNS, "height": ROWS, "title": title, "env": {"TERM": "xterm-256color"}}
        lines, at, before = [json.dumps(header)], 0.0, None
        for moment, text in self.events:
            at += min(moment - before, LONGEST_S) if before is not None else 0.5
            before = moment
            lines.append(json.dumps([round(at, 3), "o", text]))
        return "\n".join(lines) + "\n"


class Terminal:
    """`type` a command and `see` its output. Nothing of the shell's own start is recorded."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self.tape = Tape()
        self._random = random.Random(1)
        variables = {**env, "PS1": PROMPT, "TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
        self._shell = pexpect.spawn(
            "/bin/bash",
            ["--norc", "--noprofile", "--noediting"],
            cwd=str(folder),
            env={**variables, "PROMPT_COMMAND": ""},
            dimensions=(ROWS, COLUMNS),
            encoding="utf-8",
            codec_errors="replace",
            timeout=120,
        )
        self._shell.expect_exact(PROMPT)
        self._shell.logfile_read = self.tape
        self.tape.write(PROMPT)

    def type(self, text: str, *, enter: bool = True) -> None:
        """Key by key, as a person does."""
        for key in text:
            self._shell.send(key)
            self._shell.expect_exact(key, timeout=10)
            time.sleep(KEY_S * self._random.uniform(0.5, 1.6))
        if enter:
            time.sleep(0.4)
            self._shell.send("\r")

    def press(self, keys: str) -> None:
        """Keys that a program gets without showing them."""
        self._shell.send(keys)

    def see(self, pattern: str, timeout: float = 120) -> None:
        """Wait until the terminal shows this (a regular expression).

        Raises:
            pexpect.ExceptionPexpect: it never did.
        """
        self._shell.expect(pattern, timeout=timeout)

    def done(self, timeout: float = 120) -> None:
        """Until the command has ended, and a moment to read."""
        self._shell.expect_exact(PROMPT, timeout=timeout)
        self.rest(READ_S)

    def rest(self, seconds: float) -> None:
        """Time to read, in which the output is recorded."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._shell.expect([pexpect.TIMEOUT, pexpect.EOF], timeout=left)

    @property
    def shown(self) -> str:
        """All text so far."""
        return "".join(text for _, text in self.tape.events)

    def close(self) -> None:
        self._shell.close(force=True)
