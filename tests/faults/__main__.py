"""`python -m tests.faults [WORDS]`: put each fault with these words into a copy, and see which tests fail."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.faults.catalogue import FAULTS
from tests.faults.copy import copy_with_fault, find_failed_tests


def main(words: list[str]) -> int:
    """0 when tests fail for every fault."""
    unnoticed = 0
    for fault in FAULTS:
        if not all(word in fault.name for word in words):
            continue
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="ddpctl-fault-") as name:
            failed = find_failed_tests(copy_with_fault(fault, Path(name)), Path(name), fault.tests)
        unnoticed += not failed
        print(f"{fault.name}  ({time.monotonic() - begun:.0f} s)", *failed or ["NOT NOTICED"], sep="\n  ", flush=True)
    return 1 if unnoticed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
