"""Hostile values reach the script byte for byte or are refused; no shell ever runs them; a secret stays secret."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ddpctl.errors import InventoryError
from ddpctl.files.inventory import load_inventory
from tests.e2e.programs import REPORT, SLEEP
from tests.e2e.site import (
    Site,
    assert_nothing_runs,
    disk_holds,
    files_with,
    of_run,
    one_line,
    ranks,
    until,
    wait_for_ranks,
)
from tests.lab import Lab

HOSTILE = [
    "a b",
    "$(touch pwned)",
    "`touch /root/pwned`",
    "; touch /tmp/pwned; #",
    "x && touch pwned",
    "| touch pwned",
    "> pwned",
    "'",
    '"',
    "\\",
    "new\nline\r\n\ttab",
    "*",
    "?[a-z]",
    "-x",
    "--nnodes=9",
    "--",
    "$HOME ${HOME} $$ $",
    "${local_rank}",
    "{run_dir}",
    "~",
    "%s %d {0} {}",
    "#",
    "!!",
    "",
    " ",
    "\x01\x1b[31m\x7f",
    "ünïcödé 日本 🎲",
    "[red]markup[/red]",
    "x" * 10_000,
]


OLD_TORCH = pytest.mark.full(covered_by="tests/e2e/test_values.py::test_arguments_and_environment_arrive_byte_for_byte")


@pytest.mark.parametrize("version", ["torch_site", pytest.param("old_site", marks=OLD_TORCH)])
def test_arguments_and_environment_arrive_byte_for_byte(version: str, request: pytest.FixtureRequest, lab: Lab) -> None:
    site: Site = request.getfixturevalue(version).only(0, 1)
    env = {f"HOSTILE_{number}": value for number, value in enumerate(HOSTILE)}
    site.hosts[1]["env"] = {"ON_THE_HOST": "$(touch pwned) ünï\n'"}
    folder = "/srv/d d p'; touch pwned; $(touch pwned) ü"
    for host in site.hosts:
        host["base_dir"] = folder
    site.code = site.folder / "co de '$(touch pwned)"
    script = "süb dir/tr ain;$(touch pwned) '\"`touch pwned`.py"
    job = site.job("hostile", REPORT, *HOSTILE, script=script, env=env, workdir=None)
    site.jobs[job]["code"] = site.code.name
    done = site("up", "--job", job).ok()
    found = reports(done.stdout)
    assert sorted(report["environ"]["RANK"] for report in found) == ["0", "1"], done.stdout
    for report in found:
        assert report["argv"][0].endswith(latin(script))
        assert report["argv"][1:] == [latin(value) for value in HOSTILE]
        for name, value in env.items():
            assert report["environ"][name] == latin(value)
        assert report["cwd"].startswith(latin(folder + "/runs/"))
        if report["environ"]["RANK"] == "1":
            assert report["environ"]["ON_THE_HOST"] == latin("$(touch pwned) ünï\n'")
    site("fetch", job, "$(touch pwned) results", env={"LANG": "C"}).ok()
    assert (site.folder / "$(touch pwned) results" / "node0").is_dir()
    site("kill", job).ok()
    assert pwned(site, lab) == []
    for machine in lab.hosts[:2]:
        machine.run(["rm", "-rf", folder])


def test_a_folder_that_is_on_the_nodes_already(site: Site, lab: Lab) -> None:
    site.only(0, 1)
    workdir = "/srv/wörk dir $(touch pwned);'"
    for host in lab.hosts[:2]:
        host.write(f"{workdir}/-train er.py", REPORT)
    site.jobs["there"] = {"script": "./-train er.py", "code": None, "workdir": workdir, "args": ["-c", "x"]}
    found = reports(site("up", "--job", "there").ok().stdout)
    assert [report["cwd"] for report in found] == [latin(workdir)] * 2
    assert [report["argv"][1:] for report in found] == [["-c", "x"]] * 2
    assert pwned(site, lab) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"jobs": {"$(touch pwned)": {"script": "a.py"}}}, "jobs"),
        ({"jobs": {"-rf": {"script": "a.py"}}}, "-rf"),
        ({"jobs": {"../up": {"script": "a.py"}}}, "../up"),
        ({"cluster": "a b"}, "cluster"),
        ({"hosts": ["node0; touch pwned"]}, "hosts"),
        ({"hosts": ["-oProxyCommand=touch pwned"]}, "hosts"),
        ({"hosts": [{"name": "node0", "address": "-oProxyCommand=touch pwned"}]}, "address"),
        ({"hosts": [{"name": "node0", "user": "root;touch pwned"}]}, "user"),
        ({"hosts": [{"name": "node0", "interface": "eth0; touch pwned"}]}, "interface"),
        ({"jobs": {"j": {"script": "a.py", "env": {"A=B": "x"}}}}, "A=B"),
        ({"jobs": {"j": {"script": "a.py", "env": {"A B": "x"}}}}, "A B"),
        ({"jobs": {"j": {"script": "a.py", "env": {"A": "nul\x00byte"}}}}, ""),
        ({"environment": {"mode": "managed", "packages": ["torch=2"]}}, "environment.packages[0]"),
    ],
)
def test_names_that_are_none_are_refused_with_their_place(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(InventoryError) as refused:
        load_inventory(with_a_bad_name(tmp_path, change))
    said = str(refused.value)
    assert said.startswith(f"{tmp_path}/bad.yaml:1:")
    assert words in said
    assert not list(tmp_path.rglob("pwned"))


def with_a_bad_name(folder: Path, change: dict[str, Any]) -> Path:
    path = folder / "bad.yaml"
    (folder / "a.py").write_text(SLEEP)
    path.write_text(json.dumps({"cluster": "lab", "hosts": ["node0"], "jobs": {"j": {"script": "a.py"}}, **change}))
    return path


def test_a_bad_name_ends_the_command_before_anything_is_contacted(site: Site) -> None:
    """There is no inventory of real hosts here."""
    path = with_a_bad_name(site.folder, {"hosts": ["-oProxyCommand=touch pwned"]})
    done = site("up", str(path), "--dry-run", inventory=None)
    assert done.rc == 2, done.stdout + done.stderr
    assert done.stdout == ""
    assert done.stderr.count("error: ") == 1
    assert len(done.stderr.splitlines()) <= 2
    assert f"{path}:1:" in one_line(done)
    assert "hosts" in one_line(done)
    assert not list(site.folder.rglob("pwned"))


def test_all_faults_of_a_file_are_shown_with_the_nearest_name_first(site: Site) -> None:
    path = site.folder / "bad.yaml"
    path.write_text("hots: [node0]\n")
    done = site("push", str(path), inventory=None)
    assert done.rc == 2
    first, second, last, hint = done.stderr.splitlines()
    assert "did you mean hosts?" in first
    assert "hosts: is missing" in second
    assert last.startswith("error: ")
    assert hint == "hint: did you mean hosts?"


def test_a_push_with_several_jobs_asks_which(site: Site) -> None:
    site.job("one", SLEEP)
    site.job("two", SLEEP)
    done = site("push")
    assert done.rc == 2
    assert "choose one with --job: one, two" in one_line(done)


ONE_IS_ENOUGH = pytest.mark.full(
    covered_by="tests/e2e/test_values.py::test_a_script_that_is_not_in_the_code_folder_is_refused"
)


@pytest.mark.parametrize(
    "script",
    ["../inventory.yaml", *(pytest.param(one, marks=ONE_IS_ENOUGH) for one in ("/etc/passwd", "no-such.py"))],
)
def test_a_script_that_is_not_in_the_code_folder_is_refused(site: Site, script: str) -> None:
    job = site.job("outside", SLEEP)
    site.jobs[job]["script"] = script
    done = site("up", "--job", job)
    assert done.rc == 2
    assert "jobs.outside.script" in one_line(done)
    assert script in one_line(done)


def test_a_secret_reaches_the_process_and_nobody_else(site: Site, lab: Lab) -> None:
    secret, other = "s3cr3t-$(touch pwned)-ünï'\"", "another-secret-word"
    words = [secret.encode(), other.encode(), json.dumps(secret)[1:-1].encode(), b"s3cr3t"]
    (site.code / "keys.env").write_text(f"# comment\nTOKEN='{secret[:-2]}'\nexport OTHER=\"{other}\"\n")
    words.append(secret[:-2].encode())
    job = site.job("secret", SLEEP, env_file="code/keys.env", env={"TOKEN": "overridden", "PLAIN": "x"})
    run = site.up(job, "--skip-preflight")
    wait_for_ranks(lab, run["run"])
    seen: list[str] = [json.dumps(run)]
    for host in lab:
        for process in ranks(host, run["run"]).values():
            assert process.environ["TOKEN"] == secret[:-2]
            assert process.environ["OTHER"] == other
            assert process.environ["PLAIN"] == "x"
        for process in host.processes(system=True):
            assert not any(word in os.fsencode("\0".join(process.argv)) for word in words), process.argv
    for command in (["status", job], ["status", job, "--json"], ["ps", "--json"], ["tail", job], ["up", "--dry-run"]):
        done = site(*command, *(["--job", job, "--json"] if command[0] == "up" else [])).ok()
        seen += [done.stdout, done.stderr]
    watched = until(lambda: all(of_run(host, run["run"]) for host in lab))
    assert watched
    kill = site("--debug", "kill", job, "--json").ok()
    site("fetch", job, "results").ok()
    seen += [kill.stdout, kill.stderr]
    assert_nothing_runs(lab)  # so that no file comes or goes during the look at the disks
    assert not any(word.decode() in text for word in words for text in seen)
    for host in lab:
        assert disk_holds(host, words) == []
        assert not host.exists(f"/root/.local/state/ddpctl/runs/{run['run']}/{host.name}/code/keys.env")
    assert files_with(site.home, words) == []
    assert files_with(site.folder / "results", words) == []
    assert pwned(site, lab) == []


def test_a_secret_is_in_no_error(site: Site, lab: Lab) -> None:
    """Wherever an env file is wrong or a start fails."""
    site.only(0, 1)
    job = site.job("secret", SLEEP, env_file="keys.env")
    keys = site.folder / "keys.env"
    for text in ("GOOD=a\nthis is s3cr3t\n", "1BAD=s3cr3t\n", "RANK=s3cr3t\n", "A='s3cr3t\n"):
        keys.write_text(text)
        done = site("--debug", "up", "--job", job)  # it says more, and all that it would say without
        assert done.rc == 2, done.stderr
        assert "s3cr3t" not in done.stdout + done.stderr
        assert f"{keys}:" in one_line(done)
    keys.write_text("TOKEN=s3cr3t\n")
    site.jobs[job]["workdir"] = "/not/there"
    done = site("--debug", "up", "--job", job, "--skip-preflight", "--json")
    assert done.rc != 0
    assert "s3cr3t" not in done.stdout + done.stderr
    assert "/not/there" in done.stderr
    assert_nothing_runs(lab)
    assert files_with(site.home, [b"s3cr3t"]) == []
    for host in lab.hosts[:2]:
        assert disk_holds(host, [b"s3cr3t"]) == []


def reports(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[line.index("{") :]) for line in text.splitlines() if '{"argv"' in line]


def latin(text: str) -> str:
    """The bytes of the text as the report spells them."""
    return text.encode("utf-8").decode("latin1")


def pwned(site: Site, lab: Lab) -> list[Path]:
    """Files that a shell made of our text, here or on a host, anywhere."""
    places = [site.folder, site.home, Path("/tmp"), Path("/root")]
    for host in lab:
        assert host.init
        root = Path("/proc", str(host.init.pid), "root")
        places += [host.disk.upper, root / "tmp", root / "run", root / "dev/shm"]
    # os.walk skips the folders of other tests that vanish meanwhile.
    found = [(Path(at), {*folders, *names}) for place in places for at, folders, names in os.walk(place)]
    return [folder / "pwned" for folder, names in found if "pwned" in names]
