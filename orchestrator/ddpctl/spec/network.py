"""The links between the hosts of a run as preflight measured them, in the form that the run's record holds. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from ddpctl.spec.bounds import Count, LinkStatus, Name, Rate, Small
from ddpctl.spec.limits import MOST_RECORDED_HOSTS
from ddpctl.spec.mesh import Link, Mesh, worst_hosts

_Row = tuple[Small, Small, LinkStatus, Rate | None, Rate | None]


@dataclass(frozen=True)
class Network:
    """The tried links among ``hosts``, each in one direction.

    Of a network with more than MOST_RECORDED_HOSTS hosts, ``hosts`` are the hosts with the worst links, and
    ``left_out`` is the number of the remaining hosts.
    """

    hosts: Annotated[tuple[Name, ...], Field(max_length=64)]
    # A row for each link: the places of both in ``hosts``, then the fields of ``Link``.
    rows: Annotated[tuple[_Row, ...], Field(alias="links", max_length=64 * 64)]
    left_out: Count = 0

    def links(self) -> tuple[Link, ...]:
        return tuple(
            Link(self.hosts[dialer], self.hosts[peer], status, rtt_ms, mbit)
            for dialer, peer, status, rtt_ms, mbit in self.rows
        )

    @staticmethod
    def of(mesh: Mesh) -> Network:
        links = mesh.links()
        hosts = worst_hosts(mesh.hosts, links, MOST_RECORDED_HOSTS)
        place = {host: index for index, host in enumerate(hosts)}
        rows = tuple(
            (place[link.dialer], place[link.peer], link.status, _rounded(link.rtt_ms), _rounded(link.mbit))
            for link in links
            if link.dialer in place and link.peer in place
        )
        return Network(hosts, rows, len(mesh.hosts) - len(hosts))

    def to_json(self) -> dict[str, Any]:
        return {"hosts": self.hosts, "links": self.rows, "left_out": self.left_out}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
