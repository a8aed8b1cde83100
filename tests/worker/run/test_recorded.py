"""Failed jobs of which others published the output: the cause that their nodes find together.

A file of ``recorded`` has the stderr of ranks and launchers by ``HOST/LOCAL`` and ``HOST/launcher``, how each rank
ended (``at`` in seconds, ``code`` null: it still ran), and the right answer. A source without times has made-up times.
"""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.gang.timeouts import compare_timeouts
from ddpctl_worker.record import outcome as outcomes
from ddpctl_worker.record.lines import STDERR
from ddpctl_worker.record.outcome import Blame, Outcome
from ddpctl_worker.run.cause import Evidence, Failure, candidates

CASES = sorted((Path(__file__).parent / "recorded").glob("*.json"))
NOW = 1000.0


def find_causes(case: dict[str, Any]) -> list[tuple[str, Failure]]:
    """Return each node's likeliest failure, in the order in which the nodes blame them."""
    hosts = sorted({place.partition("/")[0] for place in case["stderr"]})
    found = [(host, failure) for host in hosts for failure in candidates(evidence(case, host))[:1]]
    found.sort(key=lambda pair: blame(pair[1]))
    late = compare_timeouts([outcome(host, failure) for host, failure in found], hosts)
    if late is None:
        return found
    host, failure = next(pair for pair in found if pair[0] == late["host"])
    return [(host, failure._replace(message=late["message"], rank=late["rank"], victim=False))]


def outcome(host: str, failure: Failure) -> Outcome:
    why = outcomes.cause(host, failure.reason, failure.message, rank=failure.rank)
    return outcomes.failed(why, victim=failure.victim)._replace(in_time=failure.in_time)


def blame(failure: Failure) -> Blame:
    return Blame(failure.victim, failure.suspect, failure.early, NOW if failure.when is None else failure.when)


def evidence(case: dict[str, Any], host: str) -> Evidence:
    places = {place.partition("/")[2]: text for place, text in case["stderr"].items() if place.startswith(host + "/")}
    ends = {int(place.partition("/")[2]): end for place, end in case["ends"].items() if place.startswith(host + "/")}
    dead = {local: end for local, end in ends.items() if end["code"] is not None}
    return Evidence(
        status=1 << 8 if dead or "launcher" in places else None,
        tails={(None if local == "launcher" else int(local), STDERR): text for local, text in places.items()},
        ranks={local: end["rank"] for local, end in ends.items()},
        error_file=None,
        now=NOW,
        deaths={local: (status_of(end["code"]), float(end["at"])) for local, end in dead.items()},
        tracebacks={local: end["traceback_at"] for local, end in ends.items() if "traceback_at" in end},
    )


def status_of(code: int) -> int:
    return -code if code < 0 else code << 8


@pytest.mark.parametrize("path", CASES, ids=[path.stem for path in CASES])
def test_the_cause_is_right(path: Path) -> None:
    case = json.loads(path.read_text())
    right = case["right"]
    host, cause = find_causes(case)[0]
    print(case["happened"], "->", host, cause)
    assert host == right.get("host", host)
    assert cause.rank == right.get("rank", cause.rank)
    assert cause.victim == right.get("victim", cause.victim)
    for words in right.get("says", ()):
        assert re.search(words, cause.message, re.IGNORECASE)
    for words in right.get("not_says", ()):
        assert words not in cause.message
    assert cause.reason != right.get("reason_not")
    assert cause.signal is None or cause.signal in signal.Signals.__members__
