"""Runs one parser under atheris, in this process: `python -m tests.fuzz.run PARSER [libFuzzer's options]`."""

from __future__ import annotations

import sys

import atheris

with atheris.instrument_imports(include=["ddpctl", "ddpctl_worker"]):
    from tests.fuzz.parsers import PARSERS


def main() -> None:
    parse = PARSERS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, parse)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
