"""Real hosts, shared by all end-to-end tests and healed after each; and a place to work from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.site import Site
from tests.lab import Lab, missing
from tests.lab.command import Ddpctl

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and "lab_of_three" in getattr(item, "fixturenames", ()):
            item.add_marker("lab")


@pytest.fixture(scope="package")
def lab_of_three() -> Iterator[Lab]:
    if reason := missing():
        pytest.skip(reason)
    with Lab(3) as lab:
        yield lab


@pytest.fixture
def lab(lab_of_three: Lab) -> Iterator[Lab]:
    """Three hosts. After each test its changes are undone and its processes are ended. The disks stay."""
    yield lab_of_three
    lab_of_three.heal()


@pytest.fixture
def site(lab: Lab, ddpctl: Ddpctl, tmp_path: Path, stand_in: str) -> Site:
    """A place with all three hosts, one process each. torch is the stand-in: launcher, ranks, signals and sockets are
    real, and nothing can be computed."""
    return Site(lab, ddpctl, tmp_path / "site", stand_in)


@pytest.fixture
def torch_site(lab: Lab, ddpctl: Ddpctl, tmp_path: Path, python213: str) -> Site:
    """The same with torch 2.13."""
    return Site(lab, ddpctl, tmp_path / "torch-site", python213)


@pytest.fixture
def old_site(lab: Lab, ddpctl: Ddpctl, tmp_path: Path, python113: str) -> Site:
    """The same with torch 1.13."""
    return Site(lab, ddpctl, tmp_path / "old-site", python113)
