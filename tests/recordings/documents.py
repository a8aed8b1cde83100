"""The JSON documents of `docs/json.md`: the output of each command in the lab, its lists cut to two entries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.recordings.scenes import LONG
from tests.recordings.stage import Stage

MOST = 2  # entries of a list, letters of a long text
LETTERS = 300
TRAINING = {"args": LONG, "outputs": ["saved_models"]}


def record(stage: Stage, folder: Path) -> None:
    """Every command that has a document, on a job that runs and is then killed."""
    stage.inventory(TRAINING)
    play = {
        "preflight": ["preflight"],
        "exec": ["exec", "--", "uname", "-r"],
        "push": ["push"],
        "up": ["up", "-d"],
        "doctor": ["doctor", "train"],
        "status": ["status", "train"],
        "ps": ["ps"],
        "checkpoint": ["checkpoint", "train"],
        "checkpoints": ["checkpoints", "train"],
        "kill": ["kill", "train", "--save"],
        "rm": ["rm", "train"],
        "gc": ["gc", "--dry-run"],
    }
    for name, words in play.items():
        options, rest = (words, []) if "--" not in words else (words[:1], words[1:])
        if name == "doctor":
            stage.wait_for_output("epoch 1")
        document = json.loads(stage.run(*options, "--json", *rest))
        (folder / f"{name}.json").write_text(json.dumps(_short(document), indent=2) + "\n")


def _short(value: Any) -> Any:
    if isinstance(value, list):
        return [_short(one) for one in value[:MOST]]
    if isinstance(value, dict):
        return {key: _short(one) for key, one in value.items()}
    if isinstance(value, str) and len(value) > LETTERS:
        return f"{value[:LETTERS]} ..."
    return value
