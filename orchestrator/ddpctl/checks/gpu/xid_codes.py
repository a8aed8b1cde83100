"""The Xid events of NVIDIA's driver: their meaning, their weight, and what NVIDIA advises.

Source: NVIDIA's Xid catalogue, https://docs.nvidia.com/deploy/xid-errors/, column "immediate action".
"""

from __future__ import annotations

import re
from typing import NamedTuple

from ddpctl.spec.finding import Severity

RESET = (
    "drain the host and reset the GPU, or reboot the host; if it comes back, run NVIDIA's diagnostics (`dcgmi diag`)"
)
REBOOT = "drain the host and reboot it; if it comes back, have the GPU replaced"
SUPPORT = "the GPU works; report it to the vendor if it comes back"
NVLINK = range(144, 151)  # errors of NVLink 5: their weight stands in the line, Fatal or Nonfatal
_FATAL_LINK = 149  # always an error
_RECOVERY = 154
_PREVIOUS = re.compile(r"previous Xid (\d+)")
_ACTION = re.compile(r"\bto 0x(?P<code>[0-9a-fA-F]+) \((?P<words>[^)]*)\)")


class Meaning(NamedTuple):
    """``words`` without the number; ``fix`` ``None``: nothing to do on the host."""

    words: str
    severity: Severity
    fix: str | None = None


# NVIDIA advises to start the program again.
_PROGRAM = (8, 11, 13, 25, 31, 32, 39, 40, 41, 60, *range(68, 73), 75, 76, 77, 80, *range(82, 87), 88, 89)
_PROGRAM += (*range(96, 106), *range(126, 136), 139)
# NVIDIA advises to ignore the event.
_HARMLESS = (37, 38, 43, 44, 66, 67, 93, 106, 107, 121, 137, 141, 152, 153, 160, 161)
_CODES = {
    **{code: Meaning("most often the fault of a program, not of the GPU", Severity.INFO) for code in _PROGRAM},
    **{code: Meaning("NVIDIA advises to ignore it", Severity.INFO) for code in _HARMLESS},
    45: Meaning("cleanup after an earlier error", Severity.INFO),
    46: Meaning("GPU stopped processing", Severity.ERROR, RESET),
    48: Meaning("uncorrectable memory error", Severity.ERROR, RESET),
    54: Meaning("auxiliary power is not connected", Severity.ERROR, "connect the GPU's power cables"),
    62: Meaning("the GPU's internal controller halted", Severity.ERROR, RESET),
    63: Meaning("bad memory will be set aside at the next reset", Severity.WARNING),
    64: Meaning("bad memory could not be set aside", Severity.ERROR, RESET),
    74: Meaning("NVLink error", Severity.ERROR, RESET),
    79: Meaning("GPU fell off the bus", Severity.ERROR, REBOOT),
    92: Meaning("many corrected memory errors", Severity.WARNING, SUPPORT),
    94: Meaning("contained memory error: the program that hit it was killed", Severity.WARNING),
    95: Meaning("uncontained memory error", Severity.ERROR, RESET),
    109: Meaning("context switch timed out", Severity.ERROR, RESET),
    110: Meaning("security fault", Severity.ERROR, RESET),
    119: Meaning("the GPU's system processor does not answer", Severity.ERROR, RESET),
    120: Meaning("the GPU's system processor failed", Severity.ERROR, RESET),
    136: Meaning("link training failed", Severity.ERROR, RESET),
    78: Meaning("a virtual GPU could not start", Severity.WARNING, "update the driver and the GPU's firmware"),
    140: Meaning("unrecovered memory error", Severity.ERROR, RESET),
    142: Meaning("unknown fault", Severity.WARNING, "contact NVIDIA's support"),
    143: Meaning("GPU initialization failed", Severity.ERROR, RESET),
    151: Meaning("a key rotation failed", Severity.ERROR, "restart the virtual machine"),
    155: Meaning("NVLink error found by the driver", Severity.ERROR, RESET),
    156: Meaning("a part of the GPU will be set aside at the next reset", Severity.ERROR, RESET),
    157: Meaning("a part of the GPU could not be set aside", Severity.WARNING, SUPPORT),
    158: Meaning("fatal timeout in the GPU", Severity.ERROR, RESET),
    159: Meaning("error of the link between CPU and GPU", Severity.WARNING, SUPPORT),
    162: Meaning("power smoothing works again", Severity.INFO),
    163: Meaning("power smoothing is off", Severity.INFO),
    164: Meaning("the power smoothing circuit is nearly worn out", Severity.WARNING, SUPPORT),
    165: Meaning("the power smoothing circuit is worn out", Severity.WARNING, SUPPORT),
    166: Meaning("encrypted NVLink traffic before the link was set up", Severity.WARNING, SUPPORT),
    167: Meaning("fatal timeout of PCI Express", Severity.ERROR, RESET),
    168: Meaning("the GPU has less memory: errors in its protected region", Severity.WARNING, SUPPORT),
    169: Meaning("the GPU's internal controller halted", Severity.ERROR, RESET),
    170: Meaning("NVLink interrupt in confidential computing", Severity.WARNING, SUPPORT),
    171: Meaning("uncorrectable error of the GPU's DRAM, details of Xid 48", Severity.ERROR, RESET),
    172: Meaning("uncorrectable error of the GPU's SRAM, details of Xid 48", Severity.ERROR, RESET),
}
_UNKNOWN = Meaning("unknown to ddpctl: see NVIDIA's Xid catalogue", Severity.WARNING)
# The recovery actions of Xid 154.
_ACTIONS = {
    0: Meaning("the driver withdrew its recovery action", Severity.INFO),
    1: Meaning("the GPU needs a reset", Severity.ERROR, RESET),
    2: Meaning("the host needs a reboot", Severity.ERROR, REBOOT),
    3: Meaning("the driver asks to drain the programs with peer access", Severity.ERROR, RESET),
    4: Meaning("the driver asks to drain and reset the GPU", Severity.ERROR, RESET),
    5: Meaning("the IMEX domain must be recovered", Severity.ERROR, "restart nvidia-imex on all hosts of its domain"),
    6: Meaning("the GPU's bus must be reset", Severity.ERROR, REBOOT),
    7: Meaning("the host needs a reboot", Severity.ERROR, REBOOT),
}


def find_meaning(code: int, rest: str) -> Meaning:
    """Return the meaning of an event; ``rest`` is its line after the code."""
    if code in NVLINK:
        fatal = code == _FATAL_LINK or bool(re.search(r"\bFatal\b", rest))
        return Meaning("NVLink error", Severity.ERROR, RESET) if fatal else Meaning("NVLink event", Severity.INFO)
    if code == _RECOVERY:
        action = _ACTION.search(rest)
        known = _ACTIONS.get(int(action["code"], 16)) if action else None
        return known or Meaning("the GPU needs a reset or a reboot", Severity.ERROR, RESET)
    previous = _PREVIOUS.search(rest) if code == 45 else None
    if previous:
        return Meaning(f"cleanup after Xid {previous[1]}", Severity.INFO)
    return _CODES.get(code, _UNKNOWN)
