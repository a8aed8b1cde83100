"""GPUs for ``ddpctl top``. No GPU was there when these tests were written: the library is a stand-in with NVIDIA's
layouts, the tables are as nvidia-smi's manual shows them, the files as amdgpu's documentation names them.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.facts import gpus, nvml
from ddpctl_worker.facts.gpus import Gpus, by_files, of_tables
from ddpctl_worker.facts.nvml import Nvml, NvmlError
from ddpctl_worker.machine import proc, tool
from tests.worker import nvml_library

APPS = "GPU-a, 4021, 10312\nGPU-b, 4022, [N/A]\n"
GPUS = (
    "GPU-a, NVIDIA A100-SXM4-80GB, 97, 10312, 81920, 61, 312.55, 400.00, 0x0000000000000024\n"
    "GPU-b, NVIDIA A100-SXM4-80GB, [N/A], 0, 81920, 33, [N/A], [Unknown Error], [N/A]\n"
)


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of two GPUs; the second GPU has fallen off the bus."""
    made = nvml_library.build(tmp_path, lost=1, pid=os.getpid())
    if made is None:
        pytest.skip("there is no C compiler")
    monkeypatch.setattr(nvml, "LIBRARY", str(made))
    return made


@pytest.mark.slow
def test_nvml_is_read_as_its_header_says(library: Path) -> None:
    first, lost = Nvml().read()
    assert first == {
        "name": "NVIDIA H100",
        "power_limit_w": 700.0,
        "use": 97.0,
        "memory": 40 << 30,
        "memory_total": 80 << 30,
        "temperature": 71.0,
        "power_w": 350.5,
        "slowed": False,
        "pids": {os.getpid(): 10 << 30, 4000000: None},
        "error": None,
    }
    nothing: dict[str, Any] = dict.fromkeys(("use", "memory", "memory_total", "temperature", "power_w", "slowed"))
    assert lost == {**first, **nothing, "pids": {}, "error": "NVML: GPU is lost"}


@pytest.mark.slow
def test_a_gpu_that_heat_slows_down(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOT", "1")
    assert Nvml().read()[0]["slowed"] is True


@pytest.mark.slow
def test_who_holds_a_gpu(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = {"DDPCTL_JOB": "train", "DDPCTL_RUN": "r1", "RANK": "3"}
    monkeypatch.setattr(proc, "variables", lambda pid: marks)
    found = Gpus().read()
    assert found["error"] is None
    mine, gone = found["gpus"][0]["holders"]
    assert (mine["pid"], mine["job"], mine["run"], mine["rank"]) == (os.getpid(), "train", "r1", 3)
    assert gone["pid"] == 4000000
    assert set(gone) == set(mine)
    assert not any(gone[name] for name in gone if name != "pid")
    assert [gpu["index"] for gpu in found["gpus"]] == [0, 1]
    assert "pids" not in found["gpus"][0]


@pytest.mark.slow
def test_a_stranger_is_known_by_user_and_command(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proc, "variables", lambda pid: {"RANK": "3"})
    mine = Gpus().read()["gpus"][0]["holders"][0]
    assert mine["user"]
    assert "python" in mine["command"]
    assert (mine["run"], mine["rank"]) == (None, None)


@pytest.mark.slow
def test_without_its_driver_the_library_says_so(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_DRIVER", "1")
    with pytest.raises(NvmlError, match="NVML: Driver Not Loaded"):
        Nvml()


def test_nvidia_smi_where_there_is_no_library() -> None:
    first, second = of_tables(GPUS, APPS)
    assert (first["use"], first["memory"], first["power_limit_w"]) == (97.0, 10312 << 20, 400.0)
    assert (first["pids"], first["slowed"]) == ({4021: 10312 << 20}, True)
    assert (second["use"], second["power_w"], second["power_limit_w"]) == (None, None, None)
    assert (second["pids"], second["slowed"]) == ({4022: None}, None)


def test_nvidia_smi_that_fails_is_an_error_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    late = {"code": None, "timed_out": True, "stdout": "", "stderr": ""}
    monkeypatch.setattr(tool, "run", lambda argv, timeout: late)
    read = Gpus()
    read._source = gpus.by_tool
    assert read.read() == {"gpus": [], "error": "nvidia-smi: no answer within 5 s"}


@pytest.mark.slow
@given(st.text(), st.text())
def test_no_table_is_an_error(table: str, apps: str) -> None:
    of_tables(table, apps)


def test_amd_from_the_kernels_files(tmp_path: Path) -> None:
    node = tmp_path / "class/kfd/kfd/topology/nodes/1"
    device = tmp_path / "class/drm/renderD128/device"
    sensors = device / "hwmon/hwmon3"
    process = tmp_path / "class/kfd/kfd/proc/77"
    for folder in (node, sensors, process):
        folder.mkdir(parents=True)
    (node / "properties").write_text("gfx_target_version 90402\ndrm_render_minor 128\nlocation_id 6912\ndomain 0\n")
    (node / "gpu_id").write_text("4242\n")
    files = {"gpu_busy_percent": 88, "mem_info_vram_total": 192 << 30, "mem_info_vram_used": 64 << 30}
    for name, value in files.items():
        (device / name).write_text(f"{value}\n")
    for name, value in {"temp1_input": 55000, "power1_average": 412_000_000, "power1_cap": 750_000_000}.items():
        (sensors / name).write_text(f"{value}\n")
    (process / "vram_4242").write_text(f"{60 << 30}\n")
    (gpu,) = by_files(str(tmp_path))
    assert gpu == {
        "name": "gfx 90402",
        "use": 88.0,
        "memory": 64 << 30,
        "memory_total": 192 << 30,
        "temperature": 55.0,
        "power_w": 412.0,
        "power_limit_w": 750.0,
        "slowed": None,
        "pids": {77: 60 << 30},
        "error": None,
    }
