"""Both published layouts, the unpickler that refuses, and the synthetic set."""

from __future__ import annotations

import hashlib
import pickle
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lazy import Lazy

np = Lazy("numpy")
cifar10 = Lazy("cifar10")

EACH = 4  # images a file


def files() -> tuple[str, ...]:
    return (*cifar10.TRAIN_FILES, *cifar10.TEST_FILES)


def records(number: int) -> Any:
    """A file's images as uint8 (EACH, 3073): any pixels, with labels that tell the file."""
    pixels = np.random.RandomState(number).randint(0, 256, size=(EACH, cifar10.PIXELS))
    labels = (np.arange(EACH) + number) % cifar10.CLASSES
    return np.concatenate([labels[:, None], pixels], axis=1).astype(np.uint8)


def published_pickle(rows: Any) -> bytes:
    """The bytes that Python 2 and the numpy of 2009 made of a batch, opcode by opcode."""

    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value

    labels = b"".join(b"K" + bytes([label]) for label in rows[:, 0])
    array = b"cnumpy.core.multiarray\n_reconstruct\n" + b"(cnumpy\nndarray\n(K\x00t" + text(b"b") + b"tR"
    endless = b"J\xff\xff\xff\xff"
    dtype = b"cnumpy\ndtype\n(" + text(b"u1") + b"K\x00K\x01tR(K\x03" + text(b"|") + b"NNN" + 2 * endless + b"K\x00tb"
    shape = b"(M" + struct.pack("<H", len(rows)) + b"M" + struct.pack("<H", cifar10.PIXELS) + b"t"
    state = b"(K\x01" + shape + dtype + b"\x89" + text(rows[:, 1:].tobytes()) + b"t"
    items = text(b"batch_label") + text(b"a batch") + text(b"labels") + b"](" + labels + b"e"
    return b"\x80\x02}(" + items + text(b"data") + array + state + b"bu."


def modern_pickle(rows: Any) -> bytes:
    """A batch as a Python 3 program writes it for Python 2."""
    return pickle.dumps({"labels": rows[:, 0].tolist(), "data": np.ascontiguousarray(rows[:, 1:])}, protocol=2)


WRITERS = {
    "published-pickle": ("cifar-10-batches-py", "", published_pickle),
    "modern-pickle": ("cifar-10-batches-py", "", modern_pickle),
    "binary": ("cifar-10-batches-bin", ".bin", lambda rows: rows.tobytes()),
}


@pytest.fixture(params=WRITERS, ids=str)
def layout(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with the six files of a layout."""
    name, suffix, write = WRITERS[request.param]
    folder = tmp_path / name
    folder.mkdir()
    for number, file in enumerate(files()):
        (folder / f"{file}{suffix}").write_bytes(write(records(number)))
    return folder


@pytest.mark.parametrize("below", [True, False], ids=["parent", "folder"])
def test_a_published_layout_is_read_where_it_lies(layout: Path, below: bool) -> None:
    train, test = cifar10.load(str(layout.parent if below else layout), 0, None, None)
    expected = np.concatenate([records(number) for number in range(5)])
    assert train.images.dtype == np.uint8
    assert train.images.shape == (5 * EACH, 3, 32, 32)
    assert (train.images.reshape(-1, cifar10.PIXELS) == expected[:, 1:]).all()
    assert train.labels.dtype == np.int64
    assert (train.labels == expected[:, 0]).all()
    assert (test.labels == records(5)[:, 0]).all()


def test_the_planes_are_red_green_blue_row_by_row(tmp_path: Path) -> None:
    row = np.zeros((1, 3073), dtype=np.uint8)
    row[0, 1 + 1024 + 32 * 2 + 5] = 9  # green, third row, sixth column
    for file in files():
        (tmp_path / f"{file}.bin").write_bytes(row.tobytes())
    assert cifar10.load(str(tmp_path), 0, None, None)[1].images[0, 1, 2, 5] == 9


def test_a_size_reads_no_more_files_than_it_needs(layout: Path) -> None:
    for file in layout.glob("data_batch_[345]*"):
        file.unlink()
    train, test = cifar10.load(str(layout), 0, 2 * EACH - 1, 1)
    assert (len(train.labels), len(test.labels)) == (2 * EACH - 1, 1)


def test_a_missing_file_is_named(layout: Path) -> None:
    file = next(layout.glob("data_batch_4*"))
    file.unlink()
    with pytest.raises(cifar10.JobError, match=f"cannot read {file}: No such file"):
        cifar10.load(str(layout), 0, None, None)


def test_an_empty_folder_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        cifar10.JobError, match=r"no CIFAR-10 in .*: unpack cifar-10-python.tar.gz .*--data_dir synthetic"
    ):
        cifar10.load(str(tmp_path), 0, None, None)


def test_a_cut_file_is_refused(layout: Path) -> None:
    file = next(layout.glob("data_batch_2*"))
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(cifar10.JobError, match=f"{file} is not a CIFAR-10 file"):
        cifar10.load(str(layout), 0, None, None)


class Calls:
    """Pickles as a call of any function."""

    def __init__(self, function: Callable[..., object], *args: object) -> None:
        self.call = function, args

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


def fault_of(folder: Path, batch: object) -> str:
    """Return the error of loading a folder with this object as its first batch; "loaded" without an error."""
    (folder / "data_batch_1").write_bytes(pickle.dumps(batch, protocol=2))
    try:
        cifar10.load(str(folder), 0, None, None)
    except cifar10.JobError as error:
        return str(error)
    return "loaded"


def test_a_pickle_that_calls_is_refused(tmp_path: Path) -> None:
    functions = (eval, exec, __import__, getattr, np.load, np.fromfile)
    said = {function.__name__: fault_of(tmp_path, Calls(function, "missing")) for function in functions}
    refused = re.compile(r"it asks for .* which no CIFAR-10 file does")
    assert {name: text for name, text in said.items() if not refused.search(text)} == {}


def test_a_refused_pickle_has_run_nothing(tmp_path: Path) -> None:
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(Calls(Path.touch, tmp_path / "ran"), protocol=2))
    with pytest.raises(cifar10.JobError):
        cifar10.load(str(tmp_path), 0, None, None)
    assert not (tmp_path / "ran").exists()


def test_a_pickle_of_something_else_is_refused(tmp_path: Path) -> None:
    image = np.zeros((1, cifar10.PIXELS), dtype=np.uint8)
    batches = (
        {"labels": [0], "data": np.zeros((1, 5), dtype=np.uint8)},
        {"labels": [0, 1], "data": image},
        *({"labels": [label], "data": image} for label in (10, -1, 0.5, "cat")),
        {"labels": [0], "data": image.astype(float)},
        {"labels": [0], "data": [1, 2, 3]},
        {"data": image},
        [1, 2],
        7,
    )
    said = [(batch, fault_of(tmp_path, batch)) for batch in batches]
    assert [(batch, text) for batch, text in said if "is not a CIFAR-10 file" not in text] == []


def test_the_synthetic_set_is_the_same_bytes_everywhere() -> None:
    made = cifar10.synthetic_records(3, 0, 50)
    assert hashlib.sha256(made.tobytes()).hexdigest()[:16] == "70144fbcf7414354"


def test_the_synthetic_set_follows_seed_and_part() -> None:
    made = {(seed, part): cifar10.synthetic_records(seed, part, 20) for seed in (1, 2) for part in (0, 1)}
    assert len({value.tobytes() for value in made.values()}) == 4


def test_more_synthetic_images_begin_with_the_same_ones() -> None:
    assert (cifar10.synthetic_records(1, 0, 30)[:20] == cifar10.synthetic_records(1, 0, 20)).all()


def test_the_synthetic_set_has_every_class_alike() -> None:
    train, test = cifar10.load("synthetic", 0, None, None)
    assert np.bincount(train.labels).tolist() == [200] * 10
    assert np.bincount(test.labels).tolist() == [50] * 10
    assert train.images.shape == (2000, 3, 32, 32)


def test_the_synthetic_sizes_can_be_chosen() -> None:
    train, test = cifar10.load("synthetic", 0, 31, 7)
    assert (len(train.labels), len(test.labels)) == (31, 7)


def test_a_synthetic_file_is_a_binary_batch(tmp_path: Path) -> None:
    for file in files():
        cifar10.synthetic_records(5, 0, EACH).tofile(tmp_path / f"{file}.bin")
    read, made = cifar10.load(str(tmp_path), 0, EACH, None)[0], cifar10.load("synthetic", 5, EACH, None)[0]
    assert (read.images == made.images).all()
    assert (read.labels == made.labels).all()
