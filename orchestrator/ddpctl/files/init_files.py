"""The files of `ddpctl init`: the script on this machine, and the new inventory file."""

from __future__ import annotations

import os
from pathlib import Path

from ddpctl.errors import UsageError
from ddpctl.files.whole import write_whole


def code_of(script: str | None, target: Path) -> tuple[str | None, str | None]:
    """Return the `code:` and `script:` of a job in the inventory ``target``; no code for the inventory's own folder.

    The code is the current folder, or the script's folder if the script is elsewhere.

    Raises:
        UsageError: there is no such script.
    """
    here = Path.cwd()
    code = here
    if script is not None:
        path = here / Path(script).expanduser()
        if not os.path.isfile(path):
            raise UsageError(
                f"script {script} is not here", hint="run init in its folder, or name it with --script FILE"
            )
        inside = path.is_relative_to(here) and ".." not in path.parts
        code = here if inside else path.resolve().parent
        script = str(path.relative_to(here)) if inside else path.name
    folder = target.absolute().parent
    return (None if code.resolve() == folder.resolve() else os.path.relpath(code, folder)), script


def write_inventory(target: Path, text: str) -> None:
    """Write the file as a whole or not at all.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        write_whole(target, text)
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}", hint="name another file: -i FILE") from None
