"""Core files: the kernel writes no core file of a process with keys and secrets, but that of a program of the user.

The soft limit of such a process is 1 byte. That is too small for a file, and at exactly this limit the kernel starts no
program of core_pattern either. PR_SET_DUMPABLE is not used: it hides the files of a process in /proc from the other
processes of the account, so that a kill might not find it (docs/threat-model.md).
"""

from __future__ import annotations

import resource
from typing import Optional

_LEAST = 1  # byte; 0 would stop files only, and not the programs of core_pattern
_of_the_login = resource.getrlimit(resource.RLIMIT_CORE)[0]


def login_core_limit() -> int:
    """Return the soft limit of the login in bytes; -1: no limit."""
    return _of_the_login


def refuse_core_files(login_limit: Optional[int] = None) -> None:
    """Refuse core files of this process and its children.

    ``login_limit``: the login's soft limit, where a parent process has refused core files already.
    """
    global _of_the_login
    if login_limit is not None:
        _of_the_login = login_limit
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (0 if hard == 0 else _LEAST, hard))


def restore_core_limit() -> None:
    """Set the login's limit again, right before this process becomes a program of the user."""
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (_of_the_login, hard))
