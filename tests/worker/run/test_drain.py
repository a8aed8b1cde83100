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

TIMED_OUT = b"RuntimeError: [gloo/unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation to complete\n"


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
    drain.catch_up(60)
    drain.close()
    eventually(lambda: drain.over, "the end of the drain")
    writer.close()
    eventually(lambda: writer.over, "the end of the log")
    written = b"".join(path.read_bytes() for path in sorted(tmp_path.iterdir()))
    for stream in (STDOUT, STDERR):
        assert f"first of {stream}".encode() in written
        assert f"last of {stream}".encode() in written


def test_it_counts_the_time_outs_that_a_rank_prints(tmp_path: Path) -> None:
    drain = Drain(Writer(str(tmp_path)), lambda local: local, lambda: None)
    ends = {}
    for place in ((0, STDERR), (1, STDERR), (2, STDOUT), (None, STDERR)):
        reader, ends[place] = os.pipe()
        os.set_blocking(reader, False)
        drain.add(reader, *place)
        os.write(ends[place], b"RuntimeError: Connection closed by peer\n" if place[0] == 1 else TIMED_OUT)
    drain.start()
    drain.catch_up(60)
    assert drain.count_timeouts() == {0: 1}
    os.write(ends[0, STDERR], b"[rank0]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)\n")
    drain.catch_up(60)
    assert drain.count_timeouts() == {0: 2}
    for part in (b"[rank0]: Watchdog caught collective oper", b"ation timeout: WorkNCCL(SeqNum=8)\n"):
        os.write(ends[0, STDERR], part)
        drain.catch_up(60)
    assert drain.count_timeouts() == {0: 3}
    drain.close()
    for end in ends.values():
        os.close(end)
    eventually(lambda: drain.over, "the end of the drain")
