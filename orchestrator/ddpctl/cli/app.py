"""The console script. It imports next to nothing before it can answer a Ctrl-C: the libraries take half a second."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code."""
    gc.disable()  # until everything is imported: none of it is garbage, and looking for some is a tenth of the start
    try:
        if os.environ.get("_DDPCTL_COMPLETE", "").startswith("complete_"):  # a shell, while a person types
            from ddpctl.cli.complete import answer

            sys.exit(answer(os.environ))
        from ddpctl.cli.program import run

        code = run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:  # while something was still being imported, or on the way out
        sys.stderr.write("interrupted\n")
        code = 130  # errors.Interrupted, which may not be imported yet
    sys.exit(code)
