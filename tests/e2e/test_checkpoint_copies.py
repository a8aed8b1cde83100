"""Checkpoints survive the disk of the host that wrote them."""

from __future__ import annotations

from tests.e2e.site import Site, running, until
from tests.lab import Host, Lab, Process

# No torch: a checkpoint is a zip archive, as from torch.save, so that ddpctl can see where it ends.
SAVER = """
import os, time, zipfile
folder, rank = os.environ["DDPCTL_CHECKPOINT_DIR"], int(os.environ["RANK"])
def saved(name):
    with zipfile.ZipFile(os.path.join(folder, name)) as archive:
        return archive.read("step").decode()
names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
print("found", [(name, saved(name)) for name in names], flush=True)
if rank == 0:
    step = len(names) + 1
    aside = os.path.join(folder, ".aside")
    with zipfile.ZipFile(aside, "w") as archive:
        archive.writestr("step", "rank 0, step %d" % step)
        archive.writestr("weights", os.urandom(5_000_000))
    os.rename(aside, os.path.join(folder, "step_%d.pt" % step))
time.sleep(3600 if not names else 0)  # a later run is over at once
"""


def keepers(host: Host) -> list[Process]:
    return [one for one in running(host) if any("run.keeper_process" in word for word in one.argv)]


def test_what_was_saved_on_a_disk_that_is_lost_is_resumed_from_its_copy(site: Site, lab: Lab) -> None:
    job = site.job("saver", SAVER)
    site.up(job)
    site.wait_for_copy(lab[1], job, lab[0], "step_1.pt")
    assert not lab[2].exists(f"{site.checkpoints(job)}/node0")
    site("kill", job).ok()
    lab[0].run(["rm", "-rf", site.checkpoints(job)])
    site("up", "--job", job, timeout=120).ok()
    printed = site("tail", job, "-n", "all", "--no-fold").ok().stdout
    assert printed.count("found [('step_1.pt', 'rank 0, step 1')]") == 3
    # The end of the run: step 2 was saved right before it.
    site.wait_for_copy(lab[1], job, lab[0], "step_2.pt")
    until(lambda: not any(map(keepers, lab)), 120, "the keepers stay")


# Saves as fast as it can, always under the same name.
REPLACES = """
import os, time
folder, step = os.environ["DDPCTL_CHECKPOINT_DIR"], 0
while True:
    step += 1
    if os.environ["RANK"] == "0":
        with open(os.path.join(folder, "state.tmp"), "w") as file:
            file.write("step %d" % step)
        os.replace(os.path.join(folder, "state.tmp"), os.path.join(folder, "state.pt"))
    time.sleep(0.2)
"""


def test_a_checkpoint_that_is_replaced_all_the_time_has_copies(site: Site, lab: Lab) -> None:
    job = site.job("replaces", REPLACES)
    site.up(job)
    copy = f"{site.checkpoints(job)}/node0/state.pt"
    until(lambda: (site.status(job)["checkpoints"] or {}).get("kept_s") is not None, 60, "a version with its copy")

    def read_other_than(known: str) -> str:
        """The text of a copy, if it is another; nothing while the copy is being replaced."""
        text = lab[1].run(["cat", copy], check=False).stdout
        return text if text != known else ""

    first = until(lambda: read_other_than(""), 60, "a copy")
    until(lambda: read_other_than(first), 60, "a copy of a newer version")
    assert first.startswith("step ")
    said = site("status", job).ok().stdout
    assert "newest checkpoint with all of its copies: state.pt, saved " in said
    assert "newest checkpoint with all of its copies: state.pt, saved " in site("checkpoints", job).ok().stdout
    site("kill", job).ok()
