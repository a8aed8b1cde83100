"""``python -m tests.recordings [SCENE ...]``: play scenes and write their recordings; see the package."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import pexpect

from tests.lab import Lab, missing
from tests.recordings.documents import record
from tests.recordings.scenes import SCENES
from tests.recordings.stage import Stage

FOLDER = Path(__file__).parents[2] / "docs" / "recordings"
DOCUMENTS = "documents"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.recordings", description=__doc__)
    known = [*SCENES, DOCUMENTS]
    parser.add_argument("scenes", nargs="*", default=known, metavar="SCENE", help=", ".join(known))
    names = parser.parse_args().scenes
    if unknown := set(names) - set(known):
        parser.error(f"no such scene: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if reason := missing():
        print(f"no recording here: {reason}", file=sys.stderr)
        return 2
    FOLDER.mkdir(exist_ok=True)
    for name in names:
        lab = Lab(SCENES[name].hosts if name in SCENES else 2)
        try:
            with tempfile.TemporaryDirectory(prefix="ddpctl-recording-") as folder, Stage(lab, Path(folder)) as stage:
                if name == DOCUMENTS:
                    record(stage, FOLDER)
                elif not _recorded(name, stage):
                    return 1
        finally:
            lab.stop()
        print(name, flush=True)
    return 0


def _recorded(name: str, stage: Stage) -> bool:
    """Play a scene; a scene that does not show the expected text leaves the old recording as it is."""
    try:
        SCENES[name].play(stage)
    except pexpect.ExceptionPexpect as error:
        print(f"{name}: {type(error).__name__}, the terminal shows:\n{stage.terminal.shown[-3000:]}", file=sys.stderr)
        return False
    (FOLDER / f"{name}.cast").write_text(stage.terminal.tape.text(SCENES[name].title))
    return True


if __name__ == "__main__":
    sys.exit(main())
