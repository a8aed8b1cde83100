"""Trains ResNet-18 on CIFAR-10 with DistributedDataParallel.

Started on every node by torchrun or ``python -m torch.distributed.launch --use_env``; alone it trains in one process.
Every rank trains on its share of the images; rank 0 measures the accuracy, prints one line an epoch and writes the
checkpoint. A resumed run goes on as if it had not stopped. Needs torch 1.13 or newer, and numpy.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import os
import random
import socket
import sys
import time
import traceback
from datetime import timedelta
from typing import Any, Dict, NamedTuple, NoReturn, Sequence

import cifar10
import numpy as np
import torch
import torch.distributed as dist
from resnet import ResNet18
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

MEAN = (0.4914, 0.4822, 0.4465)  # of CIFAR-10's red, green and blue
DEVIATION = (0.2470, 0.2435, 0.2616)
MARGIN = 4  # pixels by which a training image is moved at most
TEST_BATCH = 256  # images

# A checkpoint. model: its state dictionary; optimizer: its state by parameter, without the settings, which are those of
# the command line; epoch: how many are done.
State = Dict[str, Any]


class JobError(RuntimeError):
    """The training cannot go on; the message says why and what to do, in one line."""


class Place(NamedTuple):
    """Where this process stands among all."""

    rank: int
    local_rank: int
    world_size: int


class Trainer(NamedTuple):
    """All that an epoch needs."""

    args: argparse.Namespace
    place: Place
    device: torch.device
    model: DistributedDataParallel
    optimizer: torch.optim.Optimizer
    loader: DataLoader[Any]  # of images uint8 (n, 3, 32, 32) and labels int64 (n,)
    test: cifar10.Split


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description="ResNet-18 on CIFAR-10, trained by all processes of a launch together.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--num_epochs", type=whole(1), default=10, metavar="N", help="epochs in all, those before a resume too")
    add("--batch_size", type=whole(1), default=128, metavar="N", help="images a step of each process")
    add("--learning_rate", type=float, default=0.05, metavar="X", help="of SGD with momentum 0.9")
    add("--random_seed", type=whole(0, 2**32 - 1), default=0, metavar="N", help="of weights, order and synthetic data")
    add("--model_dir", default=default_model_dir(), metavar="DIR", help="the checkpoint's folder, on rank 0's node")
    add("--model_filename", default="resnet_ddp.pth", metavar="NAME", help="the checkpoint's name")
    add("--resume", action="store_true", help="go on from the checkpoint, or from the start where there is none")
    add("--data_dir", default="data", metavar="DIR", help="has cifar-10-batches-py or -bin in it; or: synthetic")
    add("--train_size", type=whole(1), metavar="N", help="train with so many images only (synthetic: 2000)")
    add("--test_size", type=whole(1), metavar="N", help="test with so many images only (synthetic: 500)")
    add("--width", type=whole(1), default=64, metavar="N", help="channels of the first stage; ResNet-18 has 64")
    add("--num_workers", type=whole(0), default=0, metavar="N", help="data loader processes of each process")
    add("--backend", choices=("auto", "nccl", "gloo"), default="auto", help="auto is nccl with CUDA, gloo without")
    add("--timeout", type=whole(1), default=1800, metavar="SECONDS", help="longest wait for the other processes")
    add("--local_rank", "--local-rank", type=whole(0), default=0, metavar="N", help="$LOCAL_RANK goes before it")
    return parser.parse_args(argv)


def default_model_dir() -> str:
    """Where ddpctl collects what a job makes, or a folder here."""
    return os.environ.get("DDPCTL_OUTPUT_DIR") or "saved_models"


def whole(least: int, most: int = 2**63 - 1) -> Any:
    """A parser of whole numbers in a range."""

    def parse(text: str) -> int:
        number = int(text)
        if not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{number} is not between {least} and {most}")
        return number

    parse.__name__ = "whole number"
    return parse


def say(text: str) -> None:
    """One line on stdout, at once and in one piece: print() may write the newline apart, after another rank's line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def find_place(local_rank: int) -> Place:
    """What the launcher says, or one process alone."""
    env = os.environ
    return Place(int(env.get("RANK", 0)), int(env.get("LOCAL_RANK", local_rank)), int(env.get("WORLD_SIZE", 1)))


def choose_device(backend: str, local_rank: int) -> torch.device:
    """This process's own GPU, or the CPU where there is none."""
    if not torch.cuda.is_available():
        if backend == "nccl":
            raise JobError("the nccl backend needs CUDA, which this torch does not find here: use --backend gloo")
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise JobError(f"local rank {local_rank} has no GPU, {count} are visible here: start at most {count} processes")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def join(args: argparse.Namespace, place: Place, device: torch.device) -> None:
    """Meets the other processes."""
    backend = args.backend if args.backend != "auto" else "nccl" if device.type == "cuda" else "gloo"
    timeout = timedelta(seconds=args.timeout)
    if "RANK" in os.environ:
        dist.init_process_group(backend, timeout=timeout)
    else:
        dist.init_process_group(backend, timeout=timeout, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined,unused-ignore]


def seed_everything(seed: int) -> None:
    """The same weights in every process, and the same run every time."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


def load_data(args: argparse.Namespace, device: torch.device) -> tuple[cifar10.Split, cifar10.Split]:
    """Both splits. All nodes must hold as many images: a rank with fewer steps would leave the others waiting."""
    train, test = cifar10.load(args.data_dir, args.random_seed, args.train_size, args.test_size)
    bounds = torch.tensor([len(train.labels), -len(train.labels)], device=device)
    dist.all_reduce(bounds, op=dist.ReduceOp.MAX)
    most, least = int(bounds[0]), -int(bounds[1])
    if most != least:
        raise JobError(
            f"{len(train.labels)} training images here, {least} to {most} elsewhere: all nodes need the same"
        )
    return train, test


def make_loader(split: cifar10.Split, args: argparse.Namespace, place: Place, device: torch.device) -> DataLoader[Any]:
    """This rank's share of the images, in an order that changes with each epoch."""
    dataset = TensorDataset(torch.from_numpy(split.images), torch.from_numpy(split.labels))
    sampler: DistributedSampler[Any] = DistributedSampler(
        dataset, place.world_size, place.rank, shuffle=True, seed=args.random_seed
    )
    return DataLoader(
        dataset,
        args.batch_size,
        sampler=sampler,
        num_workers=args.num_workers,
        persistent_workers=args.num_workers > 0,
        pin_memory=device.type == "cuda",
    )


def checkpoint_path(args: argparse.Namespace) -> str:
    """Where the checkpoint lies on rank 0's node."""
    return os.path.join(str(args.model_dir), str(args.model_filename))


def save_checkpoint(path: str, state: State) -> None:
    """Puts the whole state under its name or leaves what was there: written aside, made durable, renamed."""
    aside = f"{path}.part"
    with open(aside, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def share_checkpoint(path: str, place: Place, device: torch.device) -> State | None:
    """The state in rank 0's file, on every rank: the other nodes need no copy. None where there is no file."""
    content = read_bytes(path) if place.rank == 0 else None
    size = torch.tensor([-1 if content is None else len(content)], device=device)
    dist.broadcast(size, src=0)
    if int(size) < 0:
        return None
    data = torch.empty(int(size), dtype=torch.uint8, device=device)
    if content is not None:
        data.copy_(torch.from_numpy(np.frombuffer(content, dtype=np.uint8)))
    dist.broadcast(data, src=0)
    state: State = torch.load(io.BytesIO(data.cpu().numpy().tobytes()), map_location=device, weights_only=True)
    return state


def read_bytes(path: str) -> bytearray | None:
    """A file's content, or None where there is none."""
    try:
        with open(path, "rb") as file:
            return bytearray(file.read())
    except FileNotFoundError:
        return None


def find_state(args: argparse.Namespace, place: Place, device: torch.device) -> State | None:
    """The state to go on from, where one is asked for and there; rank 0 tells."""
    if not args.resume:
        return None
    path = checkpoint_path(args)
    state = share_checkpoint(path, place, device)
    if place.rank == 0:
        say(f"no checkpoint {path}: epoch 1 is next" if state is None else f"resumed {path} of epoch {state['epoch']}")
    return state


def restore(state: State, args: argparse.Namespace, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Fills model and optimizer; how many epochs are done."""
    try:
        model.load_state_dict(state["model"])
    except RuntimeError as error:
        raise JobError(f"the checkpoint holds another model than --width {args.width} makes") from error
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state["optimizer"]})
    return int(state["epoch"])


def normalise(images: Tensor) -> Tensor:
    """Pixels uint8 (n, 3, 32, 32) as float32 of mean 0 and deviation 1, near enough."""
    mean, deviation = (torch.tensor(value, device=images.device).view(1, 3, 1, 1) for value in (MEAN, DEVIATION))
    return (images.float() / 255 - mean) / deviation


def augment(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each of the images (n, 3, h, w) moved by up to MARGIN pixels each way over black, and half of them mirrored."""
    count, _, height, width = images.shape
    padded = functional.pad(images, (MARGIN, MARGIN, MARGIN, MARGIN))
    draws = torch.randint(0, 2 * MARGIN + 1, (2, count, 1), generator=generator, device=images.device)
    rows = draws[0] + torch.arange(height, device=images.device)
    columns = draws[1] + torch.arange(width, device=images.device)
    mirrored = torch.randint(0, 2, (count, 1), generator=generator, device=images.device).bool()
    columns = torch.where(mirrored, columns.flip(1), columns)
    each = torch.arange(count, device=images.device)
    return padded[each[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


def train_epoch(trainer: Trainer, epoch: int) -> float:
    """One pass of all ranks over the images; the mean loss of all."""
    sampler = trainer.loader.sampler
    assert isinstance(sampler, DistributedSampler)
    sampler.set_epoch(epoch)
    seeds = np.random.SeedSequence([trainer.args.random_seed, epoch, trainer.place.rank])
    generator = torch.Generator(trainer.device).manual_seed(int(seeds.generate_state(1)[0]))
    totals = torch.zeros(2, dtype=torch.float64, device=trainer.device)  # sum of losses, images
    trainer.model.train()  # type: ignore[no-untyped-call,unused-ignore]
    for images, labels in trainer.loader:
        totals += train_step(trainer, images, labels, generator)
    dist.all_reduce(totals)
    return float(totals[0] / totals[1])


def train_step(trainer: Trainer, images: Tensor, labels: Tensor, generator: torch.Generator) -> Tensor:
    """One step of the optimizer; the sum of losses and the number of images of this rank, (2,)."""
    images = images.to(trainer.device, non_blocking=True)
    labels = labels.to(trainer.device, non_blocking=True)
    loss = functional.cross_entropy(trainer.model(normalise(augment(images, generator))), labels)
    trainer.optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call,unused-ignore]
    trainer.optimizer.step()
    return torch.stack([loss.detach().double() * len(labels), loss.new_tensor(len(labels)).double()])


@torch.no_grad()
def accuracy(model: nn.Module, split: cifar10.Split, device: torch.device) -> float:
    """The share of the images that the model names right, 0 to 1."""
    model.eval()
    right = 0
    for start in range(0, len(split.labels), TEST_BATCH):
        images = torch.from_numpy(split.images[start : start + TEST_BATCH]).to(device)
        labels = torch.from_numpy(split.labels[start : start + TEST_BATCH]).to(device)
        right += int((model(normalise(images)).argmax(dim=1) == labels).sum())
    return right / len(split.labels)


def prepare(args: argparse.Namespace, place: Place, device: torch.device) -> tuple[Trainer, int]:
    """Everything in place for the next epoch, and how many epochs are done."""
    if place.rank == 0:
        os.makedirs(args.model_dir, exist_ok=True)
    seed_everything(args.random_seed)
    train, test = load_data(args, device)
    model = ResNet18(cifar10.CLASSES, args.width).to(device)
    optimizer = torch.optim.SGD(model.parameters(), args.learning_rate, momentum=0.9, weight_decay=5e-4)
    state = find_state(args, place, device)
    done = 0 if state is None else restore(state, args, model, optimizer)
    parallel = DistributedDataParallel(model, device_ids=None if device.type == "cpu" else [place.local_rank])
    return Trainer(args, place, device, parallel, optimizer, make_loader(train, args, place, device), test), done


def run_epoch(trainer: Trainer, epoch: int) -> None:
    """Trains, then rank 0 measures, saves and tells while the others wait."""
    started = time.monotonic()
    loss = train_epoch(trainer, epoch)
    if not np.isfinite(loss):
        raise JobError(f"the loss is {loss} in epoch {epoch}: try a smaller --learning_rate")
    if trainer.place.rank == 0:
        model = trainer.model.module
        share = accuracy(model, trainer.test, trainer.device)
        state = {"model": model.state_dict(), "optimizer": trainer.optimizer.state_dict()["state"], "epoch": epoch}
        save_checkpoint(checkpoint_path(trainer.args), state)
        seconds = time.monotonic() - started
        say(f"epoch {epoch}/{trainer.args.num_epochs} loss {loss:.4f} accuracy {share:.3f} time {seconds:.1f}s")
    wait_for_all(trainer.device)


def wait_for_all(device: torch.device) -> None:
    """Returns when every rank has come here."""
    dist.barrier(device_ids=[device.index] if dist.get_backend() == "nccl" else None)


@record
def main(argv: Sequence[str] | None = None) -> None:
    """The whole training."""
    args = parse_args(argv)
    place = find_place(args.local_rank)
    device = choose_device(args.backend, place.local_rank)
    say(
        f"rank {place.rank} local_rank {place.local_rank} world_size {place.world_size} "
        f"host {socket.gethostname()} pid {os.getpid()} device {device}"
    )
    join(args, place, device)
    trainer, done = prepare(args, place, device)
    for epoch in range(done + 1, args.num_epochs + 1):
        run_epoch(trainer, epoch)
    dist.destroy_process_group()
    if place.rank == 0:
        say(f"done: {checkpoint_path(args)}")


def give_up(reason: str) -> NoReturn:
    """Ends this process at once: an orderly end would wait for ranks that wait for this one."""
    print(reason, file=sys.stderr, flush=True)
    for child in multiprocessing.active_children():
        child.terminate()
    os._exit(1)


if __name__ == "__main__":
    try:
        main()
    except (JobError, cifar10.DataError, OSError) as error:
        give_up(f"resnet_ddp: {error}")
    except Exception:
        give_up(traceback.format_exc())
