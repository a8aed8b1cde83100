"""The top verb: how this node is, every two seconds, for as long as somebody reads."""

from __future__ import annotations

import time
from typing import Any, Dict

from ddpctl_worker.facts.gpus import Gpus
from ddpctl_worker.record.paths import base_of
from ddpctl_worker.verbs.gauge import Gauge
from ddpctl_worker.verbs.limits import FIRST_PULSE_S, PULSE_S, READING_LATE_S, READING_WAIT_S
from ddpctl_worker.verbs.topmachine import Machine
from ddpctl_worker.verbs.toprows import Runs
from ddpctl_worker.wire.channel import Channel

# What changes with every look at a run is in the pulse, not in its status.
_AGES = ("heartbeat_age_s", "last_output_age_s", "survivors")


def top(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """The verb: {"run": the status of a run} when there is news of it, and {"pulse": {...}} every two seconds.

    Disk and driver may hang: they are read in threads, and ``late`` says so. With ``once`` it ends after the first
    pulse, and waits longer for them.
    """
    machine = Machine()
    gauges = {"runs": Gauge("runs", Runs(base_of(request), request["host"]).read), "gpus": Gauge("gpus", Gpus().read)}
    for gauge in gauges.values():
        gauge.start()
    told: Dict[str, Any] = {}  # run -> its status as last sent
    patience = READING_LATE_S if request.get("once") else READING_WAIT_S
    machine.read()
    for gauge in gauges.values():
        gauge.ask()
    channel.closed.wait(FIRST_PULSE_S)
    while not channel.closed.is_set():
        begun = time.monotonic()
        for gauge in gauges.values():
            gauge.ask()
        readings = {name: gauge.result(patience) for name, gauge in gauges.items()}
        _send(channel, machine.read(), readings, told)
        if request.get("once"):
            break
        channel.closed.wait(max(0.0, begun + PULSE_S - time.monotonic()))
    return {}


def _send(channel: Channel, machine: Dict[str, Any], readings: Dict[str, Any], told: Dict[str, Any]) -> None:
    pulse = dict(machine, late={name: one.late_s for name, one in readings.items() if one.late_s is not None})
    runs, gpus = readings["runs"], readings["gpus"]
    pulse["gpus"] = gpus.value if gpus.late_s is None else None
    pulse["runs"] = {run: seen["pulse"] for run, seen in (runs.value or {}).items()}
    for run, seen in (runs.value or {}).items():
        status = {name: value for name, value in seen["status"].items() if name not in _AGES}
        if told.get(run) != status:
            told[run] = status
            channel.send({"run": status})
    for run in told.keys() - pulse["runs"].keys():
        del told[run]
    channel.send({"pulse": pulse})
