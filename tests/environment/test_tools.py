"""A tool for nodes of another machine type: its wheel, resolved once."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path

import pytest

from ddpctl.environment import resolve
from ddpctl.environment.direct import hash_file
from ddpctl.environment.managed import fetch_tool
from ddpctl.errors import ProvisionError
from ddpctl.spec.inventory import Environment
from tests.environment.support import local_inventory, make_wheel

OTHER = "aarch64" if platform.machine() == "x86_64" else "x86_64"
TAG = "py2.py3-none-manylinux_2_17_{0}.manylinux2014_{0}"


def managed(wheels: Path) -> Environment:
    return Environment(mode="managed", packages=("torch",), find_links=(str(wheels),))


@pytest.mark.slow
def test_its_wheel_is_resolved_once(tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(wheels, "py_spy", version("py-spy"), tag=TAG.format(platform.machine()))
    wheel = make_wheel(wheels, "py_spy", version("py-spy"), tag=TAG.format(OTHER))
    make_wheel(wheels, "py_spy", "99.0", tag=TAG.format(OTHER))  # only the version that is installed here
    inventory = local_inventory(tmp_path, 1, managed(wheels))
    found = fetch_tool("py-spy", OTHER, inventory)
    assert (found.sha256, found.name) == (hash_file(wheel), wheel.name)
    monkeypatch.setattr(resolve, "_compile", None)  # any use is an error
    assert fetch_tool("py-spy", OTHER, inventory) == found


@pytest.mark.slow
def test_no_wheel_is_an_error(tmp_path: Path, wheels: Path) -> None:
    inventory = local_inventory(tmp_path, 1, managed(wheels))
    with pytest.raises(ProvisionError, match="py-spy"):
        fetch_tool("py-spy", OTHER, inventory)
