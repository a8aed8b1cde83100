"""The console script. It handles Ctrl-C before it imports the libraries, which takes half a second."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code."""
    # Python restores the default handler before it deletes its modules: a late Ctrl-C would replace the exit code.
    atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    gc.disable()  # until the imports are done: they make no garbage, and the search for it takes a tenth of the start
    try:
        if os.environ.get("_DDPCTL_COMPLETE", "").startswith("complete_"):  # a shell asks for a completion
            from ddpctl.cli.complete import answer

            sys.exit(answer(os.environ))
        from ddpctl.cli.program import forbid_core_dumps, run

        if argv is None:  # else this process is not ddpctl alone
            forbid_core_dumps()
        code = run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:  # during an import, or on the way out
        sys.stderr.write("interrupted\n")
        code = 130  # the code of errors.Interrupted, which may not be imported yet
    sys.exit(code)
