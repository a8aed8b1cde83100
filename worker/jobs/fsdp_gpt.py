"""Trains a small GPT on Python's own sources under FSDP2: every rank holds a share of the model, not the whole.

Under DDP every rank holds all parameters, all gradients, and AdamW's two moments of each parameter. FSDP ("fully
sharded data parallel") cuts each parameter, its gradient and its moments along the first dimension into a shard for
each rank. Before a block of the model computes, the ranks gather its parameters; after it, they free these. The
backward pass gathers the parameters again, then averages the gradients over the ranks and leaves each rank its own
shard (a reduce-scatter). The computation stays the same, and so do the losses: compare ``--parallel ddp``.

The loss is the mean over all ranks in nats per character (guessing costs ln 96 = 4.56); ``gradient`` is the norm before
clipping. ``--batch_size`` counts the sequences of all ranks together, so that a run with another number of ranks does
the same steps. A resumed run needs the same text, so rank 0's node must have the same version of Python.

Common mistakes that this job avoids:

- An optimizer created before ``fully_shard``: it holds the full parameters, which are no longer used.
- ``torch.save(model.state_dict())`` on rank 0: that is rank 0's shard, and the rest of the model is lost.
- The gradient norm of the local shards: each rank clips by a different, too small number.
- A forward pass on rank 0 alone, for a sample or an evaluation: it waits forever. All ranks must call it.
- A different seed per rank before the model is created: DDP copies rank 0's weights to all ranks, but FSDP joins shards
  of different models.

The checkpoint is in shards as well: sharded_checkpoint.py. Without ``--resume``, earlier checkpoints are moved to
``fsdp_gpt.old``. Needs torch 2.6 or newer, and numpy.
"""

from __future__ import annotations

import argparse
import math
import os
import zlib
from typing import Any, NamedTuple, Sequence

import numpy as np
import torch
import torch.distributed as dist
from common import Place, Refused, SaveRequest, add_options, join, run, say, whole
from metrics import Meter
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

NEW_ENOUGH = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 6)
if NEW_ENOUGH:
    from sharded_checkpoint import Checkpoints, from_rank_0
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

ALPHABET = "\n" + "".join(map(chr, range(32, 127)))  # printable ASCII; all other characters are left out of the text
LONGEST_GRADIENT = 1.0  # norm over all parameters; a longer gradient is scaled down to it
PROMPT, WRITTEN = "def ", 48  # the trained model continues this prompt for so many characters


class Trainer(NamedTuple):
    """The state that a step needs."""

    args: argparse.Namespace
    place: Place
    text: Tensor  # int64 (n,): places in ALPHABET
    model: nn.Module
    optimizer: torch.optim.Optimizer
    request: SaveRequest


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    shown = argparse.ArgumentDefaultsHelpFormatter
    parser = argparse.ArgumentParser(description="A small GPT, trained under FSDP2 or DDP.", formatter_class=shown)
    add = parser.add_argument
    add("--parallel", choices=("fsdp", "ddp"), default="fsdp", help="how the ranks hold the parameters")
    add("--steps", type=whole(1), default=200, metavar="N", help="steps in all, also before a resume")
    add("--batch_size", type=whole(1), default=32, metavar="N", help="sequences a step, of all ranks together")
    add("--context", type=whole(1), default=64, metavar="N", help="characters of a sequence")
    add("--layers", type=whole(1), default=4, metavar="N", help="blocks of the model")
    add("--width", type=whole(1), default=64, metavar="N", help="numbers that stand for a character between blocks")
    add("--heads", type=whole(1), default=4, metavar="N", help="of attention, in each block")
    add("--learning_rate", type=float, default=0.003, metavar="X", help="of AdamW")
    add("--seed", type=whole(0, 2**32 - 1), default=0, metavar="N", help="of weights and order")
    add("--text_bytes", type=whole(1), default=1_000_000, metavar="N", help="how much of Python's sources to read")
    add("--print_every", type=whole(1), default=10, metavar="N", help="steps from one line to the next")
    add("--checkpoint_every", type=whole(1), default=100, metavar="N", help="steps; the last step always saves")
    add("--model_dir", default=default_model_dir(), metavar="DIR", help="for the folder fsdp_gpt of checkpoints")
    add("--resume", action="store_true", help="go on from the newest checkpoint, or from the start without one")
    add_options(parser)
    args = parser.parse_args(argv)
    if args.width % args.heads:
        parser.error(f"--width {args.width} is not a multiple of --heads {args.heads}")
    if not 0 < args.learning_rate < math.inf:
        parser.error(f"--learning_rate {args.learning_rate} is not a number above 0")
    return args


def default_model_dir() -> str:
    """Return the folder for checkpoints that outlive the run, else ddpctl's folder for outputs, else a folder here."""
    return os.environ.get("DDPCTL_CHECKPOINT_DIR") or os.environ.get("DDPCTL_OUTPUT_DIR") or "saved_models"


class Block(nn.Module):
    """Attention, then a network of two layers. Each reads a normalised copy of its input ("pre-norm") and adds to it.

    Sources: "Attention Is All You Need" (Vaswani et al., 2017); the order is that of GPT-2 (Radford, 2019).
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project_in, self.project_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, length, width) to the same shape."""
        x = x + self.attend(self.norm_1(x))
        return x + self.network(self.norm_2(x))  # type: ignore[no-any-return,unused-ignore]

    def attend(self, x: Tensor) -> Tensor:
        """Let each place of a sequence read itself and the places before it, but no character that comes later."""
        batch, length, width = x.shape
        split = self.project_in(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.project_out(mixed.transpose(1, 2).reshape(batch, length, width))  # type: ignore[no-any-return,unused-ignore]


class GPT(nn.Module):
    """Predicts the next character at every place of a sequence."""

    def __init__(self, context: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(len(ALPHABET), width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for embedding in (self.characters, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, characters: Tensor) -> Tensor:
        """int64 (batch, length) to logits (batch, length, len(ALPHABET))."""
        x = self.characters(characters) + self.places(torch.arange(characters.shape[1], device=characters.device))
        for block in self.blocks:
            x = block(x)
        return functional.linear(self.norm(x), self.characters.weight)


def spread(model: nn.Module, args: argparse.Namespace, place: Place) -> nn.Module:
    """Return the model over all ranks, under FSDP or DDP.

    Each block is sharded separately, so that a rank holds a single whole block at a time. The last call shards the rest
    (embeddings and norm). The model is made in full first, which works while it fits: a larger model is made on
    ``torch.device("meta")``, sharded, and filled afterwards.
    """
    if args.parallel == "ddp":
        return DistributedDataParallel(model, device_ids=None if place.device.type == "cpu" else [place.device.index])
    mesh = init_device_mesh(place.device.type, (place.world_size,))
    for block in model.blocks:  # type: ignore[union-attr,unused-ignore]
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def prepare(args: argparse.Namespace, place: Place) -> Trainer:
    """Prepare the first step."""
    if args.batch_size % place.world_size:
        raise Refused(f"--batch_size {args.batch_size} is not a multiple of the world size, {place.world_size}")
    request = SaveRequest()
    text = load_text(args, place)
    torch.manual_seed(
        args.seed
    )  # unlike DDP, FSDP does not copy rank 0's weights: all ranks must make the same weights
    model = spread(GPT(args.context, args.layers, args.width, args.heads).to(place.device), args, place)
    optimizer = torch.optim.AdamW(model.parameters(), args.learning_rate)  # after sharding, so that it holds the shards
    return Trainer(args, place, text, model, optimizer, request)


def load_text(args: argparse.Namespace, place: Place) -> Tensor:
    """Return rank 0's text on every rank, int64 (n,).

    Nodes with different versions of Python have different sources. Sending a megabyte is simpler than refusing the
    launch. (A data set that is too large to send must be on every node; then compare its hash.)
    """
    raw, error = from_rank_0(read_sources(args.text_bytes) if place.rank == 0 else None)
    if error:
        raise Refused(error)
    if len(raw) <= args.context:
        raise Refused(f"{len(raw)} characters of text are too few for --context {args.context}: raise --text_bytes")
    index = np.zeros(256, dtype=np.int64)
    index[list(ALPHABET.encode())] = np.arange(len(ALPHABET))
    return torch.from_numpy(index[np.frombuffer(raw, dtype=np.uint8)])


def read_sources(size: int) -> tuple[bytes, str]:
    """Return the first bytes of Python's own modules, by name, and the error, or ""."""
    folder, text = os.path.dirname(os.__file__), b""
    try:
        for name in sorted(name for name in os.listdir(folder) if name.endswith(".py")):
            with open(os.path.join(folder, name), "rb") as file:
                text += file.read(max(0, size - len(text)))
    except OSError as error:
        return b"", f"cannot read Python's sources: {error}"
    return text.translate(None, bytes(set(range(256)) - set(ALPHABET.encode()))), ""


def batch_of(trainer: Trainer, step: int) -> tuple[Tensor, Tensor]:
    """Return this rank's share of a step's sequences, and the same a character later; both int64 (share, context).

    All ranks draw the places of the whole batch, from seed and step only, and each rank takes its own. So a resumed run
    sees the same batches as an uninterrupted run, on any number of ranks.
    """
    args, place = trainer.args, trainer.place
    starts = np.random.default_rng([args.seed, step]).integers(len(trainer.text) - args.context, size=args.batch_size)
    rows = [trainer.text[start : start + args.context + 1] for start in starts[place.rank :: place.world_size]]
    sequences = torch.stack(rows).to(place.device)
    return sequences[:, :-1], sequences[:, 1:]


def train_step(trainer: Trainer, step: int) -> tuple[float, float]:
    """Run a step of the optimizer. Returns the mean loss of all ranks, in nats a character, and the gradient's norm."""
    inputs, targets = batch_of(trainer, step)
    trainer.optimizer.zero_grad()
    loss = functional.cross_entropy(trainer.model(inputs).flatten(0, 1), targets.flatten())
    loss.backward()  # type: ignore[no-untyped-call,unused-ignore]
    # With sharded gradients (DTensors) this is the norm over all ranks. A norm over local shards would be too small.
    norm = nn.utils.clip_grad_norm_(trainer.model.parameters(), LONGEST_GRADIENT)
    trainer.optimizer.step()
    mean = loss.detach() / trainer.place.world_size
    dist.all_reduce(mean)
    return float(mean), float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def train(trainer: Trainer, checkpoints: Checkpoints, done: int) -> None:
    """Run the remaining steps."""
    args, place = trainer.args, trainer.place
    meter = Meter(trainer.model, tokens=args.context)
    for step in range(done + 1, args.steps + 1):
        loss, norm = train_step(trainer, step)
        if not math.isfinite(loss):
            raise Refused(f"the loss is {loss} in step {step}: try a smaller --learning_rate")
        meter.step(args.batch_size // place.world_size, loss=loss)
        if step == done + 1:
            say(f"rank {place.rank} holds {held(trainer)}")
        if place.rank == 0 and step % args.print_every == 0:
            say(f"step {step}/{args.steps} loss {loss:.4f} gradient {norm:.4f}")
        if trainer.request.agreed() or step % args.checkpoint_every == 0 or step == args.steps:
            checkpoints.save(trainer.model, trainer.optimizer, step)
            meter.start()


def held(trainer: Trainer) -> str:
    """Describe the tensors that this rank keeps between two steps. Needs a finished step, which creates the moments."""
    parameters = list(trainer.model.parameters())
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    moments = [tensor for state in trainer.optimizer.state.values() for tensor in state.values()]
    mine, total = sum(local(tensor).numel() for tensor in parameters), sum(tensor.numel() for tensor in parameters)
    size = sum(local(tensor).nbytes for tensor in [*parameters, *gradients, *moments])
    return f"{mine} of {total} parameters, {size / 1e6:.2f} MB with gradients and moments"


def local(tensor: Tensor) -> Tensor:
    """Return the local part of a tensor: its shard, or the whole tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def write_on(trainer: Trainer) -> str:
    """Continue the prompt with the model. Under FSDP a forward pass is a collective: all ranks must call this."""
    dice = torch.Generator().manual_seed(trainer.args.seed)
    seen = torch.tensor([[ALPHABET.index(character) for character in PROMPT]])
    for _ in range(WRITTEN):
        logits = trainer.model(seen[:, -trainer.args.context :].to(trainer.place.device))[:, -1]
        seen = torch.cat([seen, torch.multinomial(logits.softmax(1).cpu(), 1, generator=dice)], dim=1)
    return "".join(ALPHABET[index] for index in seen[0].tolist())


def main(argv: Sequence[str] | None = None) -> None:
    """Run the whole training."""
    args = parse_args(argv)
    if not NEW_ENOUGH:
        raise Refused(f"torch {torch.__version__} has no fully_shard: torch 2.6 or newer is needed")
    place = join(args)
    trainer = prepare(args, place)
    same: dict[str, Any] = {
        name: getattr(args, name) for name in ("context", "layers", "width", "heads", "batch_size", "seed")
    }
    same["text's CRC-32"] = f"{zlib.crc32(trainer.text.numpy()):08x}"
    checkpoints, done = Checkpoints(os.path.join(args.model_dir, "fsdp_gpt"), same, place), 0
    if args.resume:
        done = checkpoints.resume(trainer.model, trainer.optimizer)
    else:
        checkpoints.start_anew()
    if place.rank == 0 and args.resume:
        say(f"resumed {checkpoints.path(done)}" if done else f"no checkpoint in {checkpoints.folder}: step 1 is next")
    train(trainer, checkpoints, done)
    written = write_on(trainer)
    if place.rank == 0:
        say(f"sample: {written!r}")
    dist.destroy_process_group()
    if place.rank == 0:
        say(f"done: {checkpoints.path(max(done, args.steps))}")


if __name__ == "__main__":
    run(main)
