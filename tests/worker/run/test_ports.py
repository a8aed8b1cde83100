"""Ports for a launch."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from ddpctl_worker.agent import agent, talk, waiter
from ddpctl_worker.run.ports import free_port
from ddpctl_worker.wire.channel import Channel
from tests.worker.node import Node
from tests.worker.programs import SLEEP, watchers_end


def test_they_are_distinct_stable_and_skip_what_is_taken() -> None:
    first = free_port({"count": 2, "prefer": 29600}, Channel())["ports"]
    assert len(set(first)) == 2
    assert free_port({"count": 2, "prefer": 29600}, Channel())["ports"] == first
    with socket.create_server(("127.0.0.1", first[0])):
        moved = free_port({"count": 2, "prefer": 29600, "avoid": [first[1]]}, Channel())["ports"]
    assert not set(moved) & set(first)


def test_those_of_a_run_that_does_not_listen_yet_are_taken(node: Node) -> None:
    ports = node.call("free_port", count=2, prefer=29700)["ports"]
    gang = {"hub_host": node.host, "hub_addr": "127.0.0.1", "port": ports[1]}
    record = node.record(master_port=ports[0], gang=gang)
    run = node.start("import time; time.sleep(300)", record)
    assert not set(node.call("free_port", count=2, prefer=29700)["ports"]) & set(ports)
    assert node.call("free_port", exactly=ports)["ports"] == []
    node.call("stop", run=run, grace=0)
    node.wait_state(run)
    watchers_end(node, run)
    assert node.call("free_port", count=2, prefer=29700)["ports"] == ports


AGENT = {"run": "other-run", "restart": {"hosts": [{"host": "node0", "address": "127.0.0.1"}]}}
WAITER = {"run": "other-run", "hosts": ["node0"]}


@pytest.mark.parametrize(("process", "run"), [(agent, AGENT), (waiter, WAITER)], ids=["agent", "waiter"])
def test_no_process_of_a_run_listens_on_a_port_that_torch_or_the_gang_will_need(
    node: Node, monkeypatch: pytest.MonkeyPatch, process: Any, run: dict[str, Any]
) -> None:
    ports = node.call("free_port", count=2, prefer=29730)["ports"]
    gang = {"hub_host": node.host, "hub_addr": "127.0.0.1", "port": ports[1]}
    live = node.start(SLEEP, node.record(master_port=ports[0], gang=gang))
    monkeypatch.setattr(talk, "AGENT_PORTS", (ports[0], ports[1]))
    request = {"run": run, "gang_key": "ab" * 32, "line": {"address": "127.0.0.1"}}
    server = process._server({"base": str(node.base), "request": request}, node.host)
    server.start(lambda host, question: {})
    try:
        assert not ports[0] <= server.port <= ports[1]
    finally:
        server.close()
    node.call("stop", run=live, grace=0)


def test_those_of_another_nodes_master_are_not(node: Node) -> None:
    (port,) = node.call("free_port", count=1, prefer=29710)["ports"]
    record = node.record(master_port=port, node_rank=1, hosts=["other", node.host], ranks=[2, 3])
    run = node.start("import time; time.sleep(300)", record)
    assert node.call("free_port", exactly=[port])["ports"] == [port]
    node.call("stop", run=run, grace=0)


def test_a_damaged_record_of_another_run_is_no_reason_to_fail(node: Node) -> None:
    for name, text in (("run.json", "{"), ("state.json", "{")):
        run = f"damaged-{name[:3]}"
        folder = node.folder(run)
        folder.mkdir(parents=True, mode=0o700)
        (folder / "run.json").write_text(json.dumps(node.record(run, master_port=29720)))
        (folder / name).write_text(text)
    assert len(node.call("free_port", count=2, prefer=29720)["ports"]) == 2
