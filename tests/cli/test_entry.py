"""The installed command at its edges: where options may stand, what a failure prints, streams that are closed."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ddpctl.cli import session
from ddpctl.errors import UsageError
from tests.cli.conftest import InProcess
from tests.lab.command import PROGRAM
from tests.suite.speed import stretch

CLOSED = pytest.mark.full(covered_by="tests/cli/test_entry.py::test_streams_may_be_closed")
GONE = pytest.mark.full(covered_by="tests/cli/test_entry.py::test_a_reader_that_goes_away_is_no_fault")
LOCAL = "cluster: here\nhosts:\n  - {name: here, connection: local, base_dir: BASE}\n"


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    path = tmp_path / "machines.yaml"
    path.write_text(LOCAL.replace("BASE", str(tmp_path / "base")))
    return path


def ddpctl(*args: str, shell: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """Run in the folder that PWD in ``environ`` names; ``shell`` is appended to the command (a redirection)."""
    env = {"PATH": os.environ["PATH"], "HOME": environ.get("PWD", "/"), **environ}
    command = [str(PROGRAM), *args]
    if shell:
        command = ["bash", "-c", f'"$@" {shell}', "bash", *command]
    return subprocess.run(
        command,
        env=env,
        cwd=env.get("PWD"),
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=stretch(60),
    )


def without_notice(stderr: str) -> str:
    """The lines without the notice that the inventory runs jobs on this machine, and that `ps` found no runs."""
    notices = ("the first use of this inventory", "no runs on 1 host; ")
    return "".join(line for line in stderr.splitlines(keepends=True) if not any(notice in line for notice in notices))


@pytest.mark.slow  # a worker on this machine
@pytest.mark.parametrize(
    "args",
    [
        ["ps", "FILE"],
        ["ps", "-i", "FILE"],
        ["ps", "--inventory=FILE"],
        ["-i", "FILE", "ps"],
        ["--inventory", "FILE", "ps", "--json"],
        ["ps", "FILE", "--debug"],
        ["--debug", "ps", "FILE"],
        ["ps", "-i", "FILE", "FILE"],
    ],
)
def test_the_inventory_and_debug_stand_before_or_behind_the_command(
    args: list[str], inventory: Path, run_command: InProcess
) -> None:
    done = run_command(*(arg.replace("FILE", str(inventory)) for arg in args), cwd=inventory.parent)
    assert (done.rc, without_notice(done.stderr)) == (0, "")


def test_two_different_inventories_are_refused(inventory: Path, run_command: InProcess) -> None:
    other = inventory.with_name("other.yaml")
    for args in (["up", str(inventory), "-i", str(other)], ["-i", str(other), "ps", str(inventory)]):
        done = run_command(*args, cwd=inventory.parent)
        assert done.rc == 2
        assert "two inventories given" in done.stderr


@pytest.mark.parametrize(("command", "meant"), [("up", "up --job"), ("push", "push --job"), ("ps", "status")])
def test_a_job_in_place_of_the_inventory(job: Path, command: str, meant: str, run_command: InProcess) -> None:
    job.rename(job.with_name("inventory.yaml"))
    done = run_command(command, "train", cwd=job.parent)
    assert done.rc == 2
    line, hint = done.stderr.splitlines()
    assert "there is no inventory train, but train is a job of" in line
    assert hint == f"hint: did you mean `ddpctl {meant} train`?"
    assert "error: trian: file not found" in run_command(command, "trian", cwd=job.parent).stderr


def test_options_alone_are_added_to_the_jobs_arguments(job: Path, run_command: InProcess) -> None:
    done = run_command("up", str(job), "--dry-run", "--json", "--", "--lr", "0.1", "--debug", cwd=job.parent)
    assert done.rc == 0, done.stderr
    assert json.loads(done.stdout)["nodes"][0]["argv"][-4:] == ["train.py", "--lr", "0.1", "--debug"]


ENDS_SLOWLY = """
import atexit, os, sys, time, types
from ddpctl.cli.app import main
def end(write=os.write, sleep=time.sleep):
    write(1, b"ending\\n")
    sleep(5)
class Late:
    __del__ = lambda self, end=end: end()
def put_into_module():
    sys.modules["late"] = types.ModuleType("late")
    sys.modules["late"].late = Late()  # deleted with its module: Python has given up its signal handlers by then
atexit.register(end if sys.argv[1] == "atexit" else put_into_module)
main(sys.argv[2:])
"""


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["atexit", "deletion"])
@pytest.mark.parametrize(("command", "code"), [("schema", 0), ("tial", 2)])
def test_a_signal_during_the_last_moment_keeps_the_exit_code(command: str, code: int, moment: str) -> None:
    argv = [sys.executable, "-c", ENDS_SLOWLY, moment, command]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any(line == "ending\n" for line in process.stdout)
        process.send_signal(signal.SIGINT)
        assert process.wait() == code


def test_a_command_in_a_process_of_its_caller_leaves_the_handler_of_ctrl_c(run_command: InProcess) -> None:
    before = signal.getsignal(signal.SIGINT)
    assert run_command("schema").rc == 0
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.slow  # a worker on this machine
def test_debug_shows_a_traceback_and_nothing_else_does(inventory: Path, run_command: InProcess) -> None:
    assert "Traceback" not in run_command("status", "nope", "-i", str(inventory)).stderr
    assert "Traceback" in run_command("status", "nope", "-i", str(inventory), "--debug").stderr


def test_words_behind_the_dashes_are_not_ours(inventory: Path, run_command: InProcess) -> None:
    script = inventory.with_name("train.py")
    script.write_text("")
    done = run_command(
        "up", "--dry-run", "--json", str(inventory), "--", "train.py", "--debug", "-i", "x", cwd=inventory.parent
    )
    assert done.rc == 0, done.stderr
    argv = json.loads(done.stdout)["nodes"][0]["argv"]
    assert argv[-4:] == ["train.py", "--debug", "-i", "x"]


def test_without_arguments_the_help_is_shown_once(run_command: InProcess) -> None:
    done = run_command()
    assert done.rc == 2
    assert done.stdout.count("Usage: ddpctl") + done.stderr.count("Usage: ddpctl") == 1


@pytest.mark.slow  # a process
@pytest.mark.parametrize(
    "command", ["ps", pytest.param("preflight --only ssh", marks=GONE), pytest.param("schema", marks=GONE)]
)
def test_a_reader_that_goes_away_is_no_fault(command: str, inventory: Path) -> None:
    file = [] if command == "schema" else [str(inventory)]
    done = ddpctl(*command.split(), *file, shell='| true; exit "${PIPESTATUS[0]}"')
    assert done.returncode in (0, 141)
    assert "error:" not in done.stderr


@pytest.mark.slow  # a process
@pytest.mark.parametrize(
    "closed", [">&-", ">&- 2>&- <&-", pytest.param("2>&-", marks=CLOSED), pytest.param("<&-", marks=CLOSED)]
)
def test_streams_may_be_closed(closed: str, inventory: Path) -> None:
    for extra in ([], ["--json"]):
        done = ddpctl("ps", str(inventory), *extra, shell=closed, PWD=str(inventory.parent))
        assert (done.returncode, without_notice(done.stderr)) == (0, "")


@pytest.mark.slow  # a process
def test_output_that_cannot_be_written_is_said_once(inventory: Path) -> None:
    for args in (["ps", str(inventory), "--json"], ["schema"]):
        done = ddpctl(*args, shell="> /dev/full", PWD=str(inventory.parent))
        assert done.returncode == 1
        line, hint = without_notice(done.stderr).splitlines()
        assert line.startswith("error: could not write ")
        assert line.endswith("No space left on device")
        assert hint == "hint: make room, then run it again"
        assert "internal error" not in done.stderr


@pytest.mark.slow  # a worker on this machine
def test_a_character_that_the_output_cannot_hold_is_written_out(inventory: Path) -> None:
    done = ddpctl("exec", "-i", str(inventory), "--", "echo", "caf\u00e9", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout) == (0, "here: caf\\xe9\n")


def test_fetch_refuses_a_place_that_cannot_be_a_folder_before_anything_is_contacted(
    inventory: Path, run_command: InProcess
) -> None:
    for dest in (str(inventory), f"{inventory}/below"):
        done = run_command("fetch", "job", dest, "-i", str(inventory))
        assert done.rc == 2
        line, hint = done.stderr.splitlines()
        assert dest in line
        assert hint == "hint: name another folder"
    assert not inventory.with_name("base").exists()


@pytest.mark.parametrize("command", ["preflight", "report job -i", "bench scaling", "bench network"])
def test_a_place_that_cannot_hold_a_page_is_refused_before_anything_is_contacted(
    command: str, inventory: Path, run_command: InProcess
) -> None:
    for page in (f"{inventory}/page.html", str(inventory.parent), "nowhere/page.html"):
        done = run_command(*command.split(), str(inventory), "--html", page)
        assert (done.rc, done.stdout) == (2, "")
        line, hint = done.stderr.splitlines()
        assert line.startswith(f"error: cannot write the report to {page}: ")
        assert hint == "hint: name another file: --html FILE"
    assert not inventory.with_name("base").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ps LONG", "LONG: cannot be read: File name too long"),
        pytest.param("fetch job LONG -i FILE", "on 1 host", marks=pytest.mark.slow),  # a worker on this machine
        ("up FILE -- LONG", "script 'LONG' not found in the code folder"),
        ("up FILE --set jobs.job.code=LONG", "code folder not found"),
        ("push FILE --data LONG", "is no folder"),
        ("init --host a --script LONG", "script LONG is not here"),
    ],
)
def test_a_name_that_is_too_long_is_a_name_that_is_not_there(
    words: str, said: str, inventory: Path, run_command: InProcess
) -> None:
    long = "x" * 300
    inventory.write_text(inventory.read_text() + "jobs: {job: {script: train.py}}")
    inventory.with_name("train.py").write_text("")
    named = words.replace("FILE", str(inventory)).replace("LONG", long)
    done = run_command(*named.split(), cwd=inventory.parent)
    assert said.replace("LONG", long) in done.stderr
    assert "internal error" not in done.stderr


@pytest.fixture
def job(inventory: Path) -> Path:
    """The inventory with a job with missing data, so that preflight refuses it."""
    inventory.with_name("train.py").write_text("")
    inventory.write_text(
        inventory.read_text() + "jobs:\n  train: {script: train.py, requires: {data: [/data/nowhere]}}\n"
    )
    return inventory


@pytest.mark.slow  # a worker on this machine
def test_a_refused_up_prints_the_report_as_its_one_document(job: Path, run_command: InProcess) -> None:
    done = run_command("up", str(job), "--json")
    assert done.rc == 3
    report = json.loads(done.stdout)
    assert (report["schema"], report["ok"]) == (1, False)
    assert any("/data/nowhere" in finding["message"] for finding in report["findings"])
    (last,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert last.startswith("error: nothing was started")
    assert "/data/nowhere" in last


@pytest.mark.slow  # a worker on this machine
def test_a_preflight_with_errors_ends_with_one_line_that_says_so(job: Path, run_command: InProcess) -> None:
    for extra in ([], ["--json"]):
        done = run_command("preflight", str(job), *extra)
        assert done.rc == 3
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert line.startswith("error: preflight found")
        assert "/data/nowhere" in line


@pytest.mark.slow  # a worker on this machine
def test_a_page_that_cannot_be_written_costs_no_result(job: Path, run_command: InProcess) -> None:
    done = run_command("preflight", str(job), "--html", "/dev/full", "--json")
    assert (done.rc, json.loads(done.stdout)["ok"]) == (3, False)
    assert "warning: cannot write the report to /dev/full: No space left on device" in done.stderr
    done = run_command("preflight", str(job), "--html", "/dev/full", "--only", "ssh")
    assert (done.rc, "1 host" in done.stdout) == (2, True)
    assert "error: cannot write the report to /dev/full: No space left on device" in done.stderr


def test_a_full_disk_leaves_the_earlier_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.html"
    page.write_text("earlier")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="No space left"), session.with_page(page, lambda: "new"):
        pass
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("page.html", "earlier")]


@pytest.mark.slow  # a process
@pytest.mark.parametrize("module", ["typer", "ClusterShell.NodeSet", "ddpctl.transport.fleet"])
def test_ctrl_c_while_a_library_is_imported_is_no_traceback(module: str, tmp_path: Path) -> None:
    """Too short a moment to meet by chance: the import itself raises the signal."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    done = ddpctl("ps", PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    ("typed", "meant"), [("stop", "did you mean kill?"), ("prefligth", "did you mean preflight?"), ("zzz", "--help")]
)
def test_a_command_that_does_not_exist(typed: str, meant: str, run_command: InProcess) -> None:
    done = run_command(typed)
    assert done.rc == 2
    line, hint = done.stderr.splitlines()
    assert line == f"error: no such command: {typed}"
    assert meant in hint


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("up --jop x", "no such option: --jop"),
        ("fetch", "missing argument"),
        ("up --nodes two", "invalid value for '--nodes'"),
        ("status up -- more", "unexpected extra argument"),  # `up` is a job's name here
    ],
)
def test_a_command_line_that_makes_no_sense(typed: str, said: str, run_command: InProcess) -> None:
    done = run_command(*typed.split())
    assert done.rc == 2
    line, hint = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert said in line
    assert hint.partition(";")[0] == f"hint: see ddpctl {typed.split()[0]} --help"


@pytest.mark.parametrize("command", [[], ["up"], ["bench"], ["bench", "scaling"]])
def test_a_flag_is_shown_as_a_flag(command: list[str], run_command: InProcess) -> None:
    done = run_command(*command, "--help")
    assert done.rc == 0
    assert "--help" in done.stdout
    assert "bool" not in done.stdout


@pytest.mark.slow  # a process
def test_only_the_module_of_the_typed_command_is_imported() -> None:
    program = "import sys\nfrom ddpctl.cli.program import run\nrun(['status', '--help'])\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=stretch(60)
    )
    modules = set(done.stdout.split())
    assert "ddpctl.cli.runs" in modules
    assert {"ddpctl.cli.up", "ddpctl.cli.output", "ddpctl.cli.nodes", "ddpctl.cli.init"} & modules == set()


@pytest.mark.slow  # a process
def test_python_m_ddpctl_is_the_same_command() -> None:
    for args in (["--version"], ["ps", "nowhere.yaml"]):
        module = subprocess.run(
            [sys.executable, "-m", "ddpctl", *args], capture_output=True, text=True, timeout=stretch(60)
        )
        script = subprocess.run([str(PROGRAM), *args], capture_output=True, text=True, timeout=stretch(60))
        assert (module.returncode, module.stdout, module.stderr) == (script.returncode, script.stdout, script.stderr)


@pytest.mark.parametrize("package", ["ddpctl", "ddpctl_worker"])
def test_a_package_says_that_it_is_typed(package: str) -> None:
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).with_name("py.typed").is_file()


@pytest.mark.parametrize("command", [("up", "--dry-run"), ("push", "--list")])
def test_a_home_that_cannot_be_written_names_the_variable_that_moves_the_cache(
    job: Path, run_command: InProcess, command: tuple[str, ...]
) -> None:
    done = run_command(*command, home=Path("/proc"), inventory=job)
    assert done.rc == 2
    assert "error: /proc/.cache: No such file or directory" in done.stderr
    assert "hint: set XDG_CACHE_HOME to a folder that this account can write" in done.stderr


def test_an_option_of_the_script_is_sent_behind_the_dashes(run_command: InProcess, inventory: Path) -> None:
    done = run_command("up", "--lr", "0.3", cwd=inventory.parent)
    assert done.rc == 2
    assert "hint: see ddpctl up --help; options of your script follow --: ddpctl up -- --lr VALUE" in done.stderr
    done = run_command("up", "3", "1", cwd=inventory.parent)
    assert "follow -- and the script: ddpctl up -- SCRIPT ARGUMENTS" in done.stderr
    assert "hint: see ddpctl ps --help\n" in run_command("ps", "--lr", "0.3", cwd=inventory.parent).stderr


@pytest.mark.slow  # a worker on this machine
def test_a_line_of_shell_text_as_a_program_gets_the_shell_in_the_hint(run_command: InProcess, inventory: Path) -> None:
    done = run_command("exec", "-i", str(inventory), "--", "du -sh ~", cwd=inventory.parent)
    assert done.rc == 1
    assert f"hint: for a line of shell text: ddpctl -i {inventory} exec -- sh -c 'du -sh ~'" in done.stderr
