"""The command line: which commands there are, and what becomes of an error.

Every command is a function in a file of its own; this file only names them. An error reaches the user as one line on
stderr and an exit code (errors.py); a traceback only with ``--debug``.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import typer

from ddpctl import __version__
from ddpctl.cli import (
    attach,
    fetch,
    kill,
    preflight,
    ps,
    push,
    schema,
    status,
    tail,
    trust,
    up,
)
from ddpctl.cli.session import GLOBAL
from ddpctl.errors import DdpctlError
from ddpctl.render.errors import error_lines

app = typer.Typer(
    name="ddpctl",
    help="Run multi-node PyTorch DDP jobs on plain machines that speak SSH.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def root(
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks and what the nodes said on stderr."),
    version: bool = typer.Option(False, "--version", help="Print the version and end.", is_eager=True),
) -> None:
    """Run multi-node PyTorch DDP jobs on plain machines that speak SSH."""
    GLOBAL.debug = debug or bool(os.environ.get("DDPCTL_DEBUG"))
    if version:
        typer.echo(f"ddpctl {__version__}")
        raise typer.Exit


# In the order in which a person meets them.
app.command("up")(up.up)
app.command("preflight")(preflight.preflight)
app.command("push")(push.push)
app.command("ps")(ps.ps)
app.command("status")(status.status)
app.command("tail")(tail.tail)
app.command("attach")(attach.attach)
app.command("kill")(kill.kill)
app.command("fetch")(fetch.fetch)
app.command("trust")(trust.trust)
app.command("schema")(schema.schema)


def main(argv: Sequence[str] | None = None) -> None:
    """The console script: runs one command and exits with its code."""
    sys.exit(run(list(sys.argv[1:] if argv is None else argv)))


def run(argv: list[str]) -> int:
    """Run one command line; returns the exit code of the contract."""
    GLOBAL.script = None
    if "up" in argv and "--" in argv:
        # What follows `--` is the user's own script and arguments: never parsed as ours.
        cut = argv.index("--")
        argv, GLOBAL.script = argv[:cut], argv[cut + 1 :]
    try:
        code = app(argv, prog_name="ddpctl", standalone_mode=False)
    except DdpctlError as error:
        return _report(error)
    except typer.TyperException as error:
        return _usage(error)
    except (KeyboardInterrupt, typer.Abort):
        sys.stderr.write("ddpctl: interrupted\n")
        return 130
    except BrokenPipeError:
        # The reader of our output is gone (`| head`): end quietly, as a program killed by SIGPIPE would.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except Exception as error:
        if GLOBAL.debug:
            raise
        where = traceback.extract_tb(error.__traceback__)[-1]
        sys.stderr.write(
            f"ddpctl: a fault of ddpctl itself: {type(error).__name__}: {error} "
            f"({Path(where.filename).name}:{where.lineno}); run it again with --debug and report what it shows\n"
        )
        return 1
    return int(code or 0)


def _usage(error: typer.TyperException) -> int:
    """A command line that makes no sense: what and where, in one line; without arguments at all, the help."""
    context = getattr(error, "ctx", None)
    if context is not None and type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(context.get_help())
        return 2
    path = context.command_path if context is not None else "ddpctl"
    sys.stderr.write(f"ddpctl: {error.format_message()}; see {path} --help\n")
    return 2


def _report(error: DdpctlError) -> int:
    if GLOBAL.debug:
        traceback.print_exception(error)
    for line in error_lines(error):
        sys.stderr.write(f"ddpctl: {line}\n")
    return error.exit_code
