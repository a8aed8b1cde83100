"""Which images a rank gets, also after a resume, and what is done to them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.lazy import Lazy

torch = Lazy("torch")
cifar10 = Lazy("cifar10")
batches = Lazy("batches")
common = Lazy("common")


def shares(world_size: int, begin: int) -> list[list[int]]:
    """Return each rank's share of 24 images in epoch 3 when ``begin`` images of the epoch are done."""
    found = []
    for rank in range(world_size):
        sampler = batches.Sampler(range(24), world_size, rank, shuffle=True, seed=1)
        sampler.set_epoch(3)
        sampler.begin = begin
        found.append(list(sampler))
    return found


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_after_12_images_the_other_12_are_left_for_any_world_size(world_size: int) -> None:
    whole = shares(2, 0)
    seen = {index for share in whole for index in share[:6]}
    assert len(seen) == 12
    left = shares(world_size, 12)
    assert {len(share) for share in left} == {12 // world_size}
    assert {index for share in left for index in share} == set(range(24)) - seen
    assert [share[6:] for share in whole] == shares(2, 12)


def test_batches_are_grouped_in_order() -> None:
    assert list(batches.groups([1, 2, 3, 4, 5], 2)) == [[1, 2], [3, 4], [5]]


@pytest.mark.parametrize(("local_rank", "order"), [(0, ["body", "barrier"]), (1, ["barrier", "body"])])
def test_one_process_of_a_node_goes_first(monkeypatch: pytest.MonkeyPatch, local_rank: int, order: list[str]) -> None:
    seen: list[str] = []
    monkeypatch.setattr(batches, "wait_for_all", lambda device: seen.append("barrier"))
    place = common.Place(local_rank, local_rank, 2, torch.device("cpu"))
    with batches.one_of_node_first(place):
        seen.append("body")
    assert seen == order
    with pytest.raises(KeyError), batches.one_of_node_first(place):
        raise KeyError
    assert seen == [*order, "barrier"]  # a first process that fails lets the other processes go on too


def windows(image: Any, mirror: bool) -> set[bytes]:
    """Every way in which an image may come out."""
    padded = torch.nn.functional.pad(image, (4, 4, 4, 4))
    moved = [padded[:, y : y + 8, x : x + 8] for y in range(9) for x in range(9)]
    ways = [way for one in moved for way in ((one, one.flip(2)) if mirror else (one,))]
    return {way.contiguous().numpy().tobytes() for way in ways}


@pytest.mark.parametrize("mirror", [True, False])
def test_augmented_images_are_moved_and_perhaps_mirrored(mirror: bool) -> None:
    image = torch.arange(1, 65, dtype=torch.uint8).reshape(1, 8, 8).repeat(3, 1, 1)
    moved = batches.augment(image.repeat(200, 1, 1, 1), torch.Generator().manual_seed(0), mirror)
    assert moved.shape == (200, 3, 8, 8)
    assert moved.dtype == torch.uint8
    seen = {one.contiguous().numpy().tobytes() for one in moved}
    assert seen <= windows(image, mirror)
    assert len(seen) > 50


def test_augmenting_follows_the_numbers_it_is_given() -> None:
    images = torch.from_numpy(cifar10.load("synthetic", 0, 20, 1)[0].images)
    device = torch.device("cpu")
    numbers = ((0, 1, 64, 0), (0, 1, 64, 0), (0, 1, 64, 1))
    first, second, other = (batches.augment(images, batches.generator_of(device, *each)) for each in numbers)
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


def test_normalised_pixels_are_about_zero_and_one() -> None:
    made = batches.normalise(torch.tensor([[0, 255]], dtype=torch.uint8).reshape(1, 1, 1, 2).repeat(1, 3, 1, 1))
    assert made.dtype == torch.float32
    assert made.min() > -2.5
    assert made.max() < 2.5
