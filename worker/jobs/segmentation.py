"""Semantic segmentation on PASCAL VOC 2012: the same work by DistributedDataParallel, DataParallel and one device.

``--parallel ddp`` runs a process for each device, ``dp`` a single process with all its GPUs, ``none`` a single device.
The same global batch gives the same losses in all three modes, up to rounding. Four parts are needed for that: the
order of the pictures, their augmentation (in voc.py), the mean of the loss, and a model without batch statistics (in
segnet.py).

The small model has no BatchNorm. With BatchNorm each device normalizes over its own pictures, in DataParallel too, so
the losses depend on the number of devices, unless SyncBatchNorm is used. torchvision's models have BatchNorm and
dropout: their losses are similar, but not equal. Weights are random at the start. mIoU covers all validation pictures,
each measured once: the ranks add up their confusion matrices. ``dp`` and ``none`` refuse more than one process.

A training on PASCAL VOC; with ``--size 513`` no picture is shrunk, so mIoU is comparable with VOC's:

    segmentation.py --data_dir /data --model deeplabv3_resnet101 --size 513 --batch_size 4 --learning_rate 0.007 \\
        --num_epochs 50 --num_workers 4

Needs torch 1.13 or newer, numpy and Pillow; torchvision for every model but the small one.
"""

from __future__ import annotations

import argparse
import math
import time
import zlib
from typing import Any, NamedTuple, Sequence

import torch
import torch.distributed as dist
import voc
from common import Place, Refused, add_options, gather, join, run, say, wait_for_all, whole
from metrics import Meter
from segnet import make_model
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset


class Job(NamedTuple):
    """The state that an epoch needs."""

    place: Place
    model: nn.Module
    devices: int  # of all ranks together
    optimizer: torch.optim.Optimizer
    schedule: torch.optim.lr_scheduler.PolynomialLR
    train: DataLoader[Any]
    val: DataLoader[Any]
    meter: Meter


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="Semantic segmentation by DistributedDataParallel, DataParallel or one device.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--parallel", choices=("ddp", "dp", "none"), default="ddp", help="dp and none are for one process")
    add("--model", default="small", metavar="NAME", help="small, or a name in torchvision.models.segmentation")
    add("--data_dir", default="data", metavar="DIR", help=f"has VOCdevkit/VOC2012 in it; or: {voc.SYNTHETIC}")
    add("--size", type=whole(32), default=128, metavar="PIXELS", help="side of the square that a picture is put on")
    add("--num_epochs", type=whole(1), default=10, metavar="N", help="passes over the training pictures")
    add("--batch_size", type=whole(1), default=8, metavar="N", help="pictures a step of each device")
    add("--learning_rate", type=float, default=0.05, metavar="X", help="of SGD, at the first step")
    add("--random_seed", type=whole(0, 2**32 - 1), default=0, metavar="N", help="of weights, order and pictures")
    add("--train_size", type=whole(1), metavar="N", help="train with the first N pictures (synthetic: 240)")
    add("--val_size", type=whole(1), metavar="N", help="validate with the first N pictures (synthetic: 60)")
    add("--num_workers", type=whole(0), default=0, metavar="N", help="data loader processes of each process")
    add_options(parser)
    args = parser.parse_args(argv)
    if not 0 < args.learning_rate < math.inf:
        parser.error(f"--learning_rate {args.learning_rate} is not a number above 0")
    return args


def spread(model: nn.Module, parallel: str, place: Place) -> tuple[nn.Module, int]:
    """Return the model on the devices of this process, and their number."""
    model, cuda = model.to(place.device), place.device.type == "cuda"
    if parallel == "ddp":
        return DistributedDataParallel(model, [place.device.index] if cuda else None), 1
    if parallel == "none":
        return model, 1
    devices = torch.cuda.device_count() if cuda else 1
    if devices == 1:
        say("DataParallel has 1 device here: it only calls the model")
    return DataParallel(model), devices


def make_loaders(args: argparse.Namespace, place: Place, here: int) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Return this rank's share of both splits, for ``here`` devices.

    Raises:
        Refused: the training pictures do not fill a global batch.
    """
    train, val = voc.load(args.data_dir, args.size, args.random_seed, args.train_size, args.val_size)
    check_same(train, val, place)
    batch, world = args.batch_size * here, place.world_size
    if len(train) < batch * world:
        raise Refused(f"{len(train)} training pictures do not fill one batch of {batch * world}: use --batch_size")
    # All ranks shuffle the same list, and rank r of n takes every n-th picture from r on. Step s of all ranks has the
    # same pictures as step s of a single process with the global batch size, if no partial batch is kept.
    sampler: Any = DistributedSampler(train, world, place.rank, seed=args.random_seed, drop_last=True)
    # DistributedSampler gives pictures out twice to make shares equal. For validation a share may be shorter.
    share = Subset(val, range(place.rank, len(val), world))
    options = {"num_workers": args.num_workers, "pin_memory": place.device.type == "cuda"}
    return DataLoader(train, batch, sampler=sampler, drop_last=True, **options), DataLoader(share, batch, **options)


def check_same(train: voc.Voc, val: voc.Voc, place: Place) -> None:
    """Check that all ranks list the same pictures: the other ranks would wait for a rank with fewer steps.

    Raises:
        Refused: a rank lists other pictures.
    """
    mine = torch.tensor([zlib.crc32("\n".join([*train.names, "", *val.names]).encode())])
    sums = gather(mine, place.device).flatten().tolist()
    different = ", ".join(str(rank) for rank, value in enumerate(sums) if value != sums[0])
    if different:
        raise Refused(f"other pictures than on rank 0 are listed on rank {different}: give every node the same VOC2012")


def prepare(args: argparse.Namespace, place: Place) -> Job:
    """Prepare the first epoch."""
    if args.parallel != "ddp" and place.world_size > 1:
        raise Refused(f"--parallel {args.parallel} takes one process, not {place.world_size}: start one, or use ddp")
    torch.manual_seed(args.random_seed)  # the same weights everywhere
    model, here = spread(make_model(args.model, args.batch_size), args.parallel, place)
    torch.manual_seed(args.random_seed + 1 + place.rank)  # other dropouts on each rank
    train, val = make_loaders(args, place, here)
    steps = args.num_epochs * len(train)
    optimizer = torch.optim.SGD(model.parameters(), args.learning_rate, momentum=0.9, weight_decay=1e-4)
    # rate * (1 - step / steps)^0.9, by step: the "poly" of DeepLabv3 (arXiv:1706.05587, section 4.1)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, steps, power=0.9)
    devices = here * place.world_size
    if place.rank == 0:
        say(f"model {args.model} by {args.parallel} devices {devices} batch {args.batch_size * devices} steps {steps}")
    return Job(place, model, devices, optimizer, schedule, train, val, Meter(model))


def train_step(job: Job, images: Tensor, classes: Tensor) -> Tensor:
    """Run a step. Returns this rank's contribution to the mean loss of all ranks, times the world size.

    The loss is a mean over all pixels of the global batch that count. DDP averages the gradients of the ranks, but a
    mean of means is another number, because pictures have different shares of IGNORE. So each rank divides its sum by
    the count of all ranks, and the world size undoes DDP's own division.
    """
    counted = (classes != voc.IGNORE).sum()
    counting = dist.all_reduce(counted, async_op=True)  # in progress during the forward pass
    total = functional.cross_entropy(job.model(images), classes, ignore_index=voc.IGNORE, reduction="sum")
    counting.wait()
    loss = total * job.place.world_size / counted.clamp(min=1)
    job.optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call,unused-ignore]
    job.optimizer.step()
    job.schedule.step()
    return loss.detach()


def train_epoch(job: Job, epoch: int) -> float:
    """Run all ranks over the pictures. Returns the mean loss of all steps."""
    train: Any = job.train
    train.sampler.set_epoch(epoch)  # another order
    train.dataset.epoch = epoch  # other augmentation
    device = job.place.device
    loss = losses = torch.zeros((), dtype=torch.float64, device=device)
    job.model.train()
    job.meter.start()
    for images, classes in train:
        loss = train_step(job, images.to(device, non_blocking=True), classes.to(device, non_blocking=True))
        losses = losses + loss
        job.meter.step(len(images), loss=loss, devices=job.devices)
    job.meter.write(loss=loss, devices=job.devices)
    dist.all_reduce(losses)
    return float(losses) / job.place.world_size / len(train)


@torch.no_grad()
def mean_iou(job: Job) -> float:
    """Return the mean over classes of intersection over union, 0 to 1, on the validation pictures of all ranks.

    The ranks add up their confusion matrices: a mean of each rank's own mIoU would be another number.
    """
    # The bare module: DDP's forward may communicate, but the ranks may have different numbers of batches. BatchNorm's
    # running statistics differ by rank: all ranks measure with rank 0's.
    model = job.model.module if isinstance(job.model, DistributedDataParallel) else job.model
    for buffer in model.buffers():
        dist.broadcast(buffer, src=0)
    model.eval()
    confusion = torch.zeros(voc.CLASSES**2, dtype=torch.int64, device=job.place.device)
    for images, classes in job.val:
        named, classes = model(images.to(job.place.device)).argmax(dim=1), classes.to(job.place.device)
        counts = classes != voc.IGNORE
        confusion += torch.bincount(classes[counts] * voc.CLASSES + named[counts], minlength=len(confusion))
    dist.all_reduce(confusion)
    return iou_of(confusion.view(voc.CLASSES, voc.CLASSES))


def iou_of(confusion: Tensor) -> float:
    """Return the mean IoU of a confusion matrix int64 (classes, classes): truth in the rows, the model's answer in the
    columns.

    A class's IoU is TP / (TP + FP + FN), counted in pixels (VOC's measure: Everingham et al., IJCV 2015). A class that
    is neither present nor named has no IoU.
    """
    both = confusion.diagonal()
    either = confusion.sum(dim=0) + confusion.sum(dim=1) - both
    return float((both[either > 0] / either[either > 0]).mean())


def main(argv: Sequence[str] | None = None) -> None:
    """Run the whole training."""
    args = parse_args(argv)
    place = join(args)
    job = prepare(args, place)
    for epoch in range(1, args.num_epochs + 1):
        started, progress = time.monotonic(), f"epoch {epoch}/{args.num_epochs}"
        loss = train_epoch(job, epoch)
        if not math.isfinite(loss):
            raise Refused(f"the loss is {loss} in {progress}: try a smaller --learning_rate")
        share = mean_iou(job)
        if place.rank == 0:
            say(f"{progress} loss {loss:.4f} mIoU {share:.4f} time {time.monotonic() - started:.1f}s")
    wait_for_all(place.device)
    dist.destroy_process_group()


if __name__ == "__main__":
    run(main)
