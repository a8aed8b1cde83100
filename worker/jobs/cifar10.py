"""CIFAR-10 as arrays: the published folders, read in place, or a small synthetic set of the same layout.

The file names distinguish the two published layouts: ``cifar-10-batches-py`` (pickles) and ``cifar-10-batches-bin``
(records of a label byte and 3072 pixel bytes). Nothing is downloaded or written, so any number of processes may load at
the same time.
"""

from __future__ import annotations

import os
import pickle
from typing import Any, BinaryIO, ClassVar, NamedTuple

import numpy as np
from common import JobError

CLASSES = 10
SIDE = 32  # pixels
PIXELS = 3 * SIDE * SIDE  # bytes of an image: a red, a green and a blue plane, row by row
TRAIN_FILES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_FILES = ("test_batch",)
FOLDERS = ("", "cifar-10-batches-py", "cifar-10-batches-bin")
SYNTHETIC = "synthetic"
SYNTHETIC_SIZES = (2000, 500)  # images to train and to test with


class Split(NamedTuple):
    """Labelled images: ``images`` is uint8 (n, 3, 32, 32), ``labels`` is int64 (n,), each 0 to 9."""

    images: np.ndarray[Any, np.dtype[np.uint8]]
    labels: np.ndarray[Any, np.dtype[np.int64]]


def load(data_dir: str, seed: int, train_size: int | None, test_size: int | None) -> tuple[Split, Split]:
    """Return the training and the test split, cut to these sizes (``None``: all images, or the synthetic default).

    Raises:
        JobError: the data set is missing, or is not CIFAR-10.
    """
    if data_dir == SYNTHETIC:
        return synthetic(seed, 0, train_size), synthetic(seed, 1, test_size)
    folder, suffix = find_layout(data_dir)
    return read_files(folder, suffix, TRAIN_FILES, train_size), read_files(folder, suffix, TEST_FILES, test_size)


def find_layout(data_dir: str) -> tuple[str, str]:
    """Return the folder with a published layout at or below ``data_dir``, and the suffix of its files: "" or ".bin"."""
    for name in FOLDERS:
        folder = os.path.join(data_dir, name)
        for suffix in ("", ".bin"):
            if os.path.isfile(os.path.join(folder, TRAIN_FILES[0] + suffix)):
                return folder, suffix
    raise JobError(
        f"no CIFAR-10 in {os.path.abspath(data_dir)}: unpack cifar-10-python.tar.gz or cifar-10-binary.tar.gz there "
        f"on every node, or use --data_dir {SYNTHETIC} or digits"
    )


def read_files(folder: str, suffix: str, names: tuple[str, ...], size: int | None) -> Split:
    """Return the images of these files in order. Reads only as many files as ``size`` needs."""
    parts: list[Split] = []
    for name in names:
        if size is None or sum(len(part.labels) for part in parts) < size:
            parts.append(read_file(os.path.join(folder, name + suffix)))
    split = Split(np.concatenate([part.images for part in parts]), np.concatenate([part.labels for part in parts]))
    return Split(split.images[:size], split.labels[:size])


def read_file(path: str) -> Split:
    """Read and check a published file of either layout."""
    try:
        with open(path, "rb") as file:
            return from_records(read_records(file)) if path.endswith(".bin") else from_pickle(file)
    except OSError as error:
        raise JobError(f"cannot read {path}: {error.strerror}") from error
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise JobError(f"{path} is not a CIFAR-10 file: {error}") from error


def read_records(file: BinaryIO) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Read the binary layout: uint8 (n, 3073), a label and the pixels of an image in each row."""
    return np.frombuffer(file.read(), dtype=np.uint8).reshape(-1, 1 + PIXELS)


def from_records(records: np.ndarray[Any, np.dtype[np.uint8]]) -> Split:
    """Return labels and images of records uint8 (n, 3073)."""
    return checked(records[:, 1:], records[:, 0])


def from_pickle(file: BinaryIO) -> Split:
    """Read the pickle layout: a dictionary of ``data`` uint8 (n, 3072) and ``labels``, a list of n."""
    batch = CifarUnpickler(file, encoding="latin1").load()
    return checked(batch["data"], np.asarray(batch["labels"]))


def checked(pixels: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> Split:
    """Return pixels (n, 3072) and labels (n,) as a Split, after a check of types, shapes and values."""
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), PIXELS) or labels.dtype.kind not in "iu":
        raise ValueError(f"{pixels.dtype} pixels {pixels.shape} with {labels.dtype} labels {labels.shape}")
    if len(labels) and not (labels.min() >= 0 and labels.max() < CLASSES):
        raise ValueError(f"labels from {labels.min()} to {labels.max()}, expected 0 to {CLASSES - 1}")
    return Split(np.ascontiguousarray(pixels).reshape(-1, 3, SIDE, SIDE), labels.astype(np.int64))


def old_dtype(name: str, align: object = False, copy: object = False) -> np.dtype[Any]:
    """Return ``numpy.dtype`` for old pickles, which pass 0 and 1 for booleans."""
    return np.dtype(name, bool(align), bool(copy))


def old_bytes(text: str, encoding: str) -> bytes:
    """Return bytes that Python 3 has pickled for Python 2."""
    return text.encode("latin1")


class CifarUnpickler(pickle.Unpickler):
    """Builds plain values and numpy arrays, and refuses every other name: a pickle could otherwise run any code."""

    KNOWN: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): old_dtype,
        ("_codecs", "encode"): old_bytes,
    }

    def find_class(self, module: str, name: str) -> Any:
        """Return the object for a name in the pickle."""
        if (module, name) not in self.KNOWN:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR-10 file does")
        return self.KNOWN[module, name]


def synthetic(seed: int, part: int, size: int | None) -> Split:
    """Return part 0 (training) or 1 (test) of the synthetic set."""
    return from_records(synthetic_records(seed, part, SYNTHETIC_SIZES[part] if size is None else size))


def synthetic_records(seed: int, part: int, count: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return ``count`` labelled images as uint8 (count, 3073), the same bytes on every machine for a seed and a part.

    Each class is a pattern of 4x4 coloured tiles, the same in every part of a seed. An image shows the pattern of its
    class, moved by up to 8 pixels each way and with its own contrast, under noise about as strong as the pattern. All
    numbers are whole, so that rounding cannot differ.
    """
    tiles = np.random.RandomState([seed, 7]).randint(-48, 49, size=(CLASSES, 3, 4, 4))
    patterns = tiles.repeat(8, axis=2).repeat(8, axis=3)
    draw = np.random.RandomState([seed, part])
    records = np.empty((count, 1 + PIXELS), dtype=np.uint8)
    for index in range(count):
        label = index % CLASSES
        moved = np.roll(patterns[label], draw.randint(-8, 9, size=2), axis=(1, 2))
        pixels = 128 + moved * draw.randint(2, 5) // 3 + draw.randint(-48, 49, size=(3, SIDE, SIDE))
        records[index, 0] = label
        records[index, 1:] = pixels.clip(0, 255).ravel()
    return records
