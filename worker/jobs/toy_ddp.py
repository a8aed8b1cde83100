"""DistributedDataParallel taken apart: a model of two layers, and what every rank holds before and after one step.

``--demo`` picks one or more of four demos, ``--spawn N`` starts the ranks itself, without a launcher. All of them print
their numbers and check them against the same numbers computed without DDP. Needs torch 1.13 or newer, and numpy.

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

SAMPLES, FEATURES, HIDDEN = 8, 4, 5  # samples are those of one rank
RATE = 0.1  # of learning


class Toy(nn.Module):
    """Two layers, each on a device of its own or both on one: (n, FEATURES) to (n, 1)."""

    def __init__(self, first: torch.device, second: torch.device) -> None:
        super().__init__()
        self.lower = nn.Linear(FEATURES, HIDDEN).to(first)
        self.upper = nn.Linear(HIDDEN, 1).to(second)

    def forward(self, x: Tensor) -> Tensor:
        """What goes from layer to layer goes from device to device; autograd sends the gradient back the same way."""
        hidden = functional.relu(self.lower(x.to(self.lower.weight.device)))
        return self.upper(hidden.to(self.upper.weight.device))  # type: ignore[no-any-return,unused-ignore]


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--demo", choices=tuple(DEMOS), nargs="+", default=["basic"], help="which to run, in this order")
    add("--spawn", type=whole(1), metavar="N", help="start N ranks on this machine, without a launcher")
    add("--checkpoint", metavar="FILE", help="on rank 0's host; loaded if it exists, and kept (else: a temporary one)")
    add_options(parser)
    return parser.parse_args(argv)


def batch(rank: int) -> tuple[Tensor, Tensor]:
    """Inputs (SAMPLES, FEATURES) and targets (SAMPLES, 1): the share of this rank, the same in every run."""
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(SAMPLES, FEATURES, generator=generator), torch.randn(SAMPLES, 1, generator=generator)


def backward(model: nn.Module, rank: int) -> None:
    """Forward and backward: the gradient of the mean squared error of this rank's batch is added to ``.grad``."""
    inputs, targets = batch(rank)
    outputs = model(inputs)
    functional.mse_loss(outputs, targets.to(outputs.device)).backward()  # type: ignore[no-untyped-call,unused-ignore]


def weights(model: nn.Module) -> Tensor:
    """All parameters in one row, on the CPU."""
    return torch.cat([parameter.detach().flatten().cpu() for parameter in model.parameters()])


def gradient(model: nn.Module) -> Tensor:
    """All gradients in one row, on the CPU; the last one is that of the output's bias."""
    return torch.cat([p.grad.flatten().cpu() for p in model.parameters() if p.grad is not None])


def versions(rows: Tensor) -> int:
    """How many of these rows of float32 are different, be it in one bit."""
    return len(torch.unique(rows.view(torch.int32), dim=0))


def basic(place: Place, args: argparse.Namespace) -> None:
    """One step on one device of each rank."""
    one_step(place, place.device, place.device)


def one_step(place: Place, first: torch.device, second: torch.device) -> None:
    """Forward, backward, step; every rank's gradient and weights are compared on the way.

    DDP's average is that of the ranks' gradients, each rank counting the same.

    Raises:
        JobError: DDP's gradient is not the average, or the replicas are not identical.
    """
    torch.manual_seed(place.rank)  # other weights on every rank: DDP sends rank 0's to all when it wraps the model
    replica = Toy(first, second)
    before = versions(gather(weights(replica), place.device))
    # device_ids is for a model on one GPU. One on several has to do without, and then it suits both.
    model = DistributedDataParallel(replica, device_ids=None)
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    wrapped = versions(gather(weights(replica), place.device))

    with model.no_sync():  # in here DDP sends nothing, and .grad is this rank's own gradient
        backward(model, place.rank)
    own = gather(gradient(replica), place.device)
    optimizer.zero_grad()
    backward(model, place.rank)  # and here it is the average: DDP reduces it while backward still runs
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
    """One replica over two devices, and DDP over the replicas."""
    first, second = two_devices(place)
    if place.rank == 0:
        say(f"rank 0 has its lower layer on {first}, its upper layer on {second}")
        if first == second:
            say("no GPUs: this shows that DDP takes such a model, not that a model larger than a device fits")
    one_step(place, first, second)


def two_devices(place: Place) -> tuple[torch.device, torch.device]:
    """Two GPUs that no other rank of this host uses, or the CPU twice.

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
    """Rank 0 saves, every rank loads, and all hold the same weights.

    Where all ranks see one disk, each reads the file: after a barrier, so that it is complete. Hosts that share nothing
    have no such file. So rank 0 alone touches it and sends its bytes, and the broadcast is that barrier.

    Raises:
        Refused: the file cannot be used.
        JobError: the weights are not those that were saved.
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
    wait_for_all(place.device)  # a file that a rank could not load stays, to be looked at
    if place.rank == 0:
        say(f"{place.world_size} ranks hold the same {rows.shape[1]} weights, from {len(content)} bytes of {path}")
        if not args.checkpoint:
            os.remove(path)


def rank_0_file(given: str | None, model: nn.Module) -> tuple[str, bytes] | str:
    """Path and content of the checkpoint, saved if need be; or what is wrong: other ranks wait for either."""
    try:
        path = given or tempfile.mkstemp(prefix="toy_ddp-", suffix=".pt")[1]
        if not (given and os.path.exists(given)):
            # The model in DDP, not DDP itself, which puts "module." in front of every name. And a reader never meets
            # half a file: it is written under another name first.
            torch.save(model.state_dict(), f"{path}.part")
            os.replace(f"{path}.part", path)
        with open(path, "rb") as file:
            return path, file.read()
    except (OSError, RuntimeError) as error:  # torch.save says RuntimeError where there is no such folder
        return f"cannot use the checkpoint {given or tempfile.gettempdir()}: {error}".splitlines()[0]


def load(model: nn.Module, path: str, content: bytes, device: torch.device) -> None:
    """Fills the model from a checkpoint.

    torch.load does not check the checksums in its file (a zip archive), so a flipped bit in a weight goes unnoticed.

    Raises:
        Refused: the checkpoint is damaged or holds another model; every rank has the same bytes and sees the same.
    """
    try:
        damaged = zipfile.ZipFile(io.BytesIO(content)).testzip()
        if damaged:
            raise ValueError(f"the checksum of {damaged} is wrong")
        # map_location: without it tensors go back to the device that they were saved from, on every rank GPU 0.
        model.load_state_dict(torch.load(io.BytesIO(content), map_location=device, weights_only=True))
    except Exception as error:  # of any type, as the bytes may be anything
        reason = " ".join(str(error).split())[:160]
        raise Refused(f"the checkpoint {path} is damaged or not of this model ({reason}): use another file") from error


def syncbn(place: Place, args: argparse.Namespace) -> None:
    """BatchNorm normalises by the statistics of the rank's own batch, SyncBatchNorm by those of all ranks together.

    Raises:
        JobError: the synchronized result is not that of BatchNorm on the whole global batch.
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
    """Values (n, features) normalised by mean and variance over the batches of all ranks. No gradient flows through it.

    One all_reduce is enough: the mean is sum / count, the variance is square sum / count - mean^2. In float64, as the
    difference of two large numbers loses digits.
    """
    wide = x.double()
    sums = torch.stack([wide.sum(dim=0), (wide * wide).sum(dim=0), torch.full_like(wide[0], len(x))])
    dist.all_reduce(sums)
    total, squares, count = sums
    mean = total / count
    return ((wide - mean) / (squares / count - mean * mean + eps).sqrt()).to(x.dtype)


def spread(values: Tensor) -> float:
    """The variance as BatchNorm computes it: divided by n, not n - 1."""
    return float(values.var(unbiased=False))


def row(values: Tensor, form: str = "+.3f") -> str:
    """These values in one line."""
    return " ".join(format(value, form) for value in values.tolist())


DEMOS = {"basic": basic, "checkpoint": checkpoint, "model_parallel": model_parallel, "syncbn": syncbn}


def run_demos(args: argparse.Namespace) -> None:
    """One rank's whole life."""
    if "model_parallel" in args.demo and args.backend == "auto":
        # Ranks without a GPU of their own cannot join over NCCL, and then nobody could say that GPUs are too few.
        args.backend = "gloo"
    place = join(args)
    for name in args.demo:
        if place.rank == 0:
            say(f"--- {name}: {place.world_size} ranks, {dist.get_backend()}, {place.device.type}")
        DEMOS[name](place, args)
    dist.destroy_process_group()


def spawn(args: argparse.Namespace) -> None:
    """What a launcher does for one machine: pick the master port, start the processes, end all when one fails.

    Raises:
        SystemExit: a rank failed; it has said why.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    try:
        torch.multiprocessing.spawn(spawned, (port, args), nprocs=args.spawn)  # type: ignore[no-untyped-call,unused-ignore]
    except torch.multiprocessing.ProcessExitedException as error:
        # This process is no rank and none is left: unlike a rank, it can end in the usual way.
        raise SystemExit(f"toy_ddp: rank {error.error_index} failed: see above") from error


def spawned(rank: int, port: int, args: argparse.Namespace) -> None:
    """A spawned process: on one machine, local rank and rank are the same."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": args.spawn, "LOCAL_WORLD_SIZE": args.spawn}
    os.environ.update(
        {name: str(value) for name, value in place.items()}, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port)
    )
    run(lambda: run_demos(args))


def main(argv: Sequence[str] | None = None) -> None:
    """The demos, in this process as a rank or in processes of its own."""
    args = parse_args(argv)
    if not args.spawn:
        run_demos(args)
    elif "RANK" in os.environ:
        raise Refused("--spawn starts the ranks itself: leave it out under a launcher")
    else:
        spawn(args)


if __name__ == "__main__":
    run(main)
