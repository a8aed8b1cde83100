"""What ``preflight --fix`` may run: changes on a list, and nothing else whatever it looks like."""

from __future__ import annotations

import pytest

from ddpctl.spec.autofix import Applied, Fix, automatic_fixes, exec_line, may_run
from ddpctl.spec.command import Ran
from ddpctl.spec.finding import Finding, Severity

RUN = [
    "mount -o remount,size=50% /dev/shm",
    "sudo mount -t tmpfs -o size=50%,mode=1777 tmpfs /dev/shm",
    "sudo mount -o remount,nr_inodes=1000000 /srv/small",
    "sudo sysctl -w net.core.somaxconn=4096",
    "sudo nft 'insert rule inet filter input ip saddr { 10.0.0.1, 10.0.0.2 } tcp dport 29500 accept'",
    "nft 'insert rule inet firewall input ip saddr 10.64.8.12/31 tcp dport { 29500-29999, 32768-60999 } accept'",
    "sudo nft 'insert rule inet filter input ip6 saddr fd00::10/124 tcp dport 29500 accept'",
    "sudo iptables -w 5 -I INPUT 1 -p tcp -s 10.0.0.1 -m multiport --dports 29500,32768:60999 -j ACCEPT",
    "sudo ufw prepend allow proto tcp from ::1 to any port 2 && sudo ufw prepend allow out proto tcp to ::1 port 5",
    (
        'sudo firewall-cmd --permanent --zone=public --add-rich-rule=\'rule family="ipv4" source address="10.0.0.1" '
        'port port="1-2" protocol="tcp" accept\' && sudo firewall-cmd --reload'
    ),
    "printf '%s\\n' 'train soft nofile 1048576' | sudo tee /etc/security/limits.d/zz-ddpctl-nofile.conf",
]
LOOK = [
    "du -xh / 2>/dev/null | sort -h | tail -20",
    "ps aux --sort=-rss | head",
    "ls -lhS /dev/shm | head",
    "sudo dmesg -T | grep -i xid",
    "cat /etc/resolv.conf",
    "echo hello",
    "",
]
# An example of each thing that a fix must never touch, in the words of commands on the list where that is possible.
NEVER = [
    "kill -9 4711",
    "sudo usermod -aG render,video train",
    "sudo useradd mallory",
    "echo 'train:x' | sudo chpasswd",
    "echo 'x ALL=(ALL) NOPASSWD: ALL' | sudo tee /etc/sudoers.d/x",
    "printf '%s\\n' 'MaxStartups 100' | sudo tee -a /etc/ssh/sshd_config",
    "sudo systemctl restart sshd",
    "sudo systemctl restart ssh",
    "sudo iptables -P INPUT ACCEPT",
    "sudo iptables -F",
    "sudo iptables -w 5 -I INPUT 1 -p tcp -P x -j ACCEPT",
    "sudo nft 'flush ruleset'",
    "sudo nft 'insert rule inet f input tcp dport 1 accept; drop table x; insert rule inet f x tcp dport 2 accept'",
    "sudo nft 'add chain inet filter input { policy accept ; }'",
    "sudo ufw default allow incoming",
    "sudo ufw disable",
    "sudo firewall-cmd --set-default-zone=trusted",
    "sudo firewall-cmd --permanent --zone=public --set-target=ACCEPT",
    "sudo systemctl stop firewalld",
    "sudo sysctl -w kernel.core_pattern=x",
    "mount -o remount,size=50% /dev/shm; rm -rf /",
    "mount -o remount,size=50% /dev/shm && rm -rf /",
    "mount -o remount,size=50% /dev/shm || reboot",
    "mount -o remount,size=50% /dev/shm & reboot",
    "mount -o remount,size=50% $(reboot)",
    "mount -o remount,size=50% `reboot`",
    "echo x > /etc/hosts",
    "printf x | tee /etc/security/limits.d/zz-ddpctl-nofile.conf /etc/shadow",
    "mount -o remount,rw /\nreboot",
    "mount -o remount,rw '/",
    "sudo sh -c 'mount -o remount,rw /'",
    "sudo -u root reboot",
    "sudo nvidia-smi --gpu-reset -i 0",
    "sudo hostnamectl set-hostname node0",
    # a program from a folder of the login, options that run a program or weaken a mount, rules for everybody
    "sudo /tmp/x/ip link set dev e mtu 1",
    "sudo /tmp/x/nvidia-smi -pm 1",
    "sudo iptables -w 5 -I INPUT 1 -p tcp --modprobe=/tmp/evil -s 10.0.0.1 -m multiport --dports 1 -j ACCEPT",
    "sudo iptables -w 5 -I INPUT 1 -p tcp -s 0.0.0.0/0 -m multiport --dports 1 -j ACCEPT",
    "sudo iptables -w 5 -I INPUT 1 -p tcp -m multiport --dports 1 -j ACCEPT",
    "mount -o remount,suid,dev,exec /tmp",
    "sudo modprobe anything",
    "sudo nft 'insert rule inet filter input tcp dport 29500 accept'",
    "sudo nft 'insert rule inet filter input ip saddr 0.0.0.0/0 tcp dport 29500 accept'",
    "sudo nft 'insert rule inet filter input ip saddr 10.0.0.0/19 tcp dport 29500 accept'",
    "sudo nft 'insert rule inet filter input ip6 saddr fd00::/20 tcp dport 29500 accept'",
    "sudo nft 'insert rule inet filter input ip6 saddr ::/0 tcp dport 29500 accept'",
    "sudo ufw prepend allow proto tcp from any to any port 22",
    "sudo firewall-cmd --permanent --add-rich-rule='rule family=\"ipv4\" accept'",
]


@pytest.mark.parametrize("command", RUN)
def test_a_change_on_the_list_may_run(command: str) -> None:
    assert may_run(command)


@pytest.mark.parametrize("command", [*LOOK, *NEVER])
def test_nothing_else_may(command: str) -> None:
    assert not may_run(command)


def test_the_fixes_of_a_report() -> None:
    shm, ps = "sudo mount -o remount,size=50% /dev/shm", "ps aux"

    def found(check: str, severity: Severity, host: str | None, command: str | None) -> Finding:
        return Finding(check, severity, "message", host, command=command)

    fixes = automatic_fixes(
        [
            found("host.shm", Severity.ERROR, "node0", shm),
            found("host.shm2", Severity.ERROR, "node0", shm),
            found("host.shm", Severity.WARNING, "node1", shm),
            found("host.memory", Severity.WARNING, "node1", ps),
            found("host.shm", Severity.INFO, "node2", shm),
            found("host.shm", Severity.ERROR, None, shm),
            found("host.shm", Severity.ERROR, "node3", None),
        ]
    )
    assert fixes == (Fix("node0", "host.shm", shm), Fix("node1", "host.shm", shm))
    assert all(fix.wants_root for fix in fixes)


def test_a_fix_as_json() -> None:
    fix = Fix("node0", "host.shm", "mount -o remount,rw /")
    told = {"host": "node0", "check": "host.shm", "command": "mount -o remount,rw /"}
    assert Applied(fix, Ran(0, "out\n", "err\n")).to_json() == {**told, "exit_code": 0, "output": "out\nerr\n"}
    late = Applied(fix, Ran(None, error="did not end within 120 s"))
    assert late.to_json() == {**told, "exit_code": None, "output": "did not end within 120 s"}
    assert not fix.wants_root


@pytest.mark.parametrize(
    ("hosts", "command", "line"),
    [
        (["n0"], "kill 4253", "ddpctl exec --host n0 -- sh -c 'kill 4253'"),
        (["n0", "n1", "n2"], "sudo nvidia-smi -pm 1", "ddpctl exec --sudo --host 'n[0-2]' -- nvidia-smi -pm 1"),
        (
            ["n0"],
            "echo '1 a' | sudo tee -a /etc/hosts",
            """ddpctl exec --sudo --host n0 -- sh -c 'echo '"'"'1 a'"'"' | sudo tee -a /etc/hosts'""",
        ),
        (["n0"], "sudo rm /tmp/x*", "ddpctl exec --sudo --host n0 -- sh -c 'sudo rm /tmp/x*'"),
    ],
)
def test_the_line_that_runs_a_command_from_here(hosts: list[str], command: str, line: str) -> None:
    assert exec_line(hosts, command) == line
