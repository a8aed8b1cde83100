"""DistributedSampler made visible: the samples of each rank and their order, in every epoch.

The data set is the numbers 0, 1, 2 ..., so that a sample is its own index. Every rank loads its share as a training
does. Then the shares are gathered, checked to be an exact partition, and printed by rank 0.

All samples are shuffled, in the same order on every rank, and dealt out in turn. All ranks must run the same number of
steps, or some ranks would wait for gradients that never come. So the sampler repeats the first samples of the order, or
drops the last samples with ``--drop_last``; these samples change with each epoch. On a padded test set, some samples
count twice. With twice the ranks, an epoch has half the steps and the global batch is twice as large, so the learning
rate may have to change. The job refuses fewer samples than ranks: some ranks would train on copies only, or on nothing.

Common mistake: without ``sampler.set_epoch(epoch)`` nothing fails, but every epoch has the same order. The last line of
the table shows the number of different orders.
"""

from __future__ import annotations

import argparse
from typing import Sequence

import torch
import torch.distributed as dist
from common import JobError, Refused, add_options, gather, join, run, say, whole
from torch import Tensor
from torch.utils.data import DataLoader, DistributedSampler

SHOWN = 8  # samples in a line


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--samples", type=whole(1, 10**7), default=90, metavar="N", help="size of the data set")
    add("--batch_size", type=whole(1), default=10, metavar="N", help="samples a step of each rank")
    add("--epochs", type=whole(2), default=2, metavar="N", help="at least 2, to compare")
    add("--drop_last", action="store_true", help="leave samples out where they do not divide, rather than repeat some")
    add_options(parser)
    return parser.parse_args(argv)


def share(args: argparse.Namespace, rank: int, world_size: int, forget: bool = False) -> Tensor:
    """Return the samples of a rank in its order: (epochs, samples of a rank)."""
    data = range(args.samples)
    sampler: DistributedSampler[int] = DistributedSampler(data, world_size, rank, drop_last=args.drop_last)  # type: ignore[arg-type,unused-ignore]
    loader: DataLoader[int] = DataLoader(data, args.batch_size, sampler=sampler)  # type: ignore[arg-type,unused-ignore]
    epochs = []
    for epoch in range(args.epochs):
        if not forget:
            sampler.set_epoch(epoch)  # shuffles by seed + epoch; without it by seed + 0 every time
        epochs.append(torch.cat(list(loader)))
    return torch.stack(epochs)


def check(order: Tensor, samples: int, world_size: int, drop_last: bool) -> tuple[list[int], list[int]]:
    """Check that the order of an epoch (all ranks' samples, dealt out like cards) is a partition of the data set.

    Returns the samples that are given out twice, and the samples that are left out.

    Raises:
        JobError: a sample comes more or less often than that.
    """
    each = samples // world_size if drop_last else -(-samples // world_size)
    counts = torch.bincount(order, minlength=samples)
    twice = order[samples:]  # added so that every rank has the same number of samples
    missing = (counts == 0).nonzero().flatten()
    expected = torch.ones(len(counts), dtype=torch.int64)
    expected[twice] = 2
    expected[missing] = 0
    right = len(counts) == samples and len(missing) == max(0, samples - len(order)) and torch.equal(counts, expected)
    if not right or len(order) != each * world_size:
        raise JobError(f"the shares of {world_size} ranks are no partition of {samples} samples: is torch the same?")
    return twice.tolist(), missing.tolist()


def orders(shares: Tensor) -> Tensor:
    """Turn (ranks, epochs, samples of a rank) into (epochs, all): rank r has the places r, r + world size ..."""
    return shares.permute(1, 2, 0).flatten(start_dim=1)


def listed(samples: Sequence[int]) -> str:
    """Return the first of these samples as text."""
    return " ".join(str(sample) for sample in samples[:SHOWN]) + (" ..." if len(samples) > SHOWN else "")


def header(args: argparse.Namespace, world_size: int, each: int) -> list[str]:
    """Return lines about the sizes of shares and batches."""
    size = args.batch_size
    steps = -(-each // size)
    last = (each - (steps - 1) * size) * world_size
    return [
        f"{args.samples} samples, world size {world_size}: {each} samples for each rank",
        f"batch size {size}, global batch size {size} x {world_size} = {size * world_size}",
        f"{steps} steps an epoch, {last} samples in the last one",
        "epoch  rank  samples",
    ]


def table(args: argparse.Namespace, shares: Tensor) -> list[str]:
    """Return the lines to print about the shares (ranks, epochs, samples of a rank).

    Raises:
        JobError: an epoch is not a partition of the data set.
    """
    world_size, _, each = shares.shape
    lines = header(args, world_size, each)
    for epoch, order in enumerate(orders(shares)):
        lines += [f"{epoch:5}  {rank:4}  {listed(shares[rank, epoch].tolist())}" for rank in range(world_size)]
        twice, missing = check(order, args.samples, world_size, args.drop_last)
        lines.append(f"{epoch:5}   all  {verdict(order, twice, missing, world_size)}")
    return lines


def verdict(order: Tensor, twice: list[int], missing: list[int], world_size: int) -> str:
    """Return the result of ``check`` as text."""
    if missing:
        return f"no sample twice; left out: {listed(missing)}"
    if not twice:
        return "every sample exactly once"
    ranks = {sample: ((order == sample).nonzero().flatten() % world_size).tolist() for sample in twice[:SHOWN]}
    pairs = [f"{sample} (ranks {first} and {again})" for sample, (first, again) in ranks.items()]
    return f"every sample exactly once, but twice: {', '.join(pairs)}" + (" ..." if len(twice) > SHOWN else "")


def compare(remembered: Tensor, forgotten: Tensor) -> list[str]:
    """Compare the orders (epochs, samples) with and without ``set_epoch``."""
    different = [len(torch.unique(epochs, dim=0)) for epochs in (remembered, forgotten)]
    return [f"orders in {len(remembered)} epochs: {different[0]} with set_epoch, {different[1]} without it"]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the whole job."""
    args = parse_args(argv)
    place = join(args)
    if args.samples < place.world_size:
        raise Refused(
            f"{args.samples} samples are too few for {place.world_size} ranks: some would train on nothing but copies, "
            f"or with --drop_last on nothing; give at least --samples {place.world_size}"
        )
    shares = gather(share(args, place.rank, place.world_size), place.device)
    forgotten = gather(share(args, place.rank, place.world_size, forget=True), place.device)
    lines = [*table(args, shares), *compare(orders(shares), orders(forgotten))]
    if place.rank == 0:
        say("\n".join(lines))
    dist.destroy_process_group()


if __name__ == "__main__":
    run(main)
