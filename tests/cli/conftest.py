"""`ddpctl` in the test's own process, for tests that are about neither a terminal nor signals nor real streams."""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from ddpctl.cli.app import main
from ddpctl.cli.state import GLOBAL, LOGGERS
from tests.lab.command import PATH, Done


class InProcess:
    """Calls the console script's function, as `tests.lab.command.Ddpctl` starts the script."""

    def __init__(self, folder: Path) -> None:
        self.home, self.cwd = folder / "home", folder / "cwd"
        for path in (folder, self.home, self.cwd):
            path.mkdir()

    def __call__(
        self,
        *args: str,
        inventory: Path | str | None = None,
        home: Path | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        stdin: str = "",
    ) -> Done:
        """Run to the end. The inventory goes in as $DDPCTL_INVENTORY; home and folder are empty unless given."""
        environ = {"PATH": PATH, "HOME": str(home or self.home), "LANG": "C.UTF-8", "USER": "root", "LOGNAME": "root"}
        if inventory:
            environ["DDPCTL_INVENTORY"] = str(inventory)
        return call_main(args, {**environ, **(env or {})}, cwd or self.cwd, stdin)


def call_main(args: tuple[str, ...], environ: Mapping[str, str], cwd: Path, stdin: str) -> Done:
    """Call main with these words, this environment and this folder; its changes to the process are put back."""
    out, err = io.StringIO(), io.StringIO()
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        for name in os.environ.keys() - environ.keys():
            patch.delenv(name)
        for name, value in environ.items():
            patch.setenv(name, value)
        patch.chdir(cwd)
        patch.setattr("sys.stdin", io.StringIO(stdin))
        for name, value in vars(GLOBAL).items():
            patch.setattr(GLOBAL, name, value)
        for logger in map(logging.getLogger, LOGGERS):  # --debug adds a handler, whose stream is this call's
            patch.setattr(logger, "handlers", list(logger.handlers))
            patch.setattr(logger, "level", logger.level)
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        stack.callback(gc.unfreeze)
        stack.callback(gc.enable)
        ended = stack.enter_context(pytest.raises(SystemExit))
        main(args)
    assert isinstance(ended.value.code, int)
    return Done(args, ended.value.code, out.getvalue(), err.getvalue(), time.monotonic() - began)


@pytest.fixture
def run_command(tmp_path: Path) -> InProcess:
    """`run_command("status", "job", home=...)`: ddpctl in this process."""
    return InProcess(tmp_path / "in-process")
