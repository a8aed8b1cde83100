"""What the kernel said about its GPUs since it started."""

from __future__ import annotations

import os
import re
import time
from typing import Any, Dict, List, Optional

from ddpctl_worker.facts import command
from ddpctl_worker.facts.nvidia import pci_devices

_INTERESTING = re.compile(r"NVRM: .*Xid|fallen off the bus|RmInitAdapter failed|nvidia-nvswitch\d*: SXid.*\bFatal")
_MOST = 100


def kernel_log(params: Dict[str, Any], context: Dict[str, Any]) -> Optional[Dict[str, Any]]:
    """The last lines about GPU faults, ``[seconds since boot] text``, where they were read, and the uptime in seconds.

    None on a machine without a GPU of NVIDIA's. ``source`` is None where this user may not read the log
    (kernel.dmesg_restrict) and has no sudo without a password; ``error`` says so.
    """
    if not pci_devices():
        return None
    timeout = max(1.0, context["deadline"] - 1.0)
    lines, source, error = _from_device()
    if lines is None:
        lines, source, error = _from_program(["dmesg"], timeout, error)
    if lines is None:
        lines, source, error = _from_program(
            ["journalctl", "-k", "-b", "-q", "--no-pager", "-o", "short-monotonic"], timeout, error
        )
    if lines is None and os.getuid() != 0:  # it only reads, and it never asks for a password
        lines, source, error = _from_program(["sudo", "-n", "dmesg"], timeout, error)
    matching = [line for line in lines or [] if _INTERESTING.search(line)]
    return {
        "source": source,
        "lines": matching[-_MOST:],
        "total": len(matching),
        "error": error if lines is None else None,
        "uptime": time.clock_gettime(time.CLOCK_BOOTTIME),
    }


def _from_device() -> "tuple[Optional[List[str]], Optional[str], Optional[str]]":
    """/dev/kmsg, a record a read: ``priority,sequence,microseconds,flags;text``."""
    try:
        handle = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return None, None, str(error)
    lines: List[str] = []
    try:
        while True:
            try:
                record = os.read(handle, 8192).decode("utf-8", "replace")
            except BlockingIOError:  # the end
                return lines, "/dev/kmsg", None
            except BrokenPipeError:  # overwritten while we read: go on with the next one
                continue
            head, _, text = record.partition(";")
            fields = head.split(",")
            if len(fields) > 2 and fields[2].isdigit():
                said = text.split("\n", 1)[0].replace("\\x0a", " ")  # a message of several lines is one record
                lines.append("[%12.6f] %s" % (int(fields[2]) / 1e6, said))
    except OSError as error:
        return None, None, str(error)
    finally:
        os.close(handle)


def _from_program(
    argv: List[str], timeout: float, before: Optional[str]
) -> "tuple[Optional[List[str]], Optional[str], Optional[str]]":
    result = command.tool(argv, timeout)
    if result is None:
        return None, None, before
    lines = joined(result["stdout"])
    if result["code"] != 0 or not lines:  # journalctl shows nothing, without an error, to whom it has nothing to show
        return None, None, result["stderr"].strip() or before
    return lines, argv[0], None


def joined(text: str) -> List[str]:
    """dmesg's lines; one that goes on with an indented line (an old way of the driver's) is put together again."""
    lines: List[str] = []
    for line in text.splitlines():
        if lines and line[:1].isspace():
            lines[-1] += " " + line.strip()
        else:
            lines.append(line)
    return lines
