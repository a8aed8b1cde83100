"""Handwritten digits: a small real data set that needs no download, because scikit-learn's package holds it.

1797 grey images of 8x8 pixels with values 0 to 16, made from forms that 43 people filled in (E. Alpaydin, C. Kaynak:
Optical Recognition of Handwritten Digits, UCI Machine Learning Repository, 1998). This module gives them the form of
CIFAR-10's images: three planes of 32x32 bytes.
"""

from __future__ import annotations

import sys

import numpy as np
from cifar10 import SIDE, Split
from common import JobError

DIGITS = "digits"
TRAIN = 1437  # images to train with; the other 360 are for the test


def load(seed: int, train_size: int | None, test_size: int | None) -> tuple[Split, Split]:
    """Return the training and the test split, drawn by the seed and cut to these sizes (``None``: all images).

    Raises:
        JobError: this Python has no scikit-learn.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise JobError(
            f"--data_dir {DIGITS} needs scikit-learn, which {sys.executable} does not import ({error}): "
            "pip install scikit-learn, or use --data_dir synthetic"
        ) from error
    content = load_digits()
    order = np.random.RandomState([seed, 2]).permutation(len(content.target))
    images = as_colour(content.images[order])
    labels = content.target[order].astype(np.int64)
    return (
        Split(images[:TRAIN][:train_size], labels[:TRAIN][:train_size]),
        Split(images[TRAIN:][:test_size], labels[TRAIN:][:test_size]),
    )


def as_colour(grey: np.ndarray) -> np.ndarray:  # type: ignore[type-arg,unused-ignore]
    """Return values 0 to 16 of (n, 8, 8) as uint8 (n, 3, 32, 32): each pixel becomes a square in all planes."""
    scale = SIDE // grey.shape[1]
    large = (grey * 255 / 16).astype(np.uint8).repeat(scale, axis=1).repeat(scale, axis=2)
    return np.ascontiguousarray(large[:, None].repeat(3, axis=1))
