"""A line in the system's log, without waiting for it."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from ddpctl_worker.machine import syslog


def test_a_line_names_the_program_and_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(syslog, "PATH", str(tmp_path / "log"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log:
        log.bind(syslog.PATH)
        syslog.log_line("the run\nends")
        assert log.recv(1000) == f"<14>ddpctl[{os.getpid()}]: the run ends".encode()
        for _ in range(3000):  # more than the log takes
            syslog.log_line("x" * 1000)


def test_a_host_without_a_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(syslog, "PATH", str(tmp_path / "log"))
    syslog.log_line("the run ends")
