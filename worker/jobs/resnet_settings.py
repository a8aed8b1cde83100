"""The settings of resnet_ddp.py: its command line, a check against this machine, and the learning rate."""

from __future__ import annotations

import argparse
import math
import os
import shutil
from typing import Sequence

import resnet
import torch
from common import JobError, Refused, add_options, whole

REFERENCE_BATCH = 128  # --learning_rate is meant for so many images in a step
SUFFIX = ".ckpt"


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="A ResNet for small images, trained by all processes of a launch together.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--data_dir", default="data", metavar="DIR", help="has CIFAR-10 in it; or: synthetic, or digits (scikit-learn)")
    add("--train_size", type=whole(1), metavar="N", help="train with only N images (synthetic: 2000)")
    add("--test_size", type=whole(1), metavar="N", help="test with only N images (synthetic: 500)")
    add("--num_workers", type=whole(0), default=0, metavar="N", help="data loader processes of each process")
    add("--arch", default=resnet.BUILTIN, metavar="NAME", help="resnet.py's ResNet-18, or torchvision's resnet50 ...")
    add("--width", type=whole(1), default=64, metavar="N", help="channels of builtin's first stage; ResNet-18 has 64")
    add("--num_epochs", type=whole(1), default=10, metavar="N", help="epochs in all, also before a resume")
    add("--batch_size", type=whole(1), default=128, metavar="N", help="images that a process computes at once")
    add("--accumulate", type=whole(1), default=1, metavar="N", help="batches of each process in a step")
    add("--learning_rate", type=float, default=0.05, metavar="X", help="of SGD with Nesterov momentum 0.9")
    add("--scale_lr", action="store_true", help=f"multiply it by (images of all ranks in a step) / {REFERENCE_BATCH}")
    add("--warmup_epochs", type=whole(0), default=0, metavar="N", help="epochs in which it grows from 0")
    add("--schedule", choices=("constant", "cosine"), default="constant", help="after the warm-up; cosine ends at 0")
    add("--amp", nargs="?", const="bf16", choices=("bf16", "fp16"), help="compute in 16 bits where that is safe")
    add("--sync_bn", action="store_true", help="batch norm over the batches of all ranks; GPUs only")
    add("--compile", action="store_true", help="torch.compile: minutes at the start, faster steps")
    add("--random_seed", type=whole(0, 2**32 - 1), default=0, metavar="N", help="of weights, order and synthetic data")
    add("--model_dir", default=os.environ.get("DDPCTL_OUTPUT_DIR") or "saved_models", metavar="DIR", help="rank 0's")
    add("--model_filename", default="resnet_ddp.pth", metavar="NAME", help="of the weights at the end")
    add("--checkpoint_steps", type=whole(1), metavar="N", help="save after every N steps too, not only after an epoch")
    add("--resume", nargs="?", const="auto", metavar="PATH", help="continue; without PATH from the newest, if any")
    add_options(parser)
    args = parser.parse_args(argv)
    if args.model_filename.endswith(SUFFIX):
        parser.error(f"--model_filename must not end in {SUFFIX}: that is the checkpoint's name")
    return args


def model_path(args: argparse.Namespace) -> str:
    """Return the path of the final weights, on rank 0's host."""
    return os.path.join(args.model_dir, args.model_filename)


def checkpoint_path(args: argparse.Namespace) -> str:
    """Return the checkpoint's path on rank 0's host, in the folder that outlives the run if ddpctl gives it."""
    folder = os.environ.get("DDPCTL_CHECKPOINT_DIR") or args.model_dir
    return os.path.join(folder, os.path.splitext(args.model_filename)[0] + SUFFIX)


def refuse(args: argparse.Namespace, device: torch.device) -> None:
    """Check the settings against this machine, before anything is loaded.

    Raises:
        Refused, JobError: a setting cannot work (on this rank's machine).
    """
    cuda = device.type == "cuda"
    if args.sync_bn and not cuda:
        raise Refused("--sync_bn needs GPUs, torch has no SyncBatchNorm for the CPU: leave it out")
    if args.amp == "fp16" and not cuda:
        raise Refused("--amp fp16 needs GPUs: use --amp bf16 on the CPU")
    if args.amp == "bf16" and cuda and not torch.cuda.is_bf16_supported():
        raise JobError(f"{torch.cuda.get_device_name(device)} does not compute in bf16: use --amp fp16")
    if args.compile and not hasattr(torch, "compile"):
        raise Refused(f"--compile needs torch 2.0, this is {torch.__version__}: leave it out")
    compiler = os.environ.get("CXX") or "g++"
    if args.compile and not cuda and shutil.which(compiler) is None:
        raise JobError(f"--compile needs a C++ compiler, there is no {compiler}: install g++, set $CXX or leave it out")


def rate_at(args: argparse.Namespace, world_size: int, epochs: float) -> float:
    """Return the learning rate after this number of epochs.

    The linear scaling rule and the warm-up are from Goyal et al. 2017, "Accurate, Large Minibatch SGD": k times the
    images in a step, k times the learning rate. The cosine is from Loshchilov and Hutter 2017, "SGDR".
    """
    step = args.batch_size * args.accumulate * world_size  # images
    peak = float(args.learning_rate) * (step / REFERENCE_BATCH if args.scale_lr else 1)
    if epochs < args.warmup_epochs:
        return peak * epochs / args.warmup_epochs
    if args.schedule == "constant":
        return peak
    return peak * (1 + math.cos(math.pi * (epochs - args.warmup_epochs) / (args.num_epochs - args.warmup_epochs))) / 2
