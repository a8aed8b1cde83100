"""The pipes of the launcher and its ranks, as they are emptied."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ddpctl_worker.record.lines import STDERR, STDOUT
from ddpctl_worker.record.logs import Writer
from ddpctl_worker.run import drain as draining
from ddpctl_worker.run.drain import Drain
from tests.worker.node import eventually


@pytest.mark.parametrize("writer_stays", [False, True], ids=["closed", "held by another process"])
def test_the_last_line_needs_no_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer_stays: bool) -> None:
    monkeypatch.setattr(draining, "UNFINISHED_LINE_S", 600.0)  # only the end of the pipe gives it out
    monkeypatch.setattr(draining, "ENDLESS_WRITER_S", 0.1)
    writer = Writer(str(tmp_path))
    writer.start()
    drain = Drain(writer, lambda local: local, lambda: None)
    ends = []
    for stream in (STDOUT, STDERR):
        reader, end = os.pipe()
        os.set_blocking(reader, False)
        drain.add(reader, 0, stream)
        os.write(end, f"first of {stream}\nlast of {stream}".encode())
        ends.append(end)
    drain.start()
    for end in () if writer_stays else ends:
        os.close(end)
    drain.catch_up(10)
    drain.close()
    eventually(lambda: drain.over, "the end of the drain")
    writer.close()
    eventually(lambda: writer.over, "the end of the log")
    written = b"".join(path.read_bytes() for path in sorted(tmp_path.iterdir()))
    for stream in (STDOUT, STDERR):
        assert f"first of {stream}".encode() in written
        assert f"last of {stream}".encode() in written
