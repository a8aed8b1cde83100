"""Coverage-guided fuzzing of each parser of bytes that come from nodes, strangers or a cloned repository.

`make fuzz SECONDS=60` runs every parser in a process of its own under atheris (libFuzzer) and prints the table of
docs/testing.md. An input that ends a parser with an undeclared error, takes 10 s or 1 GiB is a finding: it is in
build/fuzz/PARSER/.
"""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from pathlib import Path

from tests.fuzz.parsers import PARSERS, SEEDS

LIMITS = ("-timeout=10", "-rss_limit_mb=1024", "-max_len=8192", "-print_final_stats=1")


def fuzz(name: str, seconds: int) -> str:
    """Run one parser and return its row of the table."""
    folder = Path("build/fuzz", name)
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    (corpus / "seed").write_bytes(SEEDS.get(name, b"{}"))
    options = [*LIMITS, f"-max_total_time={seconds}", f"-artifact_prefix={folder}/"]
    before = _child_cpu_s()
    command = [sys.executable, "-m", "tests.fuzz.run", name, str(corpus), *options]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    (folder / "log").write_text(done.stderr + done.stdout)
    stats = dict(re.findall(r"stat::(\w+): +(\d+)", done.stderr))
    hung = "ALARM: working on the last Unit" in done.stderr
    crashes, hangs = (0, 1) if hung else (int(done.returncode != 0), 0)
    minutes = (_child_cpu_s() - before) / 60
    runs, peak = int(stats.get("number_of_executed_units", 0)), stats.get("peak_rss_mb", "?")
    return f"| {name} | {minutes:.1f} | {runs:,} | {crashes} | {hangs} | {peak} MB |"


def _child_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    seconds, *names = sys.argv[1:]
    print("| parser | CPU minutes | executions | crashes | hangs | peak memory |\n|---|---|---|---|---|---|")
    for name in names or PARSERS:
        print(fuzz(name, int(seconds)), flush=True)


if __name__ == "__main__":
    main()
