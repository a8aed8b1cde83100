"""The test laboratory: real hosts in namespaces, with real sshds, on this machine."""

from tests.lab.host import Host
from tests.lab.lab import Lab, missing
from tests.lab.process import LabError, Process

__all__ = ["Host", "Lab", "LabError", "Process", "missing"]
