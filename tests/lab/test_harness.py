"""The laboratory does what it says: whoever tests with it relies on that."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab import Host, Lab, LabError, claim
from tests.lab.disk import CHECKOUT
from tests.lab.process import call

UNREACHABLE = "timed out|No route to host|unreachable"
LISTEN = """
import socket, sys
listener = socket.create_server(("", int(sys.argv[1])))
print("listening", flush=True)
while True:
    taken, _ = listener.accept()
    taken.sendall(b"x" * int(sys.argv[2]))
    taken.close()
"""
FETCH = """
import socket, sys, time
began = time.monotonic()
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[3])) as link:
        size = 0
        while data := link.recv(65536):
            size += len(data)
    print("got", size, time.monotonic() - began)
except OSError as error:
    print(type(error).__name__, 0, time.monotonic() - began)
"""


def serve(host: Host, port: int, size: int = 1) -> None:
    """Listen, and hand out so many bytes to each that comes, until the host is healed."""
    server = host.popen(["/usr/bin/python3", "-c", LISTEN, str(port), str(size)])
    assert server.stdout
    assert server.stdout.readline() == "listening\n"


def fetch(host: Host, peer: Host, port: int, timeout: float = 1) -> tuple[str, int, float]:
    """What became of a download from the peer: the word, the size and the seconds."""
    argv = ["/usr/bin/python3", "-c", FETCH, peer.fabric_address, str(port), str(timeout)]
    word, size, seconds = host.run(argv).stdout.split()
    return word, int(size), float(seconds)


def banner(host: Host) -> bytes:
    """The first bytes that its port 22 says within a third of a second, having accepted."""
    with socket.create_connection((host.address, 22), timeout=1) as link:
        link.settimeout(0.3)
        try:
            return link.recv(8)
        except TimeoutError:
            return b""


@pytest.fixture
def served(lab3: Lab) -> Lab:
    """A listener on node1 that hands out 300 KB to each that comes."""
    serve(lab3[1], 29500, 300_000)
    return lab3


# -- hosts ---------------------------------------------------------------------------------------------------------


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
        sleeper.wait(10)
    assert lab3[1].processes() == []


def test_orphans_are_reaped_by_the_init(lab3: Lab) -> None:
    lab3[0].run("(setsid sleep 0.05 &) ; sleep 0.2")
    assert lab3[0].processes() == []


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


# -- power ---------------------------------------------------------------------------------------------------------


def test_power_loss_is_silent(served: Lab) -> None:
    """The peer of an open connection hears no goodbye: that is what tells a dead host from a stopped one."""
    with socket.create_connection((served[1].address, 22), timeout=5) as link:
        assert link.recv(4) == b"SSH-"
        while link.recv(4096)[-1:] != b"\n":
            pass
        served[1].power_off()
        link.settimeout(0.5)
        with pytest.raises(TimeoutError):
            link.recv(1)
    assert not served[1].running
    with pytest.raises(LabError, match="power"):
        served[1].run("true")


def test_reboot_keeps_the_disk_and_nothing_else(lab3: Lab) -> None:
    host = lab3[1]
    before = host.boot_id()
    for path in ("/root/kept", "/var/tmp/kept", "/tmp/lost", "/run/lost", "/dev/shm/lost"):
        host.write(path, "x")
    host.drop(port=29500)
    host.reboot()
    assert host.boot_id() != before
    assert host.exists("/root/kept")
    assert host.exists("/var/tmp/kept")
    assert not any(host.exists(path) for path in ("/tmp/lost", "/run/lost", "/dev/shm/lost"))
    assert host.run("nft list ruleset").stdout == ""
    assert lab3.ssh("node1", "echo back").stdout == "back\n"


def test_heal_switches_on_again(lab3: Lab) -> None:
    lab3[2].power_off()
    lab3.heal()
    assert lab3.ssh("node2", "echo back").stdout == "back\n"


# -- network -------------------------------------------------------------------------------------------------------


def test_drop_is_silence_and_reject_is_an_answer(served: Lab) -> None:
    reader, host, _ = served
    assert fetch(reader, host, 29500)[:2] == ("got", 300_000)
    host.drop(port=29500)
    assert fetch(reader, host, 29500)[0] == "TimeoutError"
    host.clear_firewall()
    host.reject(port="29000-29999")
    word, _, seconds = fetch(reader, host, 29500)
    assert word == "ConnectionRefusedError"
    assert seconds < 0.5
    host.clear_firewall()
    assert fetch(reader, host, 29500)[0] == "got"


def test_a_drop_for_one_host_leaves_the_others(served: Lab) -> None:
    served[1].drop(from_=served[0])
    assert fetch(served[0], served[1], 29500)[0] == "TimeoutError"
    assert fetch(served[2], served[1], 29500)[0] == "got"


def test_a_pulled_cable(served: Lab) -> None:
    served[1].cable(False)
    assert served[1].read("/sys/class/net/eth0/carrier").strip() == "0"
    assert fetch(served[0], served[1], 29500)[0] in ("TimeoutError", "OSError")
    served[1].cable(True)
    assert fetch(served[0], served[1], 29500, timeout=5)[0] == "got"


@pytest.mark.parametrize("reader", [0, 1])
def test_a_slow_link_is_slow_both_ways(served: Lab, reader: int) -> None:
    serve(served[0], 29501, 300_000)
    served[1].slow("8mbit")
    assert 0.2 < fetch(served[reader], served[1 - reader], 29500 + reader, timeout=5)[2] < 2
    served[1].full_speed()
    assert fetch(served[reader], served[1 - reader], 29500 + reader)[2] < 0.1


def test_an_mtu_black_hole_takes_the_long_packets_only(served: Lab) -> None:
    served[1].mtu_black_hole(1000)
    serve(served[1], 29502, 500)
    assert fetch(served[0], served[1], 29502)[:2] == ("got", 500)
    assert fetch(served[0], served[1], 29500)[0] == "TimeoutError"
    served.heal()
    assert fetch(served[0], served[1], 22, timeout=0.3)[0] == "TimeoutError"  # the banner came; then it waits for us


def test_port_free_knows_who_listens(served: Lab) -> None:
    assert not served[1].port_free(29500)
    assert served[0].port_free(29500)


def test_a_second_network_among_the_hosts(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(2, fabric=True)
    serve(lab[1], 29500)
    assert lab[1].fabric_address != lab[1].address
    assert fetch(lab[0], lab[1], 29500)[0] == "got"
    with pytest.raises(OSError, match=UNREACHABLE):
        socket.create_connection((lab[1].fabric_address, 29500), timeout=0.3)


def test_hosts_behind_a_jump_host(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(3, jump=True)
    assert lab.ssh("node2", "hostname").stdout == "node2\n"
    with pytest.raises(OSError, match=UNREACHABLE):
        socket.create_connection((lab[2].address, 22), timeout=0.3)


# -- SSH -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hurt", "words"),
    [
        (Host.no_ssh, "Connection refused"),
        (Host.wrong_host_key, "REMOTE HOST IDENTIFICATION HAS CHANGED"),
        (Host.refuse_key, "Permission denied"),
        (lambda host: host.drop(port=22), "timed out"),
    ],
)
def test_what_openssh_says_of_a_host_that_refuses(lab3: Lab, hurt: Callable[[Host], None], words: str) -> None:
    hurt(lab3[1])
    argv = ["ssh", "-F", str(lab3.ssh_config), "-o", "ConnectTimeout=1", "-o", "BatchMode=yes", "node1", "true"]
    done = call(argv, check=False)
    assert done.returncode == 255
    assert words in done.stderr
    lab3.heal()
    assert call(argv).returncode == 0


def test_a_silent_sshd_accepts_and_says_nothing(lab3: Lab) -> None:
    lab3[1].silent_sshd()
    assert banner(lab3[1]) == b""
    lab3.heal()
    assert banner(lab3[1]) == b"SSH-2.0-"


def test_sshd_settings(lab3: Lab) -> None:
    lab3[1].sshd_config("AllowUsers nobody")
    assert lab3.ssh("node1", "true").returncode == 255
    lab3.heal()
    assert lab3.ssh("node1", "true").returncode == 0


def test_a_chatty_profile(lab3: Lab) -> None:
    lab3[0].bashrc("echo hello from the profile")
    assert lab3.ssh("node0", "echo done").stdout == "hello from the profile\ndone\n"


def test_a_home_of_one_s_own(lab3: Lab, tmp_path: Path) -> None:
    home = lab3.home("second")
    argv = ["ssh", "-F", str(home / ".ssh/config"), "node2", "hostname"]
    assert call(argv, env={"HOME": str(home), "PATH": os.environ["PATH"]}).stdout == "node2\n"
    inventory = json.loads(lab3.inventory(tmp_path / "inventory.yaml", jobs={"a": {"script": "x.py"}}).read_text())
    assert inventory["hosts"][1] == {"name": "node1", "address": lab3[1].address}


# -- the machine as a whole -----------------------------------------------------------------------------------------


def test_a_frozen_host_accepts_and_says_nothing(lab3: Lab) -> None:
    lab3[1].freeze()
    assert banner(lab3[1]) == b""
    lab3.heal()
    assert banner(lab3[1]) == b"SSH-2.0-"


def test_a_frozen_host_loses_power(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(1)
    lab[0].freeze()
    lab[0].reboot()
    assert banner(lab[0]) == b"SSH-2.0-"


def test_who_takes_too_much_memory_is_killed(lab3: Lab) -> None:
    lab3[1].memory_limit("100M")
    taker = "/usr/bin/python3 -c 'print(len(bytearray(%d << 20)))'; exit $?"
    assert lab3.ssh("node1", taker % 50).stdout == f"{50 << 20}\n"
    assert lab3.ssh("node1", taker % 200).returncode == 128 + signal.SIGKILL
    lab3.heal()
    assert lab3.ssh("node1", taker % 200).returncode == 0


def test_a_pid_is_used_again(lab3: Lab) -> None:
    lab3[1].next_pid(4321)
    assert lab3[1].run("echo $$").stdout in ("4321\n", "4322\n", "4323\n")


# -- disk and programs ---------------------------------------------------------------------------------------------


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


# -- the lab itself ------------------------------------------------------------------------------------------------


def test_labs_side_by_side_do_not_meet(make_lab: Callable[..., Lab]) -> None:
    first, second = make_lab(2), make_lab(2)
    assert {host.address for host in first}.isdisjoint(host.address for host in second)
    serve(second[0], 29500)
    word, _, _ = fetch(first[0], second[0], 29500, timeout=0.5)
    assert word in ("OSError", "TimeoutError")
    assert first.ssh("node0", "hostname").stdout == second.ssh("node0", "hostname").stdout


def traces(number: int) -> list[str]:
    """Whatever there is on this machine of a lab: processes, devices, mounts, control groups, files."""
    folder, device = str(claim.ROOT / str(number)), f"ddplab{number}"
    found = [f"mount {line}" for line in Path("/proc/self/mountinfo").read_text().splitlines() if folder + " " in line]
    found += [f"device {entry.name}" for entry in Path("/sys/class/net").iterdir() if entry.name == device]
    found += [f"file {path}" for path in claim.ROOT.glob(f"{number}*")]
    found += [f"route {line}" for line in call(["ip", "route"]).stdout.splitlines() if f"10.78.{number}." in line]
    found += [f"group {path}" for path in Path("/sys/fs/cgroup").glob(f"*/{device}")]
    found += [f"group {path}" for path in Path("/sys/fs/cgroup").glob(device)]
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "environ").read_bytes() + (entry / "cmdline").read_bytes()
            inside = os.readlink(entry / "ns/net")
        except OSError:
            continue
        if f"{folder}/".encode() in words:
            found.append(f"process {entry.name} {inside}")
    return found


def test_nothing_is_left_of_a_lab() -> None:
    with Lab(3, fabric=True) as lab:
        number = lab.claim.number
        lab[0].popen("sleep 60")
        lab[1].power_off()
        namespaces = {os.readlink(f"/proc/{host.init.pid}/ns/net") for host in lab if host.init}
        assert len(traces(number)) > 5
    assert traces(number) == []
    assert not namespaces & {_namespace(entry) for entry in Path("/proc").glob("[0-9]*")}


def _namespace(process: Path) -> str:
    try:
        return os.readlink(process / "ns/net")
    except OSError:
        return ""


def test_the_next_lab_sweeps_up_after_a_killed_owner() -> None:
    code = "from tests.lab import Lab; import time; lab = Lab(2); print(lab.claim.number, flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code], cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        number = int(owner.stdout.readline())
        assert len(traces(number)) > 5
        with Lab(1) as beside:  # the owner lives: its lab is left alone
            assert beside.claim.number != number
            assert len(traces(number)) > 5
        owner.send_signal(signal.SIGKILL)
    assert len(traces(number)) > 5
    claim.sweep()
    assert traces(number) == []


def test_by_hand_from_a_shell() -> None:
    lab = [sys.executable, "-m", "tests.lab"]
    folder = subprocess.run(
        [*lab, "up", "2"], cwd=CHECKOUT, check=True, text=True, stdout=subprocess.PIPE
    ).stdout.strip()
    try:
        assert call([*lab, "enter", folder, "node1", "hostname"]).stdout == "node1\n"
        assert call(["ssh", "-F", f"{folder}/ssh_config", "node0", "hostname"]).stdout == "node0\n"
        assert folder in call([*lab, "list"]).stdout.split()
    finally:
        call([*lab, "down", folder])
    assert traces(int(Path(folder).name)) == []
