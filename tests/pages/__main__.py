"""Makes docs/report.png from a real run: two nodes on this machine train, a rank is killed, the nodes carry on.

make pages                          # once: Chromium
.venv/bin/python -m tests.pages     # about two minutes
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.pages.browser import chromium, look

ROOT = Path(__file__).parents[2]
JOB = "sine_waves"


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(ROOT / "tests" / "pages" / "train.py", folder)
        defaults = {"python": sys.executable, "connection": "local", "fabric_address": "127.0.0.1", "slots": 2}
        job = {"script": "train.py", "args": ["3000", "1234"], "restarts": 1}
        inventory = {"cluster": "lab", "hosts": ["node0", "node1"], "defaults": defaults, "jobs": {JOB: job}}
        inventory["defaults"] = {**defaults, "base_dir": str(folder / "base")}
        (folder / "inventory.yaml").write_text(json.dumps(inventory))
        for command in (["git", "init", "-q"], ["git", "add", "train.py", "inventory.yaml"]):
            subprocess.run(command, cwd=folder, check=True)
        who = ["-c", "user.name=anna", "-c", "user.email=anna@example.org"]
        subprocess.run(["git", *who, "commit", "-qm", "The training"], cwd=folder, check=True)
        env = {**os.environ, "XDG_STATE_HOME": str(folder / "state"), "LOGNAME": "anna"}
        ddpctl = [str(Path(sys.executable).parent / "ddpctl")]
        subprocess.run([*ddpctl, "up", "--job", JOB], cwd=folder, env=env, check=True)
        subprocess.run([*ddpctl, "report", JOB, "--html", "report.html"], cwd=folder, env=env, check=True)
        with chromium() as browser:
            look(browser, folder / "report.html", width=1000, dark=False, picture=ROOT / "docs" / "report.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
