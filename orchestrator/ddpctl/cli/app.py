"""The command line: which commands there are, and what becomes of an error.

Every command is a function in a file of its own; this file only names them. An error reaches the user as one line on
stderr and an exit code (errors.py); a traceback only with ``--debug``.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import typer

from ddpctl import __version__
from ddpctl.cli.state import GLOBAL
from ddpctl.errors import DdpctlError
from ddpctl.render.errors import error_lines

# In the order in which a person meets them. Each is the function of that name in the module of that name; only the
# module of the command that is typed gets imported (an SSH library, a downloader and a resolver are not for everyone).
COMMANDS = (
    "up",
    "preflight",
    "push",
    "ps",
    "status",
    "tail",
    "attach",
    "kill",
    "fetch",
    "gc",
    "trust",
    "schema",
)


def make_app(commands: Sequence[str] = COMMANDS) -> typer.Typer:
    """The application with these commands."""
    app = typer.Typer(
        name="ddpctl",
        help="Run multi-node PyTorch DDP jobs on plain machines that speak SSH.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(root)
    for name in commands:
        app.command(name)(getattr(importlib.import_module(f"ddpctl.cli.{name}"), name))
    return app


def root(
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks and what the nodes said on stderr."),
    version: bool = typer.Option(False, "--version", help="Print the version and end."),
) -> None:
    """Run multi-node PyTorch DDP jobs on plain machines that speak SSH."""
    GLOBAL.debug = debug or bool(os.environ.get("DDPCTL_DEBUG"))
    if version:
        typer.echo(f"ddpctl {__version__}")
        raise typer.Exit


def _needed(argv: Sequence[str]) -> Sequence[str]:
    """The command that is typed; all of them for help, completion and typing mistakes."""
    word = next((word for word in argv if not word.startswith("-")), None)
    if word in COMMANDS:
        return (word,)
    return () if list(argv) == ["--version"] else COMMANDS


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
        code = make_app(_needed(argv))(argv, prog_name="ddpctl", standalone_mode=False)
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
