"""PASCAL VOC 2012 for segmentation, read in its published layout, or a synthetic set in the same layout.

A picture is a JPEG file. Its mask is a PNG file with a palette: the value of a pixel is its class, from 0 (background)
to 20, or 255 on the rim of an object, where no answer counts. The synthetic files are held in memory, not on disk; from
there on both sets are treated alike. Nothing is downloaded or written. Needs Pillow.
"""

from __future__ import annotations

import functools
import importlib
import io
import os
from typing import Any, Callable, Dict, Tuple

import numpy as np
import torch
from common import JobError
from torch import Tensor
from torch.utils.data import Dataset

CLASSES = 21
IGNORE = 255
SYNTHETIC = "synthetic"
SYNTHETIC_SIZES = (240, 60)  # pictures to train and to validate with
SYNTHETIC_CLASSES = 8  # the background and the seven most different colours: learnt in a minute
LAYOUTS = (os.path.join("VOCdevkit", "VOC2012"), "VOC2012", "")  # possible places of the set in --data_dir
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's red, green, blue, from 0 to 1

Read = Callable[[str], bytes]  # path in VOC2012 -> content of the file


class Voc(Dataset[Tuple[Tensor, Tensor]]):
    """A split. An item is the picture, float32 (3, size, size), and its classes, int64 (size, size).

    Training pictures are scaled, mirrored and cut at random. The seed, the epoch and the picture's number decide the
    random choices. The rank does not matter: a picture is the same on every rank that reads it.
    """

    def __init__(self, read: Read, split: str, most: int | None, size: int, seed: int) -> None:
        self.read, self.split, self.size, self.seed = read, split, size, seed
        self.names = read(f"ImageSets/Segmentation/{split}.txt").decode().split()[:most]
        self.epoch = 0
        if not self.names:
            raise JobError(f"ImageSets/Segmentation/{split}.txt names no picture: unpack PASCAL VOC 2012 again")

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        picture = decode(self.read, f"JPEGImages/{self.names[index]}.jpg").convert("RGB")
        mask = decode(
            self.read, f"SegmentationClass/{self.names[index]}.png"
        )  # convert() would turn classes into colours
        check(picture, mask, self.names[index])
        random = np.random.RandomState([self.seed, self.epoch, index]) if self.split == "train" else None
        return fit(picture, mask, self.size, random)


def load(data_dir: str, size: int, seed: int, train_size: int | None, val_size: int | None) -> tuple[Voc, Voc]:
    """Return the training and the validation split, cut to these numbers of pictures (``None``: all, or
    SYNTHETIC_SIZES).

    Raises:
        JobError: Pillow, the data set or some of its files are missing.
    """
    pillow()
    if data_dir == SYNTHETIC:
        files = synthetic_files(seed, train_size or SYNTHETIC_SIZES[0], val_size or SYNTHETIC_SIZES[1])
        return Voc(files.__getitem__, "train", None, size, seed), Voc(files.__getitem__, "val", None, size, seed)
    folder = find(data_dir)
    read = functools.partial(read_file, folder)
    train, val = Voc(read, "train", train_size, size, seed), Voc(read, "val", val_size, size, seed)
    for below, end in (("JPEGImages", ".jpg"), ("SegmentationClass", ".png")):
        missing = {name + end for name in train.names + val.names}.difference(os.listdir(os.path.join(folder, below)))
        if missing:
            raise JobError(
                f"{len(missing)} files are missing in {os.path.join(folder, below)}, {min(missing)} is the first: "
                "unpack VOCtrainval_11-May-2012.tar again"
            )
    return train, val


def find(data_dir: str) -> str:
    """Return the folder VOC2012 in or at ``data_dir``."""
    for layout in LAYOUTS:
        if os.path.isfile(os.path.join(data_dir, layout, "ImageSets", "Segmentation", "train.txt")):
            return os.path.join(data_dir, layout)
    path = os.path.abspath(data_dir)
    raise JobError(
        f"no PASCAL VOC 2012 in {path}: VOCdevkit/VOC2012/{{JPEGImages,SegmentationClass,ImageSets/Segmentation}} is "
        f"expected there. On every node: tar -xf VOCtrainval_11-May-2012.tar -C {path}; or: --data_dir {SYNTHETIC}"
    )


def read_file(folder: str, path: str) -> bytes:
    """Return the content of a file in this folder."""
    with open(os.path.join(folder, path), "rb") as file:
        return file.read()


def pillow() -> Any:
    """Return the module ``PIL.Image``. It is imported only when pictures are read."""
    try:
        return importlib.import_module("PIL.Image")
    except ImportError as error:
        raise JobError("pictures are read with Pillow, which is not installed here: pip install pillow") from error


def decode(read: Read, path: str) -> Any:
    """Return the picture in this file, decoded to its end: by default Pillow stops after the header."""
    try:
        picture = pillow().open(io.BytesIO(read(path)))
        picture.load()
    except (OSError, SyntaxError, ValueError) as error:  # Pillow raises all three at broken files
        raise JobError(f"cannot read {path}: {error}. Unpack PASCAL VOC 2012 again") from error
    return picture


def check(picture: Any, mask: Any, name: str) -> None:
    """Raise JobError unless the mask holds classes and fits its picture."""
    if mask.mode not in ("P", "L") or mask.size != picture.size:
        raise JobError(
            f"the mask of {name} has mode {mask.mode} and size {mask.size}, expected P and {picture.size}: "
            "take SegmentationClass as published"
        )
    strange = [value for _, value in mask.getcolors(256) if value >= CLASSES and value != IGNORE]
    if strange:
        raise JobError(f"the mask of {name} has class {min(strange)}: 0 to {CLASSES - 1} and {IGNORE} are expected")


def fit(picture: Any, mask: Any, size: int, random: np.random.RandomState | None) -> tuple[Tensor, Tensor]:
    """Return picture and mask on a square: float32 (3, size, size), normalised, and int64 (size, size).

    A larger picture is scaled down. The area outside the picture is IGNORE. VOC's pictures have at most 500 pixels a
    side, so with ``size`` 513 they keep their size, and validation is as published. For training (``random`` is given)
    the picture is scaled by 0.5 to 2, mirrored and cut: DeepLab's augmentation (arXiv:1706.05587, section 4.1).
    """
    factor = min(1.0, size / max(picture.size)) * (random.uniform(0.5, 2) if random else 1)
    shape = tuple(max(1, round(side * factor)) for side in picture.size)
    bilinear, nearest = pillow().BILINEAR, pillow().NEAREST  # classes have no mean: a mask is never interpolated
    pixels = (np.array(picture.resize(shape, bilinear), dtype=np.float32) / 255 - MEAN) / DEVIATION
    classes = np.array(mask.resize(shape, nearest), dtype=np.int64)
    if random and random.rand() < 0.5:
        pixels, classes = pixels[:, ::-1], classes[:, ::-1]
    image, target = np.zeros((size, size, 3), np.float32), np.full((size, size), IGNORE)
    shares = random.rand(2) if random else (0.5, 0.5)
    to_y, from_y = overlap(classes.shape[0], shares[0], size)
    to_x, from_x = overlap(classes.shape[1], shares[1], size)
    image[to_y, to_x], target[to_y, to_x] = pixels[from_y, from_x], classes[from_y, from_x]
    return torch.from_numpy(image).permute(2, 0, 1).contiguous(), torch.from_numpy(target)


def overlap(side: int, share: float, size: int) -> tuple[slice, slice]:
    """Return the slice of a window of ``size`` pixels that a picture's side covers, and the covered slice of the side.

    ``share``, 0 to 1: the part of the difference that is cut off, or left free, at the start.
    """
    shift, length = int(share * (side - size)), min(side, size)
    start, cut = max(0, -shift), max(0, shift)
    return slice(start, start + length), slice(cut, cut + length)


def synthetic_files(seed: int, train_size: int, val_size: int) -> Dict[str, bytes]:
    """Return the files of a small VOC2012, by path: ellipses in the colours of their classes, under noise."""
    files = {}
    for part, (split, count) in enumerate((("train", train_size), ("val", val_size))):
        random = np.random.RandomState([seed, part])
        names = [f"{split}_{number:06d}" for number in range(count)]
        files[f"ImageSets/Segmentation/{split}.txt"] = "\n".join(names).encode()
        for name in names:
            files[f"JPEGImages/{name}.jpg"], files[f"SegmentationClass/{name}.png"] = synthetic_scene(random)
    return files


def synthetic_scene(random: np.random.RandomState, width: int = 128, height: int = 96) -> tuple[bytes, bytes]:
    """Return a JPEG picture and its PNG mask: up to three objects, each with a rim of IGNORE, as in VOC."""
    rows, columns = np.mgrid[:height, :width]
    mask = np.zeros((height, width), np.uint8)
    for _ in range(3):
        at_y, at_x, half_y, half_x = random.randint((0, 0, 12, 12), (height, width, 40, 40))
        distance = ((rows - at_y) / half_y) ** 2 + ((columns - at_x) / half_x) ** 2
        mask[distance < 1.2] = IGNORE
        mask[distance < 1] = random.randint(1, SYNTHETIC_CLASSES)
    colours = palette()[np.where(mask == IGNORE, 0, mask)]
    pixels = (colours + random.randint(-40, 41, colours.shape)).clip(0, 255).astype(np.uint8)
    picture, classes = pillow().fromarray(pixels), pillow().fromarray(mask)
    classes.putpalette(palette().ravel().tolist())
    return encode(picture, "JPEG"), encode(classes, "PNG")


def palette() -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return VOC's colours, int64 (256, 3): bits 0, 3, 6 of a class are red, 1, 4, 7 green, 2, 5 blue."""
    bits = np.arange(256)[:, None, None] >> np.arange(3)[:, None] + 3 * np.arange(3) & 1  # by class, channel and weight
    made: np.ndarray[Any, np.dtype[np.int64]] = bits @ np.array([128, 64, 32])
    return made


def encode(picture: Any, kind: str) -> bytes:
    """Return the picture as a file of this kind."""
    file = io.BytesIO()
    picture.save(file, kind)
    return file.getvalue()
