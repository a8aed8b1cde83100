"""What the worker says, verb by verb: recorded from real nodes, each host a folder of this machine."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

from ddpctl.environment.direct import deliver
from ddpctl.environment.managed import ask_platforms
from ddpctl.environment.spread import Addresses, Spread
from ddpctl.spec.command import Command
from ddpctl.spec.host import Host
from ddpctl.spec.inventory import Environment, Inventory
from ddpctl.spec.job import JobSpec
from ddpctl.spec.network import Network
from ddpctl.spec.origin import Origin
from ddpctl.spec.plan import Facts, NodeFacts, Plan, RunIdentity
from ddpctl.spec.planning import make_plan
from ddpctl.stages.bench import MetricsReader
from ddpctl.stages.gc import collect_garbage
from ddpctl.stages.launch import Launch
from ddpctl.stages.preflight import Options, run_preflight
from ddpctl.stages.remove import remove_run
from ddpctl.stages.start import start
from ddpctl.stages.status import find_run
from ddpctl.stages.stop import stop_run
from ddpctl.transport.base import Frame
from ddpctl.transport.fleet import SSHFleet
from ddpctl.transport.local import LocalTransport, ProcessPipe
from ddpctl.transport.pipe import FrameReader
from ddpctl_worker.wire.contract import BANNER, READY, SUCCEEDED, TERMINAL
from tests.environment.support import BytesSource
from tests.garble.replay import NoneWaits
from tests.suite.speed import stretch
from tests.worker.looks import recorded

HOSTS = ("a", "b", "c")
RUN = "20260102T030405Z-abcdef"
PROGRAM = (
    'echo "loss 0.1"; echo warning >&2; echo \'{"step": 1, "samples_per_s": 5}\' >> $DDPCTL_METRICS; '
    "echo weights > $DDPCTL_CHECKPOINT_DIR/step_1.bin"
)
SOURCE = BytesSource(bytes(range(256)) * 16_000, "wheel")  # more than is sent without a chain
SMALL = BytesSource(b"code", "code")


class _Pipe(ProcessPipe):
    """Keeps the received bytes."""

    def __init__(self, argv: list[str]) -> None:
        super().__init__(argv)
        self.came = bytearray()

    def recv(self, timeout: float) -> bytes | None:
        data = super().recv(timeout)
        self.came += data or b""
        return data


class Recorder(LocalTransport):
    """A host of this machine with kept answers: verb -> its frames, the result last."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._waiting = NoneWaits()
        self.said: dict[str, list[Frame]] = {}
        self._verb = threading.local()

    def call(self, verb: str, *args: Any, **how: Any) -> Any:
        self._verb.name = verb
        try:
            return super().call(verb, *args, **how)
        finally:
            self._note(self._verb.pipe)

    def _start(self, argv: list[str]) -> ProcessPipe:
        pipe = _Pipe(argv)
        with self._lock:
            self._open.add(pipe)
        self._verb.pipe = pipe
        return pipe

    def _note(self, pipe: _Pipe) -> None:
        blob = bytes(pipe.came)
        start = blob.index(b"\n", blob.index(BANNER.encode())) + 1
        frames = [frame for frame in FrameReader().feed(blob[start:]) if not {"hb", READY} & set(frame.data)]
        if frames and frames[-1].data.get("ok"):
            self._keep(self._verb.name, frames)

    def _keep(self, verb: str, frames: list[Frame]) -> None:
        if verb == "probe" and verb in self.said:  # every answer that was ever given
            frames[-1].data["result"]["answers"].update(self.said[verb][-1].data["result"]["answers"])
        self.said[verb] = frames


def inventory(folder: Path) -> Inventory:
    hosts = tuple(
        Host(name=name, address="127.0.0.1", connection="local", base_dir=str(folder / name), python=sys.executable)
        for name in HOSTS
    )
    return Inventory(hosts=hosts, ssh_config=str(folder / "none"), environment=Environment())


def plan_of(where: Inventory) -> Plan:
    """A run of one process a node that needs no torch."""
    facts = Facts(dict.fromkeys(HOSTS, NodeFacts(gpus=0, cores=1, fabric_address="127.0.0.1", interface="lo")), 29500)
    job = JobSpec(name="train", script="train.py", code=None, nproc_per_node=1, outputs=("nothing",))
    who = RunIdentity(RUN, Origin("me", "here", "/home/me", 1), "2026-01-02T03:04:05+00:00")
    plan = make_plan(where, job, list(where.hosts), who, facts=facts)
    nodes = [replace(node, command=Command(("sh", "-c", PROGRAM), node.command.env, "/")) for node in plan.nodes]
    return replace(plan, nodes=tuple(nodes))


def record(folder: Path) -> Mapping[str, Mapping[str, list[Frame]]]:
    """host -> verb -> frames. Work of minutes or with a network is left to the replay (spread's dialogue, install)."""
    where = inventory(folder)
    recorders = {host.name: Recorder(host) for host in where.hosts}
    fleet = SSHFleet(recorders)

    def quiet(event: object) -> None: ...

    run_preflight(Launch(where, None, where.hosts), fleet, quiet, options=Options(skip=("torch", "gpu")))
    ask_platforms(fleet, HOSTS)
    rows = tuple((one, other, "ok", 0.1, 940.0) for one, other in permutations(range(len(HOSTS)), 2))
    start(plan_of(where), fleet, quiet, serial=1, network=Network(HOSTS, rows))
    _note_looks(recorders)
    until = time.monotonic() + stretch(60)
    while (run := find_run(fleet, RUN)).verdict.state not in TERMINAL:
        assert time.monotonic() < until, run
        time.sleep(0.1)
    assert run.verdict.state == SUCCEEDED, run
    for transport in recorders.values():
        transport.call("tail", {"run": RUN, "follow": False, "offset": 0})
        transport.call("fetch", {"run": RUN})
        transport.call("history", {"run": RUN})
        _note_checkpoints(transport, folder)
        transport.call("firewall")
        transport.call("rehearse", _rehearsal())
        transport.call("free_port", {"count": 2})
    MetricsReader(run, fleet).read()
    stop_run("train", RUN, HOSTS, fleet, grace=1.0, by="me")
    deliver("code", [SMALL], fleet, quiet, HOSTS)
    for transport in recorders.values():
        transport.call("store_get", {"hash": SMALL.sha256})
    Spread("wheels", [SOURCE], HOSTS, quiet, Addresses({host: ["127.0.0.1"] for host in HOSTS})).run(fleet)
    collect_garbage(where, where.hosts, fleet, quiet, delete=False, days=0)
    remove_run(run, fleet)
    fleet.close()
    return {name: one.said for name, one in recorders.items()}


def _note_checkpoints(transport: Recorder, folder: Path) -> None:
    manifests = transport.call("checkpoints", {"job_id": "default/default/train"})["manifests"]
    assert len(manifests) == 1, [log.read_text() for log in folder.rglob("supervisor.log")]
    one = manifests[0]
    asked = {
        "job_id": "default/default/train",
        "writer": transport.host,
        "entry": one["entry"],
        "version": one["version"],
        "paths": [""],
    }
    transport.call("fetch_checkpoint", asked)
    transport.call("set_aside", {"job_id": "default/default/train", "when": "20260102T030405Z"})


def _note_looks(recorders: Mapping[str, Recorder]) -> None:
    """What the doctor sees of a rank that has a record of its collectives, which takes torch."""
    for host, one in recorders.items():
        looks = [{**look, "host": host} for look in recorded("loader")[:2]]
        answer = {"state": "running", "ended": False, "looks": looks, "slow": []}
        one.said["doctor"] = [Frame({"ok": True, "result": answer})]


def _rehearsal() -> dict[str, Any]:
    report = '{"rank": 0, "phase": "barrier", "ok": true, "error": null, "backend": "gloo", "mb_per_s": 12.5}'
    script = f"echo rank 0: import; echo some words; echo '{report}'"
    request = {"argv": ["sh", "x.sh"], "env": {}, "token_env": [], "port": 1, "deadline": 20}
    return {**request, "name": "x.sh", "script": script}
