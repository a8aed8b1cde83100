"""Runs the shell text of a job: ``before`` in the launcher's own shell, ``after`` in a process of its own."""

from __future__ import annotations

import os
import re
import shutil
from typing import Iterable, List

from ddpctl_worker.run.launcher import BeforeExec

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# A login reads these files, and `module` and `conda` come from them. The job's own variables win over them.
_PROFILE = """
ddpctl_own=$({keep} 2>/dev/null)
[ -r /etc/profile ] && . /etc/profile
for ddpctl_file in ~/.bash_profile ~/.bash_login ~/.profile; do
  [ -r "$ddpctl_file" ] && {{ . "$ddpctl_file"; break; }}
done
eval "$ddpctl_own"
unset ddpctl_own ddpctl_file
"""
# `exit 0` in the text would end the shell without the launcher: the run must not count as a success.
_BEFORE = """
trap 'ddpctl_code=$?
echo "ddpctl: before ended with exit code $ddpctl_code" >&2
exit $((ddpctl_code ? ddpctl_code : 1))' EXIT
set -e
eval "$1"
set +e
shift
trap - EXIT
exec "$@"
"""
_AFTER = """
set -e
eval "$1"
"""
BEFORE_ENDED = re.compile(r"^ddpctl: before ended with exit code (?P<code>\d+)$", re.M)


def run_before(text: str, argv: List[str], own: Iterable[str]) -> List[str]:
    """Return the command line that runs ``text`` and then becomes ``argv``. ``own``: the names of the job's variables.

    A command of ``text`` that fails ends the shell: see ``BEFORE_ENDED``.
    """
    return _shell(_BEFORE, own, [text, *argv])


def run_after(text: str, own: Iterable[str]) -> List[str]:
    """Return the command line that runs ``text``. A command of it that fails ends the shell with its exit code."""
    return _shell(_AFTER, own, [text])


def _shell(script: str, own: Iterable[str], words: List[str]) -> List[str]:
    bash = shutil.which("bash", path=os.defpath)
    if bash is None:  # its profile could not be read without a loss of the job's variables
        return ["/bin/sh", "-c", script, "ddpctl", *words]
    names = [name for name in own if _NAME.fullmatch(name)]
    profile = _PROFILE.format(keep=" ".join(["declare", "-p", *names]) if names else ":")
    return [bash, "-c", profile + script, "ddpctl", *words]


def main(umask: str, parent: str, *argv: str) -> None:
    """Become ``argv`` in the state of a launcher's process: it ends with its parent, and has its limits and signals."""
    BeforeExec(None, int(umask), parent=int(parent))()
    os.execv(argv[0], argv)
