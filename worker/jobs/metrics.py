"""Writes the job's own measurements to ``$DDPCTL_METRICS``: samples per second, and the share of communication.

Each line of the file is a JSON object such as ``{"step": 120, "loss": 0.31, "samples_per_s": 5120}``. ``ddpctl status``
shows the last values, and ``ddpctl bench scaling`` compares them over a growing number of nodes.

ddpctl gives every rank a file. If only rank 0 writes, its numbers stand for the whole job. If every rank writes its
share, as here, ddpctl adds values with names in ``_per_s``, and averages the other values.
"""

# Without `from __future__ import annotations`: DDP reads the annotations of a communication hook, and rejects strings.
import json
import os
import time
from typing import Any, Dict, List, Optional, Tuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

EVERY_S = 1.0  # a line a second is enough to watch a job, and does not fill a disk in three weeks


def write_metrics(**values: float) -> None:
    """Append a line to ``$DDPCTL_METRICS``. Without ddpctl there is no such file, and this does nothing."""
    path = os.environ.get("DDPCTL_METRICS")
    if path:
        line = json.dumps(values)
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{line}\n")  # a single write: the line appears as a whole


class Meter:
    """Counts the samples of this rank, and writes a line of metrics about once a second.

    Call ``start`` where a stretch of training begins, so that evaluation and checkpoints do not count. Call ``step``
    after each step of the optimizer. With a DDP model, the line also has the share of the time with a gradient
    all-reduce in progress (sending, or waiting for another rank). With ``tokens``, the number of tokens in a sample,
    the line has tokens_per_s as well.
    """

    def __init__(self, model: Optional[torch.nn.Module] = None, tokens: int = 0) -> None:
        self.steps, self.tokens = 0, tokens
        self.communication = CommunicationTimer(model) if isinstance(model, DistributedDataParallel) else None
        self.start()

    def start(self) -> None:
        """Begin to count time."""
        if self.communication is not None:
            self.communication.take()
        self._samples, self._since = 0, time.monotonic()

    def step(self, samples: int, **values: Any) -> None:
        """Count a step with so many samples on this rank. ``values`` (loss ...) are read when a line is due.

        The first step is never in a line, because it creates buffers, connections and kernels.
        """
        self.steps += 1
        if self.steps == 1:
            self.start()
            return
        self._samples += samples
        if time.monotonic() - self._since >= EVERY_S:
            self.write(**values)

    def write(self, **values: Any) -> None:
        """Write a line for the steps since the last line."""
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

    DDP cuts the gradients into buckets and reduces each bucket as soon as the backward pass has filled it. So several
    all-reduces run at the same time, and beside the backward pass. The timer counts the time with any all-reduce in
    progress.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        self._spans: List[Tuple[torch.device, Any, Any]] = []
        model.register_comm_hook(model.process_group, self._reduce)

    def _reduce(self, group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Average a bucket over the ranks, as DDP does by default, with a mark in time before and after.

        DDP multiplies by 1 / world size. So does this hook, because a division can give another last bit.
        """
        gradients = bucket.buffer().mul_(1.0 / dist.get_world_size(group))
        # gloo works on the host, without streams. NCCL's callbacks run in a stream behind the all-reduce.
        clock = torch.device("cpu") if dist.get_backend(group) == "gloo" else gradients.device
        begun = mark(clock)
        work = dist.all_reduce(gradients, group=group, async_op=True)

        def done(future: torch.futures.Future[List[torch.Tensor]]) -> torch.Tensor:
            # May run in a thread of gloo. The backward pass waits for it, so take() never meets an open span.
            self._spans.append((clock, begun, mark(clock)))
            return future.value()[0]

        return work.get_future().then(done)

    def take(self) -> float:
        """Return the seconds since the last call with a bucket in progress; of several GPUs, the busiest counts.

        Waits for the GPU. Must not be called during a backward pass.
        """
        spans, self._spans = self._spans, []
        by_clock: Dict[torch.device, List[Tuple[Any, Any]]] = {}  # events of two GPUs cannot be compared
        for clock, begun, end in spans:
            by_clock.setdefault(clock, []).append((begun, end))
        return max((self._union_s(clock, marks) for clock, marks in by_clock.items()), default=0.0)

    @staticmethod
    def _union_s(clock: torch.device, marks: List[Tuple[Any, Any]]) -> float:
        """Return the seconds that these pairs of marks cover, all of the same clock."""
        if clock.type == "cuda":
            torch.cuda.synchronize(clock)
        origin = marks[0][0]
        return union_s([(seconds_between(origin, begun), seconds_between(origin, end)) for begun, end in marks])


def mark(device: torch.device) -> Any:
    """Return a mark in time for ``seconds_between``: on a GPU an event in its current stream, else the host's clock."""
    if device.type != "cuda":
        return time.monotonic()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event


def seconds_between(begun: Any, end: Any) -> float:
    """Return the seconds between two marks of the same device. A GPU must have passed both."""
    return float(end - begun) if isinstance(begun, float) else float(begun.elapsed_time(end)) / 1e3


def union_s(spans: List[Tuple[float, float]]) -> float:
    """Return the seconds that at least one of these spans covers."""
    total, reached = 0.0, float("-inf")
    for begun, end in sorted(spans):
        total += max(0.0, end - max(begun, reached))
        reached = max(reached, end)
    return total
