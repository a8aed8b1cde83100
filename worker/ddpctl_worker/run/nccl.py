"""Reads the reason of an NCCL error from the output of a rank. Pure.

torch's exception shows the class of the error, such as ``unhandled system error``. The class proves nothing: a peer
that has died and an adapter that does not work give the same class. The reason is the text after ``Last error:`` (NCCL
2.14 and newer), else the last ``NCCL WARN`` line.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Optional

_ERROR = re.compile(r"NCCL [Ee]rror\b|\bnccl[A-Z]\w*Error\b")
_LAST = re.compile(r"^Last error:[ \t]*\n(.+)", re.M)
_WARN = re.compile(r"NCCL WARN (.+)")
_CLASS = re.compile(r"\b(unhandled system error|unhandled cuda error|internal error|invalid usage|invalid argument)\b")
_NAME = re.compile(r"[\w.]+(?=: )")
# The peer is gone: its end of the connection was closed.
_OF_PEER = re.compile(
    r"closed by remote peer|Socket recv failed while polling|reset by peer|Broken pipe|remote process exit|"
    r"communicator was aborted",
    re.IGNORECASE,
)
_RESOURCE = re.compile(r"out of memory|No space left|Cannot allocate memory|Too many open files", re.IGNORECASE)


class NcclError(NamedTuple):
    """``words``: the reason as NCCL gives it. ``of_peer``: a peer has failed, so the rank is a victim."""

    words: str
    of_peer: bool


def read_nccl_error(error: str, output: str) -> Optional[NcclError]:
    """Return the reason of the NCCL error in ``error``; ``None``: it is no error of NCCL, or NCCL gave no reason.

    ``output``: all that the rank wrote, with NCCL's warnings above the exception.
    """
    if not _ERROR.search(error):
        return None
    last, warned = _LAST.findall(error), _WARN.findall(output)
    if not last and not warned:
        return None
    words = (last or warned)[-1].strip()
    resource = next((line.strip() for line in warned if _RESOURCE.search(line)), "")
    if resource and not _RESOURCE.search(words):
        words += " (%s)" % resource
    return NcclError(words, bool(_OF_PEER.search(words)))


def describe_nccl_error(error: str, output: str) -> Optional[str]:
    """Return one line for the exception ``error``, with the reason first; ``None`` as ``read_nccl_error``."""
    found = read_nccl_error(error, output)
    if found is None:
        return None
    name, kind = _NAME.match(error), _CLASS.search(error)
    return "%s: NCCL: %s%s" % (name[0] if name else "error", found.words, " (%s)" % kind[0] if kind else "")
