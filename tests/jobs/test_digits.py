"""scikit-learn's digits in CIFAR-10's shape."""

from __future__ import annotations

import sys

import pytest

from tests.lazy import Lazy

np = Lazy("numpy")
digits = Lazy("digits")
common = Lazy("common")


def test_both_splits_together_are_the_1797_images() -> None:
    datasets = pytest.importorskip("sklearn.datasets")
    train, test = digits.load(0, None, None)
    assert (train.images.shape, test.images.shape) == ((1437, 3, 32, 32), (360, 3, 32, 32))
    assert (train.images.dtype, train.labels.dtype) == (np.uint8, np.int64)
    small = np.concatenate([train.images, test.images])[:, 0, ::4, ::4]
    original = (datasets.load_digits().images * 255 / 16).astype(np.uint8)
    assert sorted(map(bytes, small)) == sorted(map(bytes, original))
    assert np.bincount(np.concatenate([train.labels, test.labels])).min() > 170


def test_the_seed_draws_the_split_and_sizes_cut_it() -> None:
    pytest.importorskip("sklearn")
    first, again, other = (digits.load(seed, 50, 20)[0] for seed in (1, 1, 2))
    assert len(first.labels) == 50
    assert (first.images == again.images).all()
    assert (first.labels != other.labels).any()


def test_a_pixel_becomes_a_square_of_every_plane() -> None:
    grey = np.zeros((1, 8, 8))
    grey[0, 2, 5] = 16
    made = digits.as_colour(grey)
    assert made.sum() == 255 * 3 * 16
    assert (made[0, :, 8:12, 20:24] == 255).all()


def test_without_scikit_learn_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delitem(sys.modules, "sklearn.datasets", raising=False)
    with pytest.raises(common.JobError, match=r"--data_dir digits needs scikit-learn, .*: pip install scikit-learn"):
        digits.load(0, None, None)
