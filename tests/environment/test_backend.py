"""Which build of torch for which nodes."""

from __future__ import annotations

import pytest

from ddpctl.environment.backend import BUILDS, candidates, is_build
from ddpctl.environment.platforms import NodePlatform


def node(driver: tuple[int, ...] | None, *capabilities: tuple[int, int]) -> NodePlatform:
    return NodePlatform((3, 11), "x86_64", 35, driver, capabilities)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ([node(None)], "cpu"),
        ([node((580, 65, 6), (9, 0))], "cu132"),
        ([node((570, 86), (9, 0))], "cu129"),
        ([node((525, 60, 13), (8, 0))], "cu129"),
        ([node((525, 60, 12), (8, 0))], "cu118"),
        ([node((470, 57), (8, 0))], "cu118"),
        ([node((440, 33), (7, 0))], "cpu"),
        # the oldest driver decides, and the GPU that no newer build has code for
        ([node((580, 65), (9, 0)), node((535, 54), (8, 0))], "cu129"),
        ([node((580, 65), (7, 0))], "cu126"),
        ([node((580, 65), (9, 0)), node((580, 65), (6, 1))], "cu126"),
        # Blackwell beside Pascal: no build has code for both
        ([node((580, 65), (12, 0)), node((580, 65), (6, 1))], "cpu"),
        # one node without a driver
        ([node((580, 65), (9, 0)), node(None)], "cpu"),
        # a driver, and GPUs of unknown compute capability
        ([node((580, 65))], "cu132"),
    ],
)
def test_auto_is_the_newest_build_that_runs_everywhere(nodes: list[NodePlatform], first: str) -> None:
    assert candidates("auto", nodes)[0] == first


def test_a_wish_is_taken_as_it_is() -> None:
    assert candidates("cu126", [node(None)]) == ("cu126",)


def test_older_builds_follow_for_a_torch_that_has_no_newer_one() -> None:
    found = candidates("auto", [node((580, 0), (8, 0))])
    assert found == tuple(build.name for build in BUILDS)


@pytest.mark.parametrize(
    ("version", "backend", "cuda", "fits"),
    [
        ("2.13.0+cpu", "cpu", [], True),
        ("2.13.0+cpu", "cu126", [], False),
        ("2.13.0+cu126", "cu126", ["nvidia-nccl-cu12"], True),
        ("2.13.0+cu126", "cu130", ["nvidia-nccl-cu12"], False),
        ("2.15.0", "cpu", ["nvidia-cublas", "nvidia-nccl-cu13", "cuda-toolkit"], False),
        ("2.15.0", "cu132", ["nvidia-cublas", "nvidia-nccl-cu13", "cuda-toolkit"], True),
        ("2.6.0", "cu124", ["nvidia-cublas-cu12"], True),
        ("2.6.0", "cu130", ["nvidia-cublas-cu12"], False),
        ("2.13.0", "cpu", [], True),  # an aarch64 wheel of the package index, or a wheel that a user built
    ],
)
def test_what_a_resolved_torch_is(version: str, backend: str, cuda: list[str], fits: bool) -> None:
    assert is_build(version, backend, cuda) is fits
