"""The fixes of `preflight --fix`: each host runs its own in order."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence

import pytest

from ddpctl.errors import LinkLost
from ddpctl.spec.autofix import Fix
from ddpctl.spec.command import Ran
from ddpctl.stages.execute import Sudo
from ddpctl.stages.fix import apply
from tests.transport.dry import DryFleet, DryTransport

FIXES = [Fix("a", "host.shm", command) for command in ("first", "second", "third")]


def no_password(user: str, hosts: Sequence[str]) -> None:
    """No fix here needs a password."""


def test_a_fix_after_a_lost_connection_runs_on_a_new_one() -> None:
    def run(argv: Sequence[str], password: str | None) -> Ran:
        if argv[-1] == "second":
            raise LinkLost("the connection was lost", host="a")
        return Ran(0)

    done = apply(FIXES, DryFleet([DryTransport("a", runs=run)]), lambda event: None, Sudo(no_password))
    assert [applied.ran for applied in done] == [Ran(0), Ran(None, error="a: the connection was lost"), Ran(0)]


def test_after_ctrl_c_no_further_fix_runs() -> None:
    before = set(threading.enumerate())
    hung_up = threading.Event()

    class Busy(DryTransport):
        def close(self) -> None:
            hung_up.set()

    def run(argv: Sequence[str], password: str | None) -> Ran:
        if argv[-1] == "first":
            os.kill(os.getpid(), signal.SIGINT)
            hung_up.wait(60)
            raise LinkLost("the connection was lost", host="a")
        return Ran(0)

    host = Busy("a", runs=run)
    with pytest.raises(KeyboardInterrupt):
        apply(FIXES, DryFleet([host]), lambda event: None, Sudo(no_password))
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()
    assert [argv[-1] for argv, _ in host.ran] == ["first"]
