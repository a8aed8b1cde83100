"""``ddpctl init`` writes an inventory with few questions; ``ddpctl schema`` prints its JSON Schema."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import typer

from ddpctl.cli import prompt, session
from ddpctl.cli.limits import FOLDER_LETTERS
from ddpctl.cli.nodes import confirm_keys, require_known_keys
from ddpctl.cli.state import GLOBAL
from ddpctl.errors import DdpctlError, HostsFailed, Interrupted, PythonMissing, UsageError
from ddpctl.files.foreign.launcher_line import read_line
from ddpctl.files.foreign.read import read_foreign, with_hostfile
from ddpctl.files.init_files import code_of, write_inventory
from ddpctl.files.inventory import DEFAULT_FILE, VARIABLE, home_of, load_text
from ddpctl.files.scripts import find_scripts
from ddpctl.render.clean import clean
from ddpctl.render.inventory import inventory_text
from ddpctl.render.preflight import report_view
from ddpctl.spec.draft import (
    Draft,
    HostFault,
    Imported,
    JobDraft,
    cluster_name,
    merge_imported,
    picked_hosts,
    typed_hosts,
    with_master,
)
from ddpctl.spec.finding import Severity
from ddpctl.spec.fold import group_hosts_by_value
from ddpctl.spec.host import HostEntry
from ddpctl.spec.imports import packages_of
from ddpctl.spec.interpreters import choices, own_paths
from ddpctl.spec.inventory import Environment, Inventory, InventoryFile
from ddpctl.spec.origin import as_name
from ddpctl.spec.preflight import PreflightReport
from ddpctl.spec.ranges import fold_names
from ddpctl.spec.values import NAME_RULE, is_name, plural
from ddpctl.stages.discover import Discovered, discover
from ddpctl.stages.launch import launch_to_check
from ddpctl.stages.preflight import run_preflight
from ddpctl.stages.up import refusal
from ddpctl.transport.fleet import config_names

SPEED = "fabric.speed"


@dataclass(frozen=True)
class Wishes:
    """The options of the command line. Without ``asks`` no person can be asked: an option must answer each question."""

    target: Path
    asks: bool
    yes: bool
    hosts: tuple[str, ...] = ()
    job: str | None = None
    script: str | None = None
    python: str | None = None
    cluster: str | None = None


def init(
    from_: Path = typer.Option(
        None,
        "--from",
        metavar="FILE",
        help="Take the hosts from a hostfile (DeepSpeed, Open MPI, MPICH) or an accelerate configuration.",
    ),
    host: list[str] = typer.Option(
        [],
        "--host",
        metavar="HOST",
        help="A host: gpu1, gpu[2-4], alice@gpu5, gpu6:2201. May be repeated. With --from: which of its hosts.",
    ),
    job: str = typer.Option(None, "--job", help="Name of the job; default: that of the script."),
    script: str = typer.Option(None, "--script", metavar="FILE", help="The training script."),
    python: str = typer.Option(
        None, "--python", metavar="PATH", help="The interpreter on the hosts; default: one that has torch."
    ),
    cluster: str = typer.Option(None, "--cluster", metavar="NAME", help="Name of the cluster."),
    yes: bool = typer.Option(
        False,
        "-y",
        "--yes",
        help="Ask nothing: add unknown host keys, and take what is proposed. No host is left out, no file replaced.",
    ),
    option: Path = typer.Option(
        None,
        "-i",
        "--inventory",
        metavar="FILE",
        help="The file to write; default: $DDPCTL_INVENTORY, then ./inventory.yaml.",
        show_default=False,
    ),
) -> int:
    """Write an inventory: you name the hosts, or another tool's file that lists them, and ddpctl finds the rest.

    A launcher's command line may follow `--`: torchrun, python -m torch.distributed.launch, or deepspeed.
    """
    usual = Path(os.environ.get(VARIABLE) or DEFAULT_FILE).expanduser()
    target = (option or GLOBAL.inventory or usual).expanduser()
    asks = prompt.can_ask() and not yes
    wishes = Wishes(target, asks, yes, tuple(host), job, script, python, cluster)
    _may_write(wishes)
    source = _source(from_, GLOBAL.script)
    draft = _draft(wishes, source)
    for note in source.notes:
        session.warn(note)
    draft = _trusted(draft, wishes)
    draft, seen = _looked_at(draft, wishes)
    draft, torch = _with_python(draft, wishes, seen)
    draft, report, text = _checked(draft, wishes, seen, torch)
    session.print_view(report_view(report, skipped=False))
    write_inventory(target, text)
    typer.echo(f"wrote {target}: {plural(len(draft.hosts), 'host')}")
    if report.exit_code:
        raise refusal(report, f"preflight found {plural(report.count(Severity.ERROR), 'error')}")
    typer.echo(f"next: ddpctl up{'' if target == usual else f' {target}'}{'' if draft.job else ' -- SCRIPT ARGS'}")
    return 0


def _may_write(wishes: Wishes) -> None:
    """Raises UsageError: a name is not valid, or the file exists and no person agrees to replace it."""
    for option, name in (("--job", wishes.job), ("--cluster", wishes.cluster)):
        if name is not None and not is_name(name):
            raise UsageError(f"{option} {name!r} is not a valid name", hint=NAME_RULE)
    if not os.path.isdir(wishes.target.absolute().parent):
        raise UsageError(f"cannot write {wishes.target}: there is no such folder", hint="make it, or name another file")
    if not os.path.exists(wishes.target):
        return
    if wishes.asks and prompt.confirm(f"{wishes.target} is there already. Replace it?"):
        return
    raise UsageError(f"{wishes.target} is there already; it was left as it is", hint="name another file: -i FILE")


# --- before the first contact with a host ----------------------------------------------------------------------------


def _source(file: Path | None, line: list[str] | None) -> Imported:
    """Merge another tool's file with its command line."""
    read = read_foreign(file) if file is not None else Imported("")
    if line is None:
        return read
    return with_hostfile(merge_imported(read, read_line(line)), Path.cwd())


def _draft(wishes: Wishes, source: Imported) -> Draft:
    hosts = _hosts(wishes, source)
    job = _job(wishes, source, hosts)
    named = wishes.cluster or cluster_name([host.name for host in hosts])
    if wishes.python is not None:
        hosts = tuple(host.model_copy(update={"python": wishes.python}) for host in hosts)
    draft = Draft(named, _new_project(wishes.target), hosts, job=job)
    _inventory(draft, wishes)  # reports a mistake before a host is contacted
    return draft


def _new_project(target: Path) -> str:
    """Return a project name such as ``exp1-7f3a``: the folder's name, and digits that tell equal folder names apart."""
    return f"{as_name(home_of(str(target)).name, 'project')[:FOLDER_LETTERS]}-{secrets.token_hex(2)}"


def _hosts(wishes: Wishes, source: Imported) -> tuple[HostEntry, ...]:
    """Return every host in the order of the node ranks.

    Raises:
        UsageError: there are too few hosts, and no person can be asked.
    """
    try:
        if source.hosts:
            return _chosen(wishes.hosts, source)
        hosts = with_master(source, typed_hosts(" ".join(wishes.hosts)))
    except HostFault as error:
        raise UsageError(f"--host: {error}", hint=error.hint) from None
    wanted = source.elastic.min_nodes if source.elastic is not None else source.nodes or 1
    if len(hosts) >= wanted:
        return hosts
    what = f"{source.kind} speaks of {plural(wanted, 'host')} and names {len(hosts)}" if source.kind else "no host"
    if not wishes.asks:
        raise UsageError(what, hint="name the hosts: --host gpu1 --host gpu[2-4], or --from FILE")
    if source.kind:
        prompt.show(f"{what}{': ' + ', '.join(host.name for host in hosts) if hosts else ''}.\n")
    return _asked_hosts(hosts, wanted)


def _chosen(typed: tuple[str, ...], source: Imported) -> tuple[HostEntry, ...]:
    """Return the file's hosts that --host names by name or range; without --host, all hosts."""
    if not typed:
        return source.hosts
    by_name = {host.name: host for host in source.hosts}
    found: dict[str, HostEntry] = {}
    for text in typed:
        for name in session.host_names(text):
            if name not in by_name:
                hint = f"its hosts are {fold_names(by_name)}"
                raise UsageError(f"--host {name}: the {source.kind} has no such host", hint=hint)
            found[name] = by_name[name]
    return tuple(found.values())


def _asked_hosts(known: tuple[HostEntry, ...], wanted: int) -> tuple[HostEntry, ...]:
    listed = [name for name in config_names() if name not in {host.name for host in known}]
    if listed:
        prompt.show("Hosts of your ssh_config:\n")
        prompt.show("".join(f"  {number}  {name}\n" for number, name in enumerate(listed, 1)))
    how = "numbers, names, or both: 1-3 alice@gpu5" if listed else "such as gpu1 gpu[2-4] alice@gpu5 gpu6:2201"
    while True:
        answer = prompt.ask_line(f"{'Further hosts' if known else 'Hosts'} ({how}): ")
        if answer is None:
            raise Interrupted("interrupted: no hosts were named, nothing was written")
        try:
            hosts = (*known, *picked_hosts(answer, listed))
        except HostFault as error:
            prompt.show(f"{error}{'; ' + error.hint if error.hint else ''}\n")
            continue
        if len({host.name for host in hosts}) == len(hosts) >= wanted:
            return hosts
        prompt.show(f"{plural(wanted, 'host')} needed, each once\n")


def _job(wishes: Wishes, source: Imported, hosts: tuple[HostEntry, ...]) -> JobDraft | None:
    """Return the job of the launcher's command line or of a script; ``None`` without either."""
    module = source.module if wishes.script is None else None
    script = wishes.script or source.script
    if script is None and module is None:
        script = _found_script(wishes)
        if script is None:
            return None
    code, script = code_of(script, wishes.target)
    master = next(
        (host.name for host in hosts[1:] if source.master and source.master in (host.name, host.address)), None
    )
    return JobDraft(
        name=wishes.job or as_name(module or Path(str(script)).stem, "job"),
        script=script,
        module=module,
        args=source.args,
        code=code,
        nodes=source.nodes if 1 < (source.nodes or 1) < len(hosts) else None,
        nproc=source.nproc,
        master=master,
        port=source.port,
        elastic=source.elastic,
        env=source.env,
    )


def _found_script(wishes: Wishes) -> str | None:
    found = find_scripts(Path.cwd())
    if len(found) <= 1:
        return found[0] if found else None
    if wishes.yes:
        return found[0]
    if not wishes.asks:
        what = f"several training scripts here: {', '.join(found[:6])}"
        raise UsageError(what, hint="choose one with --script FILE")
    return found[_pick("Which script is to run?", found)]


def _pick(question: str, options: list[str]) -> int:
    number = prompt.pick(question, options)
    if number is None:
        raise Interrupted("interrupted: nothing was written")
    return number


# --- on the hosts ----------------------------------------------------------------------------------------------------


def _inventory(draft: Draft, wishes: Wishes) -> Inventory:
    """Read the draft as every other command will read it."""
    return load_text(inventory_text(draft).encode(), str(wishes.target))


def _trusted(draft: Draft, wishes: Wishes) -> Draft:
    """Show unknown host keys, and add them after a confirmation; return the draft without hosts that are left out.

    Raises:
        ConnectError: a key has changed or was not added.
        HostsFailed: a host showed no key, and no person left it out.
    """
    reports = confirm_keys(_inventory(draft, wishes), wishes.yes, "init", show=False)
    require_known_keys(reports, "init", silent=False)
    lost = {report.host: report.error for report in reports if report.error is not None and report.host in draft.names}
    return _left_out(draft, lost, wishes)


def _looked_at(draft: Draft, wishes: Wishes) -> tuple[Draft, Discovered]:
    with session.working_fleet(_inventory(draft, wishes)) as (fleet, tell):
        seen = discover(fleet, tell)
    draft = _left_out(draft, seen.errors, wishes)
    for count, names in group_hosts_by_value({name: seen.gpus.get(name, 0) for name in draft.names}):
        typer.echo(f"{fold_names(names)}: {plural(count, 'GPU') if count else 'no GPUs'}")
    return draft, seen


def _left_out(draft: Draft, lost: Mapping[str, DdpctlError], wishes: Wishes) -> Draft:
    """Return the draft without the hosts that cannot be used, if a person agrees.

    Raises:
        HostsFailed: no person agreed, or no host is left.
    """
    if not lost:
        return draft
    for error in lost.values():
        if isinstance(error, PythonMissing):
            error.hint = "name an interpreter of the hosts: --python PATH"
    failed = HostsFailed("nothing was written", lost)
    if not wishes.asks or len(lost) == len(draft.hosts):
        raise failed
    for name, error in lost.items():
        error.host = error.host or name
        prompt.show(f"{error}\n")
    if not prompt.confirm(f"Leave {fold_names(lost)} out?"):
        raise failed
    return draft.without(tuple(lost))


def _with_python(draft: Draft, wishes: Wishes, seen: Discovered) -> tuple[Draft, str | None]:
    """Return the draft with an interpreter, and its torch; or with an environment that ddpctl installs."""
    if wishes.python is not None:
        return draft, None
    pythons = {name: seen.pythons[name] for name in draft.names}
    for name in draft.names:
        if name in seen.unread:
            session.warn(f"{name}: its Pythons could not be listed: {seen.unread[name]}; name one with --python")
    options = choices(pythons)
    if options[0].install is not None and (modules := [name for name in seen.modules if name in draft.names]):
        typer.echo(
            f"{fold_names(modules)}: has environment modules, which are not loaded for a command over SSH; "
            "if torch is in "
            "one, name its interpreter with --python"
        )
    chosen = options[0]
    if len(options) > 1 and wishes.asks:
        chosen = options[_pick("Which Python is to run the job?", [option.label for option in options])]
    typer.echo(clean(f"python: {chosen.label}"))
    if chosen.install is not None:
        packages = (f"torch=={chosen.install}", *_imported_packages(_inventory(draft, wishes)))
        return replace(draft, environment=Environment(mode="managed", packages=packages)), None
    return draft.with_hosts("python", own_paths(chosen, pythons)), chosen.torch


def _imported_packages(inventory: Inventory) -> list[str]:
    """Return the packages that the job's script imports, and name the modules whose package is not known."""
    imports = launch_to_check(inventory, next(iter(inventory.jobs.values()), None)).imports
    if imports is None:
        return []
    known, unknown = packages_of(imports)
    if unknown:
        session.warn(f"the script imports {', '.join(unknown)}: add the packages that have them to `packages`")
    return known


def _checked(draft: Draft, wishes: Wishes, seen: Discovered, torch: str | None) -> tuple[Draft, PreflightReport, str]:
    """Return the draft, its preflight report and the file's text.

    If preflight finds a faster network, try it, and keep it if it works.
    """

    def look(candidate: Draft) -> tuple[PreflightReport, str]:
        text = inventory_text(candidate, gpus=seen.gpus, torch=torch)
        return _preflight(load_text(text.encode(), str(wishes.target))), text

    report, text = look(draft)
    if interfaces := _faster(report):
        faster = draft.with_hosts("interface", interfaces)
        again, text_again = look(faster)
        if again.count(Severity.ERROR) <= report.count(Severity.ERROR):
            typer.echo(f"network: {', '.join(dict.fromkeys(interfaces.values()))}, faster than the one of SSH")
            return faster, again, text_again
    return draft, report, text


def _faster(report: PreflightReport) -> dict[str, str]:
    """Return each host's interface in a faster network that all hosts share; empty if there is no such network."""
    evidence = next(
        (found.evidence for found in report.findings if found.check == SPEED and "faster" in found.evidence), {}
    )
    return {host: str(interface) for host, (interface, _) in evidence.get("faster", {}).items()}


def _preflight(inventory: Inventory) -> PreflightReport:
    job = next(iter(inventory.jobs.values()), None)
    launch = launch_to_check(inventory, job)
    with session.working_fleet(inventory) as (fleet, tell):
        return run_preflight(launch, fleet, tell)


# --- ddpctl schema
def schema() -> int:
    """Print the JSON Schema of the inventory file, for editors."""
    typer.echo(json.dumps(inventory_schema(), indent=2))
    return 0


def inventory_schema() -> dict[str, Any]:
    """Return the inventory's JSON Schema (2020-12). Only the file's reader checks unique hosts and existing names."""
    schema = _tidy(InventoryFile.model_json_schema(mode="validation"))
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "ddpctl inventory",
    }


def _tidy(value: Any) -> Any:
    """Drop generated titles, which an editor would show, and default sections, which an editor would paste."""
    if isinstance(value, list):
        return [_tidy(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: _tidy(item) for key, item in value.items() if not _noise(key, item)}


def _noise(key: str, item: Any) -> bool:
    return (key == "title" and isinstance(item, str)) or (key == "default" and isinstance(item, dict) and bool(item))
