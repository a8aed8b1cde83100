"""``ddpctl top``: shows hosts, GPUs, runs and ranks live."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from ddpctl.cli import session
from ddpctl.cli.limits import CONNECT_S, OPENED_LINES
from ddpctl.errors import DdpctlError, HostsFailed
from ddpctl.render.console import is_plain
from ddpctl.render.doctor import doctor_view, stack_lines
from ddpctl.render.errors import error_lines
from ddpctl.render.status import kill_view
from ddpctl.render.top import overview_view, run_view
from ddpctl.spec.event import Event
from ddpctl.spec.inventory import Inventory
from ddpctl.spec.lines import Group as Lines
from ddpctl.spec.noise import Held
from ddpctl.spec.status import RunStatus
from ddpctl.stages.doctor import ask_doctor
from ddpctl.stages.follow import Selection, follow
from ddpctl.stages.stop import stop_run
from ddpctl.stages.top import HostWatch, read_overview
from ddpctl.transport.base import Fleet
from ddpctl.transport.fleet import open_fleet
from ddpctl.transport.prompts import Prompter
from ddpctl_worker.wire import contract

if TYPE_CHECKING:
    from ddpctl.screen.app import TopApp


def top(
    job: str = typer.Argument(None, metavar="JOB", help="Begin with this run.", show_default=False),
    readonly: bool = typer.Option(False, "--readonly", help="Only look: the key that kills a run is disabled."),
    option: Path | None = session.InventoryOption,
) -> int:
    """Watch hosts, GPUs, runs and ranks live. Without a terminal: print them once."""
    inventory = session.load(None, option, job=job, recorded=True)
    if is_plain(sys.stdout) or not (sys.stdin.isatty() and sys.stderr.isatty()):  # textual draws on stderr
        with session.fleet_of(inventory) as fleet:
            _once(fleet, job, inventory)
        return 0
    with _fleet(inventory) as (fleet, hush):
        run = session.find_run(fleet, job, inventory).run if job is not None else None
        _connect(fleet)
        hush()
        with screen(fleet, run, readonly=readonly) as app:
            app.run()
            if app.fault is not None:
                raise app.fault
    return 0


def _once(fleet: Fleet, job: str | None, inventory: Inventory) -> None:
    """Print the overview, or a run, a single time.

    Raises:
        HostsFailed: a host did not answer. The page with the other hosts has been printed.
    """
    found = session.find_run(fleet, job, inventory) if job is not None else None
    seen, outcome = read_overview(fleet)
    page = overview_view(seen) if found is None else run_view(seen, seen.run(found.run) or found)
    session.print_view(page)
    asked = fleet.hosts if found is None else found.hosts
    errors = {host: error for host, error in outcome.errors.items() if host in asked}
    if errors:
        raise HostsFailed(f"{len(errors)} of {len(asked)} hosts did not answer", errors)


@contextlib.contextmanager
def screen(fleet: Fleet, run: str | None = None, *, readonly: bool = False) -> Iterator[TopApp]:
    """Yield the live screen, and watch the hosts meanwhile."""
    from ddpctl.screen.app import Actions, TopApp  # textual is slow to import, and not needed for a pipe

    watch = HostWatch(fleet)
    actions = Actions(
        watch.overview,
        doctor=lambda name: doctor_view(ask_doctor(fleet, name)),
        stacks=lambda name, rank: _stacks(fleet, name, rank),
        log=functools.partial(_log, fleet),
        kill=None if readonly else lambda run: _kill(fleet, run),
    )
    watch.start()
    try:
        yield TopApp(actions, run)
    finally:
        watch.stop()


def _stacks(fleet: Fleet, run: str, rank: int) -> RenderableType:
    found = ask_doctor(fleet, run)
    lines = [line for seen in found.looks if seen["rank"] == rank for line in stack_lines(seen)]
    return Text("\n".join(lines or [f"nothing is known of rank {rank}: its host did not answer, or it has ended"]))


def _log(
    fleet: Fleet,
    run: RunStatus,
    tell: Callable[[Event], None],
    show: Callable[[Sequence[Lines]], None],
    stop: Callable[[], bool],
) -> None:
    """Show the output of `ddpctl tail -f`."""
    follow(
        run.run,
        [host for host in run.hosts if host in fleet.hosts],
        fleet,
        tell,
        show,
        selection=Selection(lines=OPENED_LINES),
        noise=Held() if not run.verdict.terminal or run.verdict.state == contract.SUCCEEDED else None,
        interrupted=stop,
        restarts=run.record.restart is not None,
    )


def _kill(fleet: Fleet, run: RunStatus) -> RenderableType:
    """Kill the run; return the page that `ddpctl kill` prints, with its error if there is no proof."""
    outcome = stop_run(run.job, run.run, run.hosts, fleet, grace=run.grace, by=session.author())
    try:
        session.require_proof(outcome)
    except DdpctlError as error:
        return Group(kill_view(outcome), Text("\n".join(error_lines(error)), "bold red"))
    return Group(kill_view(outcome), Text("nothing of it is left", "green"))


# --- questions and warnings of the transport: only before the screen, which would hide them -------------------------
@contextlib.contextmanager
def _fleet(inventory: Inventory) -> Iterator[tuple[Fleet, Callable[[], None]]]:
    """Yield the fleet, and a function that silences its questions and warnings."""
    person = session.prompter()
    asked = _Asked(person) if person is not None else None
    shown = threading.Event()

    def say(text: str) -> None:
        if not shown.is_set():
            session.warn(text)

    def hush() -> None:
        shown.set()
        if asked is not None:
            asked.hush()

    session.tell_first_use(inventory)
    fleet = open_fleet(inventory, prompter=asked, say=say)
    try:
        yield fleet, hush
    finally:
        fleet.close()


class _Asked:
    """Asks a person the transport's questions until the screen takes the terminal."""

    def __init__(self, person: Prompter) -> None:
        self._person = person
        self._lock = threading.Lock()  # held while a question is open
        self._hushed = False

    def passphrase(self, path: str) -> str | None:
        return self._ask(lambda: self._person.passphrase(path))

    def password(self, account: str, same_as: str) -> str | None:
        return self._ask(lambda: self._person.password(account, same_as))

    def answer(self, question: str) -> str | None:
        return self._ask(lambda: self._person.answer(question))

    def hush(self) -> None:
        """Ask no further question; wait for the answer to an open question."""
        with self._lock:
            self._hushed = True

    def _ask(self, question: Callable[[], str | None]) -> str | None:
        with self._lock:
            return None if self._hushed else question()


def _connect(fleet: Fleet) -> None:
    """Connect to all hosts, for CONNECT_S at most: the screen shows slow hosts as connecting."""
    thread = threading.Thread(target=fleet.map, args=(lambda transport: None,), name="top-connect", daemon=True)
    thread.start()
    thread.join(CONNECT_S)
