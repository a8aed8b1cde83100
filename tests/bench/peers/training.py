"""The training that every tool starts: a training that is nothing but all-reduces, and says on its host's disk which
process it is.

Torch and the standard library only: it runs on the hosts, and torchrunx imports it.
"""

import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch reads it

NOTES = "/var/lib/peers"  # on the host's own disk
MESSAGE = "the loss is not a number"


def main() -> None:
    import torch  # here, so that a reader of the constants does not pay for torch
    import torch.distributed as dist

    if not dist.is_initialized():  # torchrunx has done it
        dist.init_process_group("gloo")
    rank, step = dist.get_rank(), 0
    os.makedirs(NOTES, exist_ok=True)
    while True:
        dist.all_reduce(torch.ones(1))
        if step == 0:
            note(rank)
        if os.path.exists(f"{NOTES}/raise-{rank}"):
            raise RuntimeError(MESSAGE)
        step += 1
        print(f"step {step}", flush=True)
        time.sleep(0.2)


def note(rank: int) -> None:
    """When its first all-reduce was done, its pid and its launcher's; never half a line."""
    path = f"{NOTES}/rank-{rank}"
    with open(f"{path}.new", "w") as file:
        file.write(f"{time.time():.3f} {os.getpid()} {os.getppid()}\n")
    os.replace(f"{path}.new", path)


if __name__ == "__main__":
    main()
