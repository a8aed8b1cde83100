"""Folders of code, and the content of their archives."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

from ddpctl.code import CodeArchive

Pack = Callable[..., CodeArchive]


def git(folder: Path, *words: str) -> str:
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    who = ("-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "protocol.file.allow=always")
    return subprocess.run(
        ["git", *who, *words], cwd=folder, env=env, check=True, capture_output=True, text=True
    ).stdout.strip()


def write(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


def members(code: CodeArchive) -> dict[str, tarfile.TarInfo]:
    data = b"".join(code.chunks())
    assert hashlib.sha256(data).hexdigest() == code.sha256
    assert len(data) == code.size == code.path.stat().st_size
    with tarfile.open(fileobj=io.BytesIO(data), encoding="utf-8", errors="surrogateescape") as tar:
        return {member.name: member for member in tar.getmembers()}
