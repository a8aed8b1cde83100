"""What the controller does with nodes that say something else than the worker of a spread would."""

from __future__ import annotations

import pytest

from ddpctl.environment.limits import WANTS
from ddpctl.environment.spread import Addresses, Feed, Spread
from ddpctl.errors import RemoteError
from tests.environment.support import BytesSource
from tests.transport.dry import DryFleet, DryTransport, Stream

SOURCE = BytesSource(b"x" * 100, "wheel")


def test_a_fault_of_the_starter_is_raised_and_nobody_waits_for_its_word(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Spread) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr(Spread, "_order", broken)
    fleet = DryFleet([DryTransport(name, {"spread": Stream((), {"found": 0, "relayed": 0})}) for name in "ab"])
    with pytest.raises(ZeroDivisionError):
        Spread("wheels", [SOURCE], ["a", "b"], lambda event: None, Addresses()).run(fleet)


def test_a_node_gets_what_it_was_offered_and_no_more() -> None:
    feed = Feed({SOURCE.sha256: SOURCE})
    for wrong in (("0" * 64, 0), (SOURCE.sha256, 101)):
        with pytest.raises(RemoteError, match="not offered"):
            feed.want([wrong])
    feed.want([(SOURCE.sha256, 100)] * WANTS)
    with pytest.raises(RemoteError):
        feed.want([(SOURCE.sha256, 0)] * 2)
