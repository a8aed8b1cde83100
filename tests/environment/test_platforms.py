"""The platforms of the nodes, from the answers of their workers."""

from __future__ import annotations

from typing import Any

import pytest
from packaging.tags import parse_tag

from ddpctl.environment.platforms import NodePlatform, Platform, read_platform, same_python, targets
from ddpctl.errors import ProvisionError
from ddpctl.spec.question import Answer

SMI = (
    "index, uuid, name, driver_version, compute_cap\n"
    "0, GPU-1, NVIDIA H200, 570.86.15, 9.0\n"
    "1, GPU-2, NVIDIA H200, 570.86.15, 9.0\n"
)
KERNEL = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024\nGCC version: 12\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n"


def answers(kernel: str = "", smi: str = "", **python: Any) -> dict[str, Answer]:
    value = {
        "implementation": "CPython",
        "info": [3, 11, 2],
        "machine": "x86_64",
        "libc": "glibc",
        "libc_version": "2.36",
        **python,
    }
    return {
        "python": Answer(True, value),
        "nvidia_kernel": Answer(True, {"version": kernel}),
        "nvidia_smi": Answer(True, {"gpu": {"stdout": smi, "code": 0}} if smi else None),
    }


def test_a_node_without_a_gpu() -> None:
    assert read_platform("n", answers()) == NodePlatform((3, 11), "x86_64", 36)


def test_a_node_with_gpus() -> None:
    found = read_platform("n", answers(KERNEL, SMI))
    assert found.driver == (550, 54, 14)
    assert found.capabilities == ((9, 0), (9, 0))
    assert read_platform("n", answers(OPEN)).driver == (570, 86, 15)
    assert read_platform("n", answers("", SMI)).driver == (570, 86, 15)


@pytest.mark.parametrize(
    ("python", "words"),
    [
        ({"implementation": "PyPy"}, "PyPy"),
        ({"machine": "ppc64le"}, "ppc64le"),
        ({"libc": "", "libc_version": ""}, "glibc"),
        ({"libc_version": "2.12"}, "2.12"),
    ],
)
def test_a_node_that_cannot_have_one_says_why(python: dict[str, Any], words: str) -> None:
    with pytest.raises(ProvisionError, match=words) as caught:
        read_platform("node7", answers(**python))
    assert str(caught.value).startswith("node7: ")


def test_nodes_share_a_lock_by_machine_and_python_and_the_oldest_c_library_counts() -> None:
    groups = targets(
        {
            "a": NodePlatform((3, 11), "x86_64", 36),
            "b": NodePlatform((3, 11), "x86_64", 28),
            "c": NodePlatform((3, 11), "aarch64", 39),
            "d": NodePlatform((3, 12), "x86_64", 39),
        }
    )
    assert groups == {
        Platform("x86_64", (3, 11), 28): ["a", "b"],
        Platform("aarch64", (3, 11), 39): ["c"],
        Platform("x86_64", (3, 12), 39): ["d"],
    }
    assert "3.12 on d" in str(same_python(groups))
    assert same_python({Platform("x86_64", (3, 11), 28): ["a"]}) is None


@pytest.mark.parametrize(
    ("glibc", "platform"), [(17, "2_17"), (27, "2_17"), (28, "2_28"), (30, "2_28"), (36, "2_36"), (55, "2_40")]
)
def test_uvs_platform_is_the_newest_that_the_c_library_allows(glibc: int, platform: str) -> None:
    assert Platform("x86_64", (3, 11), glibc).uv_platform == f"x86_64-manylinux_{platform}"


@pytest.mark.parametrize(
    ("tag", "fits"),
    [
        ("py3-none-any", True),
        ("cp311-cp311-manylinux_2_28_x86_64", True),
        ("cp311-cp311-manylinux2014_x86_64", True),
        ("cp38-abi3-manylinux_2_17_x86_64", True),
        ("cp311-cp311-manylinux_2_39_x86_64", False),
        ("cp312-cp312-manylinux_2_28_x86_64", False),
        ("cp311-cp311-manylinux_2_28_aarch64", False),
        ("cp311-cp311-win_amd64", False),
        ("cp311-cp311-musllinux_1_2_x86_64", False),
    ],
)
def test_the_tags_of_a_target(tag: str, fits: bool) -> None:
    assert bool(parse_tag(tag) & set(Platform("x86_64", (3, 11), 36).tags)) is fits
