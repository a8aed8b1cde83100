"""A node's adapters and PCI bridges, read from files in the kernel's format."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.facts import env, infiniband, nvidia

# A bridge of AMD's (nccl issue 2079): ACSCtl 0x001d = SrcValid+ ReqRedir+ CmpltRedir+ UpstreamFwd+.
AER, ACS = 0x0001, 0x000D


def bridge(*capabilities: tuple[int, int]) -> bytes:
    """Return a configuration space with a list of these capabilities, each with its control word."""
    config = bytearray(4096)
    for number, (kind, control) in enumerate(capabilities):
        at = 0x100 + 0x20 * number
        following = at + 0x20 if number + 1 < len(capabilities) else 0
        struct.pack_into("<IHH", config, at, kind | 1 << 16 | following << 20, 0x5F, control)
    return bytes(config)


def test_the_control_word_of_acs_is_found_among_the_capabilities() -> None:
    assert nvidia.acs_control(bridge((AER, 0), (0x0019, 0), (ACS, 0x1D))) == 0x1D
    assert nvidia.acs_control(bridge((AER, 0))) == 0
    assert nvidia.acs_control(bytes(256)) == 0, "a device of plain PCI has no extended space"
    assert nvidia.acs_control(bytes(64)) is None, "all that a user other than root may read"


@given(st.binary(max_size=4096))
def test_no_configuration_space_breaks_the_reader(config: bytes) -> None:
    found = nvidia.acs_control(config)
    assert found is None or 0 <= found <= 0xFFFF


def test_a_port_is_told_in_the_kernels_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = tmp_path / "mlx5_0" / "ports" / "1"
    for name, text in {
        "state": "4: ACTIVE\n",
        "phys_state": "5: LinkUp\n",
        "rate": "100 Gb/sec (4X EDR)\n",
        "link_layer": "Ethernet\n",
        "gids/0": "fe80:0000:0000:0000:0ac0:ebff:fe12:3456\n",
        "gids/1": "0000:0000:0000:0000:0000:0000:0000:0000\n",
        "gids/10": "0000:0000:0000:0000:0000:ffff:0a00:000b\n",
        "gid_attrs/types/0": "IB/RoCE v1\n",
        "gid_attrs/types/10": "RoCE v2\n",
        "gid_attrs/ndevs/10": "lo\n",
    }.items():
        (port / name).parent.mkdir(parents=True, exist_ok=True)
        (port / name).write_text(text)
    driver = tmp_path / "drivers" / "mlx5_core"
    driver.mkdir(parents=True)
    (tmp_path / "mlx5_0" / "device").mkdir()
    (tmp_path / "mlx5_0" / "device" / "driver").symlink_to(driver)
    monkeypatch.setattr(infiniband, "CLASS", str(tmp_path))
    told = infiniband.infiniband({}, {"deadline": 60.0})
    (one,) = told["ports"]
    assert (one["device"], one["port"], one["driver"], one["state"]) == ("mlx5_0", 1, "mlx5_core", "4: ACTIVE")
    assert [(gid["index"], gid["type"]) for gid in one["gids"]] == [(0, "IB/RoCE v1"), (10, "RoCE v2")]
    assert one["interface_mtu"] == 65536
    assert "uverbs" in told["access"]["mlx5_0"]
    assert told["verbs"]["devices"] == []


def test_what_libibverbs_says_when_it_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infiniband, "PROGRAM", infiniband.PROGRAM.replace("libibverbs.so.1", "libibverbs-none.so.1"))
    told = infiniband.libibverbs({"deadline": 60.0})
    assert "libibverbs-none.so.1: cannot open shared object file" in told["error"]


def test_a_library_that_crashes_is_its_own_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(infiniband, "PROGRAM", "import os; os.abort()")
    assert "libibverbs fails" in infiniband.libibverbs({"deadline": 60.0})["error"]


def test_the_library_cache_names_what_the_loader_finds() -> None:
    assert any("/libc.so" in path for path in env.cached("libc.so"))
    assert env.cached("libnccl-net-of-nobody") == []
