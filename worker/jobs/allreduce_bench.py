"""How fast do these ranks exchange data? Collectives over message sizes, as a table and as JSON lines.

Small messages show the latency, large messages the bandwidth. With NCCL the data is on the GPU, with gloo on the host.
Rank 0 prints a row as soon as it is measured, and at the end a line of JSON for each row:

    {"op": "all_reduce", "backend": "nccl", "bytes": 4096, "world_size": 4, "time_us": 81.3, "algbw_gb_s": 0.05,
     "busbw_gb_s": 0.075}

``bytes`` is S, the size of the whole tensor: the tensor that a rank receives, or gives in a reduce_scatter. It is
rounded up to a multiple for all ranks. ``time_us`` is the slowest rank's median. Bandwidths are in 10^9 bytes a second:
algbw is S / time, busbw is the least load of the busiest link / time. With a single rank busbw is 0.

``--pairs`` measures the network between nodes: all_reduce between each two nodes, by the processes with local rank 0.
In a round every node has one partner, so that no pair disturbs another. Each pair gives a line of JSON, in the order of
the ranks. Then all nodes together give a line of the first kind for each message size:

    {"pair": ["node0", "node1"], "ranks": [0, 2], "latency_us": 52.1, "bytes": 67108864, "time_us": 61234.0,
     "busbw_gb_s": 1.096}

``latency_us`` is the shortest time of --min_bytes; the other three values are of --max_bytes. A node's name is
$DDPCTL_HOST, or else the host's. All other lines, which do not begin with ``{``, are for people.

How to read the table. busbw is algbw times the share of the data that the busiest link must carry, with the factors of
nccl-tests (doc/PERFORMANCE.md there): 2 (n - 1) / n for all_reduce. A low busbw on a fast link means that the algorithm
moves more data than necessary: gloo's reduce_scatter takes as long as a whole all_reduce. gloo of torch 1.13 has no
reduce_scatter: that row is left out, and a line says so. ``parameter_server`` sends all tensors to rank 0, which adds
them up and sends back the sum: n - 1 tensors enter rank 0 and n - 1 leave it over one link, while in a ring no link
carries more than 2 tensors. Between four hosts with links of 200 Mbit/s (0.025 GB/s), over gloo:

         bytes collective            time us  algbw GB/s  busbw GB/s
       2097152 all_reduce           131929.1      0.0159      0.0238
       2097152 parameter_server     463803.7      0.0045      0.0068
       2097152 reduce_scatter       133105.9      0.0158      0.0118
       2097152 all_gather            66529.3      0.0315      0.0236
       2097152 broadcast            158262.1      0.0133      0.0133
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import time
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Sequence, Tuple

import common
import metrics
import torch
import torch.distributed as dist
from torch import Tensor

FACTOR = 4  # between two message sizes
FLOAT_BYTES = 4
Line = Dict[str, Any]  # a line of JSON


class Team(NamedTuple):
    """The ranks that measure together, and the place of this rank among them."""

    group: Any  # empty: all ranks of the launch
    rank: int
    size: int
    device: torch.device


def parse_args(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description="Bandwidth and latency of the collectives.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add, names = parser.add_argument, list(COLLECTIVES)
    add("--collectives", nargs="+", choices=names, default=names, metavar="NAME", help=f"of {', '.join(names)}")
    add("--min_bytes", type=byte_count, default="8", metavar="SIZE", help="smallest message: 8, 4K, 1M ...")
    add("--max_bytes", type=byte_count, default="64M", metavar="SIZE", help="largest message")
    add("--iters", type=common.whole(1), default=20, metavar="N", help="timed runs of each; the median counts")
    add("--warmup", type=common.whole(0), default=5, metavar="N", help="runs before the timed runs")
    add("--budget", type=float, default=5.0, metavar="SECONDS", help="for a size: fewer runs where they take longer")
    add("--pairs", action="store_true", help="all_reduce between each two nodes instead")
    common.add_options(parser)
    return parser.parse_args(argv)


def byte_count(text: str) -> int:
    """Return a number of bytes: 8, 4K, 64M or 2G, in powers of 1024."""
    found = re.fullmatch(r"([0-9]+)([KMG]?)", text.upper())
    if not found or not int(found[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is no size: give bytes such as 8, 4K, 64M or 2G")
    return int(found[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[found[2]]


def message_sizes(least: int, most: int, ranks: int) -> list[int]:
    """Return the sizes from ``least`` by FACTOR, and ``most``, each rounded up by ``fit``."""
    sizes = [most]
    while least < most:
        sizes.append(least)
        least *= FACTOR
    return sorted({fit(size, ranks) for size in sizes})


def fit(size: int, ranks: int) -> int:
    """Return this number of bytes, rounded up to whole floats for each rank."""
    step = FLOAT_BYTES * max(1, ranks)
    return -(-size // step) * step


def all_reduce(team: Team, whole: Tensor, part: Tensor, spare: Tensor) -> Tensor:
    """Give every rank the sum."""
    dist.all_reduce(whole, group=team.group)
    return whole


def parameter_server(team: Team, whole: Tensor, part: Tensor, spare: Tensor) -> Tensor:
    """Give every rank the sum by way of rank 0, which receives every rank's tensor and sends each rank the result.

    Rank 0's link carries S for each other rank, in and out: n - 1 times S. In a ring no link carries more than 2 S.
    """
    if team.rank:
        dist.send(whole, 0)
        dist.recv(whole, 0)
        return whole
    for rank in range(1, team.size):
        dist.recv(spare, rank)
        whole.add_(spare)
    for rank in range(1, team.size):
        dist.send(whole, rank)
    return whole


def reduce_scatter(team: Team, whole: Tensor, part: Tensor, spare: Tensor) -> Tensor:
    """Give each rank a part of the sum: the first half of a ring all_reduce."""
    newer = getattr(dist, "reduce_scatter_single", None)  # the name since torch 2.13
    (newer or dist.reduce_scatter_tensor)(part, whole, group=team.group)
    return part


def all_gather(team: Team, whole: Tensor, part: Tensor, spare: Tensor) -> Tensor:
    """Give every rank the parts of all ranks: the second half of a ring all_reduce."""
    if dist.get_backend(team.group) == "gloo":
        dist.all_gather(list(whole.chunk(team.size)), part, group=team.group)  # an old gloo has nothing better
    else:
        newer = getattr(dist, "all_gather_single", None)
        (newer or dist.all_gather_into_tensor)(whole, part, group=team.group)
    return whole


def broadcast(team: Team, whole: Tensor, part: Tensor, spare: Tensor) -> Tensor:
    """Give every rank the tensor of rank 0."""
    dist.broadcast(whole, 0, group=team.group)
    return whole


COLLECTIVES: Dict[str, Callable[[Team, Tensor, Tensor, Tensor], Tensor]] = {
    collective.__name__: collective
    for collective in (all_reduce, parameter_server, reduce_scatter, all_gather, broadcast)
}


def bus_factor(op: str, ranks: int) -> float:
    """Return busbw / algbw: the least load of the busiest link, as a multiple of S.

    From doc/PERFORMANCE.md of NVIDIA/nccl-tests. ``parameter_server`` has the factor of all_reduce, so that the two can
    be compared: both give every rank the sum. A single rank has no link: 0.
    """
    if ranks == 1:
        return 0.0
    share = (ranks - 1) / ranks
    return {"broadcast": 1.0, "reduce_scatter": share, "all_gather": share}.get(op, 2 * share)


def bandwidths(op: str, size: int, ranks: int, seconds: float) -> tuple[float, float]:
    """Return algbw and busbw in 10^9 bytes a second."""
    rate = size / seconds / 1e9
    return rate, rate * bus_factor(op, ranks)


def value(rank: int, part: int) -> int:
    """Return a rank's value in a part of its tensor. The sums are exact in float32 up to 3000 ranks."""
    return rank + 1 + part


def expected(op: str, rank: int, ranks: int) -> list[int]:
    """Return the values, in equal parts, that a rank must receive."""
    every = range(ranks)
    if op == "broadcast":
        return [value(0, part) for part in every]
    if op == "all_gather":
        return [value(part, part) for part in every]
    total = [sum(value(other, part) for other in every) for part in every]
    return [total[rank]] if op == "reduce_scatter" else total


def measure(
    team: Team, op: str, size: int, args: argparse.Namespace, pick: Callable[[List[float]], float] = statistics.median
) -> float:
    """Return the seconds of a run on the slowest rank: ``pick`` of its runs. The first run's result is checked.

    Raises:
        JobError: the result is wrong on some rank; every rank raises this.
    """
    length = size // FLOAT_BYTES // team.size
    values = [float(value(team.rank, part)) for part in range(team.size)]
    whole = torch.tensor(values, device=team.device).repeat_interleave(length)
    part, spare = whole.view(team.size, length)[team.rank].clone(), torch.empty_like(whole)

    def run() -> Tensor:
        return COLLECTIVES[op](team, whole, part, spare)

    right = torch.tensor(expected(op, team.rank, team.size), dtype=torch.float32, device=team.device)
    begun = time.monotonic()
    result = run()
    wrong = not bool((result.view(len(right), -1) == right[:, None]).all())
    first = torch.tensor([time.monotonic() - begun], dtype=torch.float64, device=team.device)
    dist.all_reduce(first, dist.ReduceOp.MAX, group=team.group)  # every rank must run the same number of times
    for tensor in (whole, part):
        tensor.zero_()  # a sum of zeros stays in range, run after run
    seconds = pick(times_s(run, *how_often(args, float(first)), team.device))
    verdict = torch.tensor([seconds, dist.get_rank() + 1 if wrong else 0], dtype=torch.float64, device=team.device)
    dist.all_reduce(verdict, dist.ReduceOp.MAX, group=team.group)
    if verdict[1]:
        reason = f"{op} of {size} bytes gave a wrong result on rank {int(verdict[1]) - 1}"
        kind = common.JobError if wrong else common.Refused
        raise kind(f"{reason}: run it again, and leave that rank's node out if it is wrong again")
    return float(verdict[0])


def how_often(args: argparse.Namespace, first_s: float) -> tuple[int, int]:
    """Return the numbers of warm-up and timed runs that fit the budget if all take as long as the first; at least 1."""
    fit = int(args.budget / max(first_s, 1e-9))
    iters = max(1, min(args.iters, fit))
    return min(args.warmup, max(0, fit - iters)), iters


def times_s(run: Callable[[], Tensor], warmup: int, iters: int, device: torch.device) -> List[float]:
    """Return the seconds of each of this rank's runs."""
    for _ in range(warmup):
        run()
    marks = [metrics.mark(device)]
    for _ in range(iters):
        run()
        marks.append(metrics.mark(device))
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return list(map(metrics.seconds_between, marks, marks[1:]))


def measure_all(team: Team, args: argparse.Namespace) -> Iterator[Line]:
    """Yield a line for every collective and size, as soon as it is measured.

    Raises:
        Refused: the backend has no collective of the list.
    """
    ops = [op for op in dict.fromkeys(args.collectives) if op != "reduce_scatter" or has_reduce_scatter(team)]
    if not ops:
        raise common.Refused("no collective is left to measure: name others with --collectives")
    for size in message_sizes(args.min_bytes, args.max_bytes, team.size):
        for op in ops:
            seconds = measure(team, op, size, args)
            rate, bus = bandwidths(op, size, team.size, seconds)
            line = {
                "op": op,
                "backend": dist.get_backend(),
                "bytes": size,
                "world_size": team.size,
                "time_us": round(seconds * 1e6, 2),
            }
            yield {**line, "algbw_gb_s": round(rate, 9), "busbw_gb_s": round(bus, 9)}


def has_reduce_scatter(team: Team) -> bool:
    """Return whether this backend has reduce_scatter. gloo in torch 1.13 lacks it."""
    whole = torch.zeros(team.size, device=team.device)
    try:
        reduce_scatter(team, whole, whole[:1].clone(), whole)
    except RuntimeError as error:
        if "does not support" not in str(error):
            raise
        if team.rank == 0:
            common.say(f"reduce_scatter is left out: {dist.get_backend()} of torch {torch.__version__} has none")
        return False
    return True


def print_table(team: Team, lines: Iterator[Line]) -> None:
    """Print a row for each line as it comes, then the latencies, then all lines as JSON; on rank 0."""
    if team.rank:
        for _ in lines:
            pass
        return
    common.say(f"{team.size} ranks, backend {dist.get_backend()}, float32 on {team.device.type}")
    common.say(f"{'bytes':>12} {'collective':<16} {'time us':>12} {'algbw GB/s':>11} {'busbw GB/s':>11}")
    done: List[Line] = []
    for line in lines:
        done.append(line)
        numbers = f"{line['time_us']:>12.1f} {line['algbw_gb_s']:>11.4f} {line['busbw_gb_s']:>11.4f}"
        common.say(f"{line['bytes']:>12} {line['op']:<16} {numbers}")
    least = [line for line in done if line["bytes"] == done[0]["bytes"]]
    common.say("latency: " + ", ".join(f"{line['op']} {line['time_us']:.1f} us" for line in least))
    if team.size == 1:
        common.say("one rank: nothing crosses a link; the times are those of the calls, and the bus bandwidth is 0")
    for line in done:
        common.say(json.dumps(line))


def rounds(count: int) -> Iterator[List[Tuple[int, int]]]:
    """Yield rounds in which each two of 0 to count - 1 meet once, each at most once in a round, in the fewest rounds.

    The circle method of tournaments: the first number stays in place, and all other numbers move on by a place after
    each round.
    """
    places: List[int | None] = [*range(count), *([None] if count % 2 else [])]  # opposite of None is no partner
    for _ in range(len(places) - 1):
        half = len(places) // 2
        opposite = zip(places[:half], places[::-1])  # noqa: B905  (Python 3.8; the second half goes unused)
        yield [(min(a, b), max(a, b)) for a, b in opposite if a is not None and b is not None]
        places = [places[0], places[-1], *places[1:-1]]


def measure_pairs(place: common.Place, device: torch.device, args: argparse.Namespace) -> list[Line]:
    """Return the JSON lines of every pair of nodes and then of all nodes together, on rank 0; [] on the other ranks.

    Raises:
        Refused: there is only one node.
    """
    # Ranks wait in gloo: an NCCL barrier keeps the GPU busy, and gloo notices at once that another rank is gone.
    control = None
    if dist.get_backend() != "gloo":
        control = dist.new_group(backend="gloo", timeout=timedelta(seconds=args.timeout))
    here = os.environ.get("DDPCTL_HOST") or socket.gethostname()
    places: list[Any] = [None] * place.world_size
    dist.all_gather_object(places, (here, place.local_rank), group=control)
    hosts = {rank: host for rank, (host, local_rank) in enumerate(places) if local_rank == 0}
    if len(hosts) < 2:
        raise common.Refused(f"--pairs measures between nodes, and {here} is the only one: start it on two or more")
    net, nodes, pairs = Network(place.rank, hosts, device, control, args), list(hosts), []
    for number, meetings in enumerate(rounds(len(nodes)), 1):
        teams = [[nodes[a], nodes[b]] for a, b in meetings]
        if place.rank == 0:
            common.say(f"round {number}: {', '.join(net.names(team) for team in teams)}")
        pairs += measure_together(net, teams)
    with team_of(net, [nodes]) as team:
        args = argparse.Namespace(**{**vars(args), "collectives": ["all_reduce"]})
        with named(net, [nodes]):
            whole = list(measure_all(team, args)) if team else []
    gathered: list[Any] = [None] * place.world_size
    dist.gather_object(pairs, gathered if place.rank == 0 else None, group=control)
    if place.rank:
        return []
    lines = sorted((line for lines in gathered for line in lines), key=lambda line: line["ranks"])
    tagged = [{"pair": [hosts[rank] for rank in line["ranks"]], **line} for line in lines]
    return tagged + whole


class Network(NamedTuple):
    """The nodes, and the means to measure between them."""

    rank: int  # of this process
    hosts: dict[int, str]  # the nodes, by the rank that measures for each
    device: torch.device
    control: Any  # a gloo group of all ranks
    args: argparse.Namespace

    def names(self, ranks: Sequence[int]) -> str:
        """Return the nodes of these ranks as text."""
        return " with ".join(self.hosts[rank] for rank in ranks)


def measure_together(net: Network, teams: list[list[int]]) -> list[Line]:
    """Measure the all_reduce of each of these teams at the same time. The first rank of each team returns its line.

    Raises:
        JobError: the nodes of a team do not reach each other, or a sum is wrong.
    """
    with team_of(net, teams) as team:
        seconds = []
        # The shortest time of a few bytes is the network's latency; longer times include other work of the processors.
        for size, pick in ((net.args.min_bytes, min), (net.args.max_bytes, statistics.median)):
            dist.barrier(group=net.control)  # no team measures its latency while another team fills the switch
            if team:
                with named(net, teams):
                    seconds.append(measure(team, "all_reduce", fit(size, team.size), net.args, pick))
    if not team or team.rank:
        return []
    size = fit(net.args.max_bytes, team.size)
    rate = round(bandwidths("all_reduce", size, team.size, seconds[1])[1], 9)
    latency, time = (round(value * 1e6, 2) for value in seconds)
    ranks = next(ranks for ranks in teams if net.rank in ranks)
    return [{"ranks": ranks, "latency_us": latency, "bytes": size, "time_us": time, "busbw_gb_s": rate}]


@contextmanager
def team_of(net: Network, teams: list[list[int]]) -> Iterator[Team | None]:
    """Yield this rank's team, with its own process group, or ``None`` if this rank is in no team."""
    mine = next((ranks for ranks in teams if net.rank in ranks), [])
    with named(net, teams):  # for this block only: the barrier below also fails for a node of another pair
        # Every rank makes every group, in the same order: this works with every backend and every torch, and costs a
        # rank outside the group nothing since torch 2.1.
        made = [dist.new_group(ranks, timeout=timedelta(seconds=net.args.timeout)) for ranks in teams]
    group = made[teams.index(mine)] if mine else None
    yield Team(group, mine.index(net.rank), len(mine), net.device) if mine else None
    dist.barrier(group=net.control)  # no group is destroyed while a member still uses it
    if mine:
        dist.destroy_process_group(group)


@contextmanager
def named(net: Network, teams: list[list[int]]) -> Iterator[None]:
    """Add the names of the nodes in this rank's team to an error."""
    try:
        yield
    except RuntimeError as error:
        mine = next((ranks for ranks in teams if net.rank in ranks), [])
        advice = "" if isinstance(error, common.JobError) else "; can they reach each other on every port?"
        raise common.JobError(f"{net.names(mine)}: {str(error).splitlines()[0]}{advice}") from error


def print_pairs(lines: list[Line]) -> None:
    """Print a table, then the lines as JSON."""
    common.say(f"{'nodes':<40} {'latency us':>12} {'bytes':>12} {'time us':>12} {'busbw GB/s':>11}")
    for line in lines:
        nodes = " with ".join(line["pair"]) if "pair" in line else f"all {line['world_size']} together"
        latency = f"{line['latency_us']:.1f}" if "pair" in line else ""
        numbers = f"{line['bytes']:>12} {line['time_us']:>12.1f} {line['busbw_gb_s']:>11.4f}"
        common.say(f"{nodes:<40} {latency:>12} {numbers}")
    for line in lines:
        common.say(json.dumps(line))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the whole measurement."""
    args = parse_args(argv)
    if args.min_bytes > args.max_bytes:
        raise common.Refused(f"--min_bytes {args.min_bytes} is more than --max_bytes {args.max_bytes}")
    place = common.join(args)
    device = place.device if dist.get_backend() == "nccl" else torch.device("cpu")
    if args.pairs:
        lines = measure_pairs(place, device, args)
        if place.rank == 0:
            print_pairs(lines)
    else:
        team = Team(None, place.rank, place.world_size, device)
        print_table(team, measure_all(team, args))
    common.wait_for_all(place.device)
    dist.destroy_process_group()


if __name__ == "__main__":
    common.run(main)
