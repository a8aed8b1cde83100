"""ssh_config and the ways to hosts: our answers beside the answers of OpenSSH itself."""

from __future__ import annotations

import getpass
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.errors import UsageError
from ddpctl.spec.inventory import Host, Inventory
from ddpctl.transport import ssh_config
from ddpctl.transport.fleet import routes
from ddpctl.transport.route import Hop, resolve
from ddpctl.transport.ssh_config import SSHConfig, load, parse

CONFIG = """
# a comment
Include conf.d/*
Host node1 alias1
    HostName 10.0.0.1
    User = alice
    Port=2201
    IdentityFile "~/keys/with blank"
    IdentityFile /k/%h.%r
Host node* !node9
  HostName %h.example.org
  User bob   # not part of it
  ProxyJump gate
Host NODE9
  User carol
Host gate
  HostName 10.9.9.9
  ProxyJump none
Match originalhost node5 user bob
  Port 55
Match host *.example.org !user bob
  Port 66
Match exec "test %n = node7"
  Compression yes
Match final host node7.example.org
  ServerAliveInterval 7
Host *
  User zoe
  IdentityFile /k/all
  AddressFamily inet
"""


@pytest.fixture
def config(tmp_path: Path) -> SSHConfig:
    (tmp_path / "conf.d").mkdir()
    (tmp_path / "conf.d" / "10").write_text("Host node3\n  User dave\nHost node4\n  Port 44\n")
    (tmp_path / "conf.d" / "20").write_text("HashKnownHosts yes\n")
    (tmp_path / "config").write_text(CONFIG)
    return load(str(tmp_path / "config"))


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("ssh"), reason="needs ssh")
@pytest.mark.parametrize("name", ["node1", "alias1", "node2", "node3", "node4", "node5", "node7", "node9", "gate", "x"])
def test_as_openssh_reads_it(name: str, config: SSHConfig, tmp_path: Path) -> None:
    text = CONFIG.replace("Include conf.d", f"Include {tmp_path}/conf.d")  # ssh -F: relative to ~/.ssh
    (tmp_path / "absolute").write_text(text)
    done = subprocess.run(["ssh", "-G", "-F", tmp_path / "absolute", name], capture_output=True, text=True, check=True)
    theirs: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        theirs.setdefault(key, []).append(value)
    hop = resolve(Host(name=name, address=name), inventory(), config)
    assert hop.address == theirs["hostname"][0]
    assert hop.user == theirs["user"][0]
    assert hop.port == int(theirs["port"][0])
    assert (hop.via.label if hop.via else None) == theirs.get("proxyjump", [None])[0]
    ours = config.lookup(name)
    assert ours.get("compression", ["no"]) == theirs["compression"]
    assert ours.get("serveraliveinterval", ["0"]) == theirs["serveraliveinterval"]
    assert ours["identityfile"] == theirs["identityfile"]


def inventory(*hosts: Host) -> Inventory:
    return Inventory(hosts=hosts or (Host(name="x", address="x"),), known_hosts="/known")


def way(text: str, host: Host, *others: Host) -> Hop:
    return resolve(host, inventory(host, *others), parse(text, "t", lambda _pattern: ()))


def test_the_inventory_wins() -> None:
    text = "Host a\n HostName 10.0.0.1\n User u\n Port 1\n IdentityFile /c\n ProxyJump b\n"
    hop = way(text, Host(name="a", address="10.0.0.2", user="v", port=2, identity_file="/i", jump="c"))
    assert (hop.address, hop.user, hop.port, hop.identities) == ("10.0.0.2", "v", 2, ("/i", "/c"))
    assert hop.via is not None
    assert hop.via.label == "c"
    assert hop.via.fallback_identities == ("/i",)


def test_a_section_for_the_address_counts_too() -> None:
    assert way("Host 10.0.0.7\n User u\n", Host(name="a", address="10.0.0.7")).user == "u"


def test_defaults() -> None:
    hop = way("", Host(name="a", address="a"))
    assert (hop.address, hop.port, hop.user, hop.via) == ("a", 22, getpass.getuser(), None)
    assert hop.known_hosts == ("/known", "/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")


def test_user_known_hosts_and_alias() -> None:
    text = "Host *\n UserKnownHostsFile /a '/b c'\n GlobalKnownHostsFile none\n HostKeyAlias Real\n Port 2222\n"
    config, host = parse(text, "t", lambda _pattern: ()), Host(name="a", address="a")
    hop = resolve(host, Inventory(hosts=(host,)), config)
    assert hop.known_hosts == ("/a", "/b c"), "they replace the usual ones"
    assert hop.known_as == "real", "an alias is written down without the port"
    assert resolve(host, inventory(host), config).known_hosts == ("/known",), "the inventory's replaces them all"


def test_a_chain_of_jumps() -> None:
    hop = way("Host t\n ProxyJump me@one:7,two\nHost two\n ProxyJump elsewhere\n", Host(name="t", address="t"))
    assert hop.via is not None
    assert hop.via.label == "two"
    assert hop.via.via == way("", Host(name="one", address="one", user="me", port=7))
    assert hop.via.via.via is None


def test_the_jump_hosts_own_jump() -> None:
    hop = way("Host t\n ProxyJump one\nHost one\n ProxyJump zero\n", Host(name="t", address="t"))
    assert [hop.via.label, hop.via.via.label] == ["one", "zero"]  # type: ignore[union-attr]


def test_a_jump_host_from_the_inventory() -> None:
    gate = Host(name="gate", address="10.1.1.1", user="g", port=99, identity_file="/g")
    hop = way("", Host(name="t", address="t", jump="gate"), gate)
    assert hop.via is not None
    assert (hop.via.address, hop.via.user, hop.via.port, hop.via.identities) == ("10.1.1.1", "g", 99, ("/g",))


@pytest.mark.parametrize("text", ["Host *\n ProxyJump gate\n", "Host a\n ProxyJump b\nHost b\n ProxyJump a\n"])
def test_jump_hosts_in_a_circle(text: str) -> None:
    with pytest.raises(UsageError, match="circle"):
        way(text, Host(name="a", address="a"))


def test_proxy_command_or_jump_whichever_is_first() -> None:
    first = way("Host a\n ProxyCommand nc %h %p\n ProxyJump b\n", Host(name="a", address="10.0.0.3", port=5))
    assert (first.proxy_command, first.via) == ("nc 10.0.0.3 5", None)
    second = way("Host a\n ProxyJump b\n ProxyCommand nc %h %p\n", Host(name="a", address="a"))
    assert second.proxy_command is None
    assert way("Host a\n ProxyCommand none\n", Host(name="a", address="a")).proxy_command is None


def test_equal_jump_hosts_are_one() -> None:
    text = "Host t*\n ProxyJump gate\n"
    assert way(text, Host(name="t1", address="t1")).via == way(text, Host(name="t2", address="t2")).via


def test_bad_lines_are_named() -> None:
    with pytest.raises(UsageError, match="t:2"):
        parse("Host a\n!?\n", "t", lambda _pattern: ())
    with pytest.raises(UsageError, match="not a port"):
        way("Host a\n Port x\n", Host(name="a", address="a"))
    with pytest.raises(UsageError, match="deeper"):
        parse("Include self", "t", lambda _pattern: [("self", "Include self")])


@pytest.mark.parametrize("port", ["0", "65536", "ssh", "²", "9" * 5000])
def test_a_wrong_port_is_named(port: str) -> None:
    with pytest.raises(UsageError, match="not a port"):
        way(f"Host a\n Port {port}\n", Host(name="a", address="a"))


def test_a_missing_file_is_empty(tmp_path: Path) -> None:
    assert load(str(tmp_path / "none")).lookup("a") == {}


@given(
    st.lists(st.sampled_from(["Host", "Match", "a*", "!b", "all", '"', "#", "=", "user", "Port 3", "\n"]), max_size=12)
)
def test_no_text_breaks_the_reader(words: list[str]) -> None:
    """A configuration is read, or refused as the user's fault."""
    try:
        parse(" ".join(words), "t", lambda _pattern: ()).lookup("a")
    except UsageError:
        return


@pytest.mark.slow
def test_a_command_of_match_is_run_once(tmp_path: Path) -> None:
    """For many hosts, both passes and several lines."""
    ran = tmp_path / "ran"
    line = f'Match exec "echo %h >> {ran}"\n  Port 7\n'
    config = parse(f"{line}Match final all\n  User u\n{line}", "t", lambda _pattern: ())
    for name in ("a", "b", "a"):
        assert config.lookup(name)["port"] == ["7"]
    assert ran.read_text().split() == ["a", "b"]


def test_the_machines_own_file_comes_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for ssh: not where the inventory names a file (`ssh -F`). What is not followed is said once."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(ssh_config, "SYSTEM_CONFIG", str(tmp_path / "system"))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host a\n  Port 1\n  UserKnownHostsFile ~/mine\n")
    (tmp_path / "system").write_text("Host *\n  Port 2\n  User s\n  BindAddress 10.0.0.9\n")
    hosts = (Host(name="a", address="a"), Host(name="b", address="b", transport="paramiko"))
    said: list[str] = []
    hops = routes(Inventory(hosts=hosts), ("a", "b"), said.append)
    assert [(hop.port, hop.user) for hop in hops.values()] == [(1, "s"), (2, "s")]
    assert hops["a"].user_known_hosts == (f"{tmp_path}/mine",)
    assert hops["b"].user_known_hosts == (f"{tmp_path}/.ssh/known_hosts", f"{tmp_path}/.ssh/known_hosts2")
    assert len(said) == 1
    assert "does not follow: BindAddress;" in said[0]
    (tmp_path / "other").write_text("")
    assert routes(Inventory(hosts=hosts, ssh_config=str(tmp_path / "other")), ("b",))["b"].port == 22
    assert routes(Inventory(hosts=hosts, ssh_config="~/.ssh/config"), ("b",))["b"].port == 2  # the value without it


@pytest.mark.parametrize(
    ("value", "agent"),
    [
        ("none", None),
        ("SSH_AUTH_SOCK", "/env"),
        ("$OTHER", "/other"),
        ("~/a", "/home/me/a"),
        ("${OTHER}/%r", "/other/u"),
    ],
)
def test_which_agent(value: str, agent: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("HOME", "/home/me"), ("SSH_AUTH_SOCK", "/env"), ("OTHER", "/other")):
        monkeypatch.setenv(name, text)
    host = Host(name="a", address="a", user="u")
    assert way(f"IdentityAgent {value}\n", host).agent == agent
    assert way("", host).agent == "/env"


def test_which_methods() -> None:
    host = Host(name="a", address="a")
    assert way("PasswordAuthentication no\n", host).methods == ("publickey", "keyboard-interactive")
    assert way("PreferredAuthentications password,publickey\n", host).methods == ("publickey", "password")


def test_a_variable_that_is_not_set() -> None:
    with pytest.raises(UsageError, match="NO_SUCH_VARIABLE"):
        way("IdentityFile ${NO_SUCH_VARIABLE}/k\n", Host(name="a", address="a"))


def test_the_names_that_a_person_may_choose_from() -> None:
    """The names without wildcards, from included files too, each once."""
    text = "Host gpu1 gpu2 *.lan !gpu9 gpu?\n  User a\nInclude more\nHost gpu1 bastion\nMatch host x\nHost *\n"
    found = parse(text, "t", lambda _pattern: [("more", "Host cloud\n")])
    assert found.names == ("gpu1", "gpu2", "cloud", "bastion")
