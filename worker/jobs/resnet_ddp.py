"""Trains a ResNet on small images with DistributedDataParallel, the way it is written today.

Every rank trains on its share of the images, and DDP averages the gradients. Rank 0 also measures the accuracy, prints
a line for each epoch, and writes the checkpoint. Read ``main`` first, then ``train_epoch`` and ``train_step``. The
parts are in resnet_settings.py (the options), batches.py (which rank gets which images), resnet.py (the network),
checkpoint.py and metrics.py.

On SIGUSR1 (``ddpctl checkpoint``) it saves after the present step. Killed and started again with ``--resume``, it
continues with the step after its newest checkpoint, as if it had never stopped. torchrun or ddpctl starts it on every
node; ``python resnet_ddp.py`` trains in a single process. Needs torch 1.13.

``--scale_lr --warmup_epochs 5`` is the linear scaling rule of Goyal et al. 2017. With ``--accumulate`` the gradients
are reduced once, with ``no_sync()`` for all batches but the last. ``--amp fp16`` uses a GradScaler, for GPUs without
bf16. A resume verifies the checksums of the checkpoint: it names a damaged file and uses the checkpoint before.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import random
import socket
import time
from contextlib import nullcontext
from typing import Any, Callable, NamedTuple, Sequence

import batches
import checkpoint
import cifar10
import digits
import numpy as np
import resnet
import torch
import torch.distributed as dist
from common import Place, Refused, SaveRequest, gather, join, run, say, wait_for_all
from metrics import Meter, write_metrics
from resnet_settings import checkpoint_path, model_path, parse_args, rate_at, refuse
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

TEST_BATCH = 256  # images
NEW = {"epoch": 0, "images": 0, "loss_sum": torch.zeros((), dtype=torch.float64)}  # see save()


class Training(NamedTuple):
    """The state that an epoch needs."""

    args: argparse.Namespace
    place: Place
    model: DistributedDataParallel
    forward: Callable[[Tensor], Tensor]  # the model, compiled if asked for
    optimizer: torch.optim.Optimizer
    scaler: Any  # of the loss, for fp16; does nothing otherwise
    loader: DataLoader[Any]
    test: cifar10.Split
    meter: Meter
    request: SaveRequest


def prepare(args: argparse.Namespace, place: Place) -> tuple[Training, checkpoint.State]:
    """Prepare the next step. Returns the training, and the state from which it continues."""
    device = place.device
    request = SaveRequest()
    seed_everything(args.random_seed)
    train, test = batches.load(args, place)
    model = resnet.make(args.arch, cifar10.CLASSES, args.width)
    if args.sync_bn:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call,unused-ignore]
    model.to(device)  # before the optimizer, which keeps its own references
    optimizer = torch.optim.SGD(model.parameters(), args.learning_rate, 0.9, weight_decay=5e-4, nesterov=True)
    scaler = make_scaler(args.amp == "fp16")
    path, state = find_state(args, place)
    restore(state, args, model, optimizer, scaler)
    if place.rank == 0 and args.resume:
        say(describe(path, state))
    parallel = DistributedDataParallel(model, device_ids=None if device.type == "cpu" else [device.index])
    settle_buckets(parallel, device)
    # Around DDP, not inside it: torch.compile then cuts the graph at the ends of DDP's buckets, which still overlap.
    forward = torch.compile(parallel) if args.compile else parallel
    loader = batches.make_loader(train, args, place)
    return Training(args, place, parallel, forward, optimizer, scaler, loader, test, Meter(parallel), request), state


def settle_buckets(model: DistributedDataParallel, device: torch.device) -> None:
    """Run a backward pass without effect, so that a resumed training adds gradients in the same order as before.

    After its first backward pass DDP rearranges its buckets. The place of a gradient in a bucket decides the order in
    which an all-reduce of three or more ranks adds it up. So the last bits would differ, and many steps later also the
    loss.
    """
    model.eval()  # batch norm then keeps its statistics
    model(torch.zeros(1, 3, cifar10.SIDE, cifar10.SIDE, device=device)).sum().backward()
    model.zero_grad(set_to_none=True)


def seed_everything(seed: int) -> None:
    """Make the weights the same in every process, and every run the same."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def make_scaler(enabled: bool) -> Any:
    """Return a scaler of the loss, which keeps small fp16 gradients from becoming 0. bf16 has the range of float32."""
    if hasattr(torch.amp, "GradScaler"):
        return torch.amp.GradScaler("cuda", enabled=enabled)
    return torch.cuda.amp.GradScaler(enabled=enabled)


def find_state(args: argparse.Namespace, place: Place) -> tuple[str, checkpoint.State]:
    """Return the file on rank 0 and the state from which to continue; or the state of the start."""
    path = checkpoint_path(args)
    if args.resume is None:
        if place.rank == 0:
            checkpoint.start_anew(path)
        return path, NEW
    if args.resume == "auto":
        return checkpoint.resume(path, place) or (path, NEW)
    return args.resume, checkpoint.load(args.resume, place)


def describe(path: str, state: checkpoint.State) -> str:
    """Return a line about the state from which a training resumes."""
    if state is NEW:
        return f"no checkpoint {path}: epoch 1 is next"
    inside = f" and {state['images']} images of the next" if state["images"] else ""
    return f"resumed {path} of epoch {state['epoch']}{inside}"


def restore(
    state: checkpoint.State, args: argparse.Namespace, model: nn.Module, optimizer: torch.optim.Optimizer, scaler: Any
) -> None:
    """Fill the model, the optimizer and the scaler. The optimizer's settings come from the command line.

    Raises:
        Refused: the checkpoint is of another training.
    """
    if state is NEW:
        return
    missing = {"model", "optimizer", "scaler", "seed", *NEW} - set(state)
    if missing:
        raise Refused(f"that is no checkpoint of this training, it has no {min(missing)}: name a .ckpt file")
    if state["seed"] != args.random_seed:  # another order, and for some data sets another split
        raise Refused(f"the checkpoint was made with --random_seed {state['seed']}: give the same one")
    try:
        model.load_state_dict(state["model"])
    except RuntimeError as error:
        made = f"--arch {args.arch} --width {args.width}"
        raise Refused(f"the checkpoint holds another model than {made} makes: give the same ones") from error
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state["optimizer"]})
    if state["scaler"]:
        scaler.load_state_dict({name: value.item() for name, value in state["scaler"].items()})


def save(training: Training, epoch: int, images: int, loss_sum: float) -> None:
    """Let rank 0 write a checkpoint after ``epoch`` epochs and ``images`` of the next epoch (of all ranks together).

    These two numbers are also the sampler's whole state, because the order follows from the seed and the epoch.
    """
    if training.place.rank == 0:
        state = {
            "model": training.model.module.state_dict(),
            "optimizer": training.optimizer.state_dict()["state"],
            "scaler": {name: torch.tensor(value) for name, value in training.scaler.state_dict().items()},
            "seed": training.args.random_seed,
            "epoch": epoch,
            "images": images,
            "loss_sum": torch.tensor(loss_sum, dtype=torch.float64),
        }
        checkpoint.save(checkpoint_path(training.args), state)


def train_epoch(training: Training, epoch: int, images: int, loss_sum: float) -> float:
    """Run all ranks over the images, from the given point of the epoch. Returns the mean loss of the whole epoch."""
    args, place = training.args, training.place
    sampler = training.loader.sampler
    assert isinstance(sampler, batches.Sampler)
    sampler.set_epoch(epoch)  # without it every epoch has the same order
    sampler.begin = images
    losses = torch.tensor(loss_sum if place.rank == 0 else 0.0, dtype=torch.float64, device=place.device)
    training.model.train()  # type: ignore[no-untyped-call,unused-ignore]
    training.meter.start()
    for number, group in enumerate(batches.groups(training.loader, args.accumulate), 1):
        here = sum(len(labels) for _, labels in group)
        middle = epoch - 1 + (images + here * place.world_size / 2) / sampler.total_size
        for settings in training.optimizer.param_groups:
            settings["lr"] = rate_at(args, place.world_size, middle)
        generator = batches.generator_of(place.device, args.random_seed, epoch, images, place.rank)
        loss = train_step(training, group, here, generator)
        losses += loss
        images += here * place.world_size
        training.meter.step(here, epoch=epoch, loss=loss / here)
        due = training.request.agreed() or (args.checkpoint_steps and number % args.checkpoint_steps == 0)
        if due and images < sampler.total_size:  # a finished epoch is saved in any case
            save(training, epoch - 1, images, total(losses, epoch))
            training.meter.start()
    training.meter.write(epoch=epoch)
    return total(losses, epoch) / images


def train_step(training: Training, group: list[batches.Batch], here: int, generator: torch.Generator) -> Tensor:
    """Run a step of the optimizer on the batches of the group (``here`` images). Returns the sum of this rank's losses.

    The gradients of the batches add up, and DDP averages over the ranks only once, in the last backward pass. The loss
    is divided by the images of all batches, so that the step equals the step of a single large batch.
    """
    device = training.place.device
    mirror = training.args.data_dir != digits.DIGITS
    dtype = torch.float16 if training.args.amp == "fp16" else torch.bfloat16
    loss_sum = torch.zeros((), dtype=torch.float64, device=device)
    for number, (images, labels) in enumerate(group, 1):
        images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        inputs = batches.normalise(batches.augment(images, generator, mirror))
        with nullcontext() if number == len(group) else training.model.no_sync():
            with torch.autocast(device.type, dtype, enabled=training.args.amp is not None):
                loss = functional.cross_entropy(training.forward(inputs), labels, reduction="sum")
            training.scaler.scale(
                loss / here
            ).backward()  # outside: each operation has the precision of its forward pass
        loss_sum += loss.detach()
    training.scaler.step(training.optimizer)
    training.scaler.update()
    training.optimizer.zero_grad(set_to_none=True)
    return loss_sum


def total(losses: Tensor, epoch: int) -> float:
    """Return the sum over all ranks.

    Raises:
        Refused: the sum is not finite, so this training is not worth saving.
    """
    everyone = losses.clone()
    dist.all_reduce(everyone)
    if not math.isfinite(everyone):
        raise Refused(f"the loss is {float(everyone)} in epoch {epoch}: try a smaller --learning_rate, or warm up")
    return float(everyone)


@torch.no_grad()
def accuracy(model: nn.Module, split: cifar10.Split, device: torch.device) -> float:
    """Return the share of the images that the model names right, 0 to 1."""
    model.eval()
    right = 0
    for start in range(0, len(split.labels), TEST_BATCH):
        images = torch.from_numpy(split.images[start : start + TEST_BATCH]).to(device)
        labels = torch.from_numpy(split.labels[start : start + TEST_BATCH]).to(device)
        right += int((model(batches.normalise(images)).argmax(dim=1) == labels).sum())
    return right / len(split.labels)


def run_epoch(training: Training, epoch: int, images: int, loss_sum: float) -> None:
    """Train an epoch. Then rank 0 measures, saves and prints while the other ranks wait."""
    started = time.monotonic()
    loss = train_epoch(training, epoch, images, loss_sum)
    save(training, epoch, 0, 0.0)
    if training.place.rank == 0:
        # The model itself: DDP's forward would wait for the other ranks.
        share = accuracy(training.model.module, training.test, training.place.device)
        seconds = time.monotonic() - started
        write_metrics(step=training.meter.steps, epoch=epoch, accuracy=share)
        say(f"epoch {epoch}/{training.args.num_epochs} loss {loss:.4f} accuracy {share:.3f} time {seconds:.1f}s")
    wait_for_all(training.place.device)


def check_replicas(model: nn.Module, place: Place) -> None:
    """Check that every rank holds the same weights, to the last bit: DDP applies the same gradients to the same start.

    Raises:
        Refused: a rank holds other weights. A change outside of DDP is the cause.
    """
    digest = hashlib.sha256()
    for weights in model.parameters():
        digest.update(weights.detach().cpu().numpy().tobytes())
    sums = gather(torch.tensor(int.from_bytes(digest.digest()[:8], "big", signed=True)), place.device).tolist()
    different = [str(rank) for rank, value in enumerate(sums) if value != sums[0]]
    if different:
        raise Refused(f"rank {', '.join(different)} and rank 0 hold different weights: look for what a rank does alone")
    if place.rank == 0:
        say(f"{place.world_size} replicas, the same to the last bit: {digest.hexdigest()[:16]}")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the whole training."""
    args = parse_args(argv)
    place = join(args)
    say(
        f"rank {place.rank} local_rank {place.local_rank} world_size {place.world_size} "
        f"host {socket.gethostname()} pid {os.getpid()} device {place.device}"
    )
    refuse(args, place.device)
    training, state = prepare(args, place)
    images, loss_sum = state["images"], float(state["loss_sum"])
    for epoch in range(state["epoch"] + 1, args.num_epochs + 1):
        run_epoch(training, epoch, images, loss_sum)
        images, loss_sum = 0, 0.0
    check_replicas(training.model.module, place)
    if place.rank == 0:
        checkpoint.save(model_path(args), training.model.module.state_dict())  # without DDP's "module." in the names
    wait_for_all(place.device)
    dist.destroy_process_group()
    if place.rank == 0:
        say(f"done: {model_path(args)}")


if __name__ == "__main__":
    run(main)
