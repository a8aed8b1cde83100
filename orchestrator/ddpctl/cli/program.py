"""The command line: the list of commands, and the way of an error to the user.

Every command is a function; this file only names its module. An error reaches the user as `error:` and
`hint:` lines on stderr (render/errors.py) and an exit code (errors.py); a traceback only with ``--debug``.
"""

from __future__ import annotations

import contextlib
import ctypes
import difflib
import errno
import gc
import importlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import typer
import typer.core

from ddpctl import __version__
from ddpctl.cli.state import GLOBAL, show_debug_log
from ddpctl.errors import DdpctlError, Interrupted, UsageError, is_interrupt, to_ddpctl_error
from ddpctl.render.clean import clean
from ddpctl.render.errors import error_lines
from ddpctl.spec.command import name_inventory

_PR_SET_DUMPABLE = 4  # linux/prctl.h

# In the order in which a person meets them: each command with its module, which has a function of the command's name.
# Only the module of the typed command is imported: not every command needs an SSH library, a downloader and a resolver.
COMMANDS = {
    "init": "init",
    "up": "up",
    "preflight": "preflight",
    "push": "nodes",
    "exec": "nodes",
    "ssh": "ssh",
    "ps": "runs",
    "top": "top",
    "metrics": "metrics",
    "status": "runs",
    "tail": "output",
    "attach": "output",
    "doctor": "runs",
    "report": "runs",
    "checkpoint": "checkpoints",
    "kill": "runs",
    "restart": "up",
    "checkpoints": "checkpoints",
    "fetch": "output",
    "rm": "runs",
    "gc": "nodes",
    "bench": "bench",
    "trust": "nodes",
    "schema": "init",
}

# Names that other tools use for these commands.
KNOWN_AS = {
    "stop": "kill",
    "logs": "tail",
    "run": "up",
    "start": "up",
    "ls": "ps",
    "list": "ps",
    "check": "preflight",
    "shell": "ssh",
    "diagnose": "doctor",
    "remove": "rm",
    "delete": "rm",
    "save": "checkpoint",
    "resume": "restart",
    "retry": "restart",
}


class FlagCommand(typer.core.TyperCommand):
    """A command whose help shows a flag as a flag: ``--json``, not ``--json <bool>``."""

    def get_params(self, ctx: Any) -> Any:
        return _plain_flags(super().get_params(ctx))


class Commands(typer.core.TyperGroup):
    """A group of commands. It shows its help if no command is typed, and suggests a command for a wrong word."""

    def get_params(self, ctx: Any) -> Any:
        return _plain_flags(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            typer.echo(ctx.get_help())
            raise typer.Exit(UsageError.exit_code)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and self.get_command(ctx, args[0]) is None:
            names = self.list_commands(ctx)
            meant = [KNOWN_AS.get(args[0], ""), *difflib.get_close_matches(args[0], names, 1)]
            meant = [name for name in meant if name in names]
            raise UsageError(
                f"no such command: {args[0]}", hint=f"did you mean {meant[0]}?" if meant else "see ddpctl --help"
            )
        return super().resolve_command(ctx, args)


def _plain_flags(params: list[Any]) -> list[Any]:
    """Show a flag without a value, and another option's value as a word instead of a type: ``--nodes NODES``."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
        elif param.metavar is None and param.param_type_name == "option":
            param.metavar = max(param.opts, key=len).lstrip("-").replace("-", "_").upper()
    return params


def make_app(commands: Collection[str] = COMMANDS.keys()) -> typer.Typer:
    """Return the application with these commands."""
    app = typer.Typer(
        name="ddpctl",
        cls=Commands,
        help="Run multi-node PyTorch DDP jobs on plain machines over SSH.",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback(invoke_without_command=True)(root)
    for name in commands:
        command = getattr(importlib.import_module(f"ddpctl.cli.{COMMANDS[name]}"), name)
        if isinstance(command, typer.Typer):  # it has commands of its own
            for below in command.registered_commands:
                below.cls = FlagCommand
            app.add_typer(command, name=name, cls=Commands)
        else:
            app.command(name, cls=FlagCommand)(command)
    return app


def root(
    inventory: Path = typer.Option(None, "-i", "--inventory", help="Inventory file (may also follow the command)."),
    debug: bool = typer.Option(
        False, "--debug", help="Show tracebacks and the nodes' stderr (may also follow the command)."
    ),
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    """Run multi-node PyTorch DDP jobs on plain machines over SSH."""
    GLOBAL.inventory = inventory
    if version:
        typer.echo(f"ddpctl {__version__}")
        raise typer.Exit


def _typed_command(argv: Sequence[str]) -> str | None:
    """Return the first word that is neither an option nor the value of ``-i``."""
    pairs = zip(["", *argv], argv, strict=False)
    words = (word for before, word in pairs if not word.startswith("-") and before not in ("-i", "--inventory"))
    return next(words, None)


def _needed(argv: Sequence[str]) -> Collection[str]:
    """Return the typed command; for help and for a wrong command, return every command."""
    word = _typed_command(argv)
    if word in COMMANDS:
        return (word,)
    return () if list(argv) == ["--version"] else COMMANDS.keys()


def _open_streams() -> None:
    """Make the standard streams fit for use.

    The null device replaces a closed stream: else the next socket would get its number and output. A character that the
    stream's encoding does not have is written out, as an error would hide the result.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: the closed stream's
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # in a process of its caller it may be another object
            stream.reconfigure(errors="backslashreplace")


def forbid_core_dumps() -> None:
    """Have the kernel write no core file of this process, which holds passwords and the keys of runs.

    Programs that it starts, such as the worker of a local host, are not affected.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def run(argv: list[str]) -> int:
    """Run a command line; return its exit code (errors.py)."""
    _open_streams()
    argv = _take_globals(argv)
    if GLOBAL.debug:
        show_debug_log()
    try:
        app = make_app(_needed(argv))
        gc.freeze()  # the imported objects stay: no collection looks at them
        gc.enable()  # see app.py
        code = app(argv, prog_name="ddpctl", standalone_mode=False)
        sys.stdout.flush()
        if code == Interrupted.exit_code:  # typer turns a Ctrl-C into this code
            _report(Interrupted("interrupted"))
    except DdpctlError as error:
        return _report(error)
    except typer.TyperException as error:
        return _report(_usage(error))
    except (KeyboardInterrupt, typer.Abort):
        return _report(Interrupted("interrupted"))
    except (BrokenPipeError, SystemExit) as error:
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            raise
        # The reader of our output has ended (`| head`). typer turns that into an exit. End quietly, as after SIGPIPE.
        _drop_stdout()
        return 128 + signal.SIGPIPE
    except Exception as error:
        return _report(Interrupted("interrupted")) if is_interrupt(error) else _fault(error)
    return int(code or 0)


def _take_globals(argv: list[str]) -> list[str]:
    """Store the global options; return the words for the parser."""
    GLOBAL.script, GLOBAL.named = None, ""
    ours, theirs = argv, None
    if "--" in argv:
        cut = argv.index("--")
        ours, theirs = argv[:cut], argv[cut:]
    GLOBAL.command = _typed_command(ours)
    GLOBAL.debug = "--debug" in ours or bool(os.environ.get("DDPCTL_DEBUG"))
    ours = [word for word in ours if word != "--debug"]
    if theirs is not None and GLOBAL.command in ("init", "up", "exec"):
        # The words after `--` are the user's program and its arguments. The parser must not see them.
        GLOBAL.script, theirs = theirs[1:], None
    return ours + (theirs or [])


def _fault(error: Exception) -> int:
    """Report an exception that no command expected: a full disk, or a bug."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        _drop_stdout()
        _trace(error)
        what = error.filename or "the output or a file on this machine"
        return _report(DdpctlError(f"could not write {what}: {error.strerror}", hint="make room, then run it again"))
    return _report(to_ddpctl_error(error))


def _drop_stdout() -> None:
    """Send the rest of stdout to the null device: flushing it at exit would fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _usage(error: typer.TyperException) -> UsageError:
    """Turn the parser's error into a UsageError: a text for the line after `error:` instead of a whole sentence."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "ddpctl"
    text = error.format_message().rstrip(".")
    more = _script_words(text, getattr(error, "option_name", None)) if path == "ddpctl up" else ""
    return UsageError(text[:1].lower() + text[1:], hint=f"see {path} --help{more}")


def _script_words(text: str, option: str | None) -> str:
    """Return the end of the hint for words that `ddpctl up` does not know: they may be the script's."""
    if option:
        return f"; options of your script follow --: ddpctl up -- {option} VALUE"
    if "extra argument" in text:
        return "; arguments of your script follow -- and the script: ddpctl up -- SCRIPT ARGUMENTS"
    return ""


def _report(error: DdpctlError) -> int:
    _trace(error)
    _say(name_inventory("\n".join(error_lines(error)), GLOBAL.named))
    return error.exit_code


def _trace(error: Exception) -> None:
    if GLOBAL.debug:
        _say("".join(traceback.format_exception(error)).rstrip())


def _say(text: str) -> None:
    """Write to stderr without control characters, which may come from a node.

    After a hangup stderr may be gone: then the exit code must do.
    """
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{clean(text)}\n")
        sys.stderr.flush()
