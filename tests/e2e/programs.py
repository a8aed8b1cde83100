"""Small programs for jobs. Only COLLECTIVES needs the real torch, and that import takes seconds."""

from __future__ import annotations

# Says all that a process can see of how it was started, as one line of JSON, and ends.
REPORT = """\
import json, os, sys
environ = {k.decode("latin1"): v.decode("latin1") for k, v in os.environb.items()}
argv = [os.fsencode(arg).decode("latin1") for arg in sys.argv]
line = json.dumps({"argv": argv, "environ": environ, "cwd": os.getcwdb().decode("latin1")})
sys.stdout.write(line + "\\n")
"""

# Continues until a signal stops it; says a word first.
SLEEP = """\
import os, time
print("rank", os.environ["RANK"], "sleeps", flush=True)
while True:
    time.sleep(0.2)
"""

# Numbered lines, a few thousand a second, until there is a file `enough` in the home of the host.
NUMBERS = """\
import os, time
rank, number = os.environ["RANK"], 0
while not os.path.exists(os.path.expanduser("~/enough")):
    for _ in range(20):
        print(f"rank {rank} number {number}", flush=number % 7 == 0)
        number += 1
    time.sleep(0.02)
print(f"rank {rank} last {number}", flush=True)
"""

# Neither it nor its children end for anything but SIGKILL; the child has scrubbed its environment and left its session.
STUBBORN = """\
import os, signal, subprocess, sys, time
if len(sys.argv) > 1:
    os.setsid()
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
print("stays", flush=True)
if len(sys.argv) == 1:
    subprocess.Popen([sys.executable, __file__, "child"], env={})
while True:
    time.sleep(0.2)
"""

# The rank named on the command line ends in the way named there. All other ranks wait for ever, as in a collective, and
# do not even notice that a peer is gone: the gang has to stop them.
ONE_FAILS = """\
import os, signal, sys, time
way, rank, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
print("rank", os.environ["RANK"], "is up", flush=True)
if os.environ["RANK"] != rank:
    while True:
        time.sleep(0.2)
time.sleep(seconds)
if way == "raise":
    def deep():
        raise ValueError("weights are nan\\n[/red] $(id)")
    deep()
elif way == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
else:
    sys.exit(int(way))
"""

# Writes much, once there is a file `go-on` in the home of the host. It keeps its progress in a file of that home: its
# progress must not depend on the log.
FLOOD = """\
import os, sys, time
while not os.path.exists(os.path.expanduser("~/go-on")):
    time.sleep(0.1)
for number in range(int(sys.argv[1])):
    print(f"line {number} " + "x" * 100)
    if number % 1000 == 0:
        with open(os.path.expanduser("~/progress"), "w") as file:
            file.write(str(number))
        time.sleep(float(sys.argv[2]))
print("the end", flush=True)
with open(os.path.expanduser("~/progress"), "w") as file:
    file.write("done")
"""

# Collectives until all nodes have the file `enough`; rank 0 prints their number. The argument is the timeout of each
# collective in seconds: without it no rank would notice that a node is gone.
COLLECTIVES = """\
import datetime, os, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=float(sys.argv[1])))
step, restart = torch.zeros(1), os.environ["TORCHELASTIC_RESTART_COUNT"]
for number in range(10**9):
    step.fill_(os.path.exists(os.path.expanduser("~/enough")))
    dist.all_reduce(step)
    if dist.get_rank() == 0:
        print("restart", restart, "world", dist.get_world_size(), "step", number, flush=True)
    if step.item() == dist.get_world_size():
        break
    time.sleep(0.2)
dist.destroy_process_group()
"""

# The beginning of a script: the ranks exchange their hosts and newest checkpoints, and each prints them with the number
# of the attempt. No tensor: it runs with the stand-in for torch too.
MEETING = """\
import os, sys, time
import torch.distributed as dist
dist.init_process_group("gloo")
attempt, host = os.environ["DDPCTL_ATTEMPT"], os.environ["DDPCTL_HOST"]
folder = os.environ["DDPCTL_CHECKPOINT_DIR"]
saves = [name for name in sorted(os.listdir(folder)) if name.startswith("step_")]
told = [None] * dist.get_world_size()
dist.all_gather_object(told, f"{host} with {saves[-1] if saves else 'nothing'}")
print("attempt", attempt, "of", "; ".join(told), flush=True)
def save(name, text):
    with open(os.path.join(folder, ".aside"), "w") as file:
        file.write(text)
    os.replace(os.path.join(folder, ".aside"), os.path.join(folder, name))
def stay_together():
    dist.barrier()
    time.sleep(0.2)
"""
