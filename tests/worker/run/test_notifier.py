"""Notifiers as real processes and real requests: their input, their deadline, and that they never harm a run."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.machine import proc
from ddpctl_worker.record.outcome import cause
from ddpctl_worker.record.paths import RunPaths
from ddpctl_worker.run.notifying import notify
from tests.worker.node import eventually, processes_of

pytestmark = pytest.mark.slow  # it starts processes

HOSTS = ["node0", "node1"]
RUN: Any = {"job": "train", "run": "r-1", "cluster": "lab", "project": "exp", "host": "node0", "hosts": HOSTS}
EVENT = {
    "event": "ended",
    "state": "failed",
    "attempt": 1,
    "started": "2026-01-02T03:04:05Z",
    "ended": "2026-01-02T03:05:05Z",
    "cause": cause("node1", "exited", "böse \0 \ud800", rank=3, exit_code=1),
}
SHORT_S = 5.0  # time enough for a notifier that does not hang
Notified = Callable[..., str]


@pytest.fixture
def folder(tmp_path: Path) -> RunPaths:
    (tmp_path / "node0").mkdir()
    return RunPaths(str(tmp_path / "node0"))


@pytest.fixture
def notified(folder: RunPaths, tmp_path: Path) -> Notified:
    """Return a function that runs notifiers to their end and returns notify.log."""

    def run(*to: dict[str, Any], seconds: float = 30.0, event: dict[str, Any] = EVENT, **env: str) -> str:
        how: Any = {"to": list(to), "env": dict(os.environ, **env), "cwd": str(tmp_path), "umask": 0o22}
        os.waitpid(notify(folder, RUN, how, event, seconds), 0)
        return Path(folder.notify_log).read_text()

    return run


def sh(text: str) -> dict[str, Any]:
    return {"command": ["sh", "-c", text]}


def outcomes(log: str) -> list[str]:
    """Return the lines of the log without time, event and the output of the notifiers."""
    return [line.partition(" ended: ")[2] for line in log.splitlines() if not line.startswith(" ")]


def test_a_command_finds_the_outcome_in_its_environment_and_on_stdin(notified: Notified, folder: RunPaths) -> None:
    log = notified(sh('cat > said; env > found; pwd; echo "$TOKEN $DDPCTL_CAUSE_HOST:$DDPCTL_CAUSE_RANK"'), TOKEN="x y")
    above = Path(folder.node).parent
    assert outcomes(log)[0].startswith("command sh: exit code 0 (")
    assert log.splitlines()[1:] == [f"    {above}", "    x y node1:3"]
    said = json.loads((above / "said").read_text())
    assert {name: said[name] for name in {*RUN, *EVENT}} == {**RUN, **EVENT}
    lines = [line.split("=", 1) for line in (above / "found").read_text().splitlines() if line.startswith("DDPCTL")]
    found = {name: value for name, value in lines if name not in os.environ}
    assert found == {
        "DDPCTL_EVENT": "ended",
        "DDPCTL_JOB": "train",
        "DDPCTL_RUN": "r-1",
        "DDPCTL_RUN_DIR": folder.node,
        "DDPCTL_HOST": "node0",
        "DDPCTL_STATE": "failed",
        "DDPCTL_TEXT": "train failed on lab: node1 rank 3: exited: böse  ? (run r-1)",
        "DDPCTL_CAUSE_HOST": "node1",
        "DDPCTL_CAUSE_RANK": "3",
        "DDPCTL_CAUSE_REASON": "exited",
        "DDPCTL_CAUSE_MESSAGE": "böse  ?",
    }


def test_one_that_fails_does_not_keep_the_others_from_running(notified: Notified) -> None:
    log = notified(sh("exit 3"), {"command": ["no-such-program"]}, sh("kill -9 $$"), {"command": ["a\0b"]}, sh("true"))
    said = [line.partition(" (")[0] for line in outcomes(log)]
    assert said[0] == "command sh: exit code 3"
    assert said[1].startswith("command no-such-program: cannot be started: [Errno 2]")
    assert said[2] == "command sh: ended by signal 9"
    assert "cannot be started: embedded null byte" in said[3]
    assert said[4] == "command sh: exit code 0"


def test_nobody_is_notified_twice_of_the_same(notified: Notified, tmp_path: Path) -> None:
    for _ in range(3):
        notified(sh("echo here >> tally"))
    assert (tmp_path / "tally").read_text() == "here\n"
    notified(sh("echo here >> tally"), event={**EVENT, "event": "restart", "attempt": 2})
    notified(sh("echo here >> tally"), event={**EVENT, "event": "restart", "attempt": 3})
    assert (tmp_path / "tally").read_text() == "here\n" * 3


def test_without_a_claim_on_the_disk_nobody_is_notified(folder: RunPaths, tmp_path: Path) -> None:
    how: Any = {"to": [sh("touch ran")], "env": dict(os.environ), "cwd": str(tmp_path), "umask": 0o22}
    os.rmdir(folder.node)
    os.waitpid(notify(folder, RUN, how, EVENT), 0)
    assert not (tmp_path / "ran").exists()


HANGS = "sleep 3%(mark)s"
IGNORES = "trap '' TERM HUP INT; while :; do sleep 3%(mark)s; done"
LEAVES = "setsid sh -c 'setsid sleep 3%(mark)s & sleep 3%(mark)s' & sleep 3%(mark)s & echo left"
SCRUBS = "env -i setsid sleep 3%(mark)s & exit 1"
FORKS = "f() { setsid sleep 3%(mark)s & sleep 0.02; f; }; f"
FLOODS = "exec yes 3%(mark)s"


@pytest.mark.parametrize("text", [HANGS, IGNORES, LEAVES, SCRUBS, FORKS, FLOODS])
def test_nothing_of_a_notifier_outlives_its_deadline(notified: Notified, text: str, folder: RunPaths) -> None:
    mark = str(os.getpid())  # seconds that no other test sleeps
    log = notified(sh(text % {"mark": mark}), sh("echo fine"), seconds=SHORT_S)
    assert processes_of(f"3{mark}") == {}
    late = "did not end within 5 s and was killed"
    assert (late in outcomes(log)[0]) == (text not in (LEAVES, SCRUBS))
    assert outcomes(log)[1].startswith("command sh: exit code 0")
    assert len(log) < 20_000


def test_what_a_notifier_writes_is_kept_up_to_a_limit(notified: Notified) -> None:
    log = notified(sh("head -c 100000 /dev/zero | tr '\\0' x"), sh("echo out; echo err >&2"))
    first, second, *rest = log.splitlines()[1:]
    assert second == f"    (at least {100_000 - 8192} bytes more)"
    assert first == "    " + "x" * 8192
    assert rest[1:] == ["    out", "    err"]


def test_a_message_that_is_not_read_holds_up_nobody(notified: Notified) -> None:
    big = {**EVENT, "cause": cause("node1", "exited", "boom", traceback="x" * 300_000)}
    log = notified(sh("exec < /dev/null; echo fine"), sh("wc -c"), event=big)
    assert "    fine" in log.splitlines()
    assert int(log.splitlines()[-1]) > 300_000


class Hook(ThreadingHTTPServer):
    """``asked``: path, headers and body of every request; ``seen``: command lines of processes that show the path."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.asked: list[tuple[str, dict[str, str], Any]] = []
        self.seen: list[str] = []
        self.go = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Answer(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.asked.append(
            (self.path, {key.lower(): value for key, value in self.headers.items()}, json.loads(body))
        )
        self.server.seen += processes_of(self.path.rpartition("/")[2]).values()
        kind = self.path.split("/")[1]
        if kind == "hang":
            self.server.go.wait(60)
        code = {"fail": 500, "moved": 302, "moved308": 308}.get(kind, 200)
        self.send_response(code)
        if code in (302, 308):
            self.send_header("Location", self.server.url + "/elsewhere/h00k-t0ken")
        self.end_headers()
        self.wfile.write(b"an answer that nobody keeps")

    def do_GET(self) -> None:
        self.server.asked.append((self.path, {}, None))
        self.send_error(404)

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture
def hook() -> Iterator[Hook]:
    with Hook() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.go.set()
        server.shutdown()


def test_a_webhook_gets_the_outcome_as_json(notified: Notified, hook: Hook, folder: RunPaths) -> None:
    log = notified({"webhook": f"{hook.url}/ok/h00k-t0ken"})
    [(path, headers, body)] = hook.asked
    assert (path, headers["content-type"]) == ("/ok/h00k-t0ken", "application/json")
    assert {name: body[name] for name in {*RUN, *EVENT}} == {**RUN, **EVENT}
    assert body["text"].startswith("train failed on lab: node1 rank 3")
    assert outcomes(log)[0].startswith(f"webhook {hook.url}: answered 200 (")
    assert "nobody keeps" not in log
    assert hook.seen == []  # the address is in no command line and no environment while it is asked
    for file in Path(folder.node).iterdir():
        assert "h00k-t0ken" not in file.read_text()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("fail", "failed: answered 500"),
        ("moved", "failed: answered 302 (redirects are not followed)"),
        ("moved308", "failed: answered 308 (redirects are not followed)"),
    ],
)
def test_a_webhook_that_answers_anything_else_has_failed(notified: Notified, hook: Hook, path: str, said: str) -> None:
    log = notified({"webhook": f"{hook.url}/{path}/h00k-t0ken"})
    assert outcomes(log)[0].startswith(f"webhook {hook.url}: {said} (")
    assert [one[0] for one in hook.asked] == [f"/{path}/h00k-t0ken"]


def test_a_webhook_that_never_answers_is_given_up(notified: Notified, hook: Hook) -> None:
    log = notified({"webhook": f"{hook.url}/hang/h00k-t0ken"}, sh("true"), seconds=SHORT_S)
    assert outcomes(log)[0] == f"webhook {hook.url}: did not end within 5 s and was killed"
    assert outcomes(log)[1].startswith("command sh: exit code 0")


def test_a_webhook_that_cannot_be_reached_says_why_and_not_where(notified: Notified) -> None:
    log = notified({"webhook": "http://127.0.0.1:1/h00k-t0ken"}, {"webhook": "http://name.invalid/h00k-t0ken"})
    first, second = outcomes(log)
    assert "webhook http://127.0.0.1:1: failed: [Errno 111] Connection refused" in first
    assert second.startswith("webhook http://name.invalid: failed: ")
    assert "h00k-t0ken" not in log


def test_a_webhook_goes_through_the_proxy_of_the_login(notified: Notified, hook: Hook) -> None:
    notified({"webhook": "http://name.invalid/ok/h00k-t0ken"}, http_proxy=hook.url, no_proxy="")
    assert [one[0] for one in hook.asked] == ["http://name.invalid/ok/h00k-t0ken"]


def test_the_process_has_a_name_and_a_session_of_its_own(folder: RunPaths, tmp_path: Path) -> None:
    to = [sh("echo $PPID > parent; while [ ! -e go-on ]; do sleep 0.1; done")]
    how: Any = {"to": to, "env": dict(os.environ), "cwd": str(tmp_path), "umask": 0o22}
    pid = notify(folder, RUN, how, EVENT)
    eventually(lambda: (tmp_path / "parent").exists() and (tmp_path / "parent").read_text(), "the command runs")
    found = proc.read_stat(pid)
    assert found is not None
    assert (found.name, os.getsid(pid)) == ("ddpctl-notify", pid)
    assert int((tmp_path / "parent").read_text()) == pid
    (tmp_path / "go-on").touch()
    os.waitpid(pid, 0)
