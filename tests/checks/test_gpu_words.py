"""The small readers of the GPU checks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.checks.gpu import amd, xid
from ddpctl.spec.backend import backend_of
from ddpctl.spec.nvidia import Gpu, bus_of, labels, read
from ddpctl.spec.question import Answer
from tests.examples import few

NUMBERS = st.integers(0, 255)


@given(NUMBERS, NUMBERS, st.integers(0, 31))
def test_a_pci_address_is_one_in_every_spelling(domain: int, bus: int, slot: int) -> None:
    short = f"{domain:04x}:{bus:02x}:{slot:02x}"
    spellings = (short, f"{short}.0", f"{short}.0".upper(), f"0000{short}.0".upper())  # log, sysfs, nvidia-smi
    assert {bus_of(one) for one in spellings} == {short}


@given(st.sets(st.integers(0, 15), min_size=2))
def test_numbers_of_gpus_are_told_as_ranges(numbers: set[int]) -> None:
    text = labels(Gpu({"index": str(number)}) for number in numbers)
    named: set[int] = set()
    for part in text.removeprefix("GPUs ").split(", "):
        first, _, last = part.partition("-")
        named |= set(range(int(first), int(last or first) + 1))
    assert named == numbers


def test_a_fault_in_place_of_a_value_is_no_value() -> None:
    result = {"code": 0, "stderr": "", "timed_out": False, "seconds": 0.1}
    table = "index, persistence_mode, compute_mode\n0, [GPU requires reset], [GPU requires reset]\n1, Enabled, [N/A]\n"
    smi = read(Answer(True, value={"gpu": {**result, "stdout": table}}))
    assert [gpu.fault for gpu in smi.gpus] == ["GPU requires reset", None]
    assert [gpu.cells["persistence_mode"] for gpu in smi.gpus] == [None, "Enabled"]
    assert {gpu.cells["compute_mode"] for gpu in smi.gpus} == {None}


@pytest.mark.parametrize(("apart", "falls"), [(0, 1), (3600, 2)])
def test_two_lines_at_the_same_time_are_the_same_fall_off_the_bus(apart: int, falls: int) -> None:
    lines = [
        "[ 100.0] NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.",
        f"[ {100 + apart}.0] NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus.",
    ]
    assert len(xid.read({"lines": lines, "uptime": 9000.0})) == falls


@given(st.lists(st.text() | st.from_regex(r"\[ 1\.5\] (NVRM|nvidia-nvswitch\d): .{0,9}(SXid|Xid|RmInit).{0,40}")))
@few
def test_any_line_of_a_kernel_log_can_be_read(lines: list[str]) -> None:
    value = {"lines": lines, "uptime": 60.0}
    assert len(xid.read(value)) + len(xid.switch_faults(value)) <= 2 * len(lines)


@pytest.mark.parametrize(
    ("packed", "name"), [(90402, "gfx942"), (90010, "gfx90a"), (100300, "gfx1030"), (120001, "gfx1201")]
)
def test_the_target_of_an_amd_gpu(packed: int, name: str) -> None:
    assert amd.target_name(packed) == name


@pytest.mark.parametrize(
    ("args", "backend"),
    [
        ("--lr 0.1", None),
        ("--backend gloo", "gloo"),
        ("--dist_backend=nccl --epochs 3", "nccl"),
        ("--backend auto", None),
        ("--backend", None),
        ("--backend gloo --backend nccl", "nccl"),
        ("data --backend-threads 4 gloo", None),
    ],
)
def test_the_backend_that_a_scripts_arguments_name(args: str, backend: str | None) -> None:
    assert backend_of(args.split()) == backend
