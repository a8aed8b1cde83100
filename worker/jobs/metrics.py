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
from typing import Any, List, Optional, Tuple

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
    all-reduce was under way: sent, or waiting for another rank.
    """

    def __init__(self, model: Optional[torch.nn.Module] = None) -> None:
        self.steps = 0
        self.communication = CommunicationTimer(model) if isinstance(model, DistributedDataParallel) else None
        self.start()

    def start(self) -> None:
        """Time counts from here."""
        self._samples, self._since = 0, time.monotonic()
        if self.communication is not None:
            self.communication.take()

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
        numbers = {name: float(value) for name, value in values.items()}  # reading a tensor waits for the GPU
        seconds = time.monotonic() - self._since
        if not self._samples:
            return
        if self.communication is not None:
            numbers["comm_share"] = min(1.0, self.communication.take() / seconds)
        write_metrics(step=self.steps, samples_per_s=self._samples / seconds, **numbers)
        self.start()


class CommunicationTimer:
    """Times the gradient all-reduces of a DDP model, by the public communication hook.

    DDP cuts the gradients into buckets and reduces each as soon as the backward pass has filled it, so several are
    under way at once and while the backward pass continues. What counts is the time during which at least one is.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        self._cuda = next(model.parameters()).device.type == "cuda"
        self._spans: List[Tuple[Any, Any]] = []
        model.register_comm_hook(None, self._reduce)

    def _reduce(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """What DDP does by itself (the average over all ranks), with a clock before and after."""
        begun = self._now()
        work = dist.all_reduce(bucket.buffer().div_(dist.get_world_size()), async_op=True)

        def done(future: torch.futures.Future[List[torch.Tensor]]) -> torch.Tensor:
            self._spans.append((begun, self._now()))
            return future.value()[0]

        return work.get_future().then(done)

    def _now(self) -> Any:
        """A mark in time: on a GPU an event in the current stream, else seconds."""
        if not self._cuda:
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def take(self) -> float:
        """Seconds since the last call during which a bucket was under way. Waits for the GPU."""
        spans, self._spans = self._spans, []
        if self._cuda and spans:
            torch.cuda.synchronize()
            origin = spans[0][0]
            spans = [(origin.elapsed_time(begun) / 1e3, origin.elapsed_time(end) / 1e3) for begun, end in spans]
        return union_s(spans)


def union_s(spans: List[Tuple[float, float]]) -> float:
    """Seconds that are covered by at least one of these spans."""
    total, reached = 0.0, float("-inf")
    for begun, end in sorted(spans):
        total += max(0.0, end - max(begun, reached))
        reached = max(reached, end)
    return total
