"""Checkpoints in shards: every rank writes its own part, and any number of ranks can resume from these.

``torch.save(model.state_dict())`` on rank 0 would save rank 0's shard only. With torch.distributed.checkpoint (DCP)
every rank writes its own shard, and an index says which file holds which part of which tensor:

    step_000020/__0_0.distcp    rank 0's part; __1_0.distcp is rank 1's part, ...
    step_000020/.metadata       DCP's index, written by rank 0
    step_000020/whole.json      the manifest, written last by rank 0: step, settings, size and CRC-32 of each file

The folder is written as step_000020.part and renamed when it is complete, so an incomplete checkpoint is never read.
The newest two are kept.

**Nodes that share no disk**: each node has the files of its own ranks only, but needs all files to resume. Copy the
files to every node, or save to a folder that all nodes share. ``save`` reports this, ``resume`` refuses. Needs torch
2.6.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import zlib
from contextlib import suppress
from typing import Any, Dict, List

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from checkpoint import make_names_durable
from common import Place, Refused, say, wait_for_all
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

MARKER, ASIDE = "whole.json", ".part"
KEEP = 2
ADVICE = "to resume, copy all its files to every node, or use a --model_dir that all nodes share"

Files = Dict[str, List[int]]  # name: size in bytes, CRC-32


class Checkpoints:
    """The checkpoints of a training, in a folder. All ranks call each public method together.

    ``settings``: a resumed run must have the same settings as the run that saved.
    """

    def __init__(self, folder: str, settings: dict[str, Any], place: Place) -> None:
        self.folder, self.settings, self.place = folder, settings, place
        self.kept: list[int] = []  # steps
        self.looked = False  # whether ``say_if_scattered`` has run

    def path(self, step: int) -> str:
        """Return the folder of a step's checkpoint."""
        return os.path.join(self.folder, f"step_{step:06d}")

    def save(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> None:
        """Write every rank's share. Then rank 0 writes the manifest, and the checkpoint gets its name.

        Raises:
            Refused: a rank cannot write.
        """
        folder = self.path(step)
        aside = f"{folder}{ASIDE}"
        if self.place.local_rank == 0:
            remove(aside)
            remove(folder)  # a damaged checkpoint: otherwise it would have been resumed
        wait_for_all(self.place.device)
        model_state, optimizer_state = get_state_dict(model, optimizer)
        try:
            dcp.save({"model": model_state, "optimizer": optimizer_state["state"]}, checkpoint_id=aside)
        except dcp.CheckpointException as error:
            raise Refused(f"cannot write {folder}: {cause(error)}") from error
        files = {name: file for mine in gather_objects(written(aside, self.place.rank)) for name, file in mine.items()}
        if self.place.rank == 0:
            write_json(os.path.join(aside, MARKER), {"step": step, "settings": self.settings, "files": files})
        if not self.looked:
            self.say_if_scattered(folder, files)
        wait_for_all(self.place.device)
        self.kept = [*self.kept, step][-KEEP:]
        if self.place.local_rank == 0:
            with suppress(FileNotFoundError):  # another node with the same folder was faster
                os.replace(aside, folder)
            make_names_durable(self.folder)
            self.remove_the_rest()

    def say_if_scattered(self, folder: str, files: Files) -> None:
        """Print a line if a rank does not see the files of the other ranks."""
        self.looked = True
        seen = sum(os.path.exists(os.path.join(f"{folder}{ASIDE}", name)) for name in files)
        few = [
            (rank, *other)
            for rank, other in enumerate(gather_objects((socket.gethostname(), seen)))
            if other[1] < len(files)
        ]
        if few and self.place.rank == 0:
            rank, host, seen = few[-1]  # rank 0 has .metadata; the last rank shows best what is missing
            kept = os.environ.get("DDPCTL_CHECKPOINT_DIR")
            gathered = kept and os.path.abspath(folder).startswith(os.path.join(kept, ""))
            advice = "the next `ddpctl up` gives every node all of them" if gathered else ADVICE
            say(f"no shared disk: rank {rank} on {host} has {seen} of {len(files)} files of {folder}; {advice}")

    def remove_the_rest(self) -> None:
        """Remove from this node all checkpoints that are older than the kept checkpoints, damaged, or incomplete."""
        kept = [os.path.basename(self.path(step)) for step in self.kept]
        for name in os.listdir(self.folder):
            if name.startswith("step_") and name not in kept:
                remove(os.path.join(self.folder, name))

    def start_anew(self) -> None:
        """Set aside the checkpoints of an earlier training. This training neither mixes with them nor deletes them."""
        if not from_rank_0(read_manifests(self.folder) if self.place.rank == 0 else None):
            return
        for rank_0 in (True, False):  # rank 0 first: on a shared disk the other nodes then have nothing to do
            if self.place.local_rank == 0 and (self.place.rank == 0) == rank_0:
                set_aside(self.folder)
            wait_for_all(self.place.device)

    def resume(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
        """Fill model and optimizer from the newest intact checkpoint. Returns its step, or 0 without a checkpoint.

        The optimizer's settings (learning rate ...) stay as they are.

        Raises:
            Refused: for every checkpoint, a node lacks files or has damaged files, or the settings differ.
        """
        found = from_rank_0(read_manifests(self.folder) if self.place.rank == 0 else None)
        lacking: list[str] = []
        manifest = next((manifest for manifest in found if self.is_whole(manifest, lacking)), None)
        if manifest is None and lacking:
            raise Refused(f"{lacking[0]}: {ADVICE}")
        if manifest is None and found:
            raise Refused(f"every checkpoint in {self.folder} is damaged: start again with another --model_dir")
        if manifest is None:
            return 0
        self.compare_settings(manifest)
        self.load(self.path(manifest["step"]), model, optimizer)
        self.kept = [manifest["step"]]
        return int(manifest["step"])

    def is_whole(self, manifest: dict[str, Any], lacking: list[str]) -> bool:
        """Return whether every node has every file, unchanged. A rank on each node reads the files.

        ``lacking`` receives the files that a node lacks: files of the newest checkpoint may have been lost with another
        node.
        """
        folder = self.path(manifest["step"])
        missing, damaged = inspect(folder, manifest["files"]) if self.place.local_rank == 0 else ([], [])
        reports = gather_objects((socket.gethostname(), missing, damaged))
        lacks = [f"{folder} on {host} lacks {', '.join(missing)}" for host, missing, _ in reports if missing]
        lacking += lacks
        if lacks and self.place.rank == 0:
            say(f"{lacks[0]}: the checkpoint before it is next")
        for host, _, damaged in reports:
            if damaged and self.place.rank == 0:
                say(f"{folder} on {host} is damaged ({', '.join(damaged)}): the checkpoint before it is next")
        return not lacks and not any(damaged for _, _, damaged in reports)

    def compare_settings(self, manifest: dict[str, Any]) -> None:
        """Raise Refused for a checkpoint of other settings."""
        theirs = manifest["settings"]
        other = [
            f"{name} {theirs.get(name)}, not {value}"
            for name, value in self.settings.items()
            if theirs.get(name) != value
        ]
        if other:
            raise Refused(f"{self.path(manifest['step'])} has {'; '.join(other)}: resume with what it was made with")

    def load(self, folder: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Read every rank's present part, from any files that contain it."""
        model_state, optimizer_state = get_state_dict(model, optimizer)  # the tensors to fill
        state = {"model": model_state, "optimizer": optimizer_state["state"]}
        try:
            dcp.load(state, checkpoint_id=folder)
        except dcp.CheckpointException as error:
            raise Refused(f"cannot read {folder}: {cause(error)}") from error
        optimizer_state["state"] = state["optimizer"]
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=optimizer_state)


def gather_objects(mine: Any) -> list[Any]:
    """Return the values of all ranks, by rank, on every rank."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, mine)
    return values


def from_rank_0(value: Any) -> Any:
    """Return rank 0's value on every rank."""
    values = [value]
    dist.broadcast_object_list(values, src=0)
    return values[0]


def set_aside(folder: str) -> None:
    """Rename a folder, if it exists. Replaces the folder that was set aside before."""
    if os.path.isdir(folder):
        if os.path.isdir(f"{folder}.old"):
            shutil.rmtree(f"{folder}.old")
        os.replace(folder, f"{folder}.old")
        say(f"{folder} of an earlier training is now {folder}.old")


def read_manifests(folder: str) -> list[dict[str, Any]]:
    """Return the content of each whole.json under this folder, newest step first."""
    found = []
    for name in sorted(os.listdir(folder), reverse=True) if os.path.isdir(folder) else []:
        path = os.path.join(folder, name, MARKER)
        if name.startswith("step_") and not name.endswith(ASIDE) and os.path.exists(path):
            try:
                with open(path, encoding="utf-8") as file:
                    found.append(json.load(file))
            except ValueError:
                say(f"{path} is damaged: the checkpoint before it is next")
    return found


def written(folder: str, rank: int) -> Files:
    """Return the files that this rank has just written (DCP has put their content on the disk)."""
    make_names_durable(folder)
    mine = [name for name in os.listdir(folder) if name.startswith(f"__{rank}_") or (rank == 0 and name == ".metadata")]
    return {name: fingerprint(os.path.join(folder, name)) for name in mine}


def inspect(folder: str, files: Files) -> tuple[list[str], list[str]]:
    """Return the names of the files that this node lacks, and of the files that have changed."""
    missing = [name for name in sorted(files) if not os.path.exists(os.path.join(folder, name))]
    there = [name for name in sorted(files) if name not in missing]
    return missing, [name for name in there if fingerprint(os.path.join(folder, name)) != files[name]]


def fingerprint(path: str) -> list[int]:
    """Return size in bytes and CRC-32 of a file. (torch.load would not notice a flipped bit.)"""
    crc = size = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            crc, size = zlib.crc32(block, crc), size + len(block)
    return [size, crc]


def write_json(path: str, value: Any) -> None:
    """Write a complete file under this name, or no file: write under another name, make durable, rename."""
    aside = f"{path}.part"
    with open(aside, "w", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
    make_names_durable(os.path.dirname(path))


def remove(folder: str) -> None:
    """Remove a checkpoint, whole.json first. Nodes that share the folder may all do this at the same time."""
    with suppress(FileNotFoundError):
        for name in [MARKER, *os.listdir(folder)]:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))
        os.rmdir(folder)


def cause(error: dcp.CheckpointException) -> str:
    """Return the first rank's reason, in a line."""
    rank, (reason, _) = min(error.failures.items())
    return f"rank {rank}: {type(reason).__name__}: {reason}".splitlines()[0]
