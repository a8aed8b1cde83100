"""``python -m tests.bench [NAME ...]``: all benchmarks, or the named benchmarks."""

from __future__ import annotations

import importlib
import os
import platform
import sys
import tempfile
from pathlib import Path

from tests.bench.report import table
from tests.lab import missing

# name -> module and title; each module has all_of(folder) -> rows
BENCHES = {
    "main": ("tests.bench.main_job", "The main job"),
    "fleet": ("tests.bench.fleet", "Many hosts"),
    "top": ("tests.bench.top", "The live screen"),
    "node": ("tests.bench.node", "On a node"),
    "doctor": ("tests.bench.doctor", "The doctor"),
    "peers": ("tests.bench.peers", "Other tools"),
    "preflight": ("tests.bench.preflight", "Preflight"),
    "scale": ("tests.bench.scale", "Hundreds of hosts"),
    "spread": ("tests.bench.spread", "Spreading files"),
    "install": ("tests.bench.install", "Installing environments"),
    "strangers": ("tests.bench.strangers", "Strangers"),
}


def main(names: list[str]) -> int:
    """Run the benchmarks and print a Markdown table of each."""
    reason = missing()
    unknown = [name for name in names if name not in BENCHES]
    if reason or unknown:
        print(f"no benchmark: {reason or ', '.join(unknown)}; there are: {', '.join(BENCHES)}", file=sys.stderr)
        return 2
    print(f"{os.cpu_count()} cores, {platform.platform()}, Python {platform.python_version()}\n", flush=True)
    for name in names or BENCHES:
        module, title = BENCHES[name]
        with tempfile.TemporaryDirectory(prefix="ddpctl-bench-") as folder:
            print(table(title, importlib.import_module(module).all_of(Path(folder))), flush=True)
    return 0


sys.exit(main(sys.argv[1:]))
