"""`ddpctl ssh` on real hosts: a shell on a host, and a shell in the place of a rank."""

from __future__ import annotations

import json

from tests.e2e.programs import SLEEP
from tests.e2e.site import Site, ranks, running

PLACE = """
import json, os
print(json.dumps({"folder": os.getcwd(), "environ": dict(os.environ)}))
"""


def place(site: Site, target: str) -> dict[str, object]:
    """Return the folder and the environment in the shell."""
    found: dict[str, object] = json.loads(site("ssh", target, stdin=f"python3 -c '{PLACE}'\n").ok().stdout)
    return found


def test_a_shell_on_a_host(site: Site) -> None:
    assert site("ssh", "node1", stdin="hostname; exit 7\n").stdout == "node1\n"
    assert site("ssh", "node1", stdin="exit 7\n").rc == 7
    before = site.start("ssh", "node2", terminal=True)
    before.wait_for(r"[#$] ")
    before.type("test -t 0 && echo at a terminal of $(hostname)\nexit 3\n")  # type: ignore[attr-defined]
    assert before.wait().rc == 3
    assert "at a terminal of node2" in before.stdout


def test_a_shell_behind_a_jump_host(site: Site) -> None:
    site.hosts[2]["jump"] = "node0"
    client = site("ssh", "node2", stdin="echo $(hostname) $SSH_CLIENT\n").ok().stdout.split()
    assert client[:2] == ["node2", site.lab[0].address]


def test_a_shell_in_the_place_of_a_rank(site: Site) -> None:
    site.job("placed", SLEEP, env={"WORD": "a b $c 'd'"})
    run = site.up("placed")["run"]
    site.wait_for_output("placed", "rank 2 sleeps")
    rank = ranks(site.lab[2], run)[2]
    found = place(site, "placed:2")
    environ = found["environ"]
    assert isinstance(environ, dict)
    assert found["folder"] == site.lab[2].run(f"readlink /proc/{rank.pid}/cwd").stdout.strip()
    same = ["WORD", "RANK", "WORLD_SIZE", "MASTER_ADDR", "PATH", "DDPCTL_RUN"]
    assert [environ.get(name) for name in same] == [rank.environ.get(name) for name in same]
    # The variables that mark a process of the run are left out: kill ends no shell of a user.
    assert not [
        name for name in environ if name.startswith("DDPCTL_LOOK") or name in ("DDPCTL_COOKIE", "DDPCTL_METRICS")
    ]
    assert "sitecustomize" not in environ.get("PYTHONPATH", "")

    shell = site.start("ssh", "placed:2", terminal=True)
    shell.wait_for(r"[#$] ")
    site("kill", "placed").ok()
    assert shell.process.poll() is None
    shell.type("exit 5\n")  # type: ignore[attr-defined]
    assert shell.wait().rc == 5

    ended = site("ssh", f"{run}:2", stdin="pwd\n")
    assert (ended.rc, ended.stdout.strip()) == (0, found["folder"])
    assert "rank 2 is not running on node2" in ended.stderr
    assert not [process for process in running(site.lab[2]) if process.environ.get("DDPCTL_RUN") == run]


def test_what_is_refused(site: Site) -> None:
    nobody = site("ssh", "node7")
    assert nobody.rc == 2
    assert "node7" in nobody.stderr
    site.job("small", SLEEP)
    site.up("small")
    wrong = site("ssh", "small:7")
    assert wrong.rc == 2
    assert "no rank 7: its hosts report 0 to 2" in wrong.stderr
    site("kill", "small").ok()
    assert site("ssh", "nothing:0").rc == 7
    known = site.home / ".ssh" / "known_hosts"
    known.write_text("")
    stranger = site("ssh", "node0", stdin="hostname\n")
    assert (stranger.rc, stranger.stdout) == (4, "")
    assert "Host key verification failed" in stranger.stderr
