"""A round: a run is started, hurt, watched, healed, ended, and looked at."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.chaos import carried
from tests.chaos.catalogue import FAULTS
from tests.chaos.disks import BASE as OWN_DISK
from tests.chaos.disks import own_disk
from tests.chaos.fault import Fate, Scene
from tests.chaos.judge import STOP_S, Command, Facts, Part
from tests.chaos.plan import END, FINISH_FIRST, KILL, RESTARTS, STARTING, TORCH, Round
from tests.chaos.programs import ENOUGH
from tests.chaos.programs import PLAIN as PLAIN_PROGRAM
from tests.chaos.programs import TORCH as TORCH_PROGRAM
from tests.chaos.sight import BASE, RECORDS, Watch, left, runs
from tests.e2e.site import Site
from tests.lab import Host
from tests.lab.command import Running
from tests.suite.speed import stretch

LIMITS = {"start": 40, "stop": 5}  # of every job
UP_S = 90.0  # all ranks are up; or `up` has ended, once its ranks have
START_S = 150.0  # a start that fails: 60 s for a host's answer, then the other hosts are stopped
KILL_S = 80.0  # twice the grace, 30 s for the proof, 15 s for a dead connection
STATUS_S = 60.0
EMPTY_S = 20.0  # after the end of a run, or its kill, nothing is left
HEALED_S = 90.0  # a host that could not stop has healed: a supervisor has 10, 20 and 30 s for each thing it waits for
ANY = frozenset({0, 1, 3, 4, 5})
EVIDENCE = ("stop.json", "supervisor.log")  # other facts that explain a violation


def play(site: Site, round: Round) -> tuple[Facts, Scene]:
    """What was seen; the hosts are healed, and nothing runs on them."""
    fault = FAULTS[round.fault]
    victim = site.lab[round.victim]
    facts = Facts(round, fault, victim=victim.name, healthy=_healthy(site, round))
    with contextlib.ExitStack() as stack:
        stack.callback(site.lab.heal)
        stack.callback(_no_more, site)
        if fault.disk:
            stack.enter_context(own_disk(victim))
        bases = {host: OWN_DISK if fault.disk and host is victim else BASE for host in site.lab}
        site.hosts = [_entry(host, bases[host]) for host in site.lab]
        watch = stack.enter_context(Watch(bases))
        undo = stack.enter_context(contextlib.ExitStack())
        job = f"round{round.number}"
        if round.job == RESTARTS:
            carried.add_job(site, job)
        else:
            site.job(job, TORCH_PROGRAM if round.job == TORCH else PLAIN_PROGRAM, timeouts=LIMITS, nproc_per_node=1)
        up = site.start("up", "--job", job, "--skip-preflight")
        scene = Scene(site, round, job, victim, watch, up, undo)
        if round.job == RESTARTS:
            facts.carried = stack.enter_context(carried.watched(scene))
        _play(scene, facts)
    return facts, scene


def _entry(host: Host, base: str) -> dict[str, object]:
    return {"name": host.name, "address": host.address, "base_dir": base}


def _healthy(site: Site, round: Round) -> list[str]:
    return [host.name for host in site.lab if not (FAULTS[round.fault].deaf and host is site.lab[round.victim])]


def _no_more(site: Site) -> None:
    site.jobs.clear()
    for host in site.lab:
        if host.running:
            host.run(["rm", "-f", ENOUGH], check=False)


def _play(scene: Scene, facts: Facts) -> None:
    _await(scene)
    facts.acknowledged = _acknowledged(scene)
    scene.watch.mark()
    began = time.monotonic()
    if facts.carried:
        carried.mark(scene, facts.carried)
    facts.hit = facts.fault.inject(scene)
    if facts.carried:
        carried.see(scene, facts.carried, facts.fate, facts.fault.hold)
    elif facts.must_end:
        _see_it_end(scene, facts, began)
    else:
        _see_it_go_on(scene, facts)
    scene.undo.close()
    facts.acknowledged = facts.acknowledged or _acknowledged(scene)
    _finish(scene, facts)
    _gather(scene, facts)


# -- until the fault ----------------------------------------------------------------------------------------------


def _await(scene: Scene) -> None:
    """The moment of the round, or the end of an `up` that never comes so far."""
    scene.within(lambda: scene.watch.new_runs(), stretch(UP_S))
    scene.watch.run = min(scene.watch.new_runs(), default="")
    if scene.round.job == RESTARTS:
        carried.await_copies(scene)
    elif scene.round.moment != STARTING:
        scene.within(
            lambda: len(set(re.findall(r"rank (\d+) is up", scene.up.stdout))) == len(scene.hosts), stretch(UP_S)
        )
    if scene.round.moment == END:
        enough(scene)
    time.sleep(scene.round.delay)


def _acknowledged(scene: Scene) -> bool:
    return bool(re.search(r"launch +ok", scene.up.stderr))


def enough(scene: Scene) -> None:
    """The ranks may end."""
    for host in scene.hosts:
        if host.running:
            host.run(["touch", ENOUGH], check=False)


# -- while it lasts -----------------------------------------------------------------------------------------------


def _see_it_end(scene: Scene, facts: Facts, began: float) -> None:
    names = set(facts.healthy)
    seen = [one for name, one in scene.watch.seen.items() if name in names]
    if _until(lambda: all(one.gone for one in seen), stretch(STOP_S)):
        facts.stopped = max(one.gone or 0.0 for one in seen) - began
    begun = [one.began for name, one in scene.watch.seen.items() if one.began and name in names - {facts.victim}]
    facts.detected = min(begun) - began if begun else None
    _wait_for_up(scene, facts, frozenset({1}), UP_S)
    if all(one.rc is not None for one in facts.commands):
        facts.up_ended = time.monotonic() - began
    _command(scene, facts, "status", {0}, STATUS_S)


def _see_it_go_on(scene: Scene, facts: Facts) -> None:
    """As long as the fault is to last, or until the run is over."""
    then, fault = scene.round.then, facts.fault
    early = {7} if scene.round.moment == STARTING else set()
    if then == FINISH_FIRST:
        enough(scene)
    if then == KILL:
        _until(lambda: _all_over(scene), fault.hold / 2)
        _command(scene, facts, "kill", {*fault.kill_codes, *early}, KILL_S)
        return
    words, status = f"status {scene.job}", scene.site.start("status", scene.run or scene.job, "--json")
    _until(lambda: _all_over(scene), fault.hold)
    scene.undo.close()  # a slow machine must not turn a short pause into a long pause: a run may end for that
    facts.commands.append(_ended(words, status, frozenset({0, *early}), STATUS_S))


def _all_over(scene: Scene) -> bool:
    return scene.up.process.poll() is not None and all(one.gone for one in scene.watch.seen.values())


# -- after it -----------------------------------------------------------------------------------------------------


def _finish(scene: Scene, facts: Facts) -> None:
    """Healed: the run comes to its end, and leaves nothing behind."""
    killed = scene.round.then == KILL and not facts.must_end
    if killed or facts.fault.leaves:
        _command(scene, facts, "kill", {0, 7}, KILL_S)
    enough(scene)
    _wait_for_up(scene, facts, ANY, START_S)
    for words, running, codes in scene.others:
        facts.commands.append(_ended(words, running, codes, START_S))
    _until(lambda: not any(left(host) for host in scene.hosts), stretch(HEALED_S if _slow(facts) else EMPTY_S))
    facts.left = {host.name: left(host) for host in scene.hosts}
    if any(facts.left.values()):  # said once; the next round begins without them
        _command(scene, facts, "kill", {0, 7}, KILL_S)


def _slow(facts: Facts) -> bool:
    """The victim finds out only now, or the started nodes wait for nodes that were not started."""
    return facts.fault.deaf or facts.fault.fate is Fate.ENDS or facts.round.moment == STARTING


def _wait_for_up(scene: Scene, facts: Facts, codes: frozenset[int], deadline: float) -> None:
    """Once; a campaign that killed it expects no result."""
    if scene.up.process.poll() == -9 or any(one.words.startswith("up ") for one in facts.commands):
        return
    facts.commands.append(_ended(" ".join(scene.up.args), scene.up, codes, deadline))


def _ended(words: str, running: Running, codes: frozenset[int], deadline: float) -> Command:
    try:
        done = running.wait(deadline)
    except AssertionError:
        return Command(words, None, deadline, deadline, codes, running.stderr)
    return Command(words, done.rc, done.seconds, deadline, codes, done.stderr)


def _command(scene: Scene, facts: Facts, verb: str, codes: set[int], deadline: float) -> Running:
    running = scene.site.start(verb, scene.run or scene.job, "--json")
    facts.commands.append(_ended(f"{verb} {scene.job}", running, frozenset(codes), deadline))
    return running


def _gather(scene: Scene, facts: Facts) -> None:
    """The records, the output of ddpctl about them, and the records again: no reader may change them."""
    scene.watch.look()
    facts.main = scene.run
    if facts.main:
        codes = {0} if facts.acknowledged else {0, 7}
        running = _command(scene, facts, "status", codes, STATUS_S)
        with contextlib.suppress(json.JSONDecodeError):
            facts.told = json.loads(running.stdout)
    if facts.carried:
        facts.carried.told = facts.told
    scene.watch.look()
    for run in scene.watch.new_runs():
        facts.parts[run] = dict(_parts(scene, run))


def _parts(scene: Scene, run: str) -> Iterator[tuple[str, Part]]:
    for host, base in scene.watch.bases.items():
        if run not in runs(host, base) and run != scene.run:
            continue
        records = {name: scene.watch.record(host, name, run) for name in (*RECORDS, *EVIDENCE)}
        seen = scene.watch.seen[host.name]
        if run == scene.run:
            yield host.name, Part(records, tuple(seen.exits), len(seen.launchers))
        else:
            yield host.name, Part(records)


def _until(done: Callable[[], object], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def keep_evidence(scene: Scene, facts: Facts, place: Path) -> None:
    """All that explains a violation."""
    place.mkdir(parents=True, exist_ok=True)
    for nth, running in enumerate(scene.site.ddpctl.runs):
        said = f"$ ddpctl {' '.join(running.args)}\n{running.stdout}\n{running.stderr}\n"
        (place / f"command{nth}.txt").write_text(said)
    for run, parts in facts.parts.items():
        for host, part in parts.items():
            for name, text in part.records.items():
                (place / f"{run}.{host}.{name}").write_bytes(text or b"")
