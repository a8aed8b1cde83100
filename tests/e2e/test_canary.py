"""Secrets with known values, and every place in which they must not be: while a run lives, and after it."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import MakeLab
from tests.e2e.site import Site, assert_nothing_runs, named, read_files, until, wait_for_ranks
from tests.lab import Host, Lab, SystemdHost
from tests.lab.command import Ddpctl

TOKEN, OF_THE_SHELL, KEY = "canary-of-the-env-file", "canary-of-the-shell", "ca" * 32
WORDS = [word.encode() for word in (TOKEN, OF_THE_SHELL, KEY)]
PRIVATE = b"PRIVATE KEY-----"  # of the run's certificate
# ddpctl makes the run's key with secrets.token_hex(32). The line makes the same key each time.
KNOWN_KEY = f"""\
import secrets
old = secrets.token_hex
secrets.token_hex = lambda size=None: {KEY!r} if size == 32 else old(size)
"""
SAVES = """\
import os, time
open("saves/step_1.bin", "w").close()
print("rank", os.environ["RANK"], "has", len(os.environ["TOKEN"]), flush=True)
while True:
    time.sleep(0.2)
"""


# Run by another account: every file and link of every process that it can read, and the kernel's lists of names.
LOOK = """\
import json, os, sys
words = [word.encode() for word in json.load(sys.stdin)]
os.setgroups([]), os.setgid(65534), os.setuid(65534)
paths = ["/proc/net/unix", "/proc/locks", "/proc/keys", "/proc/mounts"]
for pid in filter(str.isdigit, os.listdir("/proc")):
    for folder in ("/proc/" + pid, "/proc/" + pid + "/fd", "/proc/" + pid + "/map_files"):
        try:
            paths += [os.path.join(folder, name) for name in os.listdir(folder)]
        except OSError:
            pass
for path in paths:
    try:
        if os.path.islink(path):
            content = os.fsencode(os.readlink(path))
        else:
            with open(path, "rb") as file:
                content = file.read(1 << 22)
    except OSError:
        continue
    print(json.dumps([path, any(word in content for word in words)]))
"""


def test_no_place_has_a_secret(site: Site, lab: Lab, tmp_path: Path) -> None:
    """The count of places is in docs/threat-model.md."""
    assert_no_place_has_a_secret(site, lab, tmp_path)


@pytest.mark.full(covered_by="tests/e2e/test_canary.py::test_no_place_has_a_secret")
def test_no_place_of_hosts_with_systemd_has_a_secret(
    make_lab: MakeLab, ddpctl: Ddpctl, tmp_path: Path, stand_in: str
) -> None:
    """Also not the journal, where each run writes its start and its end."""
    lab = make_lab(2, systemd=True)
    for host in lab:
        host.add_user("alice")
    site = Site(lab, ddpctl, tmp_path / "site", stand_in)
    site.keys["defaults"]["user"] = "alice"
    assert_no_place_has_a_secret(site, lab, tmp_path)
    for host in lab:
        assert "of job canary starts" in host.run(["journalctl", "-t", "ddpctl", "-o", "cat"]).stdout


def assert_no_place_has_a_secret(site: Site, lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "known").mkdir()
    (tmp_path / "known" / "sitecustomize.py").write_text(KNOWN_KEY)
    shell = {"PYTHONPATH": str(tmp_path / "known"), "AWS_SECRET_ACCESS_KEY": OF_THE_SHELL}
    (site.folder / "keys.env").write_text(f"TOKEN={TOKEN}\n")
    job = site.job("canary", SAVES, env_file="keys.env", restarts=1, checkpoint={"paths": ["saves"]})
    up = site.start("--debug", "up", "--job", job, env=shell)
    up.wait_for(f"has {len(TOKEN)}")
    run = site.status(job)["run"]
    wait_for_ranks(lab, run)
    assert any(KEY.encode() in memory(host, "ddpctl-agent") for host in lab), "else the search could find nothing"
    places = list(search(site, lab))
    said = [up.stdout, up.stderr]
    page = str(site.folder / "page.html")
    for words in (["status", job], ["doctor", job, "--json"], ["report", job, "--html", page], ["kill", job]):
        done = site("--debug", *words, env=shell)
        said += [done.stdout, done.stderr]
    site("fetch", job, "results").ok()
    until(lambda: up.process.poll() is not None, 60)
    assert_nothing_runs(lab)
    places += search(site, lab)
    assert not [text for text in said for word in WORDS if word.decode() in text]
    assert [place for place, found in places if found] == []
    assert len(places) > 500, len(places)
    print(f"{len(places) + len(said)} places")


def search(site: Site, lab: Lab) -> Iterator[tuple[str, bool]]:
    """Yield every place, and whether it has a secret: files, command lines, and environments outside the job."""
    for host in lab:
        assert host.init
        root = Path("/proc", str(host.init.pid), "root")
        for folder in (host.disk.upper, root / "tmp", root / "dev/shm", root / "run", root / "var/tmp"):
            yield from search_files(folder)
        for process in host.processes(system=True):
            words = os.fsencode("\0".join(process.argv))
            yield f"argv of {process.argv[:3]}", any(word in words for word in WORDS)
            if "DDPCTL_RUN" not in process.environ:  # launcher and ranks have the secrets
                environ = os.fsencode("\0".join(process.environ.values()))
                yield f"environ of {process.argv[:3]}", any(word in environ for word in WORDS)
        yield from look_as_another_account(host)
        if isinstance(host, SystemdHost):
            for line in host.run(["journalctl", "--output", "json", "--all"]).stdout.splitlines():
                yield f"journal: {line[:200]}", any(word.decode() in line for word in WORDS)
    for folder in (site.home, site.code, site.folder / "results"):
        yield from search_files(folder)
    page = site.folder / "page.html"
    if page.exists():
        yield str(page), has_secret(page, page.read_bytes())
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        yield f"argv of {words[:60]!r} here", any(word in words for word in WORDS)


def look_as_another_account(host: Host) -> Iterator[tuple[str, bool]]:
    words = json.dumps([word.decode() for word in WORDS])
    lines = host.run(["/usr/bin/python3", "-I", "-c", LOOK], stdin=words).stdout.splitlines()
    assert any("/cmdline" in line for line in lines), "else the account saw nothing"
    for path, found in map(json.loads, lines):
        yield f"{path}, as another account", found


def search_files(folder: Path) -> Iterator[tuple[str, bool]]:
    for path, content in read_files(folder):
        yield str(path), has_secret(path, content)


def has_secret(path: Path, content: bytes) -> bool:
    keys = PRIVATE in content and ".ssh" not in path.parts and "ssh" not in path.parts and b"OPENSSH" not in content
    return keys or any(word in content or word in bytes(path) for word in WORDS)


def memory(host: Host, name: str) -> bytes:
    """The writable memory of a process by its name; nothing where there is none."""
    found = b""
    process = named(host, name)
    if process is None:
        return found
    entry = host.proc / str(process.pid)
    with (entry / "mem").open("rb", buffering=0) as file:
        for line in (entry / "maps").read_text().splitlines():
            span, rights = line.split()[:2]
            start, end = (int(word, 16) for word in span.split("-"))
            if rights.startswith("rw"):
                file.seek(start)
                with contextlib.suppress(OSError):  # it has given this memory back since
                    found += file.read(end - start)
    return found
