"""DistributedDataParallel taken apart: a model of two layers, and the state of every rank before and after a step.

``--demo`` picks one or more of four demos. ``--spawn N`` starts the ranks without a launcher. All demos print their
numbers, and check them against the same numbers computed without DDP. Needs torch 1.13 or newer, and numpy.

Common mistakes. A call of ``model.module(x)`` in place of ``model(x)`` bypasses DDP: no gradient is averaged. Without
``map_location`` all ranks of a host load a checkpoint onto GPU 0. ``torch.load`` does not verify the checksums in the
file, so a wrong bit in a weight goes unnoticed. A model over two devices must not have ``device_ids``. An average of
the ranks' variances, in place of a synchronized BatchNorm, ignores how far their means are apart.

Without GPUs, ``model_parallel`` uses the CPU as both devices: that shows that DDP accepts such a model, not that a
model larger than a device fits. With GPUs each rank needs two. Its default backend is gloo, because a rank without a
GPU could not join over NCCL to report that it has no GPU.
"""

from __future__ import annotations

import argparse
import io
import os
import socket
import tempfile
import zipfile
from typing import Any, Sequence

import torch
import torch.distributed as dist
from common import JobError, Place, Refused, add_options, gather, join, run, say, wait_for_all, whole
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

SAMPLES, FEATURES, HIDDEN = 8, 4, 5  # the samples of a rank
RATE = 0.1  # the learning rate


class Toy(nn.Module):
    """Two layers, on the same device or each on its own: (n, FEATURES) to (n, 1)."""

    def __init__(self, first: torch.device, second: torch.device) -> None:
        super().__init__()
        self.lower = nn.Linear(FEATURES, HIDDEN).to(first)
        self.upper = nn.Linear(HIDDEN, 1).to(second)

    def forward(self, x: Tensor) -> Tensor:
        """Send the output of a layer to the next device; autograd sends the gradient back the same way."""
        hidden = functional.relu(self.lower(x.to(self.lower.weight.device)))
        return self.upper(hidden.to(self.upper.weight.device))  # type: ignore[no-any-return,unused-ignore]


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--demo", choices=tuple(DEMOS), nargs="+", default=["basic"], help="demos to run, in this order")
    add("--spawn", type=whole(1), metavar="N", help="start N ranks on this machine, without a launcher")
    add(
        "--checkpoint",
        metavar="FILE",
        help="on rank 0's host; loaded if it exists, and kept (default: a temporary file)",
    )
    add_options(parser)
    return parser.parse_args(argv)


def batch(rank: int) -> tuple[Tensor, Tensor]:
    """Return inputs (SAMPLES, FEATURES) and targets (SAMPLES, 1): this rank's share, the same in every run."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(SAMPLES, FEATURES, generator=generator), torch.randn(SAMPLES, 1, generator=generator)


def backward(model: nn.Module, rank: int) -> None:
    """Run forward and backward: adds the gradient of the mean squared error of this rank's batch to ``.grad``."""
    inputs, targets = batch(rank)
    outputs = model(inputs)
    functional.mse_loss(outputs, targets.to(outputs.device)).backward()  # type: ignore[no-untyped-call,unused-ignore]


def weights(model: nn.Module) -> Tensor:
    """Return all parameters in a row, on the CPU."""
    return torch.cat([parameter.detach().flatten().cpu() for parameter in model.parameters()])


def gradient(model: nn.Module) -> Tensor:
    """Return all gradients in a row, on the CPU; the last is that of the output's bias."""
    return torch.cat([p.grad.flatten().cpu() for p in model.parameters() if p.grad is not None])


def versions(rows: Tensor) -> int:
    """Return the number of different rows of float32, compared to the last bit."""
    return len(torch.unique(rows.view(torch.int32), dim=0))


def basic(place: Place, args: argparse.Namespace) -> None:
    """Run a step on one device of each rank."""
    one_step(place, place.device, place.device)


def one_step(place: Place, first: torch.device, second: torch.device) -> None:
    """Run forward, backward and step, and compare every rank's gradient and weights on the way.

    DDP averages the ranks' gradients, and each rank counts the same.

    Raises:
        JobError: DDP's gradient is not the average, or the replicas are not identical.
    """
    torch.manual_seed(
        place.rank
    )  # different weights on every rank: DDP sends rank 0's to all ranks when it wraps the model
    replica = Toy(first, second)
    before = versions(gather(weights(replica), place.device))
    # device_ids is only for a model on a single GPU. Without it, a model may be on several GPUs.
    model = DistributedDataParallel(replica, device_ids=None)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    wrapped = versions(gather(weights(replica), place.device))

    with model.no_sync():  # here DDP sends nothing, and .grad is this rank's own gradient
        backward(model, place.rank)
    own = gather(gradient(replica), place.device)
    optimizer.zero_grad()
    backward(model, place.rank)  # here it is the average: DDP reduces it during the backward pass
    averaged = gather(gradient(replica), place.device)
    optimizer.step()
    stepped = versions(gather(weights(replica), place.device))

    if place.rank == 0:
        for rank in range(place.world_size):
            say(
                f"rank {rank}: gradient of the output bias {own[rank, -1]:+.6f} alone, {averaged[rank, -1]:+.6f} by DDP"
            )
        say(f"average of the ranks' own gradients {own[:, -1].mean():+.6f}")
        say(
            f"different versions of the {own.shape[1]} weights: {before} before DDP, {wrapped} in DDP, "
            f"{stepped} after the step"
        )
    if not torch.allclose(averaged, own.mean(dim=0).expand_as(averaged), rtol=1e-5, atol=1e-6):
        raise JobError("the gradient in DDP is not the average of the ranks' own gradients")
    if (wrapped, stepped) != (1, 1):
        raise JobError("the replicas are not identical: does a rank run other code or another torch?")


def model_parallel(place: Place, args: argparse.Namespace) -> None:
    """Run a replica over two devices, and DDP over the replicas."""
    first, second = two_devices(place)
    if place.rank == 0:
        say(f"rank 0 has its lower layer on {first}, its upper layer on {second}")
        if first == second:
            say("no GPUs: this shows that DDP takes such a model, not that a model larger than a device fits")
    one_step(place, first, second)


def two_devices(place: Place) -> tuple[torch.device, torch.device]:
    """Return two GPUs that no other rank of this host uses, or the CPU twice.

    Raises:
        Refused: a host has fewer than two GPUs for each of its ranks.
    """
    if place.device.type == "cpu":
        return place.device, place.device
    mine = torch.tensor([torch.cuda.device_count(), int(os.environ.get("LOCAL_WORLD_SIZE", 1))])
    for rank, (gpus, ranks) in enumerate(gather(mine, place.device).tolist()):
        if gpus < 2 * ranks:
            raise Refused(
                f"model_parallel needs 2 GPUs for each rank, and the host of rank {rank} has {gpus} for its {ranks}: "
                "start fewer ranks there, or see it without GPUs (CUDA_VISIBLE_DEVICES=)"
            )
    return torch.device("cuda", 2 * place.local_rank), torch.device("cuda", 2 * place.local_rank + 1)


def checkpoint(place: Place, args: argparse.Namespace) -> None:
    """Let rank 0 save and every rank load, and check that all ranks hold the same weights.

    If all ranks see the same disk, each rank can read the file, after a barrier so that the file is complete. Without a
    shared disk there is no such file. So here only rank 0 reads it and sends its bytes, and the broadcast is the
    barrier.

    Raises:
        Refused: the file cannot be used.
        JobError: the loaded weights differ from the saved weights.
    """
    torch.manual_seed(place.rank)
    trained = DistributedDataParallel(Toy(place.device, place.device))
    backward(trained, place.rank)
    torch.optim.SGD(trained.parameters(), RATE).step()

    box: list[Any] = [rank_0_file(args.checkpoint, trained.module) if place.rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    if isinstance(box[0], str):
        raise Refused(box[0])
    path, content = box[0]

    torch.manual_seed(1000 + place.rank)
    restored = Toy(place.device, place.device)
    load(restored, path, content, place.device)
    rows = gather(weights(restored), place.device)
    if versions(rows) != 1 or not (args.checkpoint or torch.equal(rows[0], weights(trained))):
        raise JobError(f"the weights loaded from {path} are not those that were saved")
    wait_for_all(place.device)  # if a rank could not load the file, it stays for inspection
    if place.rank == 0:
        say(f"{place.world_size} ranks hold the same {rows.shape[1]} weights, from {len(content)} bytes of {path}")
        if not args.checkpoint:
            os.remove(path)


def rank_0_file(given: str | None, model: nn.Module) -> tuple[str, bytes] | str:
    """Return path and content of the checkpoint, saved if missing; or the error, which all ranks need."""
    try:
        path = given or tempfile.mkstemp(prefix="toy_ddp-", suffix=".pt")[1]
        if not (given and os.path.exists(given)):
            # The model in DDP, not DDP itself, which puts "module." in front of every name. It is written under another
            # name first, so that a reader never sees an incomplete file.
            torch.save(model.state_dict(), f"{path}.part")
            os.replace(f"{path}.part", path)
        with open(path, "rb") as file:
            return path, file.read()
    except (OSError, RuntimeError) as error:  # torch.save raises RuntimeError if the folder is missing
        return f"cannot use the checkpoint {given or tempfile.gettempdir()}: {error}".splitlines()[0]


def load(model: nn.Module, path: str, content: bytes, device: torch.device) -> None:
    """Fill the model from a checkpoint.

    torch.load does not check the checksums in its file (a zip archive), so it does not notice a flipped bit in a
    weight.

    Raises:
        Refused: the checkpoint is damaged or holds another model; every rank has the same bytes and finds the same.
    """
    try:
        damaged = zipfile.ZipFile(io.BytesIO(content)).testzip()
        if damaged:
            raise ValueError(f"the checksum of {damaged} is wrong")
        # Without map_location tensors return to the device from which they were saved: GPU 0 on every rank.
        model.load_state_dict(torch.load(io.BytesIO(content), map_location=device, weights_only=True))
    except Exception as error:  # any type, because the bytes may be anything
        reason = " ".join(str(error).split())[:160]
        raise Refused(f"the checkpoint {path} is damaged or not of this model ({reason}): use another file") from error


def syncbn(place: Place, args: argparse.Namespace) -> None:
    """Show that BatchNorm uses the statistics of the rank's own batch, and SyncBatchNorm the statistics of all ranks.

    Raises:
        JobError: the synchronized result differs from BatchNorm on the whole global batch.
    """
    own = 4.0 * place.rank + torch.arange(4.0, device=place.device).reshape(4, 1)  # rank 0: 0 1 2 3, rank 1: 4 5 6 7
    alone = functional.batch_norm(own, None, None, training=True)
    if place.device.type == "cuda":
        together, means = nn.SyncBatchNorm(1).to(place.device)(own), "torch.nn.SyncBatchNorm"
    else:
        together, means = (
            synchronized(own),
            "an all_reduce of our own, as torch.nn.SyncBatchNorm takes GPU tensors only",
        )
    every, apart, joined = (gather(x.flatten(), place.device) for x in (own, alone, together))
    if place.rank == 0:
        say(f"synchronized by {means}")
        for rank, values in enumerate(every):
            say(f"rank {rank}: batch {row(values, '.0f')}, mean {values.mean():.2f}, variance {spread(values):.2f}")
            say(f"rank {rank}: BatchNorm {row(apart[rank])}, synchronized {row(joined[rank])}")
        say(f"global batch: mean {every.mean():.2f}, variance {spread(every):.2f}")
    expected = functional.batch_norm(every.reshape(-1, 1), None, None, training=True)
    if not torch.allclose(joined.reshape(-1, 1), expected, atol=1e-4):
        raise JobError("the synchronized result is not that of BatchNorm on the global batch")


def synchronized(x: Tensor, eps: float = 1e-5) -> Tensor:
    """Return values (n, features), normalised by mean and variance over the batches of all ranks; without a gradient.

    A single all_reduce is enough: the mean is sum / count, the variance is square sum / count - mean^2. In float64,
    because the difference of two large numbers loses digits.
    """
    wide = x.double()
    sums = torch.stack([wide.sum(dim=0), (wide * wide).sum(dim=0), torch.full_like(wide[0], len(x))])
    dist.all_reduce(sums)
    total, squares, count = sums
    mean = total / count
    return ((wide - mean) / (squares / count - mean * mean + eps).sqrt()).to(x.dtype)


def spread(values: Tensor) -> float:
    """Return the variance as BatchNorm computes it: divided by n, not n - 1."""
    return float(values.var(unbiased=False))


def row(values: Tensor, form: str = "+.3f") -> str:
    """Return these values as a line."""
    return " ".join(format(value, form) for value in values.tolist())


DEMOS = {"basic": basic, "checkpoint": checkpoint, "model_parallel": model_parallel, "syncbn": syncbn}


def run_demos(args: argparse.Namespace) -> None:
    """Run the demos as a rank."""
    if "model_parallel" in args.demo and args.backend == "auto":
        # Ranks without their own GPU cannot join over NCCL, and so could not report that there are too few GPUs.
        args.backend = "gloo"
    place = join(args)
    for name in args.demo:
        if place.rank == 0:
            say(f"--- {name}: {place.world_size} ranks, {dist.get_backend()}, {place.device.type}")
        DEMOS[name](place, args)
    dist.destroy_process_group()


def spawn(args: argparse.Namespace) -> None:
    """Act as a launcher for this machine: pick the master port, start the processes, end all when a process fails.

    Raises:
        SystemExit: a rank failed, and has printed the reason.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    try:
        torch.multiprocessing.spawn(spawned, (port, args), nprocs=args.spawn)  # type: ignore[no-untyped-call,unused-ignore]
    except torch.multiprocessing.ProcessExitedException as error:
        # This process is not a rank, and no rank is left: unlike a rank, it can end in the usual way.
        raise SystemExit(f"toy_ddp: rank {error.error_index} failed: see above") from error


def spawned(rank: int, port: int, args: argparse.Namespace) -> None:
    """Run a spawned process. On a single machine, local rank and rank are the same."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": args.spawn, "LOCAL_WORLD_SIZE": args.spawn}
    os.environ.update(
        {name: str(value) for name, value in place.items()}, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    run(lambda: run_demos(args))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the demos, in this process as a rank or in processes of its own."""
    args = parse_args(argv)
    if not args.spawn:
        run_demos(args)
    elif "RANK" in os.environ:
        raise Refused("--spawn starts the ranks itself: leave it out under a launcher")
    else:
        spawn(args)


if __name__ == "__main__":
    run(main)
