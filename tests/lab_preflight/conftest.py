"""Hosts with links of a known speed: what two processors give each link while other tests run would differ."""

from __future__ import annotations

import pytest

from tests.lab import Lab

SPEED = "500mbit"


def shape(lab: Lab) -> Lab:
    for host in lab:
        host.slow(SPEED)
    return lab


@pytest.fixture
def lab3(lab3: Lab) -> Lab:
    return shape(lab3)
