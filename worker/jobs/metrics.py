"""What a job measures of itself: samples per second and the share of time in communication, in ``$DDPCTL_METRICS``.

The file gets one JSON object a line, such as ``{"step": 120, "loss": 0.31, "samples_per_s": 5120}``. ``ddpctl status``
shows the last values, ``ddpctl bench scaling`` compares them over more and more nodes. ddpctl gives every rank a file
of its own. When rank 0 alone writes, its numbers are those of the whole job; when every rank writes its share, as here,
ddpctl adds up what ends in ``_per_s`` and averages the rest.
"""

# Without `from __future__ import annotations`: DDP reads the annotations of a communication hook, and wants no text.
import json
import os
import time
from typing import Any, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

EVERY_S = 1.0  # a line a second is enough to watch a job, and does not fill a disk in three weeks


def write_metrics(**values: float) -> None:
    """Append one line to ``$DDPCTL_METRICS``; without ddpctl there is no such file, and this does nothing."""
    path = os.environ.get("DDPCTL_METRICS")
    if path:
        line = json.dumps(values)
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{line}\n")  # one write: the line appears as a whole


class Meter:
    """Counts the samples of this rank, and writes a line of metrics about once a second.

    Call ``start`` where a stretch of training begins (so that evaluation and checkpoints do not count) and ``step``
    after each step of the optimizer. With a DDP model given, the line also says which share of the time a gradient
    all-reduce was under way: sent, or waiting for another rank. ``tokens`` says how many each sample has; where it is
    given, the line has tokens_per_s as well.
    """

    def __init__(self, model: Optional[torch.nn.Module] = None, tokens: int = 0) -> None:
        self.steps, self.tokens = 0, tokens
        self.communication = CommunicationTimer(model) if isinstance(model, DistributedDataParallel) else None
        self.start()

    def start(self) -> None:
        """Time counts from here."""
        if self.communication is not None:
            self.communication.take()
        self._samples, self._since = 0, time.monotonic()

    def step(self, samples: int, **values: Any) -> None:
        """One step is done, with this many samples on this rank; ``values`` (loss ...) are read when a line is due.

        The first step is never in a line: it makes buffers, connections and kernels.
        """
        self.steps += 1
        if self.steps == 1:
            self.start()
            return
        self._samples += samples
        if time.monotonic() - self._since >= EVERY_S:
            self.write(**values)

    def write(self, **values: Any) -> None:
        """A line for the steps since the last one."""
        if not self._samples:
            return
        numbers = {name: float(value) for name, value in values.items()}  # reading a tensor waits for the GPU
        communicated = self.communication.take() if self.communication is not None else None  # and so does this
        seconds = time.monotonic() - self._since
        if communicated is not None:
            numbers["comm_share"] = min(1.0, communicated / seconds)
        if self.tokens:
            numbers["tokens_per_s"] = self._samples * self.tokens / seconds
        write_metrics(step=self.steps, samples_per_s=self._samples / seconds, **numbers)
        self.start()


class CommunicationTimer:
    """Times the gradient all-reduces of a DDP model, by the public communication hook.

    DDP cuts the gradients into buckets and reduces each as soon as the backward pass has filled it, so several are
    under way at once and while the backward pass continues. What counts is the time during which at least one is.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        self._spans: List[Tuple[torch.device, Any, Any]] = []
        model.register_comm_hook(model.process_group, self._reduce)

    def _reduce(self, group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """What DDP does by itself (the mean over its ranks), with a mark in time before and after.

        DDP multiplies by 1 / world size, and so does this: dividing can give another last bit.
        """
        gradients = bucket.buffer().mul_(1.0 / dist.get_world_size(group))
        # gloo works on the host, and its callbacks know no stream; NCCL's run with one that waits for the all-reduce.
        clock = torch.device("cpu") if dist.get_backend(group) == "gloo" else gradients.device
        begun = mark(clock)
        work = dist.all_reduce(gradients, group=group, async_op=True)

        def done(future: torch.futures.Future[List[torch.Tensor]]) -> torch.Tensor:
            # May run in a thread of gloo. The backward pass ends after it, so take() never meets one under way.
            self._spans.append((clock, begun, mark(clock)))
            return future.value()[0]

        return work.get_future().then(done)

    def take(self) -> float:
        """Seconds since the last call during which a bucket was under way: of several GPUs the busiest one's.

        Waits for the GPU. Not to be called during a backward pass.
        """
        spans, self._spans = self._spans, []
        by_clock: Dict[torch.device, List[Tuple[Any, Any]]] = {}  # events of two GPUs cannot be compared
        for clock, begun, end in spans:
            by_clock.setdefault(clock, []).append((begun, end))
        return max((self._union_s(clock, marks) for clock, marks in by_clock.items()), default=0.0)

    @staticmethod
    def _union_s(clock: torch.device, marks: List[Tuple[Any, Any]]) -> float:
        """Seconds that these pairs of marks cover, all of one clock."""
        if clock.type == "cuda":
            torch.cuda.synchronize(clock)
        origin = marks[0][0]
        return union_s([(seconds_between(origin, begun), seconds_between(origin, end)) for begun, end in marks])


def mark(device: torch.device) -> Any:
    """A mark in time, for ``seconds_between``: on a GPU an event in its current stream, else the host's clock."""
    if device.type != "cuda":
        return time.monotonic()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def seconds_between(begun: Any, end: Any) -> float:
    """Seconds from one mark to another of the same device; a GPU has to have passed both."""
    return float(end - begun) if isinstance(begun, float) else float(begun.elapsed_time(end)) / 1e3


def union_s(spans: List[Tuple[float, float]]) -> float:
    """Seconds that are covered by at least one of these spans."""
    total, reached = 0.0, float("-inf")
    for begun, end in sorted(spans):
        total += max(0.0, end - max(begun, reached))
        reached = max(reached, end)
    return total
