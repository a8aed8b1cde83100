"""A run takes its slots or a place in line, and the next in line gets them when they are left."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.facts import user_name
from ddpctl_worker.slots import line
from ddpctl_worker.slots.claims import Hold, leave, take
from ddpctl_worker.slots.folder import SlotsFolder, read_claims, rewrite_claim
from ddpctl_worker.slots.line import Ticket, line_up
from ddpctl_worker.slots.listing import slots
from ddpctl_worker.wire.channel import Channel, WorkerError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A host without a GPU, with a folder of its own; no descriptor is left open."""
    path = str(tmp_path / "slots")
    monkeypatch.setenv("DDPCTL_SLOTS_DIR", path)
    monkeypatch.setattr("ddpctl_worker.machine.tool.run_if_installed", lambda *_: None)
    before = len(os.listdir("/proc/self/fd"))
    yield path
    assert len(os.listdir("/proc/self/fd")) == before


def run_of(name: str, nproc: int | None, count: int | None = 4, host: str = "node0") -> dict[str, Any]:
    return {"run": name, "host": host, "job": "train", "nproc": nproc, "slots": {"count": count, "nodes": 1}}


def taken(run: dict[str, Any]) -> Hold:
    held = take(run, {})
    assert held is not None
    return held


def ticket(run: dict[str, Any]) -> Ticket:
    held = line_up(run, {})
    assert held is not None
    return Ticket(run, {}, held.to_json())


def shown() -> dict[str, tuple[list[int], int | None]]:
    answer = slots({"host": "node0"}, Channel())
    return {claim["run"]: (claim["slots"], claim["place"]) for claim in answer["claims"]}


def test_slots_are_taken_until_they_are_left() -> None:
    first, second = taken(run_of("r1", 3)), taken(run_of("r2", 1))
    assert shown() == {"r1": ([0, 1, 2], None), "r2": ([3], None)}
    with pytest.raises(WorkerError, match="in use"):
        take(run_of("r3", 1), {})
    answer = slots({"host": "node0", "run": {"slots": {"count": 4, "nodes": 1}, "nproc": 1, "env": {}}}, Channel())
    assert (answer["fits"], [holder["slots"] for holder in answer["holders"]]) == (False, [[0, 1, 2], [3]])
    first.close(over=True)
    third = taken(run_of("r3", 2))
    assert shown() == {"r2": ([3], None), "r3": ([0, 1], None)}
    for held in (second, third):
        held.close(over=True)


@pytest.mark.parametrize(("nproc", "count", "numbers"), [(2, None, [0]), (8, 4, [0, 1, 2, 3]), (None, 2, [0, 1])])
def test_more_processes_than_slots_take_the_host_as_a_whole(nproc: int, count: int, numbers: list[int]) -> None:
    held = taken(run_of("r1", nproc, count))
    assert shown() == {"r1": (numbers, None)}
    held.close(over=True)


def test_a_repeated_start_finds_its_claim(folder: str) -> None:
    held = taken(run_of("r1", 1))
    assert take(run_of("r1", 1), {}) is None
    assert line_up(run_of("r1", 1), {}) is None
    held.close(over=True)
    assert read_claims(folder) == []


def test_the_line_is_served_in_order() -> None:
    first = taken(run_of("r1", 4))
    second, third = ticket(run_of("r2", 3)), ticket(run_of("r3", 2))
    assert second.look(ready=True) == f"place 1 in line for 3 slots; in use: 4 by {user_name()}"
    assert third.look(ready=True).startswith("place 2 in line for 2 slots")
    first.close(over=True)
    assert third.look(ready=True).startswith("place 2 in line")  # it would leave too few for the first in line
    with pytest.raises(WorkerError, match="in use"):
        take(run_of("r4", 2), {})
    assert second.look(ready=False).startswith("place 1")  # its turn is on another host
    assert third.look(ready=True) == ""
    assert shown() == {"r2": ([], 1), "r3": ([0, 1], None)}
    third.leave()
    assert second.look(ready=True) == ""
    assert shown() == {"r2": ([0, 1, 2], None)}
    second.leave()
    assert shown() == {}


def test_parts_of_a_run_on_one_machine_have_one_place_in_line() -> None:
    """Else two runs of two parts each could have a slot each, and wait for the second forever."""
    first = taken(run_of("r1", 2, 2))
    early, other, late = (ticket(run_of(*part)) for part in (("r2", 1, 2, "a"), ("r3", 1, 2, "a"), ("r2", 1, 2, "b")))
    leave(first.to_json(), over=True)
    assert early.look(ready=True) == ""
    assert other.look(ready=True).startswith("place 2 in line")
    assert late.look(ready=True) == ""
    for each in (early, other, late):
        each.leave()


def test_a_full_disk_costs_a_waiting_run_neither_its_slots_nor_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    first, waiting = taken(run_of("r1", 4)), ticket(run_of("r2", 2))
    full = {"left": 2}

    def write_half(fd: int, value: dict[str, Any]) -> None:
        if full["left"]:
            full["left"] -= 1
            os.ftruncate(fd, 20)
            raise OSError(errno.ENOSPC, "No space left on device")
        rewrite_claim(fd, value)

    monkeypatch.setattr(line, "rewrite_claim", write_half)
    assert "No space left" in waiting.look(ready=True)
    full["left"] = 0
    assert waiting.look(ready=True).startswith("place 1 in line for 2 slots")
    first.close(over=True)
    full["left"] = 1
    assert "No space left" in waiting.look(ready=True)
    assert waiting.look(ready=True) == ""
    assert shown() == {"r2": ([0, 1], None)}
    waiting.leave()


def test_a_clock_that_jumps_changes_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    first = taken(run_of("r1", 4))
    tickets = []
    for name, jump in (("r2", 3600), ("r3", -3600)):
        monkeypatch.setattr("time.time", lambda jump=jump: 1e9 + jump)
        tickets.append(ticket(run_of(name, 1)))
    assert shown() == {"r1": ([0, 1, 2, 3], None), "r2": ([], 1), "r3": ([], 2)}
    assert all(claim["age_s"] < 60 for claim in slots({"host": "node0"}, Channel())["claims"])
    for each in (first, *(ticket.hold for ticket in tickets)):
        each.close(over=True)


def test_claims_of_other_versions_of_ddpctl_count(folder: str) -> None:
    """Their locks and the names of their files are the same; all else may be missing or new."""
    slots_folder = SlotsFolder(folder)
    fds = [
        slots_folder.take_slot("0"),
        slots_folder.write_claim("r9.node0", {"run": "r9", "new": 1, "slots": {"0": 0}}),
    ]
    fds += [slots_folder.take_slot("1"), slots_folder.write_claim("r8.node0", {"holds": "slot 1, in a new way"})]
    held = taken(run_of("r1", 2))
    assert shown() == {"r9": ([0], None), "unknown": ([], None), "r1": ([2, 3], None)}
    with pytest.raises(WorkerError, match="in use"):
        take(run_of("r2", 1), {})
    held.close(over=True)
    for fd in fds:
        assert fd is not None
        os.close(fd)
    slots_folder.close()


def test_a_host_without_a_usable_folder_starts_the_run_without_a_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDPCTL_SLOTS_DIR", "/proc/no/slots")
    held = taken(run_of("r1", 1))
    assert "/proc/no/slots" in str(held.why_not)
    assert ticket(run_of("r1", 1)).held
