"""200 generated configurations, each read by us and by ``ssh -G``: no difference in the keys that ddpctl honours.

The way to the host is the same by both readings.
"""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpctl.errors import UsageError
from ddpctl.spec.inventory import Host, Inventory
from ddpctl.transport.asked_config import AskedConfig
from ddpctl.transport.fleet import routes
from ddpctl.transport.route import ConfigReader, Hop, resolve
from ddpctl.transport.ssh_config import SSHConfig, load

pytestmark = pytest.mark.slow

CONFIGS = 200
NAMES = ("node1", "node2.lab", "gate", "Node1")
LISTS = {"identityfile", "certificatefile"}
COMPARED = (
    "hostname",
    "user",
    "port",
    "identityfile",
    "certificatefile",
    "proxycommand",
    "proxyjump",
    "hostkeyalias",
    "identitiesonly",
    "identityagent",
    "userknownhostsfile",
    "globalknownhostsfile",
    "addressfamily",
    "pubkeyauthentication",
    "passwordauthentication",
    "kbdinteractiveauthentication",
    "preferredauthentications",
)
OPTIONS: dict[str, tuple[str, ...]] = {
    "HostName": ("10.0.0.1", "%h.example.org", "x%%y", '"10.0.0.2"', "'10.0.0.3'", "node1"),
    "User": ("alice", '"bob"', "root", r"dom\\joe", "'c d'"),
    "Port": ("22", "2201", "=2202", "= 2203"),
    "IdentityFile": ("~/.ssh/k1", '"/k/with blank"', "/k/%h.%r", r"/k/a\ b", "'/k/it'", "/k/x#y", "/k/plain # comment"),
    "CertificateFile": ("/c/one-cert.pub", '"/c/two blanks-cert.pub"'),
    "ProxyCommand": ("nc -x ~/px http://p %h %p", "none", "sh -c 'echo \"%h\" # no comment'", "= nc %h %p"),
    "ProxyJump": ("gate", "me@gate", "none", "gate:2200"),
    "HostKeyAlias": ("Real", "'alias one'"),
    "IdentitiesOnly": ("yes", "no"),
    "IdentityAgent": ("/run/agent", "none", "SSH_AUTH_SOCK", '"/run/an agent"'),
    "UserKnownHostsFile": ("/u/one", "/u/one '/u/two'", "none"),  # `ssh -G` prints blanks in names unquoted
    "GlobalKnownHostsFile": ("/g/one /g/two", "/dev/null"),
    "AddressFamily": ("inet", "any", "inet6"),
    "PubkeyAuthentication": ("yes", "no"),
    "PasswordAuthentication": ("yes", "no"),
    "KbdInteractiveAuthentication": ("no",),
    "PreferredAuthentications": ("publickey", "publickey,password"),
    "Compression": ("yes",),
}
HOSTS = (
    "*",
    "node*",
    "node1 !node2*",
    "node?",
    "!node1 *",
    "10.0.0.*",
    "*.example.org gate",
    "'node1'",
    "NODE1",
    "none",
)
MATCHES = (
    "all",
    "host node1,gate",
    "host *.example.org,10.0.0.?",
    "!host node1",
    "originalhost node1",
    'originalhost "node2.lab"',
    "user alice,root",
    "!user root",
    "localuser root",
    "localuser !root,*",
    "final all",
    "final",
    "final host 10.0.0.1",
    "!final host node*",
    "canonical",
    'exec "test %h = node1"',
    'exec "test %n-%p-%r = node1-22-root"',
    'exec "false || true"',
    "!exec false",
    "host node* exec true user root",
)


def config(dice: random.Random, folder: Path, depth: int = 0) -> str:
    """A configuration; its included files are written beside it."""
    lines = []
    for _ in range(dice.randint(1, 4 if depth else 7)):
        section = dice.random()
        indent = dice.choice(("", "  ", "\t"))
        if section < 0.45:
            lines.append(f"{dice.choice(('Host', 'host', 'Host ='))} {dice.choice(HOSTS)}")
        elif section < 0.85:
            lines.append(f"Match {dice.choice(MATCHES)}")
        for _ in range(dice.randint(0, 4)):
            key = dice.choice(list(OPTIONS))
            spelt = dice.choice((key, key.lower(), key.upper()))
            lines.append(f"{indent}{spelt} {dice.choice(OPTIONS[key])}{dice.choice(('', '', '  ', chr(9)))}")
        if depth < 2 and dice.random() < 0.25:
            name = f"included{depth}{dice.randint(0, 1)}.conf"
            (folder / name).write_text(config(dice, folder, depth + 1))
            lines.append(f"{indent}Include {folder}/{dice.choice((name, 'included*.conf' if depth == 0 else name))}")
        lines.append(dice.choice(("", "# a comment", "  # another")))
    return "\n".join(lines) + "\n"


def theirs(file: Path, name: str) -> dict[str, list[str]]:
    done = subprocess.run(["ssh", "-G", "-F", file, name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        if key in COMPARED:
            found.setdefault(key, []).append({"true": "yes", "false": "no"}.get(value, value))
    return found


def ours(read: SSHConfig, name: str) -> dict[str, list[str]]:
    """Our reading of it, in the words of ``ssh -G``."""
    options = read.lookup(name)
    host = Host(name=name, address=name)
    hop = resolve(host, Inventory(hosts=(host,)), read)
    found = {key: values for key, values in options.items() if key in COMPARED}
    found |= {"hostname": [hop.address], "user": [hop.user], "port": [str(hop.port)]}
    if "hostkeyalias" in found:
        found["hostkeyalias"] = [hop.key_name]
    for key in ("userknownhostsfile", "globalknownhostsfile"):
        if key in found:
            found[key] = [found[key][0].replace("\n", " ")]
    for key in ("proxyjump", "proxycommand"):
        if found.get(key) == ["none"]:
            del found[key]
    return found


def way(host: Host, config: ConfigReader) -> Hop | str:
    """The way to a host; a refusal's text."""
    try:
        return resolve(host, Inventory(hosts=(host,)), config)
    except UsageError as error:
        return str(error)


@pytest.mark.skipif(not shutil.which("ssh"), reason="needs ssh")
def test_no_difference(tmp_path: Path) -> None:
    differences = []
    empty = tmp_path / "empty"
    empty.write_text("")
    default: Callable[[str], list[str]] = lambda key: theirs(empty, "node1").get(key, [])  # noqa: E731
    defaults = {key: default(key) for key in COMPARED}
    for seed in range(CONFIGS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        dice = random.Random(seed)
        file = folder / "config"
        file.write_text(f"Match originalhost gate\nProxyJump none\n{config(dice, folder)}")
        name = dice.choice(NAMES)
        read_by_us = load(str(file))
        want, mine = theirs(file, name), ours(read_by_us, name)
        host = Host(name=name, address=name)
        ways = [way(host, read_by_us), way(host, AskedConfig(str(file)))]
        if ways[0] != ways[1]:
            differences.append(f"{file} {name}: the way is {ways[0]}, by `ssh -G` {ways[1]}")
        for key in COMPARED:
            said, read = want.get(key, []), mine.get(key, defaults[key])
            if said != read:
                differences.append(f"{file} {name}: {key}: ssh {said}, ddpctl {read}")
    assert not differences, "\n".join(differences)


@pytest.mark.skipif(not subprocess.run(["ssh", "-G", "-o", "Tag=x", "x"], capture_output=True).stdout, reason="old ssh")
def test_criteria_that_only_openssh_knows(tmp_path: Path) -> None:
    """ssh reads such a configuration, with the inventory's keys first."""
    config = tmp_path / "config"
    config.write_text(
        "Match tagged gpu\n  User tagged\nHost node*\n  Tag gpu\n  IdentityFile ~/.ssh/of_%h\n  Port 2201\n"
        "Host gate\n  User ann\nMatch localnetwork 127.0.0.0/8\n  ProxyJump gate\nHost *\n  User other\n"
    )
    hosts = (Host(name="node1", address="10.0.0.7", port=2299), Host(name="far", address="far"))
    hops = routes(Inventory(hosts=hosts, ssh_config=str(config)), ["node1", "far"])
    assert (hops["node1"].address, hops["node1"].port, hops["node1"].user) == ("10.0.0.7", 2299, "other")
    assert hops["far"].via is not None
    assert (hops["far"].via.label, hops["far"].via.user) == ("gate", "ann")
    assert hops["far"].identities == ()


def test_criteria_that_nobody_knows(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Match moon full\n  User wolf\n")
    inventory = Inventory(hosts=(Host(name="node1", address="node1"),), ssh_config=str(config))
    with pytest.raises(UsageError, match=rf"Unsupported Match attribute moon; {config} line 1: "):
        routes(inventory, ["node1"])
