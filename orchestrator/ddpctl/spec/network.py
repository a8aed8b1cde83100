"""The links between the hosts of a run as preflight measured them, in the form that the run's record holds. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddpctl.spec.limits import MOST_RECORDED_HOSTS
from ddpctl.spec.mesh import Link, Mesh, worst_hosts


@dataclass(frozen=True)
class Network:
    """The tried links among ``hosts``, each in one direction.

    Of a network with more than MOST_RECORDED_HOSTS hosts, ``hosts`` are the hosts with the worst links, and
    ``left_out`` is the number of the remaining hosts.
    """

    hosts: tuple[str, ...]
    tried: tuple[Link, ...]
    left_out: int = 0

    def links(self) -> tuple[Link, ...]:
        return self.tried

    @staticmethod
    def of(mesh: Mesh) -> Network:
        links = mesh.links()
        hosts = worst_hosts(mesh.hosts, links, MOST_RECORDED_HOSTS)
        kept = tuple(link for link in links if link.dialer in hosts and link.peer in hosts)
        return Network(hosts, kept, len(mesh.hosts) - len(hosts))

    def to_json(self) -> dict[str, Any]:
        """Return the compact form: a row per link, with indexes into ``hosts`` in place of names."""
        place = {host: index for index, host in enumerate(self.hosts)}
        rows = [
            [place[link.dialer], place[link.peer], link.status, _rounded(link.rtt_ms), _rounded(link.mbit)]
            for link in self.tried
        ]
        return {"hosts": list(self.hosts), "links": rows, "left_out": self.left_out}

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Network:
        hosts = tuple(data["hosts"])
        links = (Link(hosts[dialer], hosts[peer], *rest) for dialer, peer, *rest in data["links"])
        return Network(hosts, tuple(links), data["left_out"])


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
