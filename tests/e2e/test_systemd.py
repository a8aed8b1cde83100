"""Hosts whose first process is systemd: why a run ended with its login or its machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeLab
from tests.e2e.programs import SLEEP
from tests.e2e.site import Site, assert_nothing_runs, named, until, wait_for_gang, wait_for_ranks
from tests.lab import Lab, SystemdHost
from tests.lab.command import Ddpctl

USER = "alice"
RUNS = f"/home/{USER}/.local/state/ddpctl/runs"
Event = Callable[[SystemdHost], None]


@pytest.fixture(scope="module")
def two(make_module_lab: MakeLab) -> Lab:
    """Two hosts with a user who may do nothing as root."""
    lab = make_module_lab(2, systemd=True)
    for host in lab:
        host.add_user(USER)
    return lab


@pytest.fixture
def place(two: Lab, ddpctl: Ddpctl, tmp_path: Path, stand_in: str) -> Site:
    site = Site(two, ddpctl, tmp_path / "site", stand_in)
    site.keys["defaults"]["user"] = USER
    return site


def systemd_hosts(site: Site) -> list[SystemdHost]:
    return [host for host in site.lab if isinstance(host, SystemdHost)]


def unit_of_run(host: SystemdHost) -> str:
    """The unit of the supervisor, such as `session-3.scope`."""
    supervisor = named(host, "ddpctl-super")
    assert supervisor is not None
    return host.unit_of(supervisor.pid).rpartition("/")[2]


def end_session(host: SystemdHost) -> None:
    session = unit_of_run(host).removeprefix("session-").removesuffix(".scope")
    host.run(["loginctl", "kill-session", session])


def stop_slice(host: SystemdHost) -> None:
    host.run(f"systemctl stop user-$(id -u {USER}).slice")


def power_off(host: SystemdHost) -> None:
    host.run(["systemctl", "poweroff"])
    host.boot_again()


def reboot(host: SystemdHost) -> None:
    host.run(["systemctl", "reboot"])
    host.boot_again()


def cause_after(site: Site, job: str, event: Event) -> tuple[str, str]:
    """Return the reason of the failure, and the text of `ddpctl status`, after a run that the event has ended."""
    run = site.up(job)["run"]
    wait_for_ranks(site.lab, run)
    wait_for_gang(site.lab.hosts, run, RUNS)
    event(systemd_hosts(site)[0])
    ended = site.wait_for_state(run, "failed")
    assert ended["cause"]["host"] == "node0"
    text = site("status", run).stdout
    site("kill", run).ok()
    assert_nothing_runs(site.lab)
    return str(ended["cause"]["reason"]), " ".join(text.split())


def assert_causes(site: Site, events: list[tuple[Event, str, str]]) -> None:
    job = site.job("sleeps", SLEEP)
    for event, reason, words in events:
        found = cause_after(site, job, event)
        assert found[0] == reason, found
        assert words in found[1], found


def test_the_end_of_a_login_and_of_a_machine_is_the_cause(place: Site) -> None:
    """systemd signals launcher, ranks and supervisor at the same time, and none of their deaths is the cause."""
    login = "node0: session_ended: systemd ended the login that the run was in (session-"
    machine = "node0: machine_shutdown: the machine is shutting down: systemd ended all processes"
    assert_causes(place, [(end_session, "session_ended", login), (reboot, "machine_shutdown", machine)])


@pytest.mark.full(covered_by="tests/e2e/test_systemd.py::test_the_end_of_a_login_and_of_a_machine_is_the_cause")
def test_other_ends_of_a_login_and_of_a_machine(place: Site) -> None:
    login = "node0: session_ended: systemd ended the login that the run was in (session-"
    machine = "node0: machine_shutdown: the machine is shutting down: systemd ended all processes"
    assert_causes(place, [(stop_slice, "session_ended", login), (power_off, "machine_shutdown", machine)])


def test_a_login_that_ends_its_processes(place: Site) -> None:
    """KillUserProcesses=yes, where the user cannot linger: preflight refuses, and a start all the same says why the run
    ends a moment later."""
    for host in systemd_hosts(place):
        host.run(["systemctl", "mask", "--runtime", "--now", "polkit"])
        host.logind("KillUserProcesses=yes")
    job = place.job("sleeps", SLEEP)
    refused = place("up", "--job", job, "-d")
    assert refused.rc == 3
    assert "login.kill" in refused.stdout + refused.stderr

    run = place.up(job, "--skip", "login.kill")["run"]
    ended = place.wait_for_state(run, "failed")
    assert ended["cause"]["reason"] == "session_ended"
    assert "KillUserProcesses=yes" in ended["cause"]["message"]
    assert_nothing_runs(place.lab)
    for host in systemd_hosts(place):
        host.run(["systemctl", "unmask", "--runtime", "polkit"])
        host.logind("KillUserProcesses=no")


def lasts(host: SystemdHost, run: str) -> bool:
    """Whether the run is in a unit of its own, and no session of its user is left."""
    sessions = host.run(["loginctl", "list-sessions", "--no-legend"]).stdout
    return USER not in sessions and unit_of_run(host) == f"ddpctl-{run}.{host.name}.scope"


def count_processes_of_run(host: SystemdHost, run: str) -> int:
    """Count by the groups of the run: a look at /proc misses processes that move."""
    groups = ["find", "/sys/fs/cgroup", "-path", f"*/ddpctl-{run}.*", "-name", "cgroup.procs"]
    return len(host.run([*groups, "-exec", "cat", "{}", "+"]).stdout.split())


def groups_of_runs(host: SystemdHost) -> str:
    return host.run(["find", "/sys/fs/cgroup", "-name", "ddpctl-*"], check=False).stdout


def journal(host: SystemdHost) -> str:
    """What runs have written to the journal of the host."""
    return host.run(["journalctl", "-t", "ddpctl", "-o", "cat"]).stdout


# The children of the rank move: none of them keeps its pid, its parent or its session for 20 ms, and none has the
# environment of the run.
STORM = """\
import os, resource, subprocess, sys, time
MOVES = '''
import os, signal, time
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
while True:
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    time.sleep(0.02)
'''
for _ in range(6):
    subprocess.Popen([sys.executable, "-S", "-E", "-c", MOVES], env={})
print("files", resource.getrlimit(resource.RLIMIT_NOFILE)[1], flush=True)
while True:
    time.sleep(0.2)
"""

SAVES = """\
import os, signal, time
asked = []
signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))
folder = os.environ["DDPCTL_CHECKPOINT_DIR"]
print("saved before:", sorted(name for name in os.listdir(folder) if name.startswith("step_")), flush=True)
while True:
    time.sleep(0.1)
    if asked:
        asked.clear()
        with open(os.path.join(folder, ".aside"), "w") as file:
            file.write("weights")
        os.replace(os.path.join(folder, ".aside"), os.path.join(folder, "step_000007"))
"""


@pytest.fixture
def ending(place: Site) -> Iterator[Site]:
    """Hosts where the login ends its processes, with few open files for the user."""
    for host in systemd_hosts(place):
        host.write("/etc/security/limits.d/lab.conf", f"{USER} hard nofile 700\n{USER} soft nofile 600\n")
        host.logind("KillUserProcesses=yes")
    yield place
    for host in systemd_hosts(place):
        host.run("rm -f /etc/security/limits.d/lab.conf")
        host.logind("KillUserProcesses=no")
        host.run(["loginctl", "disable-linger", USER])


def test_a_run_outlives_the_login_that_ends_its_processes(ending: Site) -> None:
    """The run has a unit of its own, with the limits of the login, and a kill ends what no look at /proc can follow."""
    site, hosts = ending, systemd_hosts(ending)
    job = site.job("storm", STORM)
    checked = site("preflight", "--only", "login").ok()
    assert f"the start turns lingering on for {USER}" in " ".join(checked.stdout.split())
    run = site.up(job)["run"]
    site.wait_for_output(job, "(files 700.*){2}")
    for host in hosts:
        until(lambda host=host: lasts(host, run), 30, f"a session is left on {host.name}")  # type: ignore[misc]
    assert site.status(run)["state"] == "running"
    until(lambda: count_processes_of_run(hosts[0], run) > 6, 30, "the storm has ended by itself")
    killed = site("kill", job, "--grace", "1", "--json").ok().json()
    assert [node["survivors"] for node in killed["nodes"]] == [[], []]
    assert_nothing_runs(site.lab)
    said = f"run {run} of job storm starts\nrun {run} of job storm ended: killed, killed_by_user\n"
    for host in hosts:  # systemd removes the unit, and writes its journal, a moment later
        until(lambda host=host: not groups_of_runs(host), 30, f"a unit is left on {host.name}")  # type: ignore[misc]
        until(lambda host=host: said in journal(host), 30, f"{host.name}: no {said}")  # type: ignore[misc]


def test_the_ranks_save_before_the_machine_shuts_down(ending: Site) -> None:
    site, host = ending, systemd_hosts(ending)[0]
    job = site.job("saves", SAVES, timeouts={"stop": 5})
    run = site.up(job)["run"]
    site.wait_for_output(job, r"(saved before: \[\].*){2}")
    wait_for_gang(site.lab.hosts, run, RUNS)
    reboot(host)
    ended = site.wait_for_state(run, "failed")
    assert (ended["cause"]["host"], ended["cause"]["reason"]) == ("node0", "machine_shutdown")
    assert "the machine is shutting down: systemd stopped the run" in " ".join(site("status", run).stdout.split())
    site("restart", job, "-d").ok()
    site.wait_for_output(job, r"(saved before: \['step_000007'\].*){2}")
    site("kill", job).ok()
    assert_nothing_runs(site.lab)


@pytest.mark.full(covered_by="tests/worker/record/test_loss.py::test_the_end_of_a_systemd_takes_its_units_along")
def test_the_end_of_the_user_s_own_systemd_is_named(ending: Site) -> None:
    site, host = ending.only(0), systemd_hosts(ending)[0]
    run = site.up(site.job("sleeps", SLEEP))["run"]
    wait_for_ranks([host], run)
    host.run(f"kill -9 $(systemctl show -P MainPID user@$(id -u {USER}))")
    site.wait_for_state(run, "lost")
    said = "node0: supervisor_lost: the user's own systemd (user@"
    assert said in " ".join(site("status", run).stdout.split())
    site("kill", run).ok()
    assert_nothing_runs(site.lab)


# Shared memory that no process has open: logind may remove it at the end of its user's last login.
MEMORY_OF_A_RUN = """\
import ctypes, os, time
made = ctypes.CDLL(None).shmget(4711, 4096, 0o1600)
open("/dev/shm/of-a-run", "w").close()
print("made", flush=True)
while not os.path.exists("/tmp/logged-out"):
    time.sleep(0.1)
print("kept", os.path.exists("/dev/shm/of-a-run"), ctypes.CDLL(None).shmget(4711, 0, 0) == made, flush=True)
while True:
    time.sleep(0.2)
"""


def is_closing(host: SystemdHost) -> bool:
    """Whether the user has logged out, and processes of the last session live on."""
    return "State=closing" in host.run(["loginctl", "show-user", USER], check=False).stdout


@pytest.mark.parametrize("kill", ["no", "yes"])
def test_logind_leaves_the_shared_memory_of_a_run(place: Site, kill: str) -> None:
    site, host = place.only(0), systemd_hosts(place)[0]
    host.run(["rm", "-f", "/tmp/logged-out"])
    host.logind(f"KillUserProcesses={kill}", "RemoveIPC=yes")
    run = site.up(site.job(f"shares-{kill}", MEMORY_OF_A_RUN))["run"]
    site.wait_for_output(run, "made")
    until(lambda: lasts(host, run) if kill == "yes" else is_closing(host), 30, "the user is still logged in")
    host.run(["touch", "/tmp/logged-out"])
    site.wait_for_output(run, "kept True True")
    site("kill", run).ok()
    host.run(["loginctl", "disable-linger", USER])
    until(lambda: not host.exists("/dev/shm/of-a-run"), 60, "logind removes no shared memory")
    host.logind("KillUserProcesses=no")


# While the slice has no room for another process, no command can log in.
GO_ON = f"/home/{USER}/go-on"
WAIT = f"import os, time\nwhile not os.path.exists({GO_ON!r}):\n    time.sleep(0.1)\n"
THREADS = """\
import threading, time
print("threads", flush=True)
while True:
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
"""

CHILDREN = """\
import os, time
print("children", flush=True)
while True:
    if not os.fork():
        time.sleep(600)
"""

MEMORY = """\
kept = []
print("memory", flush=True)
while True:
    kept.append(b"x" * (1 << 20))
"""


@pytest.fixture(scope="module")
def limited_host(make_module_lab: MakeLab) -> Lab:
    lab = make_module_lab(1, systemd=True, limits=True)
    lab[0].add_user(USER)
    return lab


@pytest.fixture
def limited(limited_host: Lab, ddpctl: Ddpctl, tmp_path: Path, stand_in: str) -> Iterator[Site]:
    site = Site(limited_host, ddpctl, tmp_path / "site", stand_in)
    site.keys["defaults"]["user"] = USER
    yield site
    limited_host.heal()


@pytest.mark.parametrize(
    ("program", "limit", "reason", "words"),
    [
        (THREADS, "TasksMax=64", "exited", "can't start new thread ({} allows 64 processes and threads, TasksMax)"),
        (CHILDREN, "TasksMax=64", "exited", "unavailable ({} allows 64 processes and threads, TasksMax)"),
        (
            MEMORY,
            "MemoryMax=500M",
            "oom",
            "the memory limit of {} (500 MB, MemoryMax) was reached, and the kernel killed",
        ),
    ],
    ids=["threads", "children", "memory"],
)
def test_a_limit_of_the_user_s_slice_is_named(limited: Site, program: str, limit: str, reason: str, words: str) -> None:
    host = systemd_hosts(limited)[0]
    user_slice = f"user-{host.run(['id', '-u', USER]).stdout.strip()}.slice"
    host.limit(user_slice, limit)
    found = limited("preflight", "--only", "host.cgroup").ok().stdout
    assert "systemctl set-property" in found
    assert user_slice in found
    run = limited.up(limited.job("reaches", WAIT + program), "--skip-preflight")["run"]
    host.write(GO_ON, "")
    until(lambda: host.exists(f"/home/{USER}/.local/state/ddpctl/runs/{run}/node0/exit.json"), 90, "it does not end")
    host.run(["rm", GO_ON])
    ended = limited.wait_for_state(run, "failed")
    text = " ".join(limited("status", run).stdout.split())
    limited("kill", run).ok()
    assert_nothing_runs([host])
    assert (ended["cause"]["host"], ended["cause"]["rank"], ended["cause"]["reason"]) == ("node0", 0, reason)
    assert words.format(f"control group {user_slice}") in text
