"""The edge of `ddpctl init`: where the script lies on this machine, and the new inventory file."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from ddpctl.errors import UsageError


def code_of(script: str | None, target: Path) -> tuple[str | None, str | None]:
    """The `code:` and the `script:` of a job in the inventory ``target``; code is None where that is its own folder.

    The code is the current folder, or the script's own where that lies elsewhere.

    Raises:
        UsageError: there is no such script here.
    """
    here = Path.cwd()
    code = here
    if script is not None:
        path = here / Path(script).expanduser()
        if not path.is_file():
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
        UsageError: it cannot be written.
    """
    aside = None
    try:
        number, aside = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.absolute().parent)
        with os.fdopen(number, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        umask = os.umask(0)
        os.umask(umask)
        Path(aside).chmod(0o666 & ~umask)
        Path(aside).replace(target)
        aside = None
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}", hint="name another file: -i FILE") from None
    finally:
        if aside is not None:
            Path(aside).unlink(missing_ok=True)
