"""Faults of single hosts, injected for real: each gives exactly its finding, on the right host, and the fix works."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from ddpctl.spec.finding import Finding
from tests.e2e.site import until
from tests.lab import Host, Lab
from tests.lab_preflight.preflight import PORT, infos, preflight, run_fix, trouble, where

# All subjects but the network's own, which test_ports and test_links are about.
HOSTS = ("ssh", "host", "login", "env", "python", "torch", "gpu", "ib", "job", "port")
NO_JOB: dict[str, Any] = {"jobs": {}}
TRAIN = {"train": {"script": "/root/train.py", "code": None, "master_port": PORT}}


@pytest.fixture(autouse=True)
def _tidy(lab3: Lab) -> Iterator[None]:
    yield
    lab3.heal()


def found(lab: Lab, **keys: Any) -> tuple[list[Finding], list[Finding]]:
    """(errors and warnings, infos) of every check of hosts; without a job unless ``jobs`` is given."""
    report = preflight(lab, only=HOSTS, **{**NO_JOB, **keys})
    return trouble(report), infos(report)


def one(lab: Lab, check: str, severity: str, host: str | None, **keys: Any) -> Finding:
    """The only thing that is wrong."""
    wrong, quiet = found(lab, **keys)
    assert where(wrong) == [(check, severity, host, None)]
    assert quiet == []
    return wrong[0]


def test_a_hostname_on_loopback_is_harmless_and_said_so(lab3: Lab) -> None:
    lab3[1].hosts_file("127.0.0.1 localhost\n127.0.1.1 node1\n")
    wrong, quiet = found(lab3)
    assert wrong == []
    assert [(finding.check, finding.host) for finding in quiet] == [("host.hostname", "node1")]
    assert "127.0.1.1" in quiet[0].message
    assert "GLOO_SOCKET_IFNAME" in quiet[0].message


def test_a_hostname_on_loopback_is_no_joke_with_c10d(lab3: Lab) -> None:
    lab3[1].hosts_file("127.0.0.1 localhost\n127.0.1.1 node1\n")
    for host in lab3:
        host.write("/root/train.py", "import torch.distributed as dist\ndist.init_process_group()\n")
    jobs = {"train": {**TRAIN["train"], "rendezvous": "c10d"}}
    run_fix(one(lab3, "host.hostname", "warning", "node1", jobs=jobs), lab3[1])
    assert found(lab3, jobs=jobs) == ([], [])


def test_another_torch_on_one_host(lab3: Lab, python113: str) -> None:
    wrong, _ = found(lab3, hosts={"node2": {"python": python113}})
    versions = [finding for finding in wrong if finding.check == "torch.versions" and finding.severity.value == "error"]
    assert [finding.host for finding in versions] == ["node2"]
    assert "node2 has torch 1.13" in versions[0].message
    assert "the other 2 have 2.13.0+cpu" in versions[0].message
    assert "mode: managed" in (versions[0].fix or "")
    assert {(finding.check, finding.host) for finding in wrong} == {("torch.versions", "node2")}


def test_torchvision_of_the_package_index_beside_a_cpu_torch(lab3: Lab, python213: str) -> None:
    wrong, _ = found(lab3, count=1, defaults={"python": python213})
    assert where(wrong) == [("torch.vision", "warning", "node0", None)]
    assert "torchvision::nms does not exist" in wrong[0].message


def test_the_import_is_remembered_until_the_environment_changes(lab3: Lab, stand_in: str) -> None:
    report = [preflight(lab3, only=("torch",), jobs={}) for _ in range(2)]
    assert all(where(trouble(one)) == [] for one in report)
    remembered = lab3[0].read("/root/.local/state/ddpctl/cache/torch_import.node0.json")
    assert stand_in not in remembered  # a fingerprint, no path
    assert '"torch": "2.13.0+cpu"' in remembered


def test_no_python_is_told_from_no_host(lab3: Lab) -> None:
    lab3[1].without_python()
    fault = one(lab3, "python.version", "error", "node1", defaults={"python": "/usr/bin/python3"})
    assert "/usr/bin/python3" in fault.message


def test_tiny_shared_memory(lab3: Lab) -> None:
    lab3[2].small_tmpfs("/dev/shm", "64k", "mode=1777")
    fault = one(lab3, "host.shm", "error", "node2")
    assert "65.5 KB" in fault.message
    run_fix(fault, lab3[2])
    assert found(lab3) == ([], [])


def test_full_disk(lab3: Lab) -> None:
    lab3[1].fill_disk("/srv/full")
    fault = one(lab3, "host.disk", "error", "node1", hosts={"node1": {"base_dir": "/srv/full/ddpctl"}})
    assert "/srv/full" in fault.message


def test_a_disk_that_the_job_finds_too_small(lab3: Lab) -> None:
    lab3[1].small_tmpfs("/srv/small", "300m")
    for host in lab3:
        host.write("/root/train.py", "import torch.distributed as dist\ndist.init_process_group()\n")
    fault = one(
        lab3,
        "host.disk",
        "error",
        "node1",
        hosts={"node1": {"base_dir": "/srv/small/ddpctl"}},
        jobs={"train": {**TRAIN["train"], "requires": {"free_disk_gb": 0.5}}},
    )
    assert "the job needs 0.5 GB" in fault.message


def test_read_only_home(lab3: Lab) -> None:
    lab3[1].small_tmpfs("/srv/home", "1m", "ro")
    fault = one(lab3, "host.base_dir", "error", "node1", hosts={"node1": {"base_dir": "/srv/home/ddpctl"}})
    assert "Read-only file system" in fault.message


def test_a_chatty_profile_is_harmless(lab3: Lab) -> None:
    lab3[1].bashrc("echo Welcome to node1")
    wrong, quiet = found(lab3)
    assert wrong == []
    assert [(finding.check, finding.host) for finding in quiet] == [("login.profile", "node1")]
    assert "Welcome to node1" in quiet[0].message


def test_variables_of_one_profile(lab3: Lab) -> None:
    lab3[1].bashrc("export TORCH_DISTRIBUTED_DEBUG=DETAIL NCCL_SOCKET_IFNAME=docker0 MASTER_ADDR=10.0.0.1")
    wrong, quiet = found(lab3)
    assert where(wrong) == [("env.variables", "warning", "node1", None)]
    assert "TORCH_DISTRIBUTED_DEBUG: 'DETAIL'" in wrong[0].message
    assert [(finding.check, finding.host) for finding in quiet] == [("env.variables", "node1")]
    assert "MASTER_ADDR=10.0.0.1, NCCL_SOCKET_IFNAME=docker0; harmless" in quiet[0].message


def test_after_the_printed_commands_the_preflight_is_clean(lab3: Lab) -> None:
    """Faults of three hosts at once: each command on its host, as it stands, and the next preflight finds nothing."""
    queue, box, limits = lab3
    queue.run("sysctl -qw net.core.somaxconn=1")
    box.small_tmpfs("/tmp", "64m", "mode=1777,noexec")
    limits.write("/etc/security/limits.d/20-site.conf", "root - nofile 1024\nroot - cpu 60\n")
    limits.sshd_config("UsePAM yes")
    wrong, _ = found(lab3)
    expected = [("host.limits", "node2"), ("host.limits", "node2"), ("host.network", "node0"), ("host.tmp", "node1")]
    assert sorted((finding.check, str(finding.host)) for finding in wrong) == expected
    hosts = {host.name: host for host in lab3}
    for finding in wrong:
        run_fix(finding, hosts[str(finding.host)])
    assert found(lab3) == ([], [])
    limits.run("rm /etc/security/limits.d/*")


def test_a_rank_that_outlived_its_launcher(lab3: Lab) -> None:
    rank = "TORCHELASTIC_RUN_ID=none RANK=1 MASTER_PORT=29500 LOCAL_RANK=1"
    lab3[2].run(f"{rank} setsid sh -c 'sleep 4711 >/dev/null 2>&1 & exec true'")
    fault = one(lab3, "job.leftovers", "warning", "node2")
    assert "sleep 4711" in fault.message
    run_fix(fault, lab3[2])
    assert found(lab3) == ([], [])


def test_a_helper_of_a_live_job_is_left_alone(lab3: Lab) -> None:
    """It is a child of init by now, as every daemon; its rank and the launcher live."""
    rank = "export TORCHELASTIC_RUN_ID=none RANK=1 MASTER_ADDR=node0 MASTER_PORT=29500;"
    helper = "setsid sh -c 'sleep 4712 >/dev/null 2>&1 & exec true';"
    lab3[2].popen(["bash", "-c", f'exec -a torchrun bash -c "({rank} {helper} exec sleep 4713) & wait"'])
    until(lambda: len(infos(preflight(lab3, only=("job",), **NO_JOB))) == 1)
    wrong, quiet = found(lab3)
    assert wrong == []
    assert "a job of torchrun is running here too" in quiet[0].message
    assert len(quiet[0].evidence["processes"]) == 2


def test_the_master_port_is_taken_and_by_whom(lab3: Lab) -> None:
    for host in lab3:
        host.write("/root/train.py", "import torch.distributed as dist\ndist.init_process_group()\n")
    _listen(lab3[0])
    fault = one(lab3, "port.master", "error", "node0", jobs=TRAIN)
    assert f"port {PORT} is taken by pid " in fault.message
    assert "socket.create_server" in fault.message
    lab3[0].run(fault.command or "")
    _wait_free(lab3[0])
    assert found(lab3, jobs=TRAIN) == ([], [])


def test_a_script_that_is_missing_or_another_one(lab3: Lab) -> None:
    text = "import torch.distributed as dist\ndist.init_process_group()\n"
    for host in lab3:
        host.write("/root/train.py", text)
    assert found(lab3, jobs=TRAIN) == ([], [])
    lab3[1].write("/root/train.py", text + "# an older version\n")
    one(lab3, "job.script", "error", "node1", jobs=TRAIN)
    lab3[1].run("rm /root/train.py")
    assert "is not there" in one(lab3, "job.script", "error", "node1", jobs=TRAIN).message


def test_how_a_script_on_the_nodes_wants_its_local_rank(lab3: Lab) -> None:
    text = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--local_rank', type=int)\n"
    for host in lab3:
        host.write("/root/train.py", text)
    report = preflight(lab3, only=("job",), jobs=TRAIN)
    assert where(trouble(report)) == []
    assert [finding.check for finding in infos(report)] == ["job.script"]
    assert {report.facts.node(host.name).local_rank_arg for host in lab3} == {"--local_rank"}


def test_data_that_is_missing(lab3: Lab) -> None:
    for host in lab3:
        host.write("/root/train.py", "import torch.distributed as dist\ndist.init_process_group()\n")
        host.run("mkdir -p /srv/data && echo x > /srv/data/a")
    jobs = {"train": {**TRAIN["train"], "requires": {"data": ["/srv/data"]}}}
    assert found(lab3, jobs=jobs) == ([], [])
    lab3[2].run("echo y > /srv/data/b")
    one(lab3, "job.data", "warning", "node2", jobs=jobs)
    lab3[2].run("rm -r /srv/data")
    one(lab3, "job.data", "error", "node2", jobs=jobs)


def _listen(host: Host) -> None:
    """On the loopback address alone: the port is taken all the same."""
    program = f"import socket, time; s = socket.create_server(('127.0.0.1', {PORT})); time.sleep(600)"
    host.popen(["/usr/bin/python3", "-c", program])
    for _ in range(1200):
        if not host.port_free(PORT):
            return
        time.sleep(0.05)
    raise AssertionError("nobody listens")


def _wait_free(host: Host) -> None:
    for _ in range(1200):
        if host.port_free(PORT):
            return
        time.sleep(0.05)
    raise AssertionError("the port is still taken")
