"""`ddpctl init` on real hosts: from an empty home to the first all-reduce, with and without a terminal."""

from __future__ import annotations

import re
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from ddpctl.files.inventory import load_inventory
from tests.conftest import MakeLab
from tests.e2e.site import Site
from tests.files.foreign.samples import ACCELERATE
from tests.lab import Host, Lab
from tests.lab.command import COLUMNS, PATH, PROGRAM, ROWS, Ddpctl, Done
from tests.lab.process import call
from tests.test_package import ROOT, UV, run, variables

# The ranks meet; the stand-in for torch is enough for that.
MEET = """\
import torch.distributed as dist

if __name__ == "__main__":
    dist.init_process_group("gloo")
    told = [None] * dist.get_world_size()
    dist.all_gather_object(told, dist.get_rank() + 1)
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: sum {sum(told)}")
    dist.destroy_process_group()
"""
PRINT_MASTER = "import os\nprint('master', os.environ['MASTER_ADDR'])\n"
REDUCE = """\
import torch
import torch.distributed as dist

if __name__ == "__main__":
    dist.init_process_group("gloo")
    one = torch.ones(1) * (dist.get_rank() + 1)
    dist.all_reduce(one)
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}: sum {one.item():g} torch {torch.__version__}")
    dist.destroy_process_group()
"""
SUM = r"rank \d of 2: sum 3"
AGAIN = 8  # a signal can come too late so many times in a row


def lay_cable(one: Host, other: Host, network: str) -> None:
    """Give two hosts a network of their own: `network` is the first three bytes of its addresses."""
    assert one.init is not None
    assert other.init is not None
    ends = {one: f"to-{other.name}", other: f"to-{one.name}"}
    pair = ["type", "veth", "peer", "name", ends[other], "netns", str(other.init.pid)]
    call(["ip", "link", "add", "name", ends[one], "netns", str(one.init.pid), *pair])
    for number, (host, interface) in enumerate(ends.items(), start=1):
        host.run(f"ip addr add {network}.{number}/24 dev {interface} && ip link set {interface} up")


def masters(done: Done) -> set[str]:
    """Return the values of MASTER_ADDR that the ranks have printed, in a line for each rank or folded."""
    return set(re.findall(r"\| master (\S+)$", done.stdout, re.MULTILINE))


class Desk:
    """A person's machine: a home with nothing but a key in it, and a folder with a training script."""

    def __init__(self, lab: Lab, folder: Path, ddpctl: Ddpctl) -> None:
        self.lab, self.ddpctl = lab, ddpctl
        self.home, self.code = folder / "home", folder / "code"
        (self.home / ".ssh").mkdir(parents=True, mode=0o700)
        shutil.copy2(lab.key, self.home / ".ssh" / "id_ed25519")
        self.code.mkdir()
        (self.code / "train.py").write_text(MEET)

    @property
    def inventory(self) -> Path:
        return self.code / "inventory.yaml"

    def __call__(self, *args: str, timeout: float = 120) -> Done:
        return self.ddpctl(*args, home=self.home, cwd=self.code, timeout=timeout)

    def at_terminal(
        self, *args: str, program: Path = PROGRAM, more: dict[str, str] | None = None
    ) -> pexpect.spawn[str]:
        env = {"PATH": PATH, "HOME": str(self.home), "LANG": "C.UTF-8", "USER": "root", "LOGNAME": "root"}
        size, place = (ROWS, COLUMNS), str(self.code)
        env["TERM"] = "xterm-256color"
        return pexpect.spawn(
            str(program),
            list(args),
            env={**env, **(more or {})},
            cwd=place,
            timeout=120,
            dimensions=size,
            encoding="utf-8",
        )

    def ssh_config(self, text: str = "") -> None:
        hosts = "".join(f"Host {host.name}\n  HostName {host.address}\n  User root\n" for host in self.lab)
        (self.home / ".ssh" / "config").write_text(hosts + text)


@pytest.fixture
def desk(site: Site, tmp_path: Path) -> Iterator[Desk]:
    """On the hosts torch is in ~/venv."""
    yield from at_a_desk(site, tmp_path)


@pytest.fixture
def torch_desk(torch_site: Site, tmp_path: Path) -> Iterator[Desk]:
    """The same with the real torch, for a real all-reduce."""
    for desk in at_a_desk(torch_site, tmp_path):
        (desk.code / "train.py").write_text(REDUCE)
        yield desk


def at_a_desk(site: Site, folder: Path) -> Iterator[Desk]:
    hosts = site.lab.hosts[:2]
    for host in hosts:
        host.run(["ln", "-sfn", str(Path(site.python).parents[1]), "/root/venv"])
    yield Desk(site.lab, folder, site.ddpctl)
    for host in hosts:
        host.run(["rm", "-f", "/root/venv"])


def end(child: pexpect.spawn[str]) -> int:
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus is not None, child.before
    return int(child.exitstatus)


def choose_torch(child: pexpect.spawn[str]) -> None:
    """Where this machine's system has a torch too, there is a choice; the newest is proposed."""
    if child.expect([r"Which Python[^\n]*\[1\]: ", r"python: torch 2\.13"]) == 0:
        child.sendline("")
        child.expect(r"python: torch 2\.13\S* in ~/venv/bin/python")


def test_at_a_terminal_from_nothing_to_ranks_that_meet(desk: Desk, lab: Lab) -> None:
    init = desk.at_terminal("init")
    init.expect("Hosts .*: ")
    init.sendline("gpu[1-")
    init.expect("brackets")
    init.sendline(f"root@{lab[0].address} {lab[1].address}")
    init.expect(r"SHA256:(?s:.*)add 2 keys\? \[y/N\]: ")
    init.sendline("y")
    choose_torch(init)
    init.expect("wrote inventory.yaml: 2 hosts")
    init.expect("next: ddpctl up\r\n")
    assert end(init) == 0

    inventory = load_inventory(desk.inventory)
    assert inventory.names == (lab[0].address, lab[1].address)
    assert inventory.hosts[0].python == "~/venv/bin/python"
    assert inventory.job().script == "train.py"
    assert "# " in desk.inventory.read_text()

    up = desk.at_terminal("up")
    up.expect(SUM)
    up.expect("succeeded on 2 nodes, world size 2")
    assert end(up) == 0

    again = desk.at_terminal("init")
    again.expect(r"inventory.yaml is there already. Replace it\? \[y/N\]: ")
    again.sendline("")
    again.expect("error: inventory.yaml is there already; it was left as it is")
    assert end(again) == 2


def test_three_commands_from_nothing_to_the_first_all_reduce(torch_desk: Desk, lab: Lab, tmp_path: Path) -> None:
    """Install, init, up. uv's downloads are in its cache."""
    desk = torch_desk
    install = ["tool", "install", "--python", sys.executable]
    run(
        [UV, "build", "--quiet", "--wheel", "--python", sys.executable, "--out-dir", str(tmp_path), str(ROOT)], tmp_path
    )
    wheel = str(next(tmp_path.glob("*.whl")))
    run([UV, *install, "--quiet", wheel], tmp_path)  # fills the cache
    run([UV, "tool", "uninstall", "--quiet", "ddpctl"], tmp_path)
    ddpctl = tmp_path / "bin" / "ddpctl"
    assert not ddpctl.exists()

    uv = desk.at_terminal(*install, wheel, program=Path(UV), more=variables(tmp_path))
    assert end(uv) == 0
    init = desk.at_terminal("init", program=ddpctl)
    init.expect("Hosts .*: ")
    init.sendline(f"root@{lab[0].address} {lab[1].address}")
    init.expect(r"add 2 keys\? \[y/N\]: ")
    init.sendline("y")
    choose_torch(init)
    init.expect("next: ddpctl up\r\n")
    assert end(init) == 0
    up = desk.at_terminal("up", program=ddpctl)
    up.expect(SUM + r" torch 2\.13")
    assert end(up) == 0


def test_without_a_terminal_by_options(desk: Desk, lab: Lab) -> None:
    desk.ssh_config()
    (desk.code / "other.py").write_text(MEET)
    missing = desk("init", "--yes")
    assert (missing.rc, "--host gpu1" in missing.stderr) == (2, True)
    several = desk("init", "--host", "node[0-1]")
    assert (several.rc, "--script FILE" in several.stderr) == (2, True)
    keys = desk("init", "--host", "node[0-1]", "--script", "other.py")
    assert keys.rc == 2
    assert "then add --yes" in keys.stderr
    assert "SHA256:" in keys.stdout
    assert not desk.inventory.exists()

    words = ("--cluster", "desk", "--python", "~/venv/bin/python", "--yes")
    line = ("--", "torchrun", "--nnodes=2", "--nproc_per_node=1", "other.py", "--lr", "0.1")
    done = desk("init", "--host", "node0", "--host", "node1", "--job", "first", *words, *line).ok()
    assert "all checks passed" in done.stdout or "warning" in done.stdout
    inventory = load_inventory(desk.inventory)
    assert (inventory.cluster, inventory.names) == ("desk", ("node0", "node1"))
    job = inventory.job("first")
    assert (job.script, job.args, job.nproc_per_node) == ("other.py", ("--lr", "0.1"), 1)
    up = desk("up").ok()
    assert re.search(SUM, up.stdout)

    before = desk.inventory.read_text()
    refused = desk("init", "--host", "node0", "--yes")
    assert (refused.rc, "-i FILE" in refused.stderr) == (2, True)
    assert desk.inventory.read_text() == before


def test_a_host_that_is_down_is_left_out_only_when_confirmed(desk: Desk, lab: Lab) -> None:
    desk.ssh_config()
    lab[1].reject(port=22)
    refused = desk("init", "--host", "node[0-1]", "--yes")
    assert refused.rc == 4
    assert "node1" in refused.stderr
    assert "refuses the connection" in refused.stderr
    assert not desk.inventory.exists()

    init = desk.at_terminal("init", "--python", "~/venv/bin/python")
    init.expect("1  node0\r\n")
    init.expect("Hosts .*: ")
    init.sendline("1-2")
    init.expect(r"node1: [^\n]*refuses(?s:.*)Leave node1 out\? \[y/N\]: ")
    init.sendline("y")
    init.expect("wrote inventory.yaml: 1 host\r\n")
    assert end(init) == 0
    assert load_inventory(desk.inventory).names == ("node0",)


def test_ctrl_c_leaves_no_file(desk: Desk) -> None:
    desk.ssh_config()
    words = ("init", "--host", "node[0-1]", "--python", "~/venv/bin/python")
    init = desk.at_terminal(*words)
    init.expect(r"add \d keys?\? \[y/N\]: ")
    init.sendline("y")
    for _ in range(AGAIN):
        init.expect("preflight")
        init.kill(signal.SIGINT)
        if init.expect(["interrupted", pexpect.EOF]) == 0:
            break
        desk.inventory.unlink()  # the preflight had ended before the signal came
        init = desk.at_terminal(*words)
    assert end(init) == 130
    assert [path.name for path in desk.code.iterdir()] == ["train.py"]


def test_hosts_that_other_tools_know(desk: Desk, lab: Lab) -> None:
    """Each kind of file, through the command: the inventory has the hosts, and they are fine."""
    desk.ssh_config()
    accelerate = ACCELERATE.replace("192.168.20.1", lab[0].address).replace("num_processes: 8", "num_processes: 2")
    (desk.code / "hostfile").write_text("# two hosts\nnode0 slots=1\nnode1 slots=1\nnode2 slots=1\n")
    (desk.code / "accelerate.yaml").write_text(accelerate)
    deepspeed = ("--", "deepspeed", "--hostfile", "hostfile", "--include", "node0:0@node1", "train.py", "--lr", "1")
    ways: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
        "hostfile": (("--from", "hostfile", "--host", "node[0-1]"), ("node0", "node1")),
        "accelerate": (("--from", "accelerate.yaml", "--host", "node1"), (lab[0].address, "node1")),
        "deepspeed": (deepspeed, ("node0", "node1")),
    }
    for name, (words, names) in ways.items():
        file = desk.code / f"{name}.inventory.yaml"
        done = desk("init", "-i", file.name, "--yes", "--python", "~/venv/bin/python", *words).ok()
        assert f"next: ddpctl up {file.name}" in done.stdout
        inventory = load_inventory(file)
        assert inventory.names == names
        assert inventory.job().script == "train.py"
    assert inventory.hosts[0].env == {"CUDA_VISIBLE_DEVICES": "0"}
    assert inventory.job().args == ("--lr", "1")
    accelerated = load_inventory(desk.code / "accelerate.inventory.yaml").job()
    assert (accelerated.master_port, accelerated.nproc_per_node) == (9898, 1)
    few = desk("init", "-i", "x.yaml", "--yes", "--from", "accelerate.yaml")
    assert (few.rc, "2 hosts and names 1" in few.stderr) == (2, True)


def test_a_red_preflight_is_shown_and_the_file_is_there(desk: Desk, lab: Lab) -> None:
    desk.ssh_config()
    (desk.code / "train.py").write_text("import nothing_of_that_name\n" + MEET)
    done = desk("init", "--host", "node[0-1]", "--python", "~/venv/bin/python", "--yes")
    assert done.rc == 3, done.stderr
    assert "nothing_of_that_name" in done.stdout
    assert "fixes" in done.stdout
    assert load_inventory(desk.inventory).names == ("node0", "node1")


@pytest.mark.parametrize("link_local", [False, True], ids=["network", "link-local"])
def test_the_fast_network_is_found(
    make_lab: MakeLab, tmp_path: Path, site: Site, ddpctl: Ddpctl, link_local: bool
) -> None:
    """SSH comes in over a tunnel, and all hosts share another network: two DGX Sparks have a cable between them."""
    lab = make_lab(2, fabric=True)
    for number, host in enumerate(lab):
        host.run("ip link set eth0 down && ip link set eth0 name tun0 && ip link set tun0 up")
        if link_local:
            host.run(f"ip addr flush dev eth1 && ip addr add 169.254.40.{number + 1}/16 dev eth1 scope link")
    desk = Desk(lab, tmp_path, ddpctl)
    desk.ssh_config()
    done = desk("init", "--host", "node[0-1]", "--python", site.python, "--yes").ok()
    assert "network: eth1" in done.stdout
    assert "all of them have" not in done.stdout, "the second look has nothing to say"
    assert {host.interface for host in load_inventory(desk.inventory).hosts} == {"eth1"}
    if link_local:
        (desk.code / "train.py").write_text(PRINT_MASTER)
        assert masters(desk("up").ok()) == {"169.254.40.1"}


@pytest.mark.full(
    covered_by="tests/spec/test_mesh.py::test_hosts_in_a_ring_of_cables_meet_in_the_network_that_all_share"
)
def test_hosts_in_a_ring_of_cables_meet_in_the_network_that_all_share(
    make_lab: MakeLab, tmp_path: Path, site: Site, ddpctl: Ddpctl
) -> None:
    """Three DGX Sparks without a switch: each two of them have a cable, which is a network of its own."""
    lab = make_lab(3)
    for number, (one, other) in enumerate(((lab[0], lab[1]), (lab[1], lab[2]), (lab[2], lab[0]))):
        lay_cable(one, other, f"192.168.{number}")
    desk = Desk(lab, tmp_path, ddpctl)
    desk.ssh_config()
    desk("init", "--host", "node[0-2]", "--python", site.python, "--yes").ok()
    assert {host.interface for host in load_inventory(desk.inventory).hosts} == {None}
    (desk.code / "train.py").write_text(PRINT_MASTER)
    assert masters(desk("up").ok()) == {lab[0].address}
