"""A host of the lab, by itself and among other hosts."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab import Lab, LabError
from tests.lab.disk import CHECKOUT
from tests.lab.process import call

# -- hosts --------------------------------------------------------------------------------------------------------


def test_openssh_reaches_every_host(lab3: Lab) -> None:
    for host in lab3:
        assert lab3.ssh(host.name, "hostname; id -un").stdout == f"{host.name}\nroot\n"


def test_hosts_reach_each_other_by_name(lab3: Lab) -> None:
    assert lab3[0].run("exec 3<>/dev/tcp/node2/22; head -c 8 <&3").stdout == "SSH-2.0-"


def test_a_host_sees_nothing_of_this_machine_but_its_programs(lab3: Lab, tmp_path: Path) -> None:
    (tmp_path / "here").touch()
    host = lab3[0]
    assert host.run("ls -A /root /home /tmp /var/tmp").stdout.split() == [
        "/home:",
        "/root:",
        ".ssh",
        "/tmp:",
        "/var/tmp:",
    ]
    assert not host.exists(str(CHECKOUT / "pyproject.toml"))
    assert not host.exists(str(tmp_path / "here"))
    assert not host.exists(str(lab3.folder))
    assert not host.exists(sys.prefix) or not Path(sys.prefix).is_relative_to(CHECKOUT)
    assert [process.argv for process in host.processes()] == []


def test_what_a_host_writes_stays_its_own(lab3: Lab) -> None:
    lab3[0].write("/opt/mine", "text", mode=0o600)
    assert lab3[0].read("/opt/mine") == "text"
    assert lab3[0].run("stat -c %a /opt/mine").stdout == "600\n"
    assert not lab3[1].exists("/opt/mine")
    assert not Path("/opt/mine").exists()


def test_processes_are_read_from_the_host_s_proc(lab3: Lab) -> None:
    with lab3[1].popen(
        ["/usr/bin/python3", "-c", "import time; time.sleep(60)", "a b", ""], env={"WORD": "x=y"}
    ) as sleeper:
        while not (found := lab3[1].processes()):
            time.sleep(0.01)
        assert found[0].argv[-2:] == ("a b", "")
        assert found[0].environ["WORD"] == "x=y"
        assert lab3[1].run(["cat", f"/proc/{found[0].pid}/stat"]).stdout.split()[21] == str(found[0].start)
        assert lab3[0].processes() == []
        lab3.heal()
        sleeper.wait(60)
    assert lab3[1].processes() == []


def test_orphans_are_reaped_by_the_init(lab3: Lab) -> None:
    lab3[0].run("(setsid sleep 0.05 &)")
    deadline = time.monotonic() + 60
    while left := lab3[0].processes():
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_a_second_user_logs_in(lab3: Lab) -> None:
    lab3[0].add_user("train")
    assert (
        call(["ssh", "-F", str(lab3.ssh_config), "-l", "train", "node0", "id -un; pwd"]).stdout
        == "train\n/home/train\n"
    )


def test_a_failing_command_is_an_error_with_its_words(lab3: Lab) -> None:
    with pytest.raises(LabError, match="no such thing"):
        lab3[0].run("echo no such thing >&2; exit 3")
    assert lab3[0].run("exit 3", check=False).returncode == 3


# -- disk and programs --------------------------------------------------------------------------------------------


def test_a_full_disk(lab3: Lab) -> None:
    lab3[0].fill_disk("/data")
    assert "No space left on device" in lab3[0].run("echo x > /data/more", check=False).stderr
    lab3.heal()
    assert lab3[0].run("echo x > /data/more").returncode == 0


def test_without_python(lab3: Lab) -> None:
    lab3[0].without_python()
    assert lab3.ssh("node0", "python3 --version").returncode == 127
    lab3.heal()
    assert lab3.ssh("node0", "python3 --version").returncode == 0


def test_etc_hosts(lab3: Lab) -> None:
    lab3[0].hosts_file("127.0.1.1 node0\n")
    assert lab3[0].run("getent hosts node0").stdout.split() == ["127.0.1.1", "node0"]
    assert lab3[0].run("getent hosts node1", check=False).returncode == 2


def test_interpreters_are_on_every_host(lab3: Lab, python113: str, python213: str) -> None:
    find = "from importlib.metadata import version; print(version('torch'))"
    assert lab3[0].run([python113, "-c", find]).stdout.startswith("1.13")
    assert lab3[1].run([python213, "-c", find]).stdout.startswith("2.13.0")


def test_interpreters_in_a_hidden_place_are_shown(
    make_lab: Callable[..., Lab], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").write_text("text")
    monkeypatch.setenv("DDPCTL_LAB_CACHE", str(tmp_path))
    host = make_lab(1)[0]
    assert host.read(f"{tmp_path}/torch") == "text"
    assert "Read-only" in host.run(f"echo x > {tmp_path}/torch", check=False).stderr
    host.reboot()
    assert host.exists(f"{tmp_path}/torch")
