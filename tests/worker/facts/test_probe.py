"""The node's facts, asked for on this very machine: a question that hangs or breaks loses its own answer, and no other
answer.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker import facts
from ddpctl_worker.facts import env, host, job, nvidia, probe, processes
from ddpctl_worker.machine import tool
from ddpctl_worker.wire.channel import Channel, WorkerError


@pytest.fixture
def channel() -> Iterator[Channel]:
    reader, writer = os.pipe()
    yield Channel(reader, writer)
    os.close(reader)
    os.close(writer)


def ask(
    channel: Channel, *questions: tuple[str, dict[str, Any], float], base_dir: str = "/nonexistent"
) -> dict[str, Any]:
    wire = [{"id": str(i), "name": n, "params": p, "deadline": d} for i, (n, p, d) in enumerate(questions)]
    return probe.probe({"verb": "probe", "base_dir": base_dir, "questions": wire}, channel)


@pytest.fixture
def tricks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions that misbehave."""
    folder = Path(__file__).parents[1] / "tricks"
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    monkeypatch.setitem(sys.modules, "ddpctl_worker.facts.tricky", importlib.import_module("tricky"))
    for name in ("hang", "fail", "crash", "child", "big"):
        monkeypatch.setitem(facts.QUESTIONS, name, "tricky")


@pytest.mark.slow
def test_every_plain_question_answers_here(channel: Channel) -> None:
    with_params = ("disk", "port", "path", "script", "tree", "modules", "torch_import")
    plain = [name for name in facts.QUESTIONS if name not in with_params]
    reply = ask(channel, *((name, {}, 60.0) for name in plain))
    wrong = {plain[int(key)]: answer for key, answer in reply["answers"].items() if not answer["ok"]}
    assert not wrong
    assert reply["received"] <= reply["sent"]
    json.dumps(reply)


@pytest.mark.slow
@pytest.mark.usefixtures("tricks")
def test_what_hangs_costs_its_own_answer(channel: Channel) -> None:
    reply = ask(channel, ("hang", {}, 1.0), ("python", {}, 60.0))
    hung, fine = reply["answers"]["0"], reply["answers"]["1"]
    assert (hung["ok"], hung["timed_out"]) == (False, True)
    assert "1 s" in hung["error"]
    assert fine["ok"]
    assert fine["value"]["info"] == list(sys.version_info[:3])


@pytest.mark.slow
@pytest.mark.usefixtures("tricks")
def test_nothing_that_a_question_started_is_left(channel: Channel) -> None:
    mark = f"ddpctl-left-{os.getpid()}"
    reply = ask(channel, ("child", {"mark": mark}, 1.0))
    assert reply["answers"]["0"]["timed_out"]
    deadline = time.monotonic() + 60
    while mark in subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout:
        assert time.monotonic() < deadline, "the program that the question started lives on"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.usefixtures("tricks")
def test_an_exception_is_that_questions_answer(channel: Channel) -> None:
    reply = ask(channel, ("fail", {}, 60.0), ("python", {}, 60.0))
    assert reply["answers"]["0"]["error"] == "RuntimeError: no such luck"
    assert not reply["answers"]["0"]["timed_out"]
    assert reply["answers"]["1"]["ok"]


@pytest.mark.slow
@pytest.mark.usefixtures("tricks")
def test_a_crash_is_told_from_a_deadline(channel: Channel) -> None:
    reply = ask(channel, ("crash", {}, 60.0))
    assert "ended without an answer" in reply["answers"]["0"]["error"]
    assert not reply["answers"]["0"]["timed_out"]


@pytest.mark.slow
@pytest.mark.usefixtures("tricks")
def test_an_answer_larger_than_a_pipe_arrives_whole(channel: Channel) -> None:
    reply = ask(channel, *(("big", {"bytes": 300_000, "letter": letter}, 60.0) for letter in "abc"))
    assert [reply["answers"][key]["value"] for key in "012"] == [letter * 300_000 for letter in "abc"]


@pytest.mark.slow
def test_an_unknown_question_is_an_error_of_its_own(channel: Channel) -> None:
    reply = ask(channel, ("no_such", {}, 60.0), ("python", {}, 60.0))
    assert "no question 'no_such'" in reply["answers"]["0"]["error"]
    assert reply["answers"]["1"]["ok"]


def test_no_questions_no_answers(channel: Channel) -> None:
    assert ask(channel)["answers"] == {}
    with pytest.raises(WorkerError):
        probe.probe({"questions": None}, channel)


# --- single facts ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_helper_program_is_killed_at_its_deadline() -> None:
    result = tool.run(["sleep", "60"], timeout=0.2)
    assert result["timed_out"]
    assert result["code"] is None
    assert tool.run(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout=60)["code"] == 3
    assert tool.run_if_installed(["no-such-program-here"], 1.0) is None


def test_disk_looks_at_the_nearest_parent_and_leaves_nothing(tmp_path: Path) -> None:
    found = host.disk({"path": str(tmp_path / "a" / "b")}, {})
    assert found["folder"] == str(tmp_path)
    assert found["write_error"] is None
    assert found["free"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_listener_and_its_process_are_named() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        number = sock.getsockname()[1]
        assert processes.port({"port": number}, {})["error"] == "EADDRINUSE"  # bound without SO_REUSEADDR
        sock.listen()
        found = processes.port({"port": number}, {})
    owner = next(one for one in found["owners"] if one["state"] == "listening")
    assert owner["pid"] == os.getpid()
    assert owner["address"] == "127.0.0.1"
    assert "python" in owner["command"] or "pytest" in owner["command"]
    assert processes.port({"port": number}, {})["error"] is None


def test_a_port_in_time_wait_is_free() -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 0))
        server.listen()
        number = server.getsockname()[1]
        client = socket.create_connection(("127.0.0.1", number))
        accepted, _ = server.accept()
        accepted.close()  # the server's side closes first and stays in TIME_WAIT
        client.close()
    assert processes.port({"port": number}, {})["error"] is None


def test_versions_come_from_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch").mkdir()
    text = "__version__ = '2.13.0+cu126'\ncuda: Optional[str] = '12.6'\nhip: Optional[str] = None\n"
    (tmp_path / "torch" / "version.py").write_text(text)
    (tmp_path / "nvidia_nccl_cu12-2.30.7.dist-info").mkdir()
    (tmp_path / "Some.Package-1.0-py3.11.egg-info").write_text("")
    monkeypatch.setattr(env, "site_folders", lambda path=None: [str(tmp_path)])
    found = env.versions({}, {})
    assert found["torch"] == {
        "version": "2.13.0+cu126",
        "cuda": "12.6",
        "hip": None,
        "git": None,
        "path": str(tmp_path / "torch"),
    }
    assert found["nccl"] == "2.30.7"
    assert found["packages"] == {"nvidia-nccl-cu12": "2.30.7", "some-package": "1.0"}
    assert found["torchvision"] is None
    assert not found["has_launch"]


def test_the_jobs_own_path_comes_first(tmp_path: Path) -> None:
    assert env.site_folders(str(tmp_path))[0] == str(tmp_path)


def test_the_path_of_the_login_counts_where_the_job_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert env.site_folders()[0] == str(tmp_path)
    assert str(tmp_path) not in env.site_folders("")


def test_a_torch_in_a_folder_of_any_name_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A .pth file may name the folder. The worker's own folder does not count as a folder of the job."""
    (tmp_path / "build" / "torch").mkdir(parents=True)
    (tmp_path / "build" / "torch" / "version.py").write_text("__version__ = '2.13.0'\n")
    worker = str(Path(env.__file__).parents[2])
    monkeypatch.setattr(sys, "path", [worker, str(tmp_path / "build"), *sys.path])
    found = env.versions({}, {})
    assert found["torch"]["path"] == str(tmp_path / "build" / "torch")
    assert worker not in found["folders"]


def test_a_tree_has_one_hash_whatever_the_order_and_the_caches(tmp_path: Path) -> None:
    for root, names in (("a", ["x.py", "y.py"]), ("b", ["y.py", "x.py"])):
        for name in names:
            (tmp_path / root).mkdir(exist_ok=True)
            (tmp_path / root / name).write_text(name)
    (tmp_path / "b" / "__pycache__").mkdir()
    (tmp_path / "b" / "__pycache__" / "x.py").write_text("cached")
    first, second = (job.tree({"path": str(tmp_path / root)}, {}) for root in "ab")
    assert first["hash"] == second["hash"]
    (tmp_path / "b" / "x.py").write_text("changed")
    assert job.tree({"path": str(tmp_path / "b")}, {})["hash"] != first["hash"]


@pytest.mark.slow
def test_a_ranks_orphan_is_told_from_one_with_its_launcher(tmp_path: Path) -> None:
    rank = {**os.environ, "TORCHELASTIC_RUN_ID": "x", "RANK": "1", "MASTER_PORT": "29500"}
    kept = subprocess.Popen(["sleep", "300"], env=rank)
    lost = subprocess.run(
        ["setsid", "sh", "-c", "sleep 300 >/dev/null 2>&1 & echo $!"],
        env={name: value for name, value in os.environ.items() if name not in rank} | rank,
        capture_output=True,
        text=True,
        check=True,
    )
    try:
        found = {one["pid"]: one for one in processes.leftovers({}, {})["processes"]}
        orphan = found[int(lost.stdout)]
        assert orphan["variables"]["RANK"] == "1"
        assert not orphan["supervised"]
        assert not orphan["launched"]
        assert kept.pid in found
        assert not found[kept.pid]["orphan"]
    finally:
        kept.kill()
        kept.wait()
        os.kill(int(lost.stdout), 9)


def test_lines_of_the_kernel_log_are_put_together_again() -> None:
    text = (
        "[ 1843.308145] NVRM: The NVIDIA GPU 0000:b3:00.0\n"
        "               NVRM: (PCI ID: 10de:26b5) installed in this system has\n"
        "               NVRM: fallen off the bus and is not responding to commands.\n"
        "[ 1843.439662] NVRM: The NVIDIA probe routine failed for 1 device(s).\n"
    )
    lines = nvidia.join_lines(text)
    assert len(lines) == 2
    assert lines[0].endswith("NVRM: fallen off the bus and is not responding to commands.")


# --- nvidia-smi, played by a script ----------------------------------------------------------------------------------


@pytest.fixture
def fake_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path for a fake nvidia-smi, first on PATH: the real program needs a GPU."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path / "nvidia-smi"


def script(path: Path, text: str) -> None:
    path.write_text(f"#!{sys.executable}\nimport sys\n{text}")
    path.chmod(0o755)


OLD = """
fields = next((a.split("=")[1].split(",") for a in sys.argv if a.startswith("--query-gpu=")), None)
if fields is None:
    sys.exit(0)
for field in fields:
    if field in ("compute_cap", "gpu_recovery_action", "fabric.state") or field.startswith("%s"):
        print('Field "%%s" is not a valid field to query.\\n' %% field)
        sys.exit(2)
print(", ".join(fields))
print(", ".join("x" for field in fields))
"""


@pytest.mark.slow
@pytest.mark.parametrize("unknown", ["mig.", "clocks_throttle_reasons."])
def test_fields_that_a_driver_does_not_know_are_left_out(fake_smi: Path, unknown: str) -> None:
    script(fake_smi, OLD % unknown)
    found = nvidia.nvidia_smi({}, {"deadline": 60.0})
    assert found is not None
    header = found["gpu"]["stdout"].splitlines()[0]
    assert found["gpu"]["code"] == 0
    assert "compute_cap" not in header
    assert unknown not in header
    assert "uuid" in header
    assert ("clocks_event_reasons.hw_slowdown" in header) == (unknown == "clocks_throttle_reasons.")


@pytest.mark.slow
def test_a_hung_nvidia_smi_is_given_up(fake_smi: Path) -> None:
    script(fake_smi, "import time\ntime.sleep(300)\n")
    found = nvidia.nvidia_smi({}, {"deadline": 2.0})
    assert found is not None
    assert found["gpu"]["timed_out"]
    assert found["apps"] is None


@pytest.mark.slow
def test_a_failing_nvidia_smi_is_handed_on_raw(fake_smi: Path) -> None:
    script(fake_smi, "print('Failed to initialize NVML: Driver/library version mismatch')\nsys.exit(18)\n")
    found = nvidia.nvidia_smi({}, {"deadline": 60.0})
    assert found is not None
    assert found["gpu"]["code"] == 18
    assert "mismatch" in found["gpu"]["stdout"]
