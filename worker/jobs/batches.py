"""Makes the batches of a rank from the name of a data set: loads, shares out, augments.

Every part is repeatable: the images of a step and their augmentation depend only on the seed, the epoch, the place in
the epoch and the rank. So a resume needs no saved state of a random generator.
"""

from __future__ import annotations

import argparse
from contextlib import contextmanager
from itertools import islice
from typing import Any, Iterator, List, Tuple

import cifar10
import digits
import numpy as np
import torch
import torch.distributed as dist
from common import JobError, Place, wait_for_all
from torch import Tensor
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MEAN = (0.4914, 0.4822, 0.4465)  # of CIFAR-10's red, green and blue
DEVIATION = (0.2470, 0.2435, 0.2616)
MARGIN = 4  # a training image is moved by so many pixels at most

Batch = Tuple[Tensor, Tensor]  # images uint8 (n, 3, 32, 32), labels int64 (n,)


@contextmanager
def one_of_node_first(place: Place) -> Iterator[None]:
    """Let local rank 0 of each node run the body first, and then the other ranks.

    The other ranks then find the data of a slow disk in memory, and unpacked files in place. Local rank 0 opens the
    barrier also after a failure: the other ranks then find the same fault, and do not wait.
    """
    if place.local_rank != 0:
        wait_for_all(place.device)
    try:
        yield
    finally:
        if place.local_rank == 0:
            wait_for_all(place.device)


def load(args: argparse.Namespace, place: Place) -> tuple[cifar10.Split, cifar10.Split]:
    """Return the training and the test split.

    Raises:
        JobError: a data set is missing, or a node has another number of images (the other ranks would wait for a rank
            with fewer steps).
    """
    with one_of_node_first(place):
        if args.data_dir == digits.DIGITS:
            train, test = digits.load(args.random_seed, args.train_size, args.test_size)
        else:
            train, test = cifar10.load(args.data_dir, args.random_seed, args.train_size, args.test_size)
    bounds = torch.tensor([len(train.labels), -len(train.labels)], device=place.device)
    dist.all_reduce(bounds, op=dist.ReduceOp.MAX)
    most, least = int(bounds[0]), -int(bounds[1])
    if most != least:
        raise JobError(
            f"{len(train.labels)} training images here, {least} to {most} elsewhere: all nodes need the same"
        )
    return train, test


class Sampler(DistributedSampler[Any]):
    """torch's DistributedSampler, which can also begin in the middle of an epoch.

    It shuffles all images by seed and epoch, in the same way on every rank. Rank r of n takes every n-th image from r
    on. So after ``begin`` images of all ranks together, the rest is the same for any world size.
    """

    begin = 0

    def __iter__(self) -> Iterator[Any]:
        return islice(super().__iter__(), self.begin // self.num_replicas, None)


def make_loader(split: cifar10.Split, args: argparse.Namespace, place: Place) -> DataLoader[Any]:
    """Return batches of this rank's share of the images."""
    dataset = TensorDataset(torch.from_numpy(split.images), torch.from_numpy(split.labels))
    return DataLoader(
        dataset,
        args.batch_size,
        sampler=Sampler(dataset, place.world_size, place.rank, shuffle=True, seed=args.random_seed),
        num_workers=args.num_workers,
        persistent_workers=args.num_workers > 0,
        pin_memory=place.device.type == "cuda",
    )


def groups(loader: DataLoader[Any], size: int) -> Iterator[List[Batch]]:
    """Yield the batches in lists of ``size``; the last list may be shorter."""
    batches = iter(loader)
    while True:
        group = list(islice(batches, size))
        if not group:
            return
        yield group


def generator_of(device: torch.device, *numbers: int) -> torch.Generator:
    """Return random numbers that depend only on these numbers (seed, epoch ...)."""
    return torch.Generator(device).manual_seed(int(np.random.SeedSequence(numbers).generate_state(1)[0]))


def normalise(images: Tensor) -> Tensor:
    """Return the pixels uint8 (n, 3, 32, 32) as float32, with a mean of about 0 and a deviation of about 1."""
    mean, deviation = (torch.tensor(value, device=images.device).view(1, 3, 1, 1) for value in (MEAN, DEVIATION))
    return (images.float() / 255 - mean) / deviation


def augment(images: Tensor, generator: torch.Generator, mirror: bool = True) -> Tensor:
    """Move each image (n, 3, h, w) by up to MARGIN pixels each way over black, and mirror half of the images.

    Digits and letters must not be mirrored, because they change their meaning.
    """
    count, _, height, width = images.shape
    padded = functional.pad(images, (MARGIN, MARGIN, MARGIN, MARGIN))
    draws = torch.randint(0, 2 * MARGIN + 1, (2, count, 1), generator=generator, device=images.device)
    rows = draws[0] + torch.arange(height, device=images.device)
    columns = draws[1] + torch.arange(width, device=images.device)
    if mirror:
        mirrored = torch.randint(0, 2, (count, 1), generator=generator, device=images.device).bool()
        columns = torch.where(mirrored, columns.flip(1), columns)
    each = torch.arange(count, device=images.device)
    return padded[each[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()
