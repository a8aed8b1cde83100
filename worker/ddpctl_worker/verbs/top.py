"""The top verb: sends the state of this node every two seconds, as long as the reader stays."""

from __future__ import annotations

import functools
import time
from typing import Any, Dict

from ddpctl_worker.facts.gpus import Gpus
from ddpctl_worker.record.paths import base_of
from ddpctl_worker.slots.listing import read_other_claims
from ddpctl_worker.verbs.gauge import Gauge
from ddpctl_worker.verbs.limits import FIRST_PULSE_S, PULSE_S, READING_LATE_S, READING_WAIT_S
from ddpctl_worker.verbs.top_machine import Machine
from ddpctl_worker.verbs.top_runs import RunReader
from ddpctl_worker.wire.channel import Channel

# Fields that change with every look belong to the pulse, not to the status.
_AGES = ("heartbeat_age_s", "last_output_age_s", "survivors")


def top(request: Dict[str, Any], channel: Channel) -> Dict[str, Any]:
    """Send {"run": status} when a run's status has changed, and {"pulse": {...}} every PULSE_S.

    Disk and driver may hang, so threads read them. ``late`` names a reading that hangs, and ``errors`` a reading that
    failed. With ``once`` the verb ends after the first pulse, and waits longer for these readings.
    """
    machine = Machine()
    gauges = {
        "runs": Gauge("runs", RunReader(base_of(request), request["host"]).read),
        "gpus": Gauge("gpus", Gpus().read),
        "claims": Gauge("claims", functools.partial(read_other_claims, request["host"])),
    }
    for gauge in gauges.values():
        gauge.start()
    sent: Dict[str, Any] = {}  # run -> its status as last sent
    patience = READING_LATE_S if request.get("once") else READING_WAIT_S
    machine.read()
    for gauge in gauges.values():
        gauge.request_reading()
    channel.closed.wait(FIRST_PULSE_S)
    while not channel.closed.is_set():
        begun = time.monotonic()
        for gauge in gauges.values():
            gauge.request_reading()
        readings = {name: gauge.result(patience) for name, gauge in gauges.items()}
        _send(channel, machine.read(), readings, sent)
        if request.get("once"):
            break
        channel.closed.wait(max(0.0, begun + PULSE_S - time.monotonic()))
    return {}


def _send(channel: Channel, machine: Dict[str, Any], readings: Dict[str, Any], sent: Dict[str, Any]) -> None:
    pulse = dict(
        machine,
        late={name: reading.late_s for name, reading in readings.items() if reading.late_s is not None},
        errors={name: reading.error for name, reading in readings.items() if reading.error is not None},
    )
    runs, gpus = readings["runs"], readings["gpus"]
    read = (gpus.value if gpus.late_s is None else None) or {"gpus": None, "error": None}
    pulse.update(gpus=read["gpus"], gpu_error=read["error"])
    pulse["claims"] = readings["claims"].value or []
    pulse["runs"] = {run: seen["ranks"] for run, seen in (runs.value or {}).items()}
    for run, seen in (runs.value or {}).items():
        status = {name: value for name, value in seen["status"].items() if name not in _AGES}
        if sent.get(run) != status:
            sent[run] = status
            channel.send({"run": status})
    for run in sent.keys() - pulse["runs"].keys():
        del sent[run]
    channel.send({"pulse": pulse})
