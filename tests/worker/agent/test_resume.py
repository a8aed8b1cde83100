"""The hosts of an attempt get their checkpoints from each other, over real connections."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.agent import resume, talk
from ddpctl_worker.agent.part import CalledOff, LocalPart
from ddpctl_worker.agent.resume import Resume
from ddpctl_worker.agent.talk import AnswerServer, PeerLine
from ddpctl_worker.checkpoint import copy, restore
from ddpctl_worker.checkpoint.fencing import begin
from ddpctl_worker.checkpoint.folder import list_entries
from ddpctl_worker.checkpoint.pins import pin
from ddpctl_worker.record.document import CheckpointChoice
from ddpctl_worker.wire.channel import WorkerError
from tests.worker.checkpoints import NOW, OF_JOB, Disk, credentials
from tests.worker.node import eventually

pytestmark = pytest.mark.slow

KEY = talk.key_of("ab" * 32)
BIG = os.urandom(4_000_000)


class Party:
    """The agents of a run, as far as they prepare an attempt; the first ``count`` hosts are in it."""

    def __init__(self, folder: Path, hosts: str, count: int) -> None:
        self.hosts = list(hosts[:count])
        members = [{"host": host, "address": "127.0.0.1"} for host in hosts]
        self.disks = {host: Disk(folder / host, host) for host in hosts}
        desks = {host: AnswerServer(KEY, "run", host, list(hosts), "127.0.0.1") for host in hosts}
        self.lines = {
            host: PeerLine(KEY, "run", host, {one: ("127.0.0.1", at.port) for one, at in desks.items() if one != host})
            for host in hosts
        }
        who = credentials()
        pem = {"certificate": who.certificate, "key": who.key}
        self.resume: dict[str, Resume] = {}
        self.asked: list[str] = []
        for host in hosts:
            run: Any = {"host": host, **OF_JOB, "serial": NOW.serial, "run": NOW.run, "restart": {"hosts": members}}
            self.resume[host] = Resume(str(self.disks[host].base), run, pem, self.lines[host])
            self.resume[host].start()
            desks[host].start(self._answer(host))
        self.folder = folder

    def _answer(self, host: str) -> Callable[[str, dict[str, Any]], dict[str, Any]]:
        def answer(other: str, question: dict[str, Any]) -> dict[str, Any]:
            self.asked.append(other)
            return {"port": self.resume[host].port}

        return answer

    def part(self, host: str, number: int = 2) -> LocalPart:
        return LocalPart(str(self.folder / "runs" / host), number)

    def choose(self, number: int = 2) -> CheckpointChoice:
        """Let all hosts collect and the first host choose."""
        parts = {host: self.part(host, number) for host in self.hosts}
        for task in [Task(partial(self.resume[host].collect, part, self.hosts)) for host, part in parts.items()]:
            task.result()
        first = parts[self.hosts[0]]
        common = set.intersection(*(set(part.reaches or ()) for part in parts.values()))
        self.resume[self.hosts[0]].choose(first, self.hosts, [*self.hosts, *sorted(common)])
        assert first.choice is not None
        return first.choice

    def begin(self, host: str, choice: CheckpointChoice, part: LocalPart | None = None) -> Task:
        return Task(lambda: self.resume[host].restore(part or self.part(host), self.hosts, choice))

    def all_bring(self) -> None:
        choice = self.choose()
        for task in [self.begin(host, choice) for host in self.hosts]:
            task.result()

    def newest(self, host: str) -> list[str]:
        return sorted(list_entries(str(self.disks[host].own)))

    def close(self) -> None:
        for host, disk in self.disks.items():
            self.resume[host].close()
            disk.close()


class Task:
    """Work in a thread of its own."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work, self._error = work, [BaseException()][:0]
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            self._error.append(error)

    @property
    def over(self) -> bool:
        return not self._thread.is_alive()

    def result(self) -> None:
        self._thread.join(60.0)
        assert self.over, "it takes more than a minute"
        if self._error:
            raise self._error[0]


@pytest.fixture
def party(tmp_path: Path) -> Iterator[Callable[..., Party]]:
    with contextlib.ExitStack() as stack:

        def make(hosts: str, count: int) -> Party:
            made = Party(tmp_path, hosts, count)
            stack.callback(made.close)
            return made

        yield make


def test_all_hosts_have_the_newest_one(party: Any) -> None:
    three = party("abc", 2)
    three.disks["a"].save("step_1.pt", {"": b"1"}, age=50)
    three.disks["c"].save("step_2.pt", {"": b"2"}, age=20)  # a spare, which had a part in an attempt before
    three.all_bring()
    assert [three.disks[host].content("step_2.pt") for host in "ab"] == [{"": b"2"}] * 2


def test_a_save_that_nobody_has_hashed_yet_counts(party: Any) -> None:
    two = party("ab", 2)
    for host in two.hosts:
        two.disks[host].save("step_100.pt", {"": b"100"}, age=50)
    begin(str(two.disks["b"].own), NOW)
    with zipfile.ZipFile(two.disks["b"].own / "step_200.pt", "w") as archive:  # as torch.save writes
        archive.writestr("data", "200")
    two.all_bring()
    for host in two.hosts:
        assert two.newest(host) == ["step_100.pt", "step_200.pt"]


def test_a_spare_that_only_some_reach_makes_no_difference(party: Any) -> None:
    """One host would resume from its own checkpoint, and the other host from an older checkpoint."""
    three = party("abc", 2)
    for host, step in (("a", 1), ("b", 1), ("c", 2)):
        three.disks[host].save(f"step_{step}.pt", {"": b"%d" % step}, age=50 - step)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        three.lines["b"].peers["c"] = ("127.0.0.1", closed.getsockname()[1])
        three.all_bring()
    assert three.newest("a") == three.newest("b")


def test_a_first_host_that_does_not_serve_any_more_is_named(party: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume, "SILENT_S", 1.0)
    two = party("ab", 2)
    choice = two.choose()
    two.resume["a"].close()
    with pytest.raises(WorkerError, match="b could not ask a what to resume from"):
        two.begin("b", choice).result()


def test_a_choice_that_the_first_host_has_not_made_is_refused(party: Any) -> None:
    two = party("ab", 2)
    two.choose()
    with pytest.raises(WorkerError, match="a does not know any more what attempt 2 resumes from"):
        two.begin("b", CheckpointChoice("0" * 64, ())).result()


def newer_run(party: Party, host: str) -> None:
    """A newer run of the job begins on ``host``, and its first save is not complete yet."""
    begin(str(party.disks[host].own), NOW._replace(serial=NOW.serial + 1, run="newer"))
    for name in ("step_1.pt", "step_2.pt"):
        (party.disks[host].own / name).write_bytes(b"half of a save")


@pytest.mark.parametrize("when", ["before", "during the transfer"])
def test_an_attempt_beside_a_newer_run_renames_none_of_its_saves(
    party: Any, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    two = party("ab", 2)
    two.disks["a"].save("step_1.pt", {"": b"1"}, age=50)
    two.disks["b"].save("step_0.pt", {"": b"0"}, age=90)
    choice, real = two.choose(), copy.fetch_entry

    def fetch_entry(*args: Any) -> str:
        if when != "before":
            newer_run(two, "b")
        return real(*args)

    monkeypatch.setattr(copy, "fetch_entry", fetch_entry)
    if when == "before":
        newer_run(two, "b")
    with pytest.raises(WorkerError, match="a newer attempt has begun here: attempt 1 of run newer"):
        two.begin("b", choice).result()
    for name in ("step_1.pt", "step_2.pt"):
        assert (two.disks["b"].own / name).read_bytes() == b"half of a save"


def test_an_attempt_beside_a_newer_run_takes_no_version_from_its_keeper(party: Any) -> None:
    two = party("ab", 2)
    own = str(two.disks["b"].own)
    newer_run(two, "b")
    assert pin(own, "step_1.pt", list_entries(own)["step_1.pt"]) is not None
    with pytest.raises(WorkerError, match="a newer attempt has begun here"):
        two.resume["b"].collect(two.part("b"), two.hosts)
    assert list(two.disks["b"].own.glob(".ddpctl/pinned/step_1.pt/*"))


def test_a_preparation_that_was_called_off_does_not_work_beside_the_next_one(
    party: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first preparation is in the middle of its transfer and ends early. Only then does the second begin."""
    two = party("ab", 2)
    two.disks["a"].save("step_1.pt", {"": BIG}, age=50)
    beside, second = [], threading.Event()

    def put_own(*args: Any) -> None:
        beside.append(1)
        if len(beside) > 1:
            second.set()
        else:
            first.wanted = False
            second.wait(2.0)
            assert not second.is_set(), "two are at work"
        copy.put_own(*args)

    def set_newer_aside(folder: Any, *args: Any) -> list[str]:
        asides.append(folder.host)
        return copy.set_newer_aside(folder, *args)

    asides: list[str] = []
    monkeypatch.setattr(restore, "put_own", put_own)
    monkeypatch.setattr(restore, "set_newer_aside", set_newer_aside)
    first, choice = two.part("b", 2), two.choose()
    task = two.begin("b", choice, first)
    eventually(lambda: bool(beside), "the first one is at work")
    again = two.begin("b", choice, two.part("b", 3))
    with pytest.raises(CalledOff):
        task.result()
    again.result()
    assert asides.count("b") == 1
    assert two.disks["b"].content("step_1.pt") == {"": BIG}


def test_a_preparation_that_was_called_off_ends_in_the_middle_of_a_file(party: Any) -> None:
    """The received part stays for the next transfer."""
    two = party("ab", 2)
    two.disks["a"].save("step_1", {"one": b"1" * 10, "two": BIG}, age=50)
    part, choice = two.part("b"), two.choose()
    real = part.move

    def move(count: int = 1) -> None:
        part.wanted = part.wanted and count <= 10
        real(count)

    part.move = move
    with pytest.raises(CalledOff):
        two.begin("b", choice, part).result()
    incoming = two.disks["b"].own / ".ddpctl" / "incoming"
    assert sorted(path.stat().st_size for path in incoming.iterdir())[0] == 10
    assert any(path.name.endswith(".part") for path in incoming.iterdir())
    assert two.newest("b") == []
    two.begin("b", two.choose(3), two.part("b", 3)).result()
    assert two.disks["b"].content("step_1") == {"one": b"1" * 10, "two": BIG}
