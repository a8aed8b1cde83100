"""Every hang there is: its lines, the worlds it is for, and which ranks the doctor may name. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.hangs.programs import Parts

Ranks = frozenset[int]
Alternatives = tuple[Ranks, ...]
STOP, FREEZE = "stop", "freeze"


@dataclass(frozen=True)
class Kind:
    """A hang. `suspects` takes the odd ranks and the world size, and gives every set of ranks that is right."""

    name: str
    parts: Parts
    frames: Sequence[str] = ("ddp", "bare")
    odd: Sequence[int] = (1,)  # the number of odd ranks, any of these
    worlds: Sequence[int] = (4, 8)
    suspects: Callable[[Ranks, int], Alternatives] = lambda odd, world: (odd,)
    busy: bool = False  # a rank that uses its core: the watcher waits for three times the stall
    act: str = ""  # what the driver does to the odd rank: STOP or FREEZE
    ends: bool = False  # the run ends by itself
    gone: bool = False  # the odd rank has no process


def _sides(odd: Ranks, world: int) -> Alternatives:
    """Without a majority either side may be odd; the doctor may also name both."""
    all_ranks = frozenset(range(world))
    return (odd, all_ranks - odd, all_ranks) if 2 * len(odd) == world else (odd,)


def team(odd: Ranks, world: int) -> Ranks:
    """The members of the subgroup: the odd rank and the ranks after it, more than half of all."""
    return frozenset((min(odd) + nth) % world for nth in range(world // 2 + 1))


def _odd_or_team(odd: Ranks, world: int) -> Alternatives:
    """The odd rank waits for its team in a collective of all, and the team for it: a cycle, which may be named."""
    return odd, team(odd, world)


def _cycle(odd: Ranks, world: int) -> Alternatives:
    """Where all ranks are in the cycle no rank is odd: the doctor may name all ranks or no rank."""
    return (odd, frozenset()) if len(odd) == world else (odd,)


def _cycle_or_all(odd: Ranks, world: int) -> Alternatives:
    """All ranks are in recv, and nothing outside of a program says from which rank."""
    return odd, frozenset(range(world)), frozenset()


def _before(call: str, functions: str = "", setup: str = "") -> tuple[Parts, Parts]:
    """The odd rank does something else before forward, or before the all_reduce of the metric."""
    lines = f"if odd:\n    {call}"
    return Parts(functions, setup, early=lines), Parts(functions, setup, late=lines)


OTHER = "dist.all_gather([torch.zeros_like(metric) for _ in range(WORLD)], metric)"
LOCK = """\
class Checkpoints:
    def __init__(self):
        self.files, self.index = threading.Lock(), threading.Lock()

    def write(self):
        with self.files:
            time.sleep(0.5)
            self.index.acquire()  # HANG

    def clean(self):
        with self.index:
            time.sleep(0.5)
            self.files.acquire()


"""
TAKE_BOTH = (
    "checkpoints = Checkpoints()\n    threading.Thread(target=checkpoints.clean).start()\n    checkpoints.write()"
)
SPIN = """\
def next_power(limit):
    value = 1
    while value != limit: value = value * 2 % 1000003  # HANG
    return value


"""
DISK = "disk = os.open(f'/srv/{NAME}/checkpoint', os.O_RDWR | os.O_CREAT) if RANK in ODD else None"
WRITE = """\
if odd:
    write_time("ready")
if RANK in ODD:
    os.pwrite(disk, bytes(4096), 0)  # HANG
"""
FIFO = "if RANK == min(ODD):\n    os.mkfifo(f'/tmp/{NAME}.fifo')"
OPEN_FIFO = "if RANK in ODD and index == STEP * BATCH:\n    open(f'/tmp/{NAME}.fifo').read()  # HANG"
READ_FIFO = """\
if RANK in ODD and index == STEP * BATCH:
    fifo = os.open(f'/tmp/{NAME}.fifo', os.O_RDWR)
    os.read(fifo, 1)  # HANG
"""
TEAM = """\
members = sorted((ODD[0] + nth) % WORLD for nth in range(WORLD // 2 + 1))
team = dist.new_group(members)
"""
IN_TEAM = "if RANK in members and not odd:\n    dist.all_reduce(metric.clone(), group=team)"
RECEIVE = """\
if RANK in ODD and step == STEP:
    dist.recv(torch.zeros(1), src=ODD[(ODD.index(RANK) + 1) % len(ODD)])  # HANG
"""
STORE = "store = dist.distributed_c10d._get_default_store()"
LEAVE_UNSEEN = """\
if odd:
    os._exit(0)
store.set(f"{step} {RANK}", "")
store.wait([f"{step} {rank}" for rank in range(WORLD)])
"""


def _pair(name: str, call: str, functions: str = "", setup: str = "", **keys: object) -> list[Kind]:
    early, late = _before(call, functions, setup)
    return [Kind(name, early, **keys), Kind(f"{name}-late", late, **keys)]  # type: ignore[arg-type]


def _collectives() -> list[Kind]:
    skip = "if not odd:\n    dist.all_reduce(metric)"
    twice = "dist.all_reduce(metric)\nif odd:\n    dist.all_reduce(metric)  # HANG"
    other = f"if odd:\n    {OTHER}  # HANG\nelse:\n    dist.all_reduce(metric)"
    root = other.replace(OTHER, "dist.broadcast(metric, src=(RANK + 1) % WORLD)")
    larger = "if odd:\n    metric = metric.new_zeros(WORLD)\ndist.all_reduce(metric)  # HANG"
    smaller = "if not odd and step == STEP:\n    metric = metric.new_zeros(WORLD)\ndist.all_reduce(metric)  # HANG"
    shown = "metric = metric.flatten()[0]"
    return [
        Kind("skipped", Parts(reduce=skip, barrier_marked=True)),
        Kind("doubled", Parts(reduce=twice)),
        Kind("other-op", Parts(reduce=other)),
        Kind("other-root", Parts(reduce=root)),
        Kind("larger", Parts(reduce=f"{larger}\n{shown}", barrier_marked=True)),
        Kind("smaller", Parts(reduce=f"{smaller}\n{shown}", barrier_marked=True)),
        Kind("two-against-two", Parts(reduce=other), odd=(2,), worlds=(4,), suspects=_sides),
    ]


def _alone() -> list[Kind]:
    """One rank does something that never ends; the other ranks wait for it."""
    stop = "write_time('ready')\n    time.sleep(60)  # HANG"
    return [
        *_pair("sleep", "time.sleep(3600)  # HANG"),
        *_pair("c-sleep", "ctypes.PyDLL(None).sleep(3600)  # HANG"),
        *_pair("lock", TAKE_BOTH, LOCK),
        *_pair("spin", "next_power(0)", SPIN, busy=True),
        *_pair("stopped", stop, act=STOP),
        Kind("disk", Parts(setup=DISK, early=WRITE), act=FREEZE),
        Kind("fifo-open", Parts(setup=FIFO, load=OPEN_FIFO)),
        Kind("fifo-read", Parts(setup=FIFO, load=READ_FIFO)),
        Kind("fifo-worker", Parts(setup=FIFO, load=OPEN_FIFO, loader_marked=True, workers=1)),
    ]


def _groups() -> list[Kind]:
    asleep = f"{IN_TEAM}\nif odd:\n    time.sleep(3600)  # HANG"
    elsewhere = "dist.all_reduce(metric)  # HANG"
    receivers = f"{RECEIVE}elif step == STEP:\n    dist.recv(metric, src=ODD[0])"
    return [
        Kind("subgroup-asleep", Parts(setup=TEAM, late=asleep)),
        Kind("subgroup-elsewhere", Parts(setup=TEAM, late=IN_TEAM, reduce=elsewhere), suspects=_odd_or_team),
        Kind("cycle", Parts(late=RECEIVE), odd=(3, 4), suspects=_cycle),
        Kind("cycle-recv", Parts(late=receivers), odd=(3, 4), suspects=_cycle_or_all),
    ]


def _left() -> list[Kind]:
    return [
        *_pair("exit", "sys.exit(0)", ends=True, gone=True),
        *_pair("os-exit", "os._exit(0)", ends=True, gone=True),
        Kind("exit-unseen", Parts(setup=STORE, late=LEAVE_UNSEEN), gone=True),
    ]


KINDS: dict[str, Kind] = {kind.name: kind for kind in (*_collectives(), *_alone(), *_groups(), *_left())}
