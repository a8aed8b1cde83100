"""What is said of clocks that agree: a slow login blurs the measurement, it is no difference."""

from __future__ import annotations

import pytest

from ddpctl.checks.base import Requirements, Timing, View
from ddpctl.checks.host import CHECKS
from ddpctl.checks.judge import judge_checks
from tests.checks.case import view_of

CLOCK = [check for check in CHECKS if check.id == "host.clock"]
QUICK = Timing(1000.0, 1000.1, 1000.2, 1000.3)
SLOW_LOGIN = Timing(1000.0, 1019.9, 1020.0, 1020.1)  # all of the 20 s on the way there


@pytest.mark.parametrize(
    ("timings", "said"),
    [
        ({"node0": QUICK, "node1": QUICK}, "clocks agree to within 0.1 s"),
        (
            {"node0": QUICK, "node1": SLOW_LOGIN, "node2": QUICK},
            "clocks agree to within 0.1 s (node1: only known to within 20 s, because the login was slow)",
        ),
    ],
)
def test_the_agreement_is_that_of_clocks_which_are_known_well(timings: dict[str, Timing], said: str) -> None:
    targets = view_of({"targets": list(timings)}).targets
    (found,) = judge_checks(CLOCK, View(targets, Requirements(), {name: {} for name in timings}, timings=timings))
    assert found.message == said
