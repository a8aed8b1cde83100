"""The mesh of 100 and of 300 hosts: the share that is looked at, its duration, and whether a filter between two
racks is found."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.bench.fleet import inventory
from tests.bench.preflight import room_for_neighbours
from tests.bench.report import Row
from tests.bench.usage import Usage, ddpctl
from tests.lab import Host, Lab

COUNTS = (100, 300)
RACK = 20  # hosts
SUBJECTS = "ssh,port,fabric,mesh"  # an import of torch on every host would be all that is measured


def all_of(folder: Path) -> Sequence[Row]:
    """The second run of each, so that the worker is there."""
    rows: list[Row] = []
    with room_for_neighbours(), Lab(max(COUNTS)) as lab:
        for count in COUNTS:
            place = inventory(lab, folder / str(count), count)
            _look(place, fine=(0, 3, 4))  # every host has only just started
            used, report = _look(place)
            assert report["ok"], [one for one in report["findings"] if one["severity"] == "error"]
            rows.append(Row(f"mesh of {count} hosts, wall", used.wall_s, "s", "", _coverage(report)))
            one, other = [*lab][RACK : 2 * RACK], [*lab][3 * RACK : 4 * RACK]
            with _apart(lab, one, other):
                used, report = _look(place)
            rows.append(
                Row(f"two racks of {count} hosts kept apart, wall", used.wall_s, "s", "", _named(report, one, other))
            )
    return rows


def _look(place: Path, fine: Sequence[int] = (0, 3)) -> tuple[Usage, dict[str, Any]]:
    used = ddpctl("preflight", "--json", "--only", SUBJECTS, home=place, cwd=place, fine=fine)
    return used, json.loads(used.stdout)


def _coverage(report: dict[str, Any]) -> str:
    (message,) = (one["message"] for one in report["findings"] if one["check"] == "mesh.ports")
    found = re.search(r"a sample of (\d+) of the (\d+) links of \d+ hosts, ([\d.]+) %", message)
    assert found, message
    return f"{found[1]} of {found[2]} links, {found[3]} %"


def _named(report: dict[str, Any], one: Sequence[Host], other: Sequence[Host]) -> str:
    """The filter must be the only error, and it must name no host outside the two racks."""
    errors = [found for found in report["findings"] if found["severity"] == "error"]
    assert {found["check"] for found in errors} == {"mesh.ports"}, errors
    hosts = {host for found in errors for host in (found["evidence"].get("hosts") or [found["host"]])}
    assert hosts <= {host.name for host in (*one, *other)}, hosts
    return "named: " + " / ".join(found["message"].partition(" fail on ")[0][:60] for found in errors)


@contextmanager
def _apart(lab: Lab, one: Sequence[Host], other: Sequence[Host]) -> Iterator[None]:
    """The switch drops the packets between these two racks."""
    first, second = (", ".join(host.address for host in rack) for rack in (one, other))
    rules = f"""
      table bridge racks {{
        chain forward {{
          type filter hook forward priority 0;
          ip saddr {{ {first} }} ip daddr {{ {second} }} drop
          ip saddr {{ {second} }} ip daddr {{ {first} }} drop
        }}
      }}
    """
    lab.switch.call(["nft", "-f", "-"], stdin=rules)
    try:
        yield
    finally:
        lab.switch.call(["nft", "delete", "table", "bridge", "racks"])
