"""How busy a rank's GPU is. The tables are as nvidia-smi's manual shows them, not from a machine of ours."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.facts import gpu
from ddpctl_worker.facts.gpu import Use

APPS = "GPU-a, 4021, 10312\nGPU-b, 4022, 10300\nGPU-b, 4021, 500\n"
USE = "GPU-a, 97\nGPU-b, 12\n"


def test_each_process_has_the_use_of_its_gpu() -> None:
    assert gpu.read(APPS, USE) == {4021: Use(97.0, 10812.0), 4022: Use(12.0, 10300.0)}


def test_what_the_driver_does_not_tell_is_not_known() -> None:
    assert gpu.read("GPU-a, 7, [N/A]\n", "GPU-a, [Not Supported]\n") == {7: Use(None, None)}
    assert gpu.read("", "") == {}


@given(st.text(), st.text())
def test_no_text_is_an_error(apps: str, use: str) -> None:
    gpu.read(apps, use)
