"""The imports of a job's script, really run by an interpreter of this machine; small packages stand on PYTHONPATH."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.facts import job

pytestmark = pytest.mark.slow

PACKAGES = {
    "broken/__init__.py": "raise RuntimeError('built for another\\noperator broken::nms does not exist')\n",
    "trainer/__init__.py": "from trainer import loop\n",
    "trainer/loop.py": "import broken\n",
    "needs/__init__.py": "import not_there_at_all\n",
    "fine/__init__.py": "import os\nwith open(os.environ['TALLY'], 'a') as file:\n    file.write('x')\nVALUE = 1\n",
    "quits/__init__.py": "import sys\nprint('bye')\nsys.exit(3)\n",
    "crashes/__init__.py": "import os\nos.abort()\n",
    "waits/__init__.py": "import time\ntime.sleep(600)\n",
}


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    packages, tally = tmp_path / "packages", tmp_path / "tally"
    for name, text in PACKAGES.items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_text(text)
    tally.touch()
    monkeypatch.setenv("TALLY", str(tally))

    def ask(*statements: str, deadline: float = 60.0, **params: Any) -> dict[str, Any]:
        given = {"statements": list(statements), "env": {"PYTHONPATH": str(packages)}, **params}
        found: dict[str, Any] = job.modules(given, {"base_dir": str(tmp_path / "base"), "deadline": deadline})
        return {**found, "tally": len(tally.read_text())}

    return ask


def test_each_failure_says_what_raised_and_in_which_package(ask: Any) -> None:
    statements = (
        "import fine",
        "import trainer",
        "import needs",
        "from fine import nothing",
        "import quits",
        "import no",
    )
    said = ask(*statements)
    assert said["error"] is None
    failed = {one["statement"]: one for one in said["failed"]}
    assert list(failed) == list(statements[1:])
    assert failed["import trainer"]["error"] == "RuntimeError: operator broken::nms does not exist"
    assert failed["import trainer"]["through"] == ["trainer", "broken"]
    assert (failed["import needs"]["kind"], failed["import needs"]["missing"]) == ("missing", "not_there_at_all")
    assert failed["from fine import nothing"]["kind"] == "import"
    assert (failed["import quits"]["kind"], failed["import quits"]["error"]) == ("other", "SystemExit: 3")
    assert failed["import no"]["missing"] == "no"


def test_a_success_is_remembered_until_a_module_changes_and_a_failure_never_is(ask: Any, tmp_path: Path) -> None:
    assert [ask("import fine", "import json")["tally"] for _ in range(3)] == [1, 1, 1]
    assert ask("import fine")["tally"] == 2  # another list
    with (tmp_path / "packages" / "fine" / "__init__.py").open("a") as file:
        file.write("VALUE = 2\n")
    assert ask("import fine", "import json")["tally"] == 3
    assert [ask("import fine", "import no")["tally"] for _ in range(2)] == [4, 5]
    assert [ask("import fine", "import no", guards={"import no": "import"})["tally"] for _ in range(2)] == [6, 6]
    assert ask("import fine", python=os.path.realpath(sys.executable))["tally"] in (6, 7)


def test_what_hangs_or_crashes_is_named(ask: Any) -> None:
    said = ask("import json", "import crashes", "import fine")
    assert (said["at"], said["error"]) == ("import crashes", "the interpreter was ended by signal 6")
    for deadline in (3.0, 60.0):  # on a busy machine the start of the interpreter takes seconds
        said = ask("import json", "import waits", deadline=deadline)
        if said["at"] == "import waits":
            break
    assert (said["at"], said["timed_out"]) == ("import waits", True)


def test_modules_beside_the_script_are_not_imported(ask: Any, tmp_path: Path) -> None:
    own = tmp_path / "own"
    for name in ("crashes.py", "waits/loader.py", "wandb/run-1/config.yaml"):
        (own / name).parent.mkdir(parents=True, exist_ok=True)
        (own / name).touch()
    said = ask("import crashes", "from waits import loader", "import fine", "import wandb", beside=[str(own)])
    assert [one["missing"] for one in said["failed"]] == ["wandb"]
    assert ask("import crashes", beside=[str(own)])["failed"] == []
