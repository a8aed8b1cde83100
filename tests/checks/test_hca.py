"""Which adapters a value of NCCL_IB_HCA picks, as NCCL's documentation has it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.checks.hca import is_named, selects, summary, switch


def port(device: str, number: int = 1) -> dict[str, object]:
    return {"device": device, "port": number, "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand"}


@pytest.mark.parametrize(
    ("chosen", "taken"),
    [
        ("", "mlx5_0 mlx5_1 mlx5_10"),
        ("mlx5", "mlx5_0 mlx5_1 mlx5_10"),
        ("mlx5_1", "mlx5_1 mlx5_10"),  # a prefix
        ("=mlx5_1", "mlx5_1"),
        ("=mlx5_0,mlx5_1", "mlx5_0 mlx5_1"),
        ("^mlx5_1", "mlx5_0"),
        ("^=mlx5_1,mlx5_0", "mlx5_10"),
        ("=mlx5_0:1,mlx5_1:2", "mlx5_0"),
        ("bnxt_re", ""),
    ],
)
def test_the_adapters_that_nccl_takes(chosen: str, taken: str) -> None:
    assert [name for name in ("mlx5_0", "mlx5_1", "mlx5_10") if selects(chosen, port(name))] == taken.split()


def test_a_prefix_names_no_device() -> None:
    assert is_named("mlx5_1", port("mlx5_1"))
    assert not is_named("mlx5_1", port("mlx5_10"))
    assert not is_named("^mlx5_1", port("mlx5_1"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"NCCL_IB_DISABLE": "1"}, "NCCL_IB_DISABLE=1"),
        ({"NCCL_IB_DISABLE": "0"}, None),
        ({"NCCL_IB_DISABLE": ""}, None),
        ({"NCCL_NET": "Socket"}, "NCCL_NET=Socket"),
        ({"NCCL_NET": "IB"}, None),
    ],
)
def test_what_keeps_nccl_off_infiniband(settings: dict[str, str], said: str | None) -> None:
    assert switch(settings) == said


@given(st.text(max_size=20), st.text("abcmlx5_0", min_size=1, max_size=8))
def test_no_value_breaks_the_reader(chosen: str, device: str) -> None:
    assert selects(chosen, port(device)) in (True, False)
    assert selects(f"={device}", port(device))
    assert not selects(f"^{device}", port(device))


@given(st.lists(st.sampled_from(["400 Gb/sec (4X NDR)", "100 Gb/sec (4X EDR)", "40 Gb/sec (4X QDR)"]), min_size=1))
def test_a_summary_counts_every_port(rates: list[str]) -> None:
    parts = summary([{**port("a"), "rate": rate} for rate in rates]).removesuffix(" Gb/s").split(" + ")
    assert sum(int(part.split("x")[0]) for part in parts) == len(rates)
