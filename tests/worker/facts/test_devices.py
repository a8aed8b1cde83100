"""What a node says of its GPUs without the tools of their makers: the driver's library, and the kernel's files."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ddpctl_worker.facts import amd, nvidia, torch

pytestmark = pytest.mark.slow

# A driver library that answers with values from the environment.
LIBRARY = r"""
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static int told(const char *name) { const char *text = getenv(name); return text ? atoi(text) : 0; }
int cuInit(unsigned flags) { sleep(told("TOLD_SLEEP")); return told("TOLD_CODE"); }
int cuDeviceGetCount(int *count) { *count = told("TOLD_DEVICES"); return 0; }
int cuDeviceGetPCIBusId(char *bus, int size, int device) {
    snprintf(bus, size, "0000:%02X:00.0", 27 + device);
    return 0;
}
int cuGetErrorString(int code, const char **text) { *text = "system not yet initialized"; return 0; }
"""
# A package of torch's name that counts how often it is imported.
PACKAGE = """
import os
from torch import version
__version__ = version.__version__
open(os.environ["TOLD_IMPORTS"], "a").write("once\\n")
class distributed:
    is_available = staticmethod(lambda: False)
class cuda:
    is_available = staticmethod(lambda: cuda.device_count() > 0)
    device_count = staticmethod(lambda: int(os.environ.get("TOLD_DEVICES", "0")))
    get_arch_list = staticmethod(lambda: ["sm_90"])
"""

needs_a_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")


class Node:
    """A node with a driver library and a torch, asked as the worker asks."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.base, self.patch = folder / "site", folder / "base", patch
        self.folder.mkdir()
        self.base.mkdir()
        folder = self.folder
        (folder / "libcuda.c").write_text(LIBRARY)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", "libcuda.so.1", "libcuda.c"], cwd=folder, check=True)
        (folder / "torch").mkdir()
        (folder / "torch" / "__init__.py").write_text(PACKAGE)
        (folder / "torch" / "version.py").write_text("__version__ = '2.8.0+cu128'\ncuda = '12.8'\nhip = None\n")
        self.tell(IMPORTS=str(self.base / "imports"), DEVICES="8")

    def tell(self, **values: str) -> None:
        for name, value in values.items():
            self.patch.setenv(f"TOLD_{name}", value)

    @property
    def env(self) -> dict[str, str]:
        return {"PYTHONPATH": str(self.folder), "LD_LIBRARY_PATH": str(self.folder)}

    def asked(self) -> dict[str, Any]:
        return torch.torch_import({"env": self.env}, {"base_dir": str(self.base), "deadline": 60.0})

    @property
    def imports(self) -> int:
        return len((self.base / "imports").read_text().splitlines())


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


@needs_a_compiler
def test_the_import_is_remembered_and_its_devices_are_not(node: Node) -> None:
    first, again = node.asked(), node.asked()
    assert (first["devices"], first["cached"], again["devices"], again["cached"]) == (8, False, 8, True)
    assert again["live"]["devices"][:2] == ["0000:1b:00.0", "0000:1c:00.0"]
    assert node.imports == 1
    node.tell(DEVICES="7")  # a GPU fell off the bus
    assert node.asked()["devices"] == 7
    assert (node.asked()["cached"], node.imports) == (True, 2)


@needs_a_compiler
def test_nothing_is_remembered_for_another_host_boot_or_choice_of_devices(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.asked()
    monkeypatch.setattr(torch, "boot_id", lambda: "another")
    assert not node.asked()["cached"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    told = node.asked()
    assert not told["cached"]
    assert told["live"]["visible"] == {"CUDA_VISIBLE_DEVICES": "0"}
    name = list(os.uname())
    name[1] = "another"
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(name))
    assert not node.asked()["cached"]
    assert node.asked()["cached"]


@needs_a_compiler
def test_a_driver_that_does_not_start_or_hangs_says_so(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.tell(CODE="802")
    told = torch.gpu_devices({"env": node.env}, {"deadline": 60.0})
    assert (told["api"], told["code"], told["error"]) == ("cuda", 802, "system not yet initialized")
    node.tell(CODE="0")
    assert node.asked()["devices"] == 8
    node.tell(SLEEP="300")
    monkeypatch.setattr(torch, "DRIVER_S", 1.0)
    told = node.asked()
    assert (told["devices"], told["live"]["code"]) == (0, None)
    assert "did not answer within 1 s" in told["live"]["error"]
    assert node.imports == 1  # torch would hang as well


def test_no_library_is_no_device() -> None:
    told = torch.list_devices({}, None, None, 60.0)
    if told["api"] is None:
        assert told["devices"] == []
        assert "libcuda.so.1" in told["error"]


# As an MI325X and its processors tell it; the processors have no target version.
PROPERTIES = """\
cpu_cores_count 0
simd_count 304
gfx_target_version 90402
vendor_id 4098
device_id 29856
location_id 29952
domain 0
drm_render_minor 999
"""


def test_amd_gpus_are_read_from_the_kernels_topology(tmp_path: Path) -> None:
    for number, text in enumerate(("cpu_cores_count 96\ngfx_target_version 0\n", PROPERTIES)):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "properties").write_text(text)
    assert amd.gpus(str(tmp_path)) == [
        {"bus": "0000:75:00.0", "gfx": 90402, "render": "/dev/dri/renderD999", "total": None, "used": None}
    ]


def test_the_device_nodes_number_is_the_drivers_own(tmp_path: Path) -> None:
    for bus, minor in (("0000:01:00.0", 1), ("0000:c1:00.0", 0)):
        (tmp_path / bus).mkdir()
        text = f"Model: \t\t NVIDIA A100-SXM4-80GB\nIRQ:   \t\t 191\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n"
        (tmp_path / bus / "information").write_text(text)
    assert nvidia.minor_numbers(str(tmp_path)) == {"0000:01:00.0": 1, "0000:c1:00.0": 0}


def test_a_closed_kernel_log_is_read_with_sudo_where_that_asks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "[  860.000000] NVRM: Xid (PCI:0000:43:00): 79, GPU has fallen off the bus."
    closed = "#!/bin/sh\necho 'dmesg: read kernel buffer failed: Operation not permitted' >&2\nexit 1\n"
    scripts = {"dmesg": closed, "journalctl": closed}
    scripts["sudo"] = f"#!/bin/sh\n[ \"$*\" = '-n dmesg' ] && echo '{line}'\n"
    for name, text in scripts.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(nvidia, "pci_devices", lambda: [("0000:43:00.0", "0x030200")])
    monkeypatch.setattr(nvidia, "_from_device", lambda: (None, None, "Operation not permitted"))
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    told = nvidia.kernel_log({}, {"deadline": 60.0})
    assert told is not None
    assert (told["source"], told["lines"]) == ("sudo", [line])
    (tmp_path / "sudo").write_text("#!/bin/sh\necho 'sudo: a password is required' >&2\nexit 1\n")
    told = nvidia.kernel_log({}, {"deadline": 60.0})
    assert told is not None
    assert (told["source"], told["lines"]) == (None, [])
