"""Each host keeps copies of what the hosts before it in the ring wrote, while the run is live."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.checkpoint import copy, manifest, replicate
from ddpctl_worker.checkpoint.fencing import begin
from ddpctl_worker.checkpoint.replicate import Replication, ring_after, ring_before
from ddpctl_worker.checkpoint.throttle import Throttle
from ddpctl_worker.machine.net import listen
from ddpctl_worker.rules.entries import FOLDER
from tests.worker.checkpoints import NOW, Disk, tls
from tests.worker.node import eventually

BIG = os.urandom(2_000_000)


@given(count=st.integers(1, 9), replicas=st.integers(0, 12))
def test_every_host_has_that_many_others_that_copy_it(count: int, replicas: int) -> None:
    hosts = [f"node{number}" for number in range(count)]
    for host in hosts:
        after = ring_after(hosts, host, replicas)
        assert len(set(after) - {host}) == len(after) == min(replicas, count - 1)
        assert sorted(after) == sorted(other for other in hosts if host in ring_before(hosts, other, replicas))


class Ring:
    """The hosts of a run, each with its own disk."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.disks: dict[str, Disk] = {}
        self.running: dict[str, Replication] = {}
        self.ports: dict[str, int] = {}

    def disk(self, host: str, base: str | None = None) -> Disk:
        self.disks[host] = Disk(self.folder / (base or host), host)
        return self.disks[host]

    def start(self, *hosts: str, replicas: int = 1, of: str = "abc") -> None:
        for host in hosts:
            self.serve(host, 0, replicas, of)
        for host in hosts:
            self.meet(host, *hosts)
            self.running[host].start()

    def serve(self, host: str, port: int, replicas: int = 1, of: str = "abc") -> None:
        disk, listener = self.disks[host], listen(port)
        self.ports[host] = listener.getsockname()[1]
        contexts = tls(disk.base, server=False), tls(disk.base, server=True)
        self.running[host] = Replication(disk.folder, list(of), replicas, *contexts, listener, NOW)

    def meet(self, host: str, *others: str) -> None:
        self.running[host].meet({other: (["127.0.0.1"], self.ports[other]) for other in others if other != host})

    def finish(self, host: str, succeeded: bool = True) -> threading.Thread:
        ending = threading.Thread(target=self.running[host].finish, args=(3600.0, succeeded), daemon=True)
        ending.start()
        return ending

    def join(self, *ends: threading.Thread) -> None:
        for ending in ends:
            ending.join(60.0)
        assert not any(ending.is_alive() for ending in ends)

    def stop(self, *hosts: str) -> None:
        for host in hosts or list(self.running):
            self.running.pop(host).close()


@pytest.fixture
def ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ring]:
    monkeypatch.setattr(replicate, "REPLICATION_LOOK_S", 0.05)
    made = Ring(tmp_path)
    yield made
    made.stop()
    for disk in made.disks.values():
        disk.close()


def has(disk: Disk, writer: str, entry: str) -> Callable[[], bool]:
    return lambda: disk.content(entry, writer) is not None


@pytest.mark.slow
def test_the_next_host_of_the_ring_gets_a_copy_and_no_other(ring: Ring) -> None:
    a, b, c = (ring.disk(host) for host in "abc")
    ring.start(*"abc")
    a.save("step_1", {"part": BIG})
    c.save("step_1", {"other": BIG})
    eventually(has(b, "a", "step_1"), "the copy on b")
    eventually(has(a, "c", "step_1"), "the copy on a")
    eventually(lambda: all(one.is_done() for one in ring.running.values()), "the end of copying")
    assert b.content("step_1", "a") == {"part": BIG}
    assert a.content("step_1", "c") == {"other": BIG}
    assert c.folder.writers() == ["c"]


@pytest.mark.slow
def test_two_replicas_lie_on_two_hosts(ring: Ring) -> None:
    a, b, c = (ring.disk(host) for host in "abc")
    a.save("one.pt", {"": BIG})
    ring.start(*"abc", replicas=5)
    eventually(lambda: has(b, "a", "one.pt")() and has(c, "a", "one.pt")(), "both copies")


@pytest.mark.slow
def test_a_base_dir_that_all_share_is_recognized(ring: Ring) -> None:
    a, b = ring.disk("a", "shared"), ring.disk("b", "shared")
    before = a.save("one.pt", {"": BIG}, age=50)
    about = (a.own / "one.pt").stat()
    ring.start("a", "b", of="ab")
    eventually(lambda: ring.running["b"]._peers and ring.running["b"].is_done(), "a look")
    time.sleep(0.3)
    assert (a.own / "one.pt").stat() == about
    assert b.folder.manifests("a")["one.pt"] == before
    assert not Path(a.folder.of("a"), FOLDER, "incoming").exists()


@pytest.mark.slow
def test_an_older_attempts_checkpoint_is_not_copied(ring: Ring) -> None:
    """An attempt begins with the newest checkpoint on every host, whatever an older attempt has left elsewhere."""
    a, b = ring.disk("a"), ring.disk("b")
    a.save("step_1", {"one": BIG}, age=50)
    a.save("step_2", {"one": BIG})
    ring.start("a", "b", of="ab")
    eventually(has(b, "a", "step_2"), "the copy of what this attempt wrote")
    eventually(ring.running["b"].is_done, "the end of copying")
    assert list(b.folder.manifests("a")) == ["step_2"]


@pytest.mark.slow
def test_a_copy_goes_once_its_writer_says_so_and_never_before(ring: Ring) -> None:
    a, b = ring.disk("a"), ring.disk("b")
    for step, age in ((1, 90), (2, 60), (3, 30)):
        a.save(f"step_{step}", {"part": str(step).encode()}, age=age, attempt=NOW)
    ring.start("a", "b", of="ab")
    for step in (1, 2, 3):
        eventually(has(b, "a", f"step_{step}"), f"copy {step}")
    for step in (1, 2):
        copy.remove_path(str(a.own / f"step_{step}"))
        manifest.discard(str(a.own), f"step_{step}")
    ring.running["a"].removed(["step_1"])
    eventually(lambda: not has(b, "a", "step_1")(), "the removal of the copy")
    time.sleep(0.3)
    assert sorted(b.folder.manifests("a")) == ["step_2", "step_3"]
    assert not os.path.lexists(os.path.join(b.folder.of("a"), "step_1"))


@pytest.mark.slow
def test_a_copy_stays_while_its_original_is_written_again(ring: Ring) -> None:
    """It was removed once, and the new content is not hashed yet."""
    a, b = ring.disk("a"), ring.disk("b")
    a.save("best.pt", {"": b"first"}, age=90, attempt=NOW)
    a.save("step_1.pt", {"": b"1"}, age=30, attempt=NOW)
    (a.own / "best.pt").unlink()
    a.folder.note_removed(["best.pt"])
    a.save("best.pt", {"": b"second"}, age=60, attempt=NOW)
    ring.start("a", "b", of="ab")
    eventually(lambda: has(b, "a", "best.pt")() and has(b, "a", "step_1.pt")(), "the copies")
    (a.own / "best.pt").write_bytes(b"half of the third")
    manifest.discard(str(a.own), "best.pt")
    time.sleep(0.3)
    assert b.content("best.pt", "a") == {"": b"second"}


def test_a_writer_knows_which_copies_of_a_version_there_are(ring: Ring) -> None:
    a = ring.disk("a")
    ring.disk("b")
    ring.start("a", "b", of="ab")
    first = a.save("latest.pt", {"": b"first"})["version"]
    eventually(lambda: ring.running["a"].copied("latest.pt", first), "the word of the copy")
    assert not ring.running["a"].copying("latest.pt", first)
    ring.stop("b")
    second = a.save("latest.pt", {"": b"second"})["version"]
    assert not ring.running["a"].copied("latest.pt", second)
    assert ring.running["a"].copying("latest.pt", second), "b may still ask"


def test_a_host_that_reports_its_copies_meanwhile_does_no_harm(ring: Ring) -> None:
    """The threads of the server note the reports, and the keeper's thread reads them."""
    ring.disk("a")
    ring.serve("a", 0, replicas=2)
    copies = ring.running["a"]._server.copies

    class Report(tuple[Mapping[str, str], float]):
        def __iter__(self) -> Iterator[Any]:
            copies[f"other{len(copies)}"] = {}, time.monotonic()
            return super().__iter__()

    copies["b"] = Report(({"step_1": "v"}, time.monotonic()))
    copies["c"] = Report(({"step_1": "v"}, time.monotonic()))
    assert ring.running["a"].copied("step_1", "v")
    assert not ring.running["a"].copying("step_1", "v")


def test_a_replication_ends_once_a_newer_attempt_has_begun(ring: Ring) -> None:
    a, b = ring.disk("a"), ring.disk("b")
    ring.start("a", "b", of="ab")
    begin(str(b.own), NOW._replace(number=2))
    ring.running["b"]._thread.join(60.0)
    assert not ring.running["b"]._thread.is_alive()
    a.save("step_1", {"one": BIG})
    assert b.folder.writers() == ["b"]


def test_what_exists_again_is_not_removed(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "a", "a")
    disk.folder.note_removed(["best.pt", "step_1"])
    assert disk.folder.removed() == ["best.pt", "step_1"]
    (disk.own / "best.pt").write_bytes(b"half")
    assert disk.folder.removed() == ["step_1"]
    disk.folder.note_removed([])
    (disk.own / "best.pt").unlink()
    assert disk.folder.removed() == ["step_1"], "a script may remove a file right before it writes it again"
    disk.folder.note_removed(["step_1", "best.pt"])
    assert disk.folder.removed() == ["step_1", "best.pt"]


@pytest.mark.slow
def test_a_host_that_lost_its_disk_takes_no_copy_along(ring: Ring) -> None:
    a, b = ring.disk("a"), ring.disk("b")
    a.save("one.pt", {"": BIG})
    ring.start("a", "b", of="ab")
    eventually(has(b, "a", "one.pt"), "the copy")
    a.base.rename(a.base.with_name("lost"))
    a.base.mkdir(mode=0o700, exist_ok=True)  # it may have been asked meanwhile
    ring.running["a"].removed(["one.pt"])  # even then: it is the newest
    time.sleep(0.3)
    assert b.content("one.pt", "a") == {"": BIG}


@pytest.mark.slow
def test_a_host_that_is_away_is_tried_again(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = ring.disk("a"), ring.disk("b")
    a.save("one.pt", {"": BIG})
    ring.start("a", "b", of="ab")
    eventually(has(b, "a", "one.pt"), "the copy")
    ring.stop("a")
    eventually(lambda: "a" in ring.running["b"]._trouble, "that b misses a")
    a.save("two.pt", {"": b"2"})
    ring.serve("a", ring.ports["a"], of="ab")
    eventually(has(b, "a", "two.pt"), "the second copy")
    eventually(lambda: "a" not in ring.running["b"]._trouble, "that b is content")


@pytest.mark.slow
def test_the_end_of_a_run_waits_for_the_last_copies(ring: Ring) -> None:
    a, b = ring.disk("a"), ring.disk("b")
    ring.start("a", "b", of="ab")
    a.save("one.pt", {"": BIG})
    ring.running["b"]._server.final = True  # it has nothing more to say
    ring.running["a"].finish(300.0, True)
    assert has(b, "a", "one.pt")()


@pytest.mark.slow
def test_the_end_waits_for_what_the_host_before_has_not_read_yet(ring: Ring) -> None:
    """A large file that a saved right before the end: b, which has nothing to read, is done before."""
    a, b = ring.disk("a"), ring.disk("b")
    ring.start("a", "b", of="ab")
    late = ring.finish("b")
    eventually(lambda: ring.running["b"]._server.final, "b has ended")
    assert not ring.running["b"].is_done()
    a.save("one.pt", {"": BIG})
    ring.join(ring.finish("a"), late)
    assert has(b, "a", "one.pt")()


@pytest.mark.slow
def test_after_a_success_a_host_that_does_not_answer_yet_is_waited_for(
    ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a host whose processors are all busy, the first answer takes long."""
    a, b = ring.disk("a"), ring.disk("b")
    ring.start("a", "b", of="ab")
    ring.stop("b")
    a.save("one.pt", {"": BIG})
    asked = mock.Mock(side_effect=ring.running["a"]._is_done_with)
    monkeypatch.setattr(ring.running["a"], "_is_done_with", asked)
    ending = ring.finish("a")
    eventually(lambda: asked.call_count >= 2, "that a asks b again")
    ring.serve("b", ring.ports["b"], of="ab")
    ring.meet("b", "a")
    ring.running["b"].start()
    ring.join(ring.finish("b"), ending)
    assert has(b, "a", "one.pt")()


@pytest.mark.slow
def test_after_a_failure_a_host_that_does_not_answer_is_gone(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicate, "DONE_LOOK_S", 3600.0)  # a second look would not come
    a, _ = ring.disk("a"), ring.disk("b")
    ring.start("a", "b", of="ab")
    ring.stop("b")
    a.save("one.pt", {"": BIG})
    ring.join(ring.finish("a", succeeded=False))


@pytest.mark.slow
@pytest.mark.parametrize(("hosts", "replicas"), [("ab", 1), ("abc", 1), ("abcd", 2)])
def test_all_hosts_end_once_each_has_the_copies(
    ring: Ring, monkeypatch: pytest.MonkeyPatch, hosts: str, replicas: int
) -> None:
    monkeypatch.setattr(replicate, "FINAL_READ_S", 3600.0)
    for host in hosts:
        ring.disk(host)
    ring.start(*hosts, replicas=replicas, of=hosts)
    for host in hosts:
        ring.disks[host].save("one.pt", {"": BIG})
    ring.join(*[ring.finish(host) for host in hosts])
    for host in hosts:
        for other in ring_after(hosts, host, replicas):
            assert has(ring.disks[other], host, "one.pt")()


@pytest.mark.slow
def test_a_host_stays_until_the_host_after_it_knows_that_it_writes_nothing_more(
    ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that left too early would look like a busy host: the host after it would wait for it."""
    monkeypatch.setattr(replicate, "FINAL_READ_S", 3600.0)
    a, b, _ = (ring.disk(host) for host in "abc")
    ring.start(*"abc")
    a.save("one.pt", {"": BIG})
    eventually(has(b, "a", "one.pt"), "the copy on b")
    ring.running["b"]._due["a"] = float("inf")  # b asks a no more before its own end
    asked = mock.Mock(side_effect=ring.running["a"].is_done)
    monkeypatch.setattr(ring.running["a"], "is_done", asked)
    ends = [ring.finish("a"), ring.finish("c")]
    eventually(lambda: asked.call_count >= 3 or not ends[0].is_alive(), "that a looks again, or leaves")
    ring.join(*ends, ring.finish("b"))


@pytest.mark.slow
@pytest.mark.parametrize("last", ["a", "b"], ids=["it sends", "it gets"])
def test_a_large_file_is_waited_for_as_long_as_it_moves(ring: Ring, monkeypatch: pytest.MonkeyPatch, last: str) -> None:
    monkeypatch.setattr(replicate, "IDLE_S", 6.0)
    monkeypatch.setattr(replicate, "rate_to", lambda address: 2.5e6)
    a, b = ring.disk("a"), ring.disk("b")
    ring.start("a", "b", of="ab")
    a.save("one.pt", {"": BIG * 10})  # more than the buffers between them hold
    ring.running["b" if last == "a" else "a"]._server.final = True  # it has nothing more to say
    ring.running[last].finish(300.0, True)
    assert has(b, "a", "one.pt")()


@pytest.mark.slow
def test_a_throttle_keeps_the_rate() -> None:
    throttle = Throttle(1e6)
    begun = time.monotonic()
    for _ in range(10):
        throttle.count(50_000)
    assert time.monotonic() - begun > 0.4
