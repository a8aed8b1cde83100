"""Segments and offsets, with a writer that works and a writer with a broken disk."""

from __future__ import annotations

import os
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddpctl_worker.record import limits, logs
from ddpctl_worker.record.lines import STDOUT, decode, decode_all, encode
from ddpctl_worker.verbs import tail
from tests.worker.node import eventually


def written(folder: Path, count: int, *, segment: int = 1 << 20, total: int = 1 << 30, size: int = 50) -> logs.Writer:
    writer = logs.Writer(str(folder), segment=segment, total=total)
    writer.start()
    for number in range(count):
        record = encode(1.0, number % 3, STDOUT, b"%d " % number + b"x" * size, b"\n")
        assert writer.submit(record, 1)
    end(writer)
    return writer


def end(writer: logs.Writer) -> None:
    writer.close()
    eventually(lambda: writer.over, "the log is closed")


def numbers(records: list[tuple[int, bytes]]) -> list[int]:
    found = []
    for _, line in records:
        value = decode(line)
        assert value is not None
        if not value["x"].startswith("ddpctl:"):
            found.append(int(value["x"].split()[0]))
    return found


def read_all(folder: Path, offset: int = 0, limit: int = 1 << 20) -> list[tuple[int, bytes]]:
    reader = logs.Reader(str(folder))
    found: list[tuple[int, bytes]] = []
    while True:
        batch = reader.read(offset, limit)
        if not batch.records:
            reader.close()
            return found
        found += batch.records
        offset = batch.offset


@pytest.mark.parametrize("limit", [1, 100, 5000, 1 << 20])
def test_all_that_was_written_is_read_in_order(tmp_path: Path, limit: int) -> None:
    written(tmp_path, 500, segment=4000)
    assert len(logs.segments(str(tmp_path))) > 5
    assert numbers(read_all(tmp_path, limit=limit)) == list(range(500))


@settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture], deadline=None, max_examples=60
)
@given(st.integers(0, 199))
def test_reading_goes_on_from_any_record(tmp_path: Path, at: int) -> None:
    if not logs.segments(str(tmp_path)):
        written(tmp_path, 200, segment=3000)
    everything = read_all(tmp_path)
    assert numbers(read_all(tmp_path, everything[at][0])) == list(range(at + 1, 200))


@pytest.mark.slow
def test_a_reader_beside_the_writer_misses_and_doubles_nothing(tmp_path: Path) -> None:
    found: list[int] = []
    done = threading.Event()

    def read() -> None:
        reader, offset = logs.Reader(str(tmp_path)), 0
        while True:
            over = done.is_set()
            batch = reader.read(offset, 3000)
            offset = batch.offset
            found.extend(numbers(batch.records))
            if over and not batch.records:
                reader.close()
                return

    thread = threading.Thread(target=read)
    thread.start()
    written(tmp_path, 20_000, segment=20_000)
    done.set()
    thread.join()
    assert found == list(range(20_000))


def test_the_first_and_the_newest_segments_are_kept(tmp_path: Path) -> None:
    written(tmp_path, 3000, segment=10_000, total=50_000)
    assert sum(os.path.getsize(one.path) for one in logs.segments(str(tmp_path))) <= 52_000
    batch = logs.Reader(str(tmp_path)).read(0)
    kept = numbers(batch.records)
    assert kept[0] == 0
    # After the first segment there is a gap, and the reader reports it.
    gap = logs.Reader(str(tmp_path)).read(batch.offset)
    assert gap.skipped > 0
    assert numbers(gap.records)[0] > kept[-1] + 1
    assert numbers(read_all(tmp_path))[-1] == 2999


@pytest.mark.parametrize("count", [0, 1, 7, 60, 10_000])
@pytest.mark.parametrize("ranks", [None, {1}, {0, 2}])
def test_the_last_lines(tmp_path: Path, count: int, ranks: set[int] | None) -> None:
    written(tmp_path, 300, segment=4000)
    wanted = [number for number in range(300) if ranks is None or number % 3 in ranks]
    offset = tail.before_last(str(tmp_path), count, lambda value: ranks is None or value["r"] in ranks)
    found = [number for number in numbers(read_all(tmp_path, offset)) if ranks is None or number % 3 in ranks]
    assert found == (wanted[-count:] if count else [])


def test_the_last_lines_where_one_lies_across_two_reads(tmp_path: Path) -> None:
    """More than is read at once: 700 KB from the end of a segment."""
    written(tmp_path, 1000, size=700)
    for count in (1, 300, 700, 1000):
        found = numbers(read_all(tmp_path, tail.before_last(str(tmp_path), count, lambda value: True)))
        assert found == list(range(1000))[-count:]


def test_the_last_line_with_its_pieces(tmp_path: Path) -> None:
    pieces = [(b"1 a", b"\n"), (b"2 b", b""), (b"2 c", b""), (b"2 d", b"\n"), (b"3 e", b"")]
    blob = b"".join(encode(1.0, 0, STDOUT, text, end) for text, end in pieces)
    (tmp_path / f"{0:020d}.jsonl").write_bytes(blob)
    assert numbers(read_all(tmp_path, tail.before_last(str(tmp_path), 1, lambda value: True))) == [3]
    assert numbers(read_all(tmp_path, tail.before_last(str(tmp_path), 2, lambda value: True))) == [2, 2, 2, 3]
    assert numbers(read_all(tmp_path, tail.before_last(str(tmp_path), 3, lambda value: True))) == [1, 2, 2, 2, 3]


FOREIGN = (
    "train.jsonl",
    ".jsonl",
    "7.jsonl",
    "-0000000000000000001.jsonl",
    "0" * 20 + ".jsonl.gz",
    "\u0663" * 20 + ".jsonl",
)


def test_files_of_the_script_in_the_folder_are_no_part_of_the_log(tmp_path: Path) -> None:
    """The script knows the run's folder and may write there. A later attempt continues the log all the same."""
    written(tmp_path, 5)
    for name in FOREIGN:
        (tmp_path / name).write_text('{"loss": 1.5}\n')
    writer = logs.Writer(str(tmp_path), resume=True)
    writer.start()
    assert writer.submit(encode(1.0, 0, STDOUT, b"5 later", b"\n"), 1)
    end(writer)
    assert numbers(read_all(tmp_path)) == [0, 1, 2, 3, 4, 5]
    assert all((tmp_path / name).read_text() == '{"loss": 1.5}\n' for name in FOREIGN)


def test_half_a_record_is_never_shown(tmp_path: Path) -> None:
    written(tmp_path, 5)
    path = logs.segments(str(tmp_path))[0].path
    with open(path, "ab") as file:
        file.write(b'{"t":1.0,"r":0,"s":"o","x":"5 to')
    reader = logs.Reader(str(tmp_path))
    assert numbers(reader.read(0).records) == [0, 1, 2, 3, 4]
    end = reader.end()
    assert reader.read(end).records == []
    with open(path, "ab") as file:
        file.write(b'rn","e":"\\n"}\n')
    assert numbers(reader.read(end).records) == [5]
    reader.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 256 KiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small filesystem needs root")
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=0700", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_a_full_disk_costs_lines_that_are_counted_and_told(small_disk: Path) -> None:
    writer = logs.Writer(str(small_disk))
    writer.start()
    for number in range(6000):
        assert writer.submit(encode(1.0, 0, STDOUT, b"%d" % number + b" " * 60, b"\n"), 1)
    eventually(lambda: len(read_all(small_disk)) + writer.dropped == 6000, "each line is written or dropped")
    assert writer.dropped > 0
    first = numbers(read_all(small_disk))
    assert first == list(range(len(first)))  # whole, and without a hole
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    assert writer.submit(encode(1.0, 0, STDOUT, b"9999 later", b"\n"), 1)
    end(writer)
    values = [decode(line) for _, line in read_all(small_disk)]
    texts = [value["x"] for value in values if value]
    marks = [text for text in texts if text.startswith("ddpctl:")]
    assert marks == [f"ddpctl: {writer.dropped} lines of output were dropped here: they could not be written to disk"]
    assert texts[-1] == "9999 later"
    assert len(first) + writer.dropped == 6000


def test_a_disk_that_hangs_costs_lines_and_not_a_moment(tmp_path: Path) -> None:
    """A segment that is a FIFO without a reader: the writer's thread hangs in its open, as it would on a hung disk."""
    fifo = tmp_path / f"{0:020d}.jsonl"
    os.mkfifo(fifo)
    writer = logs.Writer(str(tmp_path), segment=1 << 30)
    writer.start()
    big = encode(1.0, 0, STDOUT, b"x" * 1000, b"\n") * 20_000
    taken = 0
    while writer.submit(big, 20_000):
        taken += 20_000
    assert taken * 1000 <= limits.QUEUE_BYTES
    assert not writer.submit(big, 20_000)
    assert writer.dropped == 40_000
    with open(fifo, "rb") as reader:
        writer.close()
        found = reader.read()
    eventually(lambda: writer.over, "the log is closed")
    notes = [int(count) for count in re.findall(rb"(\d+) lines of output were dropped here", found)]
    assert sum(notes) == 40_000
    assert found.count(b"\n") == taken + len(notes)


def timed(folder: Path, moments: list[float]) -> None:
    """A log of several segments."""
    offset, segment = 0, b""
    for number, moment in enumerate(moments):
        segment += encode(moment, 0, STDOUT, b"%d " % number, b"\n")
        if number % 7 == 6 or number == len(moments) - 1:
            (folder / f"{offset:020d}.jsonl").write_bytes(segment)
            offset, segment = offset + len(segment), b""


def test_where_a_time_begins(tmp_path: Path) -> None:
    """The first line of that time or later, and all that follow it, though a clock went back a little."""
    moments = [10.0 + number for number in range(40)]
    moments[20] = 25.0
    timed(tmp_path, moments)
    for since, first in ((0.0, 0), (10.0, 0), (10.5, 1), (24.5, 15), (29.5, 21), (49.0, 39), (50.0, 40)):
        reader = logs.Reader(str(tmp_path))
        found = numbers(read_all(tmp_path, tail.at_time(str(tmp_path), reader, since)))
        reader.close()
        assert found == list(range(first, 40)), since


def test_records_are_decoded_at_once_or_one_by_one_with_the_same_result() -> None:
    whole = [encode(1.5, 3, STDOUT, b"x,y]", b"\n")[:-1], encode(2.0, None, STDOUT, b"caf\xe9", b"\r", 2)[:-1]]
    for torn in (b"", b"1,2", b"{", b'{"t":1', b"\x00\x00", b'"x"', b"{},{}", b"\xff"):
        assert decode_all([*whole, torn, *whole]) == [*map(decode, whole), None, *map(decode, whole)]
    assert decode_all(whole) == [*map(decode, whole)]
    assert decode_all([]) == []
