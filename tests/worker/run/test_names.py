"""A start may demand that no other live run has its name; a run may be named by the beginning of its id."""

from __future__ import annotations

import os
import threading
from typing import Any

from tests.worker.node import Node
from tests.worker.programs import SLEEP, here
from tests.worker.store.test_remove import put

# Of this process alone: runs of one id share a control group, and the stop of one run would end the other.
IDS = [f"names-{os.getpid()}-{number}" for number in range(5)]


def alone(node: Node, **record: Any) -> dict[str, Any]:
    """Start a run that must be the only live run of its name, and return the last message."""
    request = node.request(SLEEP, node.record(**record), alone=True)
    node.started.append(request["run"]["run"])
    return node.open("start", **request).last()


def test_a_name_that_is_live_is_refused_and_leaves_nothing(node: Node) -> None:
    first = alone(node, run=IDS[1], job="train")
    assert first["result"]["beside"] == []
    second = alone(node, run=IDS[2], job="train")
    assert "error" in second, node.call("status", run=IDS[1])
    refused = second["error"]
    assert (refused["kind"], refused["message"]) == ("live", f"run {IDS[1]} is live here")
    assert "ddpctl kill train" in refused["hint"]
    assert not (node.base / "runs" / IDS[2]).exists()
    assert alone(node, run=IDS[3], job="other")["ok"]
    node.call("stop", run=IDS[1], grace=0)
    assert alone(node, run=IDS[4], job="train")["ok"]


def test_of_many_that_start_at_once_one_gets_the_name(node: Node) -> None:
    words: list[dict[str, Any]] = []
    lock = threading.Lock()

    def start(number: int) -> None:
        word = alone(node, run=IDS[number], job="train")
        with lock:
            words.append(word)

    threads = [threading.Thread(target=start, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(word["ok"] for word in words) == [False] * 4 + [True]
    assert {word["error"]["kind"] for word in words if not word["ok"]} == {"live"}
    assert len(node.call("status", job="train")["runs"]) == 1


def test_a_start_that_is_repeated_is_not_in_its_own_way(node: Node) -> None:
    first = alone(node, run=IDS[1], job="train")["result"]["status"]
    node.start(SLEEP, node.record(IDS[2], job="train"))
    assert alone(node, run=IDS[1], job="train")["result"]["status"]["pid"] == first["pid"]


def test_without_being_asked_the_others_of_that_name_are_told(node: Node) -> None:
    here(node, node.start(SLEEP, node.record(IDS[1])))
    put(node.base, IDS[0])
    request = node.request(SLEEP, node.record(IDS[2]))
    node.started.append(IDS[2])
    assert node.call("start", **request)["beside"] == [IDS[1]], node.call("status", run=IDS[1])


def test_the_beginning_of_ids_where_no_name_is_that_word(node: Node) -> None:
    ids = ["20260101T000000Z-aaaaaa", "20260102T000000Z-bbbbbb"]
    for run in ids:
        put(node.base, run)

    def told(word: str) -> list[str]:
        return [one["run"] for one in node.call("status", job=word, all=True)["runs"]]

    assert told("2026") == ids[::-1]
    assert told("20260101") == told(ids[0]) == ids[:1]
    assert told("202") == []
    put(node.base, "20250101T000000Z-cccccc", job="2026")
    assert told("2026") == ["20250101T000000Z-cccccc"]
