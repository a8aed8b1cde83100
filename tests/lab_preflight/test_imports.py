"""What the job's script imports, on real hosts by the installed command: found before the launch, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ddpctl.spec.finding import Finding
from tests.lab import Lab
from tests.lab.command import Ddpctl
from tests.lab_preflight.preflight import PORT, infos, preflight, trouble, where

PACKAGES = "/srv/packages"
CACHE = "/root/.local/state/ddpctl/cache/modules.{}.json"
STORE = "/root/.local/state/ddpctl/store"
# Files in a folder of code that are no part of the program.
OTHERS = {
    "old/train_v1.py": "import tensorflow_of_2016\nprint 'epoch'\n",
    "notebooks/plot.py": "import plotting_library_of_a_laptop\n",
    "wandb/run-1/files/config.yaml": "x: 1\n",
}
# As the package index's torchvision beside a torch of another place.
MISFIT = "raise RuntimeError('operator torchvision::nms does not exist')\n"
HARMLESS = """\
from __future__ import annotations
import sys
from typing import TYPE_CHECKING
import net
import torch.distributed
try:
    import fast_path_that_is_not_there
except ImportError:
    fast_path_that_is_not_there = None
if sys.version_info < (3, 8):
    import backport_that_is_not_there
if TYPE_CHECKING:
    import types_that_are_not_there
def plot():
    import plotting_that_is_not_there
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    write(tmp_path / "code", OTHERS)
    return tmp_path / "code"


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def job(**keys: Any) -> dict[str, Any]:
    return {"train": {"script": "train.py", "master_port": PORT, "env": {"PYTHONPATH": PACKAGES}, **keys}}


def test_only_what_the_script_imports_is_judged_and_really_imported(lab3: Lab, code: Path, stand_in: str) -> None:
    for host in lab3:
        host.write(f"{PACKAGES}/torchvision/__init__.py", MISFIT)
        host.write(f"{PACKAGES}/lightening/__init__.py", "from lightening import models\n")
        host.write(f"{PACKAGES}/lightening/models.py", "import torchvision\n")
        host.write(f"{PACKAGES}/outer/__init__.py", "import inner\n")
        host.write(f"{PACKAGES}/inner/__init__.py", "value = 1\n")
    lab3[1].write(f"{PACKAGES}/inner/__init__.py", "raise OSError('libinner.so.3: cannot open shared object file')\n")
    lab3[2].run(f"rm -r {PACKAGES}/outer")

    def look(**files: str) -> tuple[list[Finding], list[Finding]]:
        write(code, {f"{name}.py": text for name, text in files.items()})
        jobs = job(code=str(code))
        report = preflight(lab3, only=("torch.vision", "job"), jobs=jobs)
        return trouble(report), infos(report)

    # What is not there is optional, or no part of the program; the torchvision that does not fit is not needed.
    wrong, quiet = look(train=HARMLESS, net="import torch\n")
    assert where(wrong) == []
    assert {(finding.check, finding.host) for finding in quiet} == {("torch.vision", host.name) for host in lab3}
    assert "harmless" in quiet[0].message
    remembered = [host.read(CACHE.format(host.name)) for host in lab3]
    assert look(train=HARMLESS.replace("def plot", "\n\ndef plot"))[0] == []
    assert [host.read(CACHE.format(host.name)) for host in lab3] == remembered

    # It is needed by a package that a module of the folder imports.
    wrong, quiet = look(train="import net\nimport torch.distributed\n", net="import lightening\n")
    assert where(wrong) == [("torch.vision", "error", host.name, None) for host in lab3]
    assert "torchvision::nms does not exist; net.py:1 needs it: `import lightening`" in wrong[0].message
    assert {(finding.check, finding.host) for finding in quiet} == {("job.imports", host.name) for host in lab3}

    # A host lacks a package; on another host the package is there, but its own import of a second package fails.
    wrong, _ = look(train="import net\n", net="\nimport outer\n")
    assert where(wrong) == [("job.imports", "error", "node1", None), ("job.imports", "error", "node2", None)]
    assert "net.py:2: `import outer` fails in inner: OSError: libinner.so.3: cannot open" in wrong[0].message
    assert f"net.py:2 imports outer, which is not installed for {stand_in}" in wrong[1].message
    assert "install outer there" in (wrong[1].fix or "")
    for finding, host, error in ((wrong[0], lab3[1], "libinner.so.3"), (wrong[1], lab3[2], "No module named 'outer'")):
        assert finding.command
        assert error in host.run(finding.command, check=False).stderr
    lab3[1].write(f"{PACKAGES}/inner/__init__.py", "value = 1\n")
    lab3[2].write(f"{PACKAGES}/outer/__init__.py", "import inner\n")
    assert look(net="\nimport outer\n")[0] == []


def test_a_syntax_error_is_found_before_anything_is_sent(lab3: Lab, code: Path, ddpctl: Ddpctl) -> None:
    write(code, {"train.py": "import net\n", "net.py": "def forward(x)\n    return x\n"})
    for host in lab3:
        host.run(f"rm -rf {STORE}")
    wrong = trouble(preflight(lab3, only=("job",), jobs=job(code=str(code))))
    assert where(wrong) == [("job.syntax", "error", None, None)]
    assert wrong[0].message.startswith("net.py:1 is no valid Python 3.")
    up = ddpctl("up", "--only", "job", "--json", inventory=lab3.folder / "inventory.yaml", home=lab3.home("syntax"))
    assert up.rc == 3, up.stderr
    assert "net.py:1 is no valid Python 3." in up.stderr
    assert not any(host.exists(STORE) for host in lab3)
    write(code, {"net.py": "", "train.py": "import net\nx = = 1\n"})
    wrong = trouble(preflight(lab3, only=("job",), jobs=job(code=str(code))))
    assert [(finding.check, finding.message[:10]) for finding in wrong] == [("job.syntax", "train.py:2")]


def test_a_script_that_lies_on_the_nodes(lab3: Lab) -> None:
    """Its own imports are tried, but a module beside it is never imported: the import may start a training."""
    text = "import helper\nimport os\nimport gone_from_node2\n"
    for host in lab3:
        host.write("/root/job/train.py", text)
        host.write("/root/job/helper.py", "open('/root/imported', 'w')\n")
        host.write(f"{PACKAGES}/gone_from_node2.py", "")
    lab3[2].run(f"rm {PACKAGES}/gone_from_node2.py")
    jobs = job(script="/root/job/train.py", code=None)
    wrong = trouble(preflight(lab3, only=("job",), jobs=jobs))
    assert where(wrong) == [("job.imports", "error", "node2", None)]
    assert "/root/job/train.py:3 imports gone_from_node2, which is not installed" in wrong[0].message
    assert not any(host.exists("/root/imported") for host in lab3)
    for host in lab3:
        host.write("/root/job/train.py", "import helper\nx = = 1\n")
    wrong = trouble(preflight(lab3, only=("job",), jobs=jobs))
    assert [(finding.check, finding.severity.value) for finding in wrong] == [("job.syntax", "error")]
    assert "/root/job/train.py:2" in wrong[0].message
