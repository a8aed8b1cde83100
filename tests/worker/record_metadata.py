"""Saves checkpoints with the torch that is here, and keeps their ``.metadata`` for test_metadata.py.

    python -m tests.worker.record_metadata       # writes records/metadata/torch-VERSION-CASE.metadata and .json

The JSON is from torch itself. For each file in the index it has the smallest size that the index allows, and the real
size.
"""

from __future__ import annotations

import json
import os
import pickle
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save
from torch.multiprocessing.spawn import spawn

HERE = Path(__file__).parent / "records" / "metadata"
VERSION = torch.__version__.split("+")[0]


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(33, 17), torch.nn.BatchNorm1d(17), torch.nn.Linear(17, 5))


def plain(folder: str) -> None:
    """One process, one file."""
    save({"model": model().state_dict(), "step": 7, "note": "text"}, checkpoint_id=folder)


def many_files(folder: str) -> None:
    """A file for each tensor, two threads."""
    writer = FileSystemWriter(folder, single_file_per_rank=False, thread_count=2)
    save({"model": model().state_dict()}, storage_writer=writer)


def sharded(folder: str) -> None:
    """Two ranks: FSDP2, AdamW, as worker/jobs/fsdp_gpt.py."""
    spawn(_rank, args=(folder,), nprocs=2)  # type: ignore[no-untyped-call]


def _rank(rank: int, folder: str) -> None:
    from torch.distributed.checkpoint.state_dict import get_state_dict
    from torch.distributed.fsdp import fully_shard

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29871")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    one = torch.nn.Sequential(torch.nn.Linear(33, 17), torch.nn.Linear(17, 5))
    fully_shard(one)
    optimizer = torch.optim.AdamW(one.parameters())
    one(torch.ones(2, 33)).sum().backward()
    optimizer.step()
    model_state, optimizer_state = get_state_dict(one, optimizer)
    save({"model": model_state, "optimizer": optimizer_state, "step": 3}, checkpoint_id=folder)
    dist.destroy_process_group()


def told(folder: str) -> dict[str, dict[str, int]]:
    """Return two sizes of each file of a checkpoint: the smallest size by torch's index, and the real size."""
    with open(os.path.join(folder, ".metadata"), "rb") as file:
        stored = pickle.load(file).storage_data.values()
    sizes: dict[str, int] = {}
    for one in stored:
        sizes[one.relative_path] = max(sizes.get(one.relative_path, 0), one.offset + one.length)
    real = {name: os.path.getsize(os.path.join(folder, name)) for name in sizes}
    return {"references": sizes, "sizes": real}


def main() -> None:
    HERE.mkdir(parents=True, exist_ok=True)
    for case in (plain, many_files, sharded):
        with tempfile.TemporaryDirectory() as folder:
            case(folder)
            stem = HERE / f"torch-{VERSION}-{case.__name__}"
            stem.with_name(stem.name + ".metadata").write_bytes(Path(folder, ".metadata").read_bytes())
            stem.with_name(stem.name + ".json").write_text(json.dumps(told(folder), indent=1, sort_keys=True) + "\n")
        print(stem)


if __name__ == "__main__":
    main()
