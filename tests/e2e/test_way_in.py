"""The way in as OpenSSH users have it: certificates, agents, host authorities, aliases, passwords, proxies."""

from __future__ import annotations

import re
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.e2e.site import Site, one_line, until
from tests.lab import Host, Lab
from tests.lab.command import PATH, PROGRAM, AtTerminal
from tests.lab.keys import HOST_KEY, KEY, generate_keys, public_key, run_agent


def sign(authority: Path, key: Path, *options: str) -> Path:
    """A certificate for the public key that lies beside `key`."""
    subprocess.run(["ssh-keygen", "-q", "-s", authority, "-I", "test", *options, f"{key}.pub"], check=True)
    return Path(f"{key}-cert.pub")


def rewrite(site: Site, old: str, new: str) -> None:
    config = site.home / ".ssh" / "config"
    text = config.read_text()
    assert old in text
    config.write_text(text.replace(old, new))


def refused(site: Site, *words: str, **env: str) -> str:
    done = site("ps", env=env)
    assert done.rc == 4, done.stdout + done.stderr
    line = " ".join(one_line(done).split())
    for word in words:
        assert word in line, line
    return line


def test_certificates_of_users(site: Site, lab: Lab, tmp_path: Path) -> None:
    """A certificate works from a file, from a file for a key in the agent, and from the agent; an expired certificate
    is refused.
    """
    site.only(0, 1)
    authority, key = tmp_path / "ca", site.home / ".ssh" / KEY
    generate_keys([authority, key])
    for host in lab.hosts[:2]:
        host.refuse_key()
        host.write("/etc/ssh/ca.pub", public_key(authority) + "\n")
        host.sshd_config("TrustedUserCAKeys /etc/ssh/ca.pub", "Banner /etc/ssh/banner")
        host.write("/etc/ssh/banner", "for \x1b]52;c;evil\x07 members only\n")
    refused(site, "accepts none of", f"ssh-copy-id root@{lab[0].address}`", f"`ssh-copy-id root@{lab[1].address}`")

    certificate = sign(authority, key, "-n", "root")
    done = site("ps").ok()
    assert done.stderr.count("members only") == 1, "a banner is shown once"
    assert "\x1b" not in done.stderr

    moved = tmp_path / "short.pub"
    shutil.move(certificate, moved)
    with run_agent(tmp_path / "agent", key) as running:  # as Vault and step leave it: the key in the agent alone
        shutil.move(key, tmp_path / KEY)
        rewrite(site, f"IdentityFile {key}", f"CertificateFile {moved}\n  IdentityAgent {running}")
        site("ps").ok()
        rewrite(site, "IdentityAgent", "#")
        refused(site, "no key")
        site("ps", env={"SSH_AUTH_SOCK": running}).ok()
    shutil.copy(moved, f"{tmp_path / KEY}-cert.pub")
    rewrite(site, f"CertificateFile {moved}", "IdentitiesOnly no")
    rewrite(site, "IdentitiesOnly yes", "")
    with run_agent(tmp_path / "agent", tmp_path / KEY) as running:  # ssh-add takes the certificate that lies beside
        site("ps", env={"SSH_AUTH_SOCK": running}).ok()

    shutil.move(tmp_path / KEY, key)
    expired = sign(authority, key, "-n", "root", "-V", "20200101:20200102")
    refused(site, f"{expired} (expired)")
    for host in lab.hosts[:2]:  # now the plain key counts
        host.heal()
        host.write("/root/.ssh/authorized_keys", public_key(key) + "\n" + public_key(lab.key) + "\n", 0o600)
    site("ps").ok()
    for host in lab.hosts[:2]:
        host.write("/root/.ssh/authorized_keys", public_key(lab.key) + "\n", 0o600)


def test_authorities_and_aliases_of_hosts(site: Site, lab: Lab, tmp_path: Path) -> None:
    site.only(0, 1)
    authority, known = tmp_path / "ca", site.home / ".ssh" / "known_hosts"
    generate_keys([authority])
    for host in lab.hosts[:2]:
        copy = tmp_path / host.name
        copy.with_suffix(".pub").write_text(host.public_key() + "\n")
        certificate = sign(authority, copy, "-h", "-n", host.address)
        host.write(f"/etc/ssh/{HOST_KEY}-cert.pub", certificate.read_text())
        host.sshd_config(f"HostCertificate /etc/ssh/{HOST_KEY}-cert.pub", "Port 22", "Port 2222")
    known.write_text(f"@cert-authority 10.* {public_key(authority)}\n")
    site("ps").ok()
    assert lab.ssh("node0", "true").returncode == 0
    known.write_text(f"@cert-authority 10.* {public_key(authority)}\n@revoked * {public_key(authority)}\n")
    refused(site, "is revoked")
    known.write_text(f"@cert-authority 172.* {public_key(authority)}\n")
    refused(site, "is not known")

    # An alias is looked up and written down without the port, as ssh does.
    known.write_text(f"{lab[0].address} {lab[0].public_key()}\n")
    rewrite(site, "Host node1\n", "Host node1\n  Port 2222\n  HostKeyAlias Farm\n")
    refused(site, "node1: the host key of farm is not known")
    site("trust", "--yes").ok()
    assert [line.split()[0] for line in known.read_text().splitlines()] == [lab[0].address, "farm"]
    site("ps").ok()
    by_hand = ["ssh", "-F", str(site.home / ".ssh" / "config"), "node1", "true"]
    subprocess.run(by_hand, check=True, capture_output=True, timeout=60)
    lab[1].wrong_host_key()
    refused(site, "node1: the host key of farm has changed", f"`ssh-keygen -f {known} -R farm`")
    changed = site("trust", "--yes")
    assert changed.rc == 4
    assert f"ssh-keygen -f {known} -R farm" in one_line(changed)


def test_an_agent_that_never_answers(site: Site, tmp_path: Path) -> None:
    """It is named, and no host is."""
    rewrite(site, "IdentitiesOnly yes", "IdentitiesOnly no")
    (site.home / ".ssh" / KEY).unlink()
    path = str(tmp_path / "silent")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        line = refused(site, f"the agent at {path} does not list its keys", SSH_AUTH_SOCK=path)
    assert "node[0-2] (3 hosts)" in line
    assert not re.search(r"10\.\d+\.\d+\.\d+", line), "no host is blamed"


def test_a_password_goes_where_it_is_asked_for(site: Site, lab: Lab) -> None:
    """A host takes passwords; another takes only keys, and does not accept ours; the third works."""
    lab[0].run("id guest || useradd --create-home --shell /bin/bash guest; echo 'guest:s3cret words' | chpasswd")
    lab[0].sshd_config("PasswordAuthentication yes")
    lab[1].refuse_key()
    lab[1].run("truncate -s 0 /run/sshd.log")
    site.hosts[0]["user"] = "guest"
    alone = site("ps")
    assert alone.rc == 4, "nobody can be asked without a terminal"
    assert "password of" not in alone.stderr
    run = site.start("ps", terminal=True)
    assert isinstance(run, AtTerminal)
    run.wait_for(rf"password of guest@{lab[0].address}: ")
    run.type("wrong\n")
    run.wait_for(r"(?s)password of guest.*password of guest")
    # A person may take longer than the server gives a login: no connection is open meanwhile.
    until(lambda: not logins(lab[0]), 60, "a connection is open while the password is asked for")
    run.type("s3cret words\n")
    done = run.wait(60)
    assert done.rc == 4
    assert "1 of 3 hosts" in done.stdout
    assert "node1" in done.stdout
    assert "s3cret" not in done.stdout
    assert len(re.findall("password of", done.stdout)) == 2, "node1 is not asked about"
    assert "password" not in lab[1].read("/run/sshd.log")
    assert "Accepted password for guest" in lab[0].read("/run/sshd.log")


def test_a_second_factor_is_typed_at_the_terminal(site: Site, lab: Lab) -> None:
    """PAM asks after the key, as one-time codes are asked for. ddpctl leaves nothing behind, even when it is killed."""
    site.only(0, 1)
    lab[0].run("echo 'root:s3cret words' | chpasswd")
    lab[0].sshd_config("UsePAM yes", "AuthenticationMethods publickey,keyboard-interactive", "PermitRootLogin yes")
    alone = site("ps")
    assert alone.rc == 4
    assert "without a terminal no question could be asked" in one_line(alone)
    with tempfile.TemporaryDirectory(dir="/tmp") as sockets:  # a killed ddpctl does not remove its folder
        command = ("exec", "--", "sh", "-c", "sleep 300")
        run = site.start(*command, terminal=True, env={"XDG_RUNTIME_DIR": sockets})
        assert isinstance(run, AtTerminal)
        run.wait_for("node0: .*Password: ")
        run.type("s3cret words\n")
        until(lambda: sleepers(lab) == 2, 60, lambda: run.stdout)
        assert "s3cret" not in run.stdout
        run.signal(signal.SIGKILL)
        until(lambda: not sleepers(lab), 60, "the command lives on without ddpctl")
        until(lambda: not logins(lab[0]), 60, "a connection is open after ddpctl was killed")


def test_a_job_over_connections_that_openssh_holds(site: Site, lab: Lab) -> None:
    site.only(0, 1)
    for host in site.hosts:
        host["transport"] = "openssh"
    job = site.job("carried", "import time; print('here', flush=True); time.sleep(300)")
    run = site.up(job)
    tail = site.start("tail", job, "-f")
    until(lambda: "node[0-1]:0-1 | here" in tail.stdout or tail.stdout.count("here") == 2, 60, lambda: tail.stdout)
    killed = site("kill", job, "--json").ok().json()
    assert [node["survivors"] for node in killed["nodes"]] == [[], []], killed
    tail.wait(60).ok()
    ended = site("status", run["run"], "--json").ok().json()
    assert ended["state"] == "killed"


def sleepers(lab: Lab) -> int:
    return sum(process.argv[:2] == ("sleep", "300") for host in lab.hosts[:2] for process in host.processes())


def logins(host: Host) -> list[str]:
    """The connections to the SSH server of a host."""
    assert host.init
    lines = Path("/proc", str(host.init.pid), "net/tcp").read_text().splitlines()[1:]
    return [line for line in lines if line.split()[1].endswith(":0016") and line.split()[3] == "01"]


MANY = pytest.mark.full(covered_by="tests/e2e/test_way_in.py::test_many_hosts_behind_a_proxy_command")


@pytest.mark.parametrize(("count", "descriptors"), [(30, 96), pytest.param(100, 256, marks=MANY)])
def test_many_hosts_behind_a_proxy_command(site: Site, lab: Lab, tmp_path: Path, count: int, descriptors: int) -> None:
    """With room for few descriptors; faults of the command are its own."""
    config, known, log = tmp_path / "config", tmp_path / "known_hosts", tmp_path / "log"
    known.write_text(f"farm {lab[0].public_key()}\n")
    relay = tmp_path / "relay.py"
    relay.write_text(RELAY)
    command = f"{shutil.which('python3')} -IS {relay} {lab[0].address} {log}"
    config.write_text(
        f"Host n*\n  ProxyCommand {command}\nHost silent\n  ProxyCommand true %h\n"
        f"Host *\n  User root\n  IdentityFile {lab.key}\n  HostKeyAlias farm\n  KnownHostsCommand /bin/false\n"
    )
    site.keys |= {"ssh_config": str(config), "known_hosts": str(known)}
    site.hosts = [{"name": f"n{number}", "transport": "paramiko"} for number in range(count)]
    site.hosts.append({"name": "silent", "transport": "paramiko"})
    lab[0].sshd_config("MaxStartups 10:30:100")
    inventory = str(site.inventory)
    argv = ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", str(PROGRAM), "ps", inventory, "--json"]
    env = {"PATH": PATH, "HOME": str(site.home), "SHELL": "/bin/bash"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 4, done.stderr
    last = next(line for line in done.stderr.splitlines() if line.startswith("error: "))
    assert f"1 of {count + 1} hosts" in last, done.stderr
    assert "ProxyCommand `true silent` ended" in last
    assert "MaxStartups" not in last
    assert done.stderr.count("options that `transport: paramiko` does not follow: KnownHostsCommand") == 1
    assert len(log.read_text().split()) == count

    site.hosts = [{"name": "x", "address": f"x$(touch {tmp_path}/ran)"}]
    assert site("ps").rc == 2
    assert not (tmp_path / "ran").exists()


RELAY = """
import os, select, socket, sys
sock = socket.create_connection((sys.argv[1], 22))
with open(sys.argv[2], "a") as log:
    log.write("x\\n")
pairs = {0: sock.fileno(), sock.fileno(): 1}
while True:
    for fd in select.select(list(pairs), [], [])[0]:
        data = os.read(fd, 65536)
        if not data:
            sys.exit()
        while data:
            data = data[os.write(pairs[fd], data):]
"""
