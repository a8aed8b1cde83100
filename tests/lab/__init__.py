"""The test laboratory: real hosts in namespaces, with real sshds, on this machine.

    def test_something(lab3: Lab, ddpctl: Ddpctl, tmp_path: Path) -> None:
        inventory = lab3.inventory(tmp_path / "inventory.yaml", jobs={...})
        lab3[1].drop(port=29500)
        assert ddpctl("preflight", inventory=inventory, home=lab3.home("user")).rc == 3

A host has its own network, processes, name and disk. It sees the programs that are installed on this machine (its disk
is an overlay over `/`), but neither the checkout nor any home, temporary files or environment. A fault of a host
(host.py) is one line in a test; `heal`, which `lab3` calls after each test, undoes it. By hand:
`python -m tests.lab up 3`.
"""

from tests.lab.host import Host
from tests.lab.lab import Lab, missing
from tests.lab.process import LabError, Process
from tests.lab.systemd_host import SystemdHost

__all__ = ["Host", "Lab", "LabError", "Process", "SystemdHost", "missing"]
