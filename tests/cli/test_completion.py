"""A shell that asks how a word may end gets an answer at once: no connection, and no big library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpctl.cli import complete
from ddpctl.cli.program import COMMANDS
from tests.cli.conftest import InProcess
from tests.lab.command import Ddpctl

LIGHT = {
    "ddpctl",
    "ddpctl.cli",
    "ddpctl.cli.app",
    "ddpctl.cli.complete",
    "ddpctl.cli.limits",
    "ddpctl.files",
    "ddpctl.files.completion_names",
    "ddpctl.files.limits",
}
HEAVY = {"typer", "rich", "pydantic", "ruamel", "paramiko", "ClusterShell", "fabric", "httpx", "cryptography"}
Endings = Callable[..., list[str]]
RUN = "20260101T000000Z-aaaaaa"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with an inventory, and a home with the record of a run."""
    (tmp_path / "inventory.yaml").write_text(
        "hosts: ['node[0-2]', gpu7]\njobs:\n  train:\n    script: t.py\n  eval: {}\n"
    )
    (tmp_path / "other.yaml").write_text("hosts: [far]\njobs: {away: {script: t.py}}\n")
    records = tmp_path / ".local" / "state" / "ddpctl" / "controller"
    (records / "runs" / RUN).mkdir(parents=True)
    (records / "last").mkdir()
    (records / "last" / "train-lr01@0123456789ab.json").write_text("{}")
    return tmp_path


def environ(place: Path, shell: str, typed: str) -> dict[str, str]:
    """As the script for that shell asks for the end of the last word; nothing is begun after a blank."""
    words = typed.split(" ")
    asked = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1), "_TYPER_COMPLETE_ARGS": typed}
    fish = {"_TYPER_COMPLETE_FISH_ACTION": "get-args"} if shell == "fish" else {}
    home = {"HOME": str(place), "PATH": os.environ["PATH"], "PWD": str(place)}
    return {**home, **asked, **fish, "_DDPCTL_COMPLETE": f"complete_{shell}"}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Kept from test to test, as from word to word: the first answer makes it."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def endings(place: Path, cache: Path, run_command: InProcess) -> Endings:
    def ask(typed: str, shell: str = "bash") -> list[str]:
        env = {**environ(place, shell, typed), "XDG_CACHE_HOME": str(cache), "DDPCTL_DEBUG": "1"}
        done = run_command(env=env, home=place, cwd=place)
        assert (done.rc, done.stderr) == (0, "")
        return done.stdout.splitlines()

    return ask


def test_commands(endings: Endings) -> None:
    assert endings("ddpctl ") == sorted(COMMANDS)
    assert endings("ddpctl st") == ["status"]
    assert endings("ddpctl --debug -i x.yaml ki") == ["kill"]
    assert endings("ddpctl bench ") == ["network", "scaling"]


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("ddpctl kill ", ["eval", "train", "train-lr01"]),
        ("ddpctl kill train-", ["train-lr01"]),
        ("ddpctl tail 2026", [RUN]),
        ("ddpctl rm train-lr01 20", [RUN]),
        ("ddpctl kill train ", []),
        ("ddpctl up --job ", ["eval", "train"]),
        ("ddpctl up --job = tr", ["train"]),  # as bash splits --job=tr
        ("ddpctl up other.yaml --job ", ["away"]),
        ("ddpctl -i other.yaml up --job ", ["away"]),
        ("ddpctl up --inventory = other.yaml --job ", ["away"]),
        ("ddpctl tail train --host ", ["gpu7", "node0", "node1", "node2"]),
        ("ddpctl exec --host node1,node", ["node1,node0", "node1,node2"]),
        ("ddpctl preflight --only ssh,gpu.x", ["ssh,gpu.xid"]),
        ("ddpctl up --on-interrupt ", ["ask", "detach", "kill"]),
        ("ddpctl kill --gr", ["--grace"]),
        ("ddpctl kill --save --s", []),
        ("ddpctl bench scaling --comp", ["--compare"]),
        ("ddpctl ssh node", ["node0", "node1", "node2"]),
        ("ddpctl up -- tr", []),
        ("ddpctl up ", []),  # then the shell offers files
        ("ddpctl up --nodes ", []),
        ("ddpctl nonsense ", []),
    ],
)
def test_words(endings: Endings, typed: str, found: list[str]) -> None:
    assert [word for word in endings(typed) if word] == found


def test_every_option_of_every_command_is_offered(endings: Endings, run_command: InProcess) -> None:
    """By the help, which typer writes."""
    for command in ("up", "exec", "fetch"):
        shown = run_command(command, "--help").stdout
        offered = endings(f"ddpctl {command} --")
        assert len(offered) > 3
        assert [one for one in offered if one not in ("--debug", *shown.replace(",", " ").split())] == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells(endings: Endings, shell: str) -> None:
    said = endings("ddpctl up --job ", shell)
    assert said == (["eval", "train"] if shell == "fish" else ['_arguments \'*: :(("eval"', '"train"))\''])
    assert endings("ddpctl up ", shell) == ([] if shell == "fish" else ["_files"])


@pytest.mark.slow  # a process
def test_an_answer_imports_next_to_nothing(place: Path, cache: Path, endings: Endings) -> None:
    endings("ddpctl ")
    program = (
        "import json, sys\nfrom ddpctl.cli.app import main\n"
        "try:\n    main()\nexcept SystemExit:\n    json.dump(sorted(sys.modules), sys.stderr)\n"
    )
    env = {**environ(place, "bash", "ddpctl kill "), "XDG_CACHE_HOME": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, cwd=place, capture_output=True, text=True, timeout=60
    )
    assert "train" in done.stdout.splitlines()
    modules = json.loads(done.stderr)
    assert {name for name in modules if name.startswith("ddpctl")} == LIGHT
    assert HEAVY & {name.partition(".")[0] for name in modules} == set()


def test_commands_that_have_changed_are_learnt_again(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    words = complete._vocabulary()
    kept = tmp_path / "cache" / "ddpctl" / "completion.json"
    data = json.loads(kept.read_text())
    for damage in ("{", json.dumps({"key": data["key"]}), json.dumps({**data, "key": "older", "words": {}})):
        kept.write_text(damage)
        assert complete._vocabulary() == words
        assert json.loads(kept.read_text()) == data


@pytest.mark.slow  # a terminal
def test_a_real_bash_completes_at_a_tab(place: Path, ddpctl: Ddpctl) -> None:
    bash = ddpctl.start(cwd=place, home=place, terminal=True, shell="exec bash --norc --noprofile -i")
    try:
        bash.type('PS1="ready> "; source <(ddpctl --show-completion); echo "loaded"\n')  # type: ignore[attr-defined]
        bash.wait_for(r"loaded\r\n.*ready> ")
        bash.type("ddpctl kill train-l\t")  # type: ignore[attr-defined]
        bash.wait_for(r"ddpctl kill train-lr01 ")
    finally:
        bash.kill()
