"""What a rank leaves of its exception, and what the launcher says of ranks that failed."""

from __future__ import annotations

import datetime
import faulthandler
import functools
import json
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

_Result = TypeVar("_Result")
_NO_FILE = "<N/A>"
_NO_TRACEBACK = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"


class ProcessFailure:
    """A rank that failed, with the content of its error file."""

    def __init__(self, local_rank: int, pid: int, exitcode: int, error_file: str) -> None:
        self.local_rank, self.pid, self.exitcode = local_rank, pid, exitcode
        self.error_file, self.timestamp = _NO_FILE, int(time.time())
        self.signal = _signal_name(-exitcode) if exitcode < 0 else ""
        self.message = f"Signal {-exitcode} ({self.signal}) received by PID {pid}" if self.signal else _NO_TRACEBACK
        if os.path.isfile(error_file):
            with open(error_file) as file:
                message = json.load(file)["message"]
            self.error_file, self.timestamp = error_file, int(message["extraInfo"]["timestamp"])
            self.message = message["extraInfo"]["py_callstack"].replace("\n", "\n  ")

    def describe(self, index: int, rank: int) -> str:
        return "\n".join(
            (
                f"[{index}]:",
                f"  time      : {datetime.datetime.fromtimestamp(self.timestamp).isoformat(sep='_')}",
                f"  host      : {socket.getfqdn()}",
                f"  rank      : {rank} (local_rank: {self.local_rank})",
                f"  exitcode  : {self.exitcode} (pid: {self.pid}) {f' ({self.signal})' if self.signal else ''}",
                f"  error_file: {self.error_file}",
                f"  traceback : {self.message}",
            )
        )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return _NO_FILE


class ChildFailedError(Exception):
    """``failures``: by global rank. The earliest failure is the root cause."""

    def __init__(self, name: str, failures: Mapping[int, ProcessFailure]) -> None:
        self.root = min(failures, key=lambda rank: failures[rank].timestamp)
        self.failures = failures
        texts = {rank: failure.describe(index, rank) for index, (rank, failure) in enumerate(failures.items())}
        root = texts.pop(self.root)
        width = min(60, max(map(len, (f"{name} FAILED", *root.splitlines()))))
        lines = ["", "=" * width, f"{name} FAILED", "-" * width, "Failures:"]
        lines += texts.values() or ["  <NO_OTHER_FAILURES>"]
        lines += ["-" * width, "Root Cause (first observed failure):", root, "=" * width]
        super().__init__("\n".join(lines))


def record(function: Callable[..., _Result]) -> Callable[..., Any]:
    """Leaves an exception of ``function`` in the file that the launcher names; the launcher's own is that of the rank
    that failed first."""

    @functools.wraps(function)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        faulthandler.enable(all_threads=True)
        own = os.environ.get("TORCHELASTIC_ERROR_FILE")
        try:
            return function(*args, **kwargs)
        except SystemExit as error:
            if error.code == 0:
                return None
            raise
        except ChildFailedError as error:
            failure = error.failures[error.root]
            if own and failure.error_file != _NO_FILE:
                with open(failure.error_file) as file:
                    content = json.load(file)
                content["message"]["errorCode"] = failure.exitcode
                _write(own, content)
            raise
        except Exception as error:
            if own:
                extra = {"py_callstack": traceback.format_exc(), "timestamp": str(int(time.time()))}
                _write(own, {"message": {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}})
            raise

    return recorded


def _write(path: str, content: Any) -> None:
    with open(path, "w") as file:
        json.dump(content, file)
