"""Shared by the commands: common options, the inventory, the fleet, printing, and the identity of a new run."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import secrets
import shlex
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol, TypeVar

import typer
from rich.console import Console, RenderableType

from ddpctl.cli.prompt import TerminalPrompter, can_ask
from ddpctl.cli.state import GLOBAL
from ddpctl.errors import ConnectError, DdpctlError, HostsFailed, Survivors, UsageError
from ddpctl.files.first_use import take_new_programs
from ddpctl.files.inventory import find_inventory, home_of, load_inventory
from ddpctl.files.whole import write_whole
from ddpctl.render.console import make_console
from ddpctl.render.progress import ProgressView, quiet
from ddpctl.spec.event import Tell
from ddpctl.spec.inventory import Inventory
from ddpctl.spec.kill import KillOutcome
from ddpctl.spec.origin import Origin
from ddpctl.spec.plan import RunIdentity
from ddpctl.spec.ranges import RangeFault, expand, fold_names, split
from ddpctl.spec.status import RunStatus
from ddpctl.spec.values import is_name, plural
from ddpctl.stages import status as stage
from ddpctl.transport.base import Fleet
from ddpctl.transport.fleet import open_fleet

# Options of several commands.
InventoryArgument = typer.Argument(
    None,
    metavar="INVENTORY",
    help="Inventory file; default: $DDPCTL_INVENTORY, then ./inventory.yaml.",
    show_default=False,
)
InventoryOption = typer.Option(None, "-i", "--inventory", help="Inventory file.", show_default=False)
OnlyOption = typer.Option(
    None, "--only", metavar="ID,...", help="Run only these checks (docs/checks.md lists the ids)."
)
SkipOption = typer.Option(None, "--skip", metavar="ID,...", help="Skip these checks.")
JsonOption = typer.Option(False, "--json", help="Print one JSON document on stdout.")
JobArgument = typer.Argument(
    ...,
    metavar="JOB",
    help="A job's or run's name (its newest run), a run id, or the beginning of one.",
    show_default=False,
)
OptionalJobArgument = typer.Argument(
    None,
    metavar="JOB",
    help="A job's or run's name (its newest run), a run id, or the beginning of one; default: the only live run.",
    show_default=False,
)
AnyProjectOption = typer.Option(
    False, "--any-project", help="Take it whichever project it is of, and from whichever folder it was started."
)


def load(argument: Path | None, option: Path | None, *, job: str | None = None, recorded: bool = False) -> Inventory:
    """Load the inventory that ``find_inventory`` finds.

    Raises:
        UsageError: there is no inventory, or it is wrong.
    """
    return load_inventory(inventory_file(argument, option, job=job, recorded=recorded))


def inventory_file(
    argument: Path | None, option: Path | None, *, job: str | None = None, recorded: bool = False
) -> Path:
    """Return the inventory's path. ``-i`` may follow the command (``option``) or come before it.

    Raises:
        UsageError: there is no inventory, two are named, or the argument is a job's name.
    """
    if argument is not None and not os.path.isfile(argument):
        _refuse_job(str(argument), option)
    if argument is None or option is None:
        argument, option = argument or option, GLOBAL.inventory
    found = find_inventory(argument, option, job=job, recorded=recorded)
    GLOBAL.named = "" if _is_usual(found) else f"-i {shlex.quote(str(found))} "
    return found


def _is_usual(file: Path) -> bool:
    """Return whether every command finds this inventory without its name, from the current folder."""
    try:
        return find_inventory().samefile(file)
    except (UsageError, OSError):
        return False


def stdout_console() -> Console:
    return make_console(sys.stdout, lambda: GLOBAL.named)


def stderr_console() -> Console:
    return make_console(sys.stderr, lambda: GLOBAL.named)


# The right command where a job's name stands in place of the inventory.
_WITH_JOB = {"up": "up --job", "push": "push --job", "ps": "status"}


def _refuse_job(word: str, option: Path | None) -> None:
    """Refuse ``ddpctl up train`` where train is a job of the inventory that would be used otherwise.

    Raises:
        UsageError: ``word`` is such a job.
    """
    meant = _WITH_JOB.get(GLOBAL.command or "")
    if meant is None or not is_name(word):
        return
    try:
        inventory = load_inventory(find_inventory(option, GLOBAL.inventory))
    except DdpctlError:
        return  # without an inventory the word is a missing file
    if word in inventory.jobs:
        what = f"there is no inventory {word}, but {word} is a job of {inventory.file}"
        raise UsageError(what, hint=f"did you mean `ddpctl {meant} {word}`?")


@contextlib.contextmanager
def fleet_of(inventory: Inventory, hosts: Sequence[str] | None = None) -> Iterator[Fleet]:
    """Connections to the inventory's hosts, closed at the end."""
    tell_first_use(inventory)
    fleet = open_fleet(inventory, hosts, prompter=prompter(), say=warn)
    try:
        yield fleet
    finally:
        fleet.close()


def tell_first_use(inventory: Inventory) -> None:
    """Say on stderr what the inventory runs on this machine, at the first use of an inventory of its folder."""
    programs = take_new_programs(inventory)
    if programs:
        what = " and ".join(programs)
        warn(f"{inventory.file}: the first use of this inventory; it runs on this machine: {what}")


@contextlib.contextmanager
def working_fleet(inventory: Inventory, hosts: Sequence[str] | None = None) -> Iterator[tuple[Fleet, Tell]]:
    """Open a fleet, with a display of the stages' events on stderr."""
    with fleet_of(inventory, hosts) as fleet, ProgressView(stderr_console()) as view:
        yield fleet, view.tell


def find_run(fleet: Fleet, job: str | None, of: Inventory | None) -> RunStatus:
    """Return the run that ``job`` means, and warn if a newer run may be on a silent host.

    ``of`` and errors: as ``stages.status.find_run``.
    """
    run = stage.find_run(fleet, job, of)
    warn_silent_hosts(run)
    return run


def warn_silent_hosts(run: RunStatus) -> None:
    """Warn that a host without an answer may have a newer run of this name."""
    if run.silent_hosts:
        warn(f"{silent_hosts(run)}: a newer run of {run.job} may be there; this is {run.run}")


def silent_hosts(run: RunStatus) -> str:
    """Return a text such as ``node[2-4] did not answer``."""
    return f"{fold_names(run.silent_hosts)} did not answer"


def refuse_other_folder(run: RunStatus, word: str, inventory: Inventory) -> None:
    """Raises UsageError: ``word`` is a job's name, and this run of it was started from another folder."""
    here = origin_of(inventory)
    if word == run.run or word != run.job or run.origin is None or run.origin.is_same_folder(here):
        return
    raise UsageError(
        f"run {run.run} of {run.job} was started from {run.origin}, not from {here}; nothing was done",
        hint=f"if you mean it: ddpctl {GLOBAL.command} {run.run}, or --any-project",
    )


def prompter() -> TerminalPrompter | None:
    """Return the prompter for passphrases and passwords; ``None`` without a terminal."""
    return TerminalPrompter() if can_ask() else None


def host_names(text: str) -> list[str]:
    """Return the hosts that ``--host`` names: ``node1``, or ``node[0-3],node7``.

    Raises:
        UsageError: a range is wrong, or there is no name, as with an unset variable in a script.
    """
    try:
        names = list(dict.fromkeys(name for part in split(text) for name in expand(part)))
    except RangeFault as error:
        raise UsageError(f"--host {text!r}: {error}") from None
    if not names:
        raise UsageError(f"--host {text!r} names no host", hint="write node1, or node[0-3],node7")
    return names


def sudo_password(user: str, hosts: Sequence[str]) -> str | None:
    """Ask for the password of a login for sudo on these hosts; ``None`` without a terminal or an answer."""
    person = prompter()
    return person.password(f"{user} for sudo on {fold_names(hosts)}", "") if person is not None else None


def ids(text: str | None) -> tuple[str, ...]:
    """Split a list with commas."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def print_json(document: dict[str, Any]) -> None:
    """Print a JSON document on stdout. JSON has no NaN and no infinity, so no document has them."""
    indent = 2 if sys.stdout.isatty() else None
    sys.stdout.write(json.dumps(document, indent=indent, ensure_ascii=True, allow_nan=False) + "\n")
    sys.stdout.flush()


def print_view(view: RenderableType) -> None:
    stdout_console().print(view)


class Documented(Protocol):
    """A value with a JSON document for ``--json``."""

    def to_json(self) -> dict[str, Any]: ...


D = TypeVar("D", bound=Documented)


def show(value: D, view: Callable[[D], RenderableType], *, as_json: bool) -> None:
    """Print ``value`` as JSON for a program, or as a view for a person."""
    if as_json:
        print_json(value.to_json())
    else:
        print_view(view(value))


def check_page(path: Path | None) -> None:
    """Refuse a path that cannot become an HTML report, before a host is contacted.

    Raises:
        UsageError: a folder has the name, or the parent folder is missing or not writable.
    """
    if path is None or _is_written_in_place(path):
        return
    folder = Path(os.path.realpath(path)).parent
    if os.path.isdir(path):
        raise _page_error(path, "it is a folder")
    if not os.path.isdir(folder):
        raise _page_error(path, f"there is no folder {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _page_error(path, f"{folder} is not writable")


@contextlib.contextmanager
def with_page(path: Path | None, page: Callable[[], str]) -> Iterator[None]:
    """Write an HTML report after the block, which shows the result, even if the block ends with an error.

    Raises:
        UsageError: the file cannot be written. After an error of the block this is a warning.
    """
    try:
        yield
    except BaseException:
        try:
            _write_page(path, page)
        except UsageError as error:
            warn(f"warning: {error.message}")
        raise
    _write_page(path, page)


def _write_page(path: Path | None, page: Callable[[], str]) -> None:
    if path is None:
        return
    try:
        if _is_written_in_place(path):
            path.write_text(page(), encoding="utf-8")
        else:
            write_whole(Path(os.path.realpath(path)), page())  # a symlink stays one
    except OSError as error:
        raise _page_error(path, error.strerror or str(error)) from None


def _is_written_in_place(path: Path) -> bool:
    """Return whether no file can replace the path: a pipe, a device, or a writable file in a folder of another user."""
    if os.path.isdir(path):
        return False
    replaceable = os.access(Path(os.path.realpath(path)).parent, os.W_OK | os.X_OK)
    return os.path.exists(path) and (not os.path.isfile(path) or (os.access(path, os.W_OK) and not replaceable))


def _page_error(path: Path, why: str) -> UsageError:
    return UsageError(f"cannot write the report to {path}: {why}", hint="name another file: --html FILE")


def warn(message: str) -> None:
    """Print a warning on stderr; any thread may call this."""
    with quiet():
        stderr_console().print(message, style="yellow")


def raise_gravest(errors: Sequence[DdpctlError]) -> None:
    """Raise the gravest error; print the rest as warnings before it."""
    ordered = sorted(errors, key=lambda error: error.exit_code)
    for other in ordered[:-1]:
        warn(str(other))
    if ordered:
        raise ordered[-1]


def require_proof(outcome: KillOutcome) -> None:
    """Raise an error unless every node has proved that no process of the run is left.

    Raises:
        Survivors: processes are left. HostsFailed: a node gave no proof. ConnectError: a node could not be asked.
    """
    if outcome.survivors:
        left = ", ".join(f"{host} pid {pid} ({cmd})" for host, pid, cmd in outcome.survivors)
        raise Survivors(
            f"{plural(len(outcome.survivors), 'process')} of {outcome.run} survived: {left}",
            hint="a process in state D waits in the kernel for a device: repair it or reboot the node, then kill again",
        )
    if any(not isinstance(error, ConnectError) for error in outcome.errors.values()):
        count = f"{len(outcome.errors)} of {len(outcome.nodes)} hosts"
        raise HostsFailed(f"{count} did not confirm that {outcome.run} is gone", outcome.errors)
    if outcome.unreachable:
        raise ConnectError(
            f"{outcome.run} was ended on every host that answered; not reached: {', '.join(outcome.unreachable)}",
            hint=f"once they answer again: ddpctl kill {outcome.run}",
        )


def author() -> str:
    """Return ``user@machine``, the author of an action in a record."""
    return f"{user_name()}@{socket.gethostname()}"


def new_identity(inventory: Inventory) -> RunIdentity:
    """Return the identity of a new run. Its id sorts by time, and random digits make it unique."""
    now = datetime.now(timezone.utc)
    run = f"{now:%Y%m%dT%H%M%S}Z-{secrets.token_hex(3)}"
    return RunIdentity(run, origin_of(inventory), now.isoformat(timespec="seconds"))


def origin_of(inventory: Inventory) -> Origin:
    """Return the origin of a run that is started with this inventory now: user, machine and folder."""
    folder = home_of(inventory.file)
    return Origin(user_name(), socket.gethostname(), str(folder), folder.stat().st_ino if os.path.exists(folder) else 0)


def user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
