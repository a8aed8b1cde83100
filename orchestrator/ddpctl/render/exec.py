"""The output of one command on many hosts: equal outputs once, each line after the hosts that it came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ddpctl.render.clean import clean
from ddpctl.spec.ran import Ran
from ddpctl.spec.ranges import fold


def output_lines(results: Mapping[str, Ran]) -> Iterator[tuple[str, str]]:
    """("stdout" or "stderr", line) in the order of the hosts: ``node[0-2,5]: text``, without its line's end."""
    groups: dict[tuple[str, str], list[str]] = {}
    for host, ran in results.items():
        groups.setdefault((ran.stdout, ran.stderr), []).append(host)
    for outputs, hosts in groups.items():
        where = fold(hosts)
        for stream, text in zip(("stdout", "stderr"), outputs, strict=True):
            for line in text.removesuffix("\n").split("\n") if text else ():
                yield stream, f"{where}: {clean(line.removesuffix(chr(13)))}"
