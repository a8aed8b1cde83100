"""Notifications through the installed command: the text that arrives, the node that sends it, and the address stays a
secret.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.programs import SLEEP
from tests.e2e.site import Site, answered, files_with, until, wait_for_gang
from tests.lab import Lab
from tests.lab.command import Ddpctl

SECRET = "s3cr3t-way"
asked: list[tuple[str, dict[str, Any]]] = []


class Answer(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        asked.append((self.path, body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def hook() -> Iterator[str]:
    """Yield the address of a web server that keeps the requests in ``asked``."""
    asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def inventory(tmp_path: Path, hook: str, stand_in: str) -> Path:
    """Two nodes on this machine: a job that fails, and a job that stays."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "fails.py").write_text(f"import os\nassert os.environ['RANK'] != '1', 'no data'\n{SLEEP}")
    (work / "sleep.py").write_text(SLEEP)
    (work / "keys.env").write_text(f"HOOK={hook}/{SECRET}\n")
    keys: dict[str, Any] = {
        "env_file": "keys.env",
        "notify": [{"webhook": "${HOOK}"}, {"command": ["sh", "-c", 'echo "$DDPCTL_TEXT"; pwd; exit 3']}],
    }
    base = str(tmp_path / "base")
    local = {"connection": "local", "python": stand_in, "slots": 1, "base_dir": base}
    jobs = {"fails": {"script": "fails.py", **keys}, "stays": {"script": "sleep.py", **keys}}
    hosts = [{"name": "a", **local}, {"name": "b", **local}]
    path = work / "local.yaml"
    path.write_text(json.dumps({"cluster": "here", "hosts": hosts, "jobs": jobs}))
    return path


def test_a_failure_is_sent_once_and_the_address_is_nowhere(
    ddpctl: Ddpctl, inventory: Path, hook: str, tmp_path: Path
) -> None:
    plan = ddpctl("up", "--job", "fails", "--dry-run", inventory=inventory).ok()
    assert f"notify  webhook {hook}/********" in plan.stdout
    done = ddpctl("--debug", "up", "--job", "fails", "--skip-preflight", inventory=inventory, timeout=120)
    assert done.rc == 1, done.stderr
    until(lambda: asked, 30, "nobody is notified")
    [(path, body)] = asked
    status = ddpctl("status", "fails", "--json", inventory=inventory).ok().json()
    assert path == f"/{SECRET}"
    assert (body["host"], body["state"], body["run"]) == ("a", "failed", status["run"])
    assert body["cause"] == status["cause"]
    assert body["cause"]["rank"] == 1
    assert "no data" in body["text"]
    log = tmp_path / "base" / "runs" / status["run"] / "a" / "notify.log"
    until(lambda: log.exists() and log.stat().st_size, 30, "nothing is logged")
    fetched = ddpctl("fetch", "fails", str(tmp_path / "fetched"), inventory=inventory).ok()
    lines = (tmp_path / "fetched" / "a" / "record" / "notify.log").read_text().splitlines()
    assert f" ended: webhook {hook}: answered 200 (" in lines[0]
    assert " ended: command sh: exit code 3 (" in lines[1]
    assert lines[2] == f"    {body['text']}"
    assert lines[3].endswith("/a/code")
    assert not (tmp_path / "fetched" / "b" / "record" / "notify.log").exists()
    for said in (plan, done, fetched):
        assert SECRET not in said.stdout + said.stderr
    assert files_with(tmp_path, [SECRET.encode()]) == [str(inventory.parent / "keys.env")]


def watched(folder: Path) -> bool:
    """Whether the two nodes watch each other, by what the kernel knows of their connection; the port is on record."""
    port = json.loads((folder / "run.json").read_text())["gang"]["port"]
    return answered(
        subprocess.run(["ss", "-Htin", "dst", f":{port}"], check=True, capture_output=True, text=True).stdout
    )


def test_the_next_node_notifies_when_the_first_ones_supervisor_is_lost(
    ddpctl: Ddpctl, inventory: Path, tmp_path: Path
) -> None:
    up = ("up", "--job", "stays", "--skip-preflight", "-d", "--json")
    run = ddpctl(*up, inventory=inventory, timeout=120).ok().json()["run"]
    folders = [tmp_path / "base" / "runs" / run / host for host in ("a", "b")]
    until(lambda: watched(folders[1]), 60, "the nodes do not watch each other")
    state = json.loads((folders[0] / "state.json").read_text())
    os.kill(state["supervisor"]["pid"], signal.SIGKILL)
    until(lambda: asked, 60, "nobody is notified")
    [(_, body)] = asked
    assert (body["host"], body["cause"]["host"], body["cause"]["reason"]) == ("b", "a", "supervisor_lost")
    until(lambda: not list(Path("/proc").glob(f"{state['guardian']['pid']}")), 30, "the guardian stays")
    assert len(asked) == 1
    ddpctl("kill", "stays", inventory=inventory).ok()


def test_the_next_node_notifies_when_the_first_one_loses_power(site: Site, lab: Lab) -> None:
    site.only(0, 1)
    command = ["sh", "-c", 'echo "$DDPCTL_HOST: $DDPCTL_CAUSE_HOST $DDPCTL_CAUSE_REASON" >> /root/notified']
    job = site.job("power-of-the-first", SLEEP, notify=[{"command": command}])
    run = site.up(job, "--skip-preflight")["run"]
    wait_for_gang(lab.hosts[:2], run)
    lab[0].power_off()
    said = until(lambda: lab[1].exists("/root/notified") and lab[1].read("/root/notified"), 60, "nobody is notified")
    assert said == "node1: node0 node_lost\n"
