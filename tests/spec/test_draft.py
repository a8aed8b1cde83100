"""Hosts as they are typed and picked, and which of a file's hosts are meant."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.spec.draft import (
    Draft,
    HostFault,
    Imported,
    JobDraft,
    cluster_name,
    filter_hosts,
    host_entry,
    picked_hosts,
    typed_hosts,
    with_master,
)
from ddpctl.spec.host import HostEntry


def keys(hosts: tuple[HostEntry, ...]) -> list[dict[str, Any]]:
    return [host.model_dump(exclude_none=True, exclude_defaults=True) for host in hosts]


def test_hosts_as_a_person_types_them() -> None:
    assert keys(typed_hosts("gpu1 gpu[2-4], alice@gpu5 gpu6:2201 10.0.0.7 [2001:db8::5]:22 localhost")) == [
        {"name": "gpu1"},
        *({"name": f"gpu{n}"} for n in (2, 3, 4)),
        {"name": "gpu5", "user": "alice"},
        {"name": "gpu6", "port": 2201},
        {"name": "10.0.0.7"},
        {"name": "2001-db8-5", "address": "2001:db8::5", "port": 22},
        {"name": "localhost", "connection": "local"},
    ]


def test_a_user_or_a_port_on_this_machine_is_a_container_behind_ssh() -> None:
    assert keys(typed_hosts("alice@localhost")) == [{"name": "localhost", "user": "alice"}]
    assert keys(typed_hosts("127.0.0.1:2201")) == [{"name": "127.0.0.1", "port": 2201}]
    assert keys(typed_hosts("[::1]:2201")) == [{"name": "1", "address": "::1", "port": 2201}]


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("a b:x", 4),
        ("a @b", 2),
        ("a a", 2),
        ("gpu[1-", 3),
        ("a gpu[3-1]", 2),
        ("a, b/c", 3),
        ("a:70000", 2),
        ("a]", 1),
        ("a ssh://b@c", 2),
    ],
)
def test_what_is_no_host_is_refused_where_it_begins(text: str, offset: int) -> None:
    with pytest.raises(HostFault) as caught:
        typed_hosts(text)
    assert caught.value.offset == offset


@given(st.text(max_size=30) | st.text("abg12[]-,@: \t.", max_size=30))
def test_any_text_is_hosts_or_refused(text: str) -> None:
    answer = hosts_or_fault(text)
    if isinstance(answer, HostFault):
        assert 0 <= answer.offset <= len(text)
    else:
        assert len({host.name for host in answer}) == len(answer)


def hosts_or_fault(text: str) -> tuple[HostEntry, ...] | HostFault:
    try:
        return typed_hosts(text)
    except HostFault as error:
        return error


def test_hosts_are_picked_from_a_list_by_number_or_typed() -> None:
    listed = ["alpha", "beta", "gamma", "delta"]
    assert [host.name for host in picked_hosts("1 3-4 new[1-2] beta", listed)] == [
        "alpha", "gamma", "delta", "new1", "new2", "beta"
    ]  # fmt: skip
    assert [host.name for host in picked_hosts("2, 2", listed)] == ["beta"]
    for wrong in ("0", "5", "3-9", "4-2"):
        with pytest.raises(HostFault, match="not in the list"):
            picked_hosts(wrong, listed)
    assert [host.name for host in picked_hosts("7", [])] == ["7"], "without a list a number is a name"


def test_deepspeeds_filters() -> None:
    hosts = tuple(host_entry(f"worker-{n}", slots=4) for n in (1, 2, 3))
    chosen = filter_hosts(hosts, "worker-2:0,2@worker-3", None)
    assert [(host.name, host.slots, host.env) for host in chosen] == [
        ("worker-2", 2, {"CUDA_VISIBLE_DEVICES": "0,2"}),
        ("worker-3", 4, {}),
    ]
    left = filter_hosts(hosts, None, "worker-1@worker-2:0,1,2")
    assert [(host.name, host.slots) for host in left] == [("worker-2", 1), ("worker-3", 4)]
    for wrong in ("worker-9", "worker-1:x"):
        with pytest.raises(HostFault):
            filter_hosts(hosts, wrong, None)


def test_the_main_host_is_the_first_unless_all_are_named() -> None:
    source = Imported("x", master="10.0.0.1", nodes=2)
    assert [host.name for host in with_master(source, typed_hosts("b"))] == ["10.0.0.1", "b"]
    assert [host.name for host in with_master(source, typed_hosts("b 10.0.0.1"))] == ["b", "10.0.0.1"]
    assert [host.name for host in with_master(source, typed_hosts("a b"))] == ["a", "b"]


def test_a_cluster_is_called_what_its_hosts_have_in_common() -> None:
    assert cluster_name(["gpu1.lan", "gpu2.lan"]) == "gpu"
    assert cluster_name(["rack-a-01", "rack-b-02"]) == "rack"
    assert cluster_name(["10.0.0.1", "10.0.0.2"]) == "cluster"
    assert cluster_name(["alice", "bob"]) == "cluster"
    assert cluster_name(["node0"]) == "node"


def test_a_job_survives_the_loss_of_a_host() -> None:
    draft = Draft("x", "p", typed_hosts("a b c"), job=JobDraft("t", script="t.py", nodes=2, master="b"))
    left = draft.without(["b"])
    assert left.names == ("a", "c")
    assert left.job == JobDraft("t", script="t.py", nodes=None, master=None)
