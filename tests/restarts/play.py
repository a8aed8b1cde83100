"""A round: a training with restarts is started, hurt, watched, healed, ended, and looked at."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.programs import ENOUGH
from tests.chaos.sight import BASE, folder, left
from tests.e2e.site import Site, ranks, until
from tests.hangs.campaign import TROUBLE
from tests.lab import Host
from tests.lab.command import Running
from tests.restarts.judge import Facts
from tests.restarts.plan import EITHER, ENDS, Round
from tests.restarts.sight import Sight, attempts, complete, ended
from tests.restarts.train import FAULT, STEPS_FOLDER, TRAIN

LAST, PACE_S = 6000, 0.1  # steps, and the pause after each
BEGIN_S = 150.0  # until the first checkpoint has a copy
AFTER_S = 240.0  # from the fault: by then a later attempt makes steps, or the run has ended
STEADY_S = 15.0  # steps are made for so long, once everything is healed
KEPT = 8.0  # seconds that a run is left alone at first, in which a short cut may do no harm
END_S = 60.0
SMALL_DISK, MEMORY = "24m", "1200M"


def play(site: Site, round: Round) -> Facts:
    facts = Facts(round)
    job = name_of(round)
    hosts = [host for host in site.lab if host.name in round.hosts]
    site.hosts = [one for one in site.hosts if one["name"] in round.hosts]
    site.job(job, TRAIN, STEPS_FOLDER, str(LAST), str(PACE_S), **_keys(round))
    victim = next(host for host in hosts if host.name == round.victim)
    if round.place:
        victim.small_tmpfs(f"{BASE}/{round.place}", SMALL_DISK)
    with Sight(hosts, job) as sight:
        up = site.start("up", "--job", job, "--skip-preflight")
        try:
            _play(site, facts, job, hosts, victim, up)
        except TROUBLE as error:
            facts.trouble.append(f"{type(error).__name__}: {error}")
        _end(site, facts, job, hosts, up)
        facts.twice, facts.begun, facts.attempts = sight.twice, sight.begun, attempts(hosts, job)
    return facts


def name_of(round: Round) -> str:
    return f"{round.kind}-{round.number}"


def _keys(round: Round) -> dict[str, object]:
    keys: dict[str, object] = {"env": {"OMP_NUM_THREADS": "1"}, "timeouts": {"stop": 5}}
    if round.least:
        return {**keys, "elastic": {"min_nodes": round.least, "max_nodes": round.nodes, "max_restarts": 3}}
    return {**keys, "nodes": round.nodes, "spares": round.spares, "restarts": 3}


def _play(site: Site, facts: Facts, job: str, hosts: Sequence[Host], victim: Host, up: Running) -> None:
    round = facts.round
    until(lambda: copied(hosts, job), BEGIN_S, lambda: f"no checkpoint with a copy: {up.stdout}{up.stderr}", 0.3)
    run = str(site.status(job)["run"])
    time.sleep(round.delay)
    if round.alone:
        up.kill()
    facts.complete = complete([host for host in hosts if host is not victim or "power" not in round.kind], job)
    facts.fault_at = time.monotonic()
    _hurt(round, site, run, victim)
    if round.seconds is not None:
        time.sleep(round.seconds)
        _heal(round, site)
    healed = time.monotonic()
    until(lambda: settled(facts, job, run, hosts, healed), AFTER_S, lambda: _stands(facts, job, hosts, site), 0.5)
    facts.ended = ended(hosts, run)
    facts.told = site.status(job)


def copied(hosts: Sequence[Host], job: str) -> bool:
    """The first host's checkpoint lies on another host too."""
    return len(complete(hosts, job)) >= 2


def settled(facts: Facts, job: str, run: str, hosts: Sequence[Host], healed: float) -> bool:
    """The run has ended; or steps are made, by a later attempt or by an attempt that needs no other, not just now."""
    if ended(hosts, run):
        return True
    facts.attempts = attempts(hosts, job)
    newest = max(facts.attempts, default=0)
    rows = [one.rows for one in facts.attempts.get(newest, {}).values() if one.rows]
    if not rows or time.monotonic() - max(each[-1][2] for each in rows) > 2.0:
        return False
    if newest == facts.before and (facts.round.fate != EITHER or time.monotonic() - healed < STEADY_S + KEPT):
        return False
    return facts.round.fate != ENDS and time.monotonic() - max(healed, rows[0][0][2]) > STEADY_S / 3


def _stands(facts: Facts, job: str, hosts: Sequence[Host], site: Site) -> str:
    facts.told = site.status(job)
    steps = {
        number: {host: len(one.rows) for host, one in each.items()} for number, each in attempts(hosts, job).items()
    }
    return f"no later attempt, and no end: {facts.told['state']}, attempt {facts.told['attempt']}, steps {steps}"


# -- faults -------------------------------------------------------------------------------------------------------


def _hurt(round: Round, site: Site, run: str, victim: Host) -> None:
    named = {host.name: host for host in site.lab}
    if round.kind in ("power-worker", "power-master", "elastic"):
        victim.power_off()
    elif round.drops:
        for name, other in sorted(round.drops):
            named[name].drop(from_=named[other])
    elif round.kind == "kill-rank":
        _kill_ranks(victim, run)
    elif round.kind == "no-space":
        victim.run(f"cat /dev/zero >{BASE}/{round.place}/filler", check=False)
    else:
        if round.kind == "oom":
            victim.memory_limit(MEMORY)
        what = {"exception": "raise", "exception-again": "raise always", "oom": "eat"}[round.kind]
        victim.run(f"echo '{what}' >{FAULT}.new && mv {FAULT}.new {FAULT}")


def _kill_ranks(host: Host, run: str) -> None:
    pids = [str(one.pid) for one in ranks(host, run).values()]
    host.run(["kill", f"-{signal.SIGKILL.value}", *pids])


def _heal(round: Round, site: Site) -> None:
    for host in site.lab:
        if any(name == host.name for name, _ in round.drops):
            host.clear_firewall()


# -- the end ------------------------------------------------------------------------------------------------------


def _end(site: Site, facts: Facts, job: str, hosts: Sequence[Host], up: Running) -> None:
    _heal(facts.round, site)
    alive = [host for host in hosts if host.running]
    done = None
    if not facts.ended and facts.round.finish and not facts.trouble:
        for host in alive:
            host.run(["touch", ENOUGH])
        wanted = "succeeded"
    else:
        wanted = "failed" if facts.ended else "killed"
        done = site("kill", job)
    if done is not None and done.rc not in (0, 4):
        facts.trouble.append(f"`kill` ended with {done.rc}: {done.stderr.strip()[-300:]}")
    try:
        until(lambda: not any(map(left, alive)), END_S, "", 0.5)
        _last_words(site, facts, job, up, wanted)
    except TROUBLE as error:
        facts.left = [f"{host.name}: {what}" for host in alive for what in left(host)]
        facts.trouble.append(f"at the end: {error}")


def _last_words(site: Site, facts: Facts, job: str, up: Running, wanted: str) -> None:
    if facts.trouble:
        return
    told = site.status(job)
    if told["state"] != wanted:
        facts.trouble.append(f"it is {told['state']}, not {wanted}: {(told['cause'] or {}).get('message')}")
    if not facts.round.alone:
        codes = {"succeeded": {0}, "failed": {1}, "killed": {1}}[wanted]
        if (rc := up.wait(END_S).rc) not in codes:
            facts.trouble.append(f"`up` ended with {rc}, and the run {wanted}: {up.stderr.strip()[-300:]}")


def keep(site: Site, facts: Facts, place: Path) -> None:
    """The files that explain a wrong round: the output of every ddpctl, the observations, and the run's records of
    every host.
    """
    place.mkdir(parents=True)
    (place / "facts.txt").write_text(f"{facts}\n")
    for nth, one in enumerate(site.ddpctl.runs):
        (place / f"command{nth}.txt").write_text(f"$ ddpctl {' '.join(one.args)}\n{one.stdout}\n{one.stderr}\n")
    left_out = shutil.ignore_patterns("code", "pipes", "reserve", "*.reserve", "filler", "*.sock")
    for host in site.lab:
        for records in folder(host, BASE, "runs").glob(f"{name_of(facts.round)}-*/{host.name}"):
            shutil.copytree(records, place / host.name / records.parent.name, ignore=left_out)
