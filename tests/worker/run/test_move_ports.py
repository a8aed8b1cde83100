"""A queued run gets other ports when it starts: the launcher's own options change, and no word of the script does."""

from __future__ import annotations

from typing import Any

import pytest

from ddpctl_worker.run.ports import move_ports

STATIC = [
    "python",
    "-m",
    "torch.distributed.launch",
    "--master_addr",
    "10.0.0.1",
    "--master_port",
    "29500",
    "--use_env",
]
ELASTIC = ["python", "-m", "torch.distributed.run", "--rdzv_endpoint", "[fd00::1]:29500", "--rdzv_id", "r1"]
SCRIPT = ["--", "train.py", "--master_port", "29500", "--rdzv_endpoint", "x:29500"]


def request(argv: list[str], env: dict[str, str], **run: Any) -> dict[str, Any]:
    return {"argv": argv, "env": env, "run": {"master_port": 29500, **run}, "cwd": "/"}


@pytest.mark.parametrize(
    ("argv", "moved"),
    [
        (STATIC, [*STATIC[:6], "29700", *STATIC[7:]]),
        (ELASTIC, [*ELASTIC[:4], "[fd00::1]:29700", *ELASTIC[5:]]),
    ],
)
def test_the_launchers_options_have_the_new_port(argv: list[str], moved: list[str]) -> None:
    env = {"MASTER_PORT": "29500"}  # the user's own: torch's launcher sets it anew
    made = request([*argv, *SCRIPT], env, gang={"port": 29501, "hub_addr": "a"}, restart={"first": {"attempt": 1}})
    found = move_ports(made, 29700, 29701)
    assert found["argv"] == [*moved, *SCRIPT]
    assert (found["env"], found["cwd"]) == (env, "/")
    assert found["run"] == {
        "master_port": 29700,
        "gang": {"port": 29701, "hub_addr": "a"},
        "restart": {"first": {"attempt": 1, "master_port": 29700, "gang_port": 29701}},
    }
    assert made["run"]["master_port"] == 29500
    assert made["run"]["gang"]["port"] == 29501


def test_a_script_without_a_launcher_has_it_in_its_environment() -> None:
    argv = ["python", "train.py", "--master_port", "29500"]
    found = move_ports(
        request(argv, {"MASTER_PORT": "29500", "A": "29500"}, launcher="python", gang=None), 29700, 29701
    )
    assert found["argv"] == argv
    assert found["env"] == {"MASTER_PORT": "29700", "A": "29500"}
