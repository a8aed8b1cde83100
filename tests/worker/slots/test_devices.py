"""GPUs by UUID, as nvidia-smi lists them, and the variables that name the slots of a run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.slots.devices import (
    NVIDIA,
    Devices,
    Slot,
    choose_pool,
    find_devices,
    read_apps,
    read_listing,
    variables,
)

FOUR = tuple(Slot(f"GPU-{number}aaa", number, str(number)) for number in range(4))
BOX = Devices(FOUR, NVIDIA)
MIG = """GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f)
  MIG 3g.20gb     Device  1: (UUID: MIG-GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77/2/0)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-6d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77)
"""


def test_a_gpu_with_mig_devices_is_not_a_slot_itself() -> None:
    assert read_listing(MIG) == [
        Slot("MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f", 0, "MIG-c6d4f1ef-42e4-5de3-91c7-45d71c87eb3f"),
        Slot("MIG-GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77-2-0", 1, "MIG-GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77/2/0"),
        Slot("GPU-6d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77", 2, "1"),
    ]


@given(st.text())
def test_any_other_text_lists_no_gpu_or_whole_ones(text: str) -> None:
    assert [slot.number for slot in read_listing(text)] == list(range(len(read_listing(text))))
    read_apps(text)


@pytest.mark.parametrize(
    ("env", "pool", "named"),
    [
        ({}, "0123", {"CUDA_VISIBLE_DEVICES": "0,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        ({"CUDA_VISIBLE_DEVICES": "3, 1,2"}, "312", {"CUDA_VISIBLE_DEVICES": "3,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        (
            {"CUDA_VISIBLE_DEVICES": "GPU-2a,0"},
            "20",
            {"CUDA_VISIBLE_DEVICES": "2,0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        ),
        ({"CUDA_VISIBLE_DEVICES": "1,9,2"}, "1", {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        ({"CUDA_VISIBLE_DEVICES": ""}, "", {"CUDA_VISIBLE_DEVICES": "", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
        ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, "0123", {"CUDA_VISIBLE_DEVICES": "GPU-0aaa,GPU-1aaa"}),
    ],
)
def test_the_choice_of_the_environment_is_narrowed(env: dict[str, str], pool: str, named: dict[str, str]) -> None:
    found = choose_pool(BOX, env)
    assert "".join(str(slot.number) for slot in found) == pool
    assert variables(BOX, env, found[:2]) == named


def test_amd_gpus_are_named_in_the_variable_that_chooses_them() -> None:
    amd = Devices(FOUR, ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"))
    assert variables(amd, {}, FOUR[:2]) == {"ROCR_VISIBLE_DEVICES": "0,1"}
    assert variables(amd, {"HIP_VISIBLE_DEVICES": "2,3"}, FOUR[2:]) == {"HIP_VISIBLE_DEVICES": "2,3"}


@pytest.mark.parametrize(("each", "nodes", "count"), [(None, 1, 1), (None, 2, 2), (3, 1, 3), (3, 2, 6)])
def test_a_host_without_a_gpu_has_numbers(
    each: int | None, nodes: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ddpctl_worker.machine.tool.run_if_installed", lambda *_: None)
    found = find_devices(each, nodes)
    assert not found.are_gpus
    assert [slot.id for slot in found.slots] == [str(number) for number in range(count)]


def test_a_small_program_does_not_use_a_gpu() -> None:
    table = (
        "GPU-1, 999999999, /usr/bin/python3, 4000\nGPU-2, 999999998, nvidia-cuda-mps-server, 30\nGPU-3, 1, x, [N/A]\n"
    )
    assert [(program.slot, program.account, program.command) for program in read_apps(table)] == [
        ("GPU-1", None, "/usr/bin/python3")
    ]
