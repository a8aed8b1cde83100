"""``python -m tests.bench.picture``: docs/top.svg, a picture of the live screen over a real training on lab hosts."""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
from pathlib import Path

from ddpctl.cli.top import screen
from ddpctl.files.inventory import load_inventory
from ddpctl.transport.fleet import open_fleet
from tests.e2e.site import Site, wait_for_ranks
from tests.lab import Lab
from tests.lab.command import Ddpctl

PICTURE = Path(__file__).parents[2] / "docs" / "top.svg"
SIZE, SETTLE_S = (112, 28), 12.0
# The files that Textual's pictures fetch from another host; the viewer's own monospaced font does.
_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
TRAINS = """\
import json, os, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data, wanted = torch.randn(512, 64), torch.randn(512, 1)
with open(os.environ["DDPCTL_METRICS"], "a") as metrics:
    for step in range(100000):
        begun = time.perf_counter()
        loss = torch.nn.functional.mse_loss(model(data), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.1)
        rate = len(data) / (time.perf_counter() - begun)
        metrics.write(json.dumps({"step": step, "loss": loss.item(), "samples_per_s": rate}) + "\\n")
        metrics.flush()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
"""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="ddpctl-picture-") as folder, Lab(3) as lab:
        site = Site(lab, Ddpctl(Path(folder)), Path(folder) / "site", "/usr/bin/python3")
        job = site.job("train", TRAINS, nproc_per_node=2, env={"OMP_NUM_THREADS": "1"})
        run = site.up(job, "--skip-preflight")["run"]
        wait_for_ranks(lab, run, 2)
        site.wait_for_output(job, "step 20")
        os.environ["HOME"] = str(site.home)
        PICTURE.write_text(asyncio.run(_taken(site, run)))
        site("kill", job).ok()


async def _taken(site: Site, run: str) -> str:
    fleet = open_fleet(load_inventory(site.inventory))
    try:
        with screen(fleet, run) as app:
            async with app.run_test(size=SIZE) as pilot:
                await pilot.pause(SETTLE_S)
                return _FONTS.sub("", app.export_screenshot(title="ddpctl top train"))
    finally:
        fleet.close()


if __name__ == "__main__":
    main()
