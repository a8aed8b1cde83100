"""Writes docs/checks.md from the catalogue: ``python -m ddpctl.checks.document > docs/checks.md``."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from ddpctl.checks.base import Check
from ddpctl.checks.catalogue import CATALOGUE

_HEAD = """\
# Preflight checks

Generated from the catalogue by `python -m ddpctl.checks.document > docs/checks.md`; do not edit.

`ddpctl preflight` and `ddpctl up` run all of these checks; `--only` and `--skip` take ids (`gpu.xid`) or their first
part (`gpu`). An **error** keeps a job from starting (exit 3), a **warning** does not, an **info** says why something
that looks wrong is harmless. A check is **unknown** on a host that could not be examined (rules that only root may
read), and **skipped** where it does not apply (no GPU found); neither counts as passed.

A finding has a `command`, a `fix` in words, or both. The command runs on the host unchanged and is shown as
`ddpctl exec --host HOST -- ...`, with `--sudo` if it needs root.

Every check marked *on test hosts* has found its fault, injected for real, on hosts with an sshd, a network and a file
system of their own: Linux namespaces on one machine. All other checks were tested on recorded output only.
"""


def page(catalogue: Iterable[Check]) -> str:
    """Return the whole page."""
    checks = tuple(catalogue)
    seen = {check.id: check.seen for check in checks}
    rows = [f"| [{check.id}](#{anchor(check)}) | {check.title} | {seen[check.id]} |" for check in checks]
    table = "\n".join(["| id | passes when | tested |", "|---|---|---|", *rows])
    return "\n\n".join([_HEAD.rstrip(), table, *(section(check) for check in checks)]) + "\n"


def anchor(check: Check) -> str:
    """Return the anchor of the check's heading."""
    return check.id.replace(".", "")


def _sentence(title: str) -> str:
    """Start with a capital letter, unless the first word is a name in lower case."""
    return title if title.startswith(("ddpctl", "torch", "base_dir")) else title[0].upper() + title[1:]


def section(check: Check) -> str:
    """Return the section of a check: cause, symptom, fix."""
    return "\n\n".join(
        [
            f"## {check.id}",
            f"*{_sentence(check.title)}.*",
            f"**Cause.** {check.cause}",
            f"**Symptom.** {check.symptom}",
            f"**Fix.** {check.fix}",
        ]
    )


if __name__ == "__main__":
    sys.stdout.write(page(CATALOGUE))
