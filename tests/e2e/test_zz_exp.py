from __future__ import annotations

import json
import time

from tests.e2e.programs import SLEEP
from tests.e2e.site import *  # noqa
from tests.e2e.test_cuts import FAILS


def test_hidepid(site, lab):
    site.only(0)
    host = lab[0]
    host.run("mount -o remount,hidepid=1 /proc")
    host.add_user("train")
    site.hosts[0]["user"] = "train"
    job = site.job("hide", SLEEP)
    up = site("up", "--job", job, "-d", "--json", "--skip-preflight", timeout=120)
    print("HIDE UP", up.rc, up.stderr[-500:])
    if up.rc == 0:
        time.sleep(8)
        print("HIDE", json.dumps(site.status(job))[:600])
        k = site("kill", job, "--json")
        print("KILL", k.rc, k.stdout[-400:], k.stderr[-300:])
    print([p.argv[:3] for p in running(host)])
    host.run("mount -o remount,hidepid=0 /proc")


def test_gang_blocked(site, lab):
    """the gang port blocked once the ports are known: start, then see"""
    site.only(0, 1)
    lab[1].firewall(
        "tcp dport 1-65535 ip daddr %s meta skuid 0 ct state new drop" % lab[0].fabric_address, chain="output"
    )
    job = site.job("blocked", FAILS)
    t = time.time()
    up = site("up", "--job", job, "-d", "--json", "--skip-preflight", timeout=120)
    print("BLOCKED UP", up.rc, up.stderr[-300:])
    t = time.time()
    try:
        print(json.dumps(site.wait_for_state(job, "failed", timeout=150))[:900], time.time() - t)
    finally:
        site("kill", job)


def test_power(site, lab):
    site.only(0, 1)
    job = site.job("power", SLEEP)
    run = site.up(job)
    wait_for_ranks(lab.hosts[:2], run["run"])
    lab[1].power_off()
    t = time.time()
    print("POWER", site.status(job)["state"])
    until(lambda: site.status(job)["nodes"][0]["state"] == "failed", 60, pause=1)
    print("after", time.time() - t, json.dumps(site.status(job))[:700])
    lab[1].boot()
    print("boot", json.dumps(site.status(job))[:900])
    k = site("kill", job, "--json")
    print("KILL", k.rc, k.stdout)
    print("boot", json.dumps(site.status(job)["cause"]))


def test_sshd_restart_and_nproc(site, lab):
    site.only(0)
    job = site.job("sshd", SLEEP)
    run = site.up(job)
    wait_for_ranks(lab.hosts[:1], run["run"])
    lab[0].restart_sshd()
    time.sleep(2)
    print("SSHD", site.status(job)["state"])
    site("kill", job).ok()
    lab[0].add_user("poor")
    lab[0].run("printf 'ulimit -u 6\\n' > ~poor/.bashrc")
    site.hosts[0]["user"] = "poor"
    job = site.job("poor", SLEEP, nproc_per_node=4)
    up = site("up", "--job", job, "--skip-preflight", timeout=120)
    print("NPROC", up.rc, up.stdout[-500:], up.stderr[-900:])
    print([p.argv[:3] for p in running(lab[0])])
