"""Which files of a data folder travel together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ddpctl.spec.data import group_missing, plan_bundles
from ddpctl.spec.limits import BUNDLE_BYTES, SINGLE_BYTES

SIZES = st.lists(st.one_of(st.just(0), st.integers(1, 2 * SINGLE_BYTES)), max_size=60)


@given(SIZES)
def test_every_file_with_bytes_is_in_one_bundle_of_a_bounded_size(sizes: list[int]) -> None:
    bundles = plan_bundles(sizes, range(len(sizes)))
    assert sorted(index for bundle in bundles for index in bundle) == [i for i, size in enumerate(sizes) if size]
    for bundle in bundles:
        assert len(bundle) == 1 or sum(sizes[index] for index in bundle) <= BUNDLE_BYTES
        assert len(bundle) == 1 or all(sizes[index] < SINGLE_BYTES for index in bundle)


def test_small_files_fill_a_bundle_and_a_large_file_does_not_part_them() -> None:
    sizes = [10, SINGLE_BYTES, 10, SINGLE_BYTES - 1, SINGLE_BYTES - 1, SINGLE_BYTES - 1, SINGLE_BYTES - 1, 10]
    assert plan_bundles(sizes, range(8)) == [(1,), (0, 2, 3, 4, 5), (6, 7)]
    assert plan_bundles(sizes, [6]) == [(6,)]


@given(st.dictionaries(st.sampled_from("abcd"), st.sets(st.integers(0, 20)).map(sorted)))
def test_a_host_gets_exactly_the_files_that_it_lacks(missing: dict[str, list[int]]) -> None:
    groups = group_missing(missing)
    for host, lacking in missing.items():
        assert sorted(index for hosts, indices in groups.items() if host in hosts for index in indices) == lacking
