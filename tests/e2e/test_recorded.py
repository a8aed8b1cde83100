"""Recorded failures of other people's jobs, played by ranks on hosts: the cause that `status` names.

Each rank prints the recorded stderr of its place and ends as recorded, in the recorded order. A rank without an end, or
that its launcher ended, waits.
"""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.site import Site, assert_nothing_runs, one_line
from tests.suite.speed import stretch
from tests.worker.run.test_recorded import CASES

PLAYED = {path.stem: path for path in CASES}
# A path between two hosts, memory of a GPU, a collective that timed out everywhere, a stuck watchdog, a lost peer, a
# crash with and without words, shared memory, a full disk, a rank that was killed.
KINDS = (
    "ibv-modify-qp-timed-out",
    "nccl-oom-and-internal-error",
    "timeout-all-ranks",
    "watchdog-stuck-one-rank",
    "gloo-peer-closed",
    "segv-faulthandler",
    "sigbus-all-ranks",
    "shm-segment-new",
    "stream-writer-disk-full",
    "victim-caught-and-logged",
)
PLAYS = """\
import json, os, resource, signal, sys, time
with open("recorded.json") as file:
    recorded = json.load(file)
place = os.environ["DDPCTL_HOST"] + "/" + os.environ["LOCAL_RANK"]
end = recorded["ends"].get(place, {"code": None})
print("rank", os.environ["RANK"], "is ready", flush=True)
go = "/tmp/go-" + os.environ["DDPCTL_JOB"]
while not os.path.exists(go):
    time.sleep(0.05)
if end["code"] in (None, -signal.SIGTERM):
    sys.stderr.write(recorded["stderr"].get(place, ""))
    while True:
        time.sleep(1)
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher must not end this rank before its recorded end
first = min(each["at"] for each in recorded["ends"].values() if each["code"] not in (None, -signal.SIGTERM))
with open(go) as file:
    time.sleep(max(0.0, float(file.read()) + end["at"] - first - time.time()))
sys.stderr.write(recorded["stderr"].get(place, ""))
sys.stderr.flush()
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
if end["code"] < 0:
    os.kill(os.getpid(), -end["code"])
os._exit(end["code"])
"""
BEGIN_S = 2.0  # from the word to begin, which must reach both hosts before that, to the first end


def count_local_ranks(case: dict[str, Any]) -> int:
    """Return the ranks of each host, by the rank that a place of the second host has."""
    places = {place: end["rank"] for place, end in case["ends"].items()}
    second = [rank - int(place.partition("/")[2]) for place, rank in places.items() if place.startswith("node1/")]
    return int(second[0] if second else 1 + max(places.values()))


@pytest.mark.full(covered_by="tests/worker/run/test_recorded.py::test_the_cause_is_right")
@pytest.mark.parametrize("name", KINDS)
def test_the_cause_of_a_played_failure_is_right(site: Site, name: str) -> None:
    case = json.loads(PLAYED[name].read_text())
    site.only(0, 1)
    site.keys["defaults"]["slots"] = count = count_local_ranks(case)
    job = site.job(name, PLAYS)
    Path(site.code, "recorded.json").write_text(json.dumps(case))
    up = site.start("up", "--job", job, "--skip-preflight")
    for rank in range(2 * count):
        up.wait_for(f"rank {rank} is ready", 90)
    begin = time.time() + stretch(BEGIN_S)
    say = f"echo {begin} > /tmp/aside-{name} && mv /tmp/aside-{name} /tmp/go-{name}"
    for saying in [host.popen(say) for host in site.lab.hosts[:2]]:
        assert saying.wait(60) == 0
    done = up.wait(120)
    right, cause = case["right"], site.status(job)["cause"]
    print(case["happened"], "->", cause)
    assert done.rc == 1
    assert cause["host"] == right.get("host", cause["host"])
    assert cause["rank"] == right.get("rank", cause["rank"])
    assert cause["reason"] != right.get("reason_not")
    for words in right.get("says", ()):
        assert re.search(words, cause["message"], re.IGNORECASE)
    for words in right.get("not_says", ()):
        assert words not in cause["message"]
    assert f"{cause['host']} rank {cause['rank']}" in one_line(done)
    assert_nothing_runs(site.lab)
