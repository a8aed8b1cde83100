"""Makes ``records/hangs``: small gloo jobs that hang, as torch's debug server, py-spy and /proc show them.

    python -m tests.worker.record_hangs tests/worker/records/hangs [NAME ...]

Needs torch 2.11 or newer and py-spy. A record keeps only the main thread of each rank, and from its local values only
the other end of a send or receive.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ddpctl_worker.doctor import look, server
from ddpctl_worker.doctor.look import Subject, Tools

BEGIN = """
import os, sys, time
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _WorkerServer
server = _WorkerServer(os.path.join(sys.argv[1], "%d.sock" % os.getpid()))
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
def step():
    dist.all_reduce(torch.ones(4))
def work():
    for _ in range(3):
        step()
        dist.broadcast(torch.ones(2), 0)
"""
PROGRAMS = {
    "asleep": """
def load():
    time.sleep(900)
work()
if rank == 1:
    load()
step()
""",
    "skipped": """
work()
if rank != 2:
    dist.broadcast(torch.ones(2), 0)
step()
dist.broadcast(torch.ones(2), 0)
step()
""",
    "loader": """
class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, number):
        if rank == 2:
            os.read(os.pipe()[0], 1)
        return number
work()
for batch in torch.utils.data.DataLoader(Numbers(), batch_size=2, num_workers=1):
    step()
""",
    "receive_cycle": """
work()
if rank < 2:
    dist.recv(torch.ones(1), src=1 - rank)
step()
""",
    "subgroup": """
pair = dist.new_group([0, 1])
dist.all_reduce(torch.ones(1), group=pair)
def sample():
    sys.stdin.read()
work()
if rank == 1:
    sample()
if rank < 2:
    dist.all_reduce(torch.ones(1), group=pair)
step()
""",
}
WORLD = 3
PEERS = ("src", "dst", "group_src", "group_dst")


def record(name: str, scratch: Path, py_spy: str) -> dict[str, Any]:
    """Run a job that hangs; return the observations of every rank."""
    folder = Path(tempfile.mkdtemp(dir=scratch))
    script = folder / "train.py"
    script.write_text(BEGIN + PROGRAMS[name])
    env = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT="29533", WORLD_SIZE=str(WORLD), OMP_NUM_THREADS="1")
    with subprocess.Popen(["sleep", "900"], stdout=subprocess.PIPE) as silent:
        ranks = [
            subprocess.Popen([sys.executable, script, folder], stdin=silent.stdout, env=dict(env, RANK=str(rank)))
            for rank in range(WORLD)
        ]
        try:
            return _see(name, folder, py_spy, [one.pid for one in ranks])
        finally:
            for one in [*ranks, silent]:
                one.kill()
                one.wait()


def _see(name: str, folder: Path, py_spy: str, pids: list[int]) -> dict[str, Any]:
    answers: list[bytes | None] = []
    until = time.monotonic() + 180
    while time.monotonic() < until:
        time.sleep(8)
        before, answers = answers, [server.ask(str(folder), pid, "fr_trace_json", 5.0) for pid in pids]
        if before == answers and all(answer and b"entries" in answer for answer in answers):
            break
    else:
        raise SystemExit(f"{name}: the ranks do not come to rest")
    looks = look.look([Subject(rank, rank, pid) for rank, pid in enumerate(pids)], Tools(str(folder), py_spy))
    ranks = []
    for pid, answer, one in zip(pids, answers, looks, strict=True):
        text = subprocess.check_output([py_spy, "dump", "--nonblocking", "--json", "--locals", "--pid", str(pid)])
        main = [thread for thread in json.loads(text) if thread["os_thread_id"] == pid]
        for frame in main[0]["frames"]:
            frame["locals"] = [each for each in frame["locals"] or () if each["name"] in PEERS]
        ranks.append({"pid": pid, "fr_trace_json": json.loads(answer or b""), "py_spy": main, "look": _rest(one)})
    return {"torch": _torch(), "script": BEGIN + PROGRAMS[name], "ranks": ranks}


def _rest(one: dict[str, Any]) -> dict[str, Any]:
    """A look without what is read from the answers."""
    kept = {name: one[name] for name in one if name not in ("groups", "stack", "threads", "peers")}
    return {**kept, "children": [{**child, "stack": child["stack"][:4]} for child in kept.get("children") or ()]}


def _torch() -> str:
    return subprocess.check_output([sys.executable, "-c", "import torch; print(torch.__version__)"], text=True).strip()


def _without_places(text: str, scratch: Path) -> str:
    """The folders of the machine as any user's."""
    text = re.sub(re.escape(str(scratch)) + r"/[^/\"]+", "/job/code", text)
    return re.sub(r"[^\"\s]*/lib/python3", "/venv/lib/python3", text)


def main() -> None:
    target, names = Path(sys.argv[1]), sys.argv[2:] or list(PROGRAMS)
    py_spy = str(Path(sys.executable).with_name("py-spy"))
    scratch = Path(tempfile.mkdtemp(prefix="rec"))
    try:
        for name in names:
            text = json.dumps(record(name, scratch, py_spy), indent=None, separators=(",", ":"))
            (target / f"{name}.json").write_text(_without_places(text, scratch) + "\n")
            print(name, len(text), flush=True)
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
