"""Checkpoints that outlive what happens to a training, and to the machine under it.

Saving: rank 0 alone writes, under another name, and renames when every byte is on the disk. Whatever ends the process
in between, no half file ever has the checkpoint's name. The one before it stays, as ``NAME.prev``.

Resuming: rank 0 alone reads and sends the bytes to all, so the nodes need not share a disk. torch.save writes a zip
archive with a checksum for each tensor, which torch.load does not look at: one wrong bit on the disk and a training
silently continues from wrong weights. So the checksums are compared here before anything is loaded.

    NAME            the newest               NAME.old        the newest of an earlier training, set aside by a new one
    NAME.prev       the one before it        NAME.damaged    was found damaged
    NAME.part       being written
"""

from __future__ import annotations

import io
import os
import zipfile
from contextlib import suppress
from typing import Any, Dict

import numpy as np
import torch
import torch.distributed as dist
from common import JobError, Place, Refused, say

# Tensors, whole numbers, strings, and lists and dictionaries of them. A float goes into a tensor: torch 1.13 loads no
# others where it runs no code.
State = Dict[str, Any]


def save(path: str, state: State) -> None:
    """Put the state under this name, or leave what was there. For rank 0 alone.

    Raises:
        JobError: the disk is full, or the folder cannot be written.
    """
    content = io.BytesIO()
    torch.save(state, content)  # in memory first: the errors of a disk are then OSErrors, not torch's
    try:
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        with open(f"{path}.part", "wb") as file:
            file.write(content.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileNotFoundError):
            os.replace(path, f"{path}.prev")
        os.replace(f"{path}.part", path)
        make_names_durable(os.path.dirname(os.path.abspath(path)))
    except OSError as error:
        raise JobError(f"cannot write {path} ({error.strerror}): free the disk or choose another folder") from error


def make_names_durable(folder: str) -> None:
    """New names in a folder survive a power failure once the folder is on the disk too."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def start_anew(path: str) -> None:
    """Set aside what an earlier training left, so that nobody resumes that one by mistake. For rank 0 alone."""
    with suppress(FileNotFoundError):
        os.replace(path, f"{path}.old")
        say(f"{path} of an earlier training is now {path}.old")
    for suffix in (".prev", ".part"):
        with suppress(FileNotFoundError):
            os.remove(path + suffix)


def resume(path: str, place: Place) -> tuple[str, State] | None:
    """The newest whole checkpoint of this name: which file it was (on rank 0), and its state. All ranks call this.

    A damaged one is named and the one before it taken. None if there is none.
    """
    name, content = newest(path) if place.rank == 0 else (path, None)
    content = share(content, place)
    return None if content is None else (name, parse(content, name, place))


def load(path: str, place: Place) -> State:
    """The state in exactly this file of rank 0's host. All ranks call this.

    Raises:
        Refused: there is no such file, or it is damaged.
    """
    content, trouble = None, "see rank 0"
    if place.rank == 0:
        try:
            content = read(path)
        except (OSError, zipfile.BadZipFile) as error:
            trouble = str(getattr(error, "strerror", None) or error)
    content = share(content, place)
    if content is None:
        raise Refused(f"cannot resume from {path} on rank 0's host ({trouble}): name another file, or none")
    return parse(content, path, place)


def newest(path: str) -> tuple[str, bytes | None]:
    """Name and content of the newest whole checkpoint; the content is None if there is none."""
    with suppress(FileNotFoundError):
        os.remove(f"{path}.part")  # of a process that was killed while it wrote
    for name in (path, f"{path}.prev"):
        try:
            return name, read(name)
        except FileNotFoundError:
            continue
        except zipfile.BadZipFile as error:
            os.replace(name, f"{name}.damaged")  # out of the way, or the next save would make it the previous one
            say(f"{name} is damaged ({error}), now {name}.damaged: looking for the one before it")
    return path, None


def read(path: str) -> bytes:
    """The content of a file that torch.save wrote.

    Raises:
        OSError: it cannot be read.
        zipfile.BadZipFile: it is not what was written; the message says in what.
    """
    with open(path, "rb") as file:
        content = file.read()
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            wrong = archive.testzip()
    except Exception as error:  # wrong bytes in a zip's directory fail in many ways
        raise zipfile.BadZipFile(f"{len(content)} bytes, {error}") from error
    if wrong is not None:
        raise zipfile.BadZipFile(f"wrong checksum of {wrong}")
    return content


def share(content: bytes | None, place: Place) -> bytes | None:
    """What rank 0 has, on every rank."""
    size = torch.tensor([-1 if content is None else len(content)], device=place.device)
    dist.broadcast(size, src=0)
    if int(size) < 0:
        return None
    data = torch.empty(int(size), dtype=torch.uint8, device=place.device)
    if content is not None:
        data.copy_(torch.from_numpy(np.frombuffer(bytearray(content), dtype=np.uint8)))
    dist.broadcast(data, src=0)
    return data.cpu().numpy().tobytes()


def parse(content: bytes, name: str, place: Place) -> State:
    """The state in these bytes. ``weights_only``: a checkpoint is data, and must not run code.

    Raises:
        Refused: they are something else. Every rank has the same bytes and finds the same.
    """
    try:
        state = torch.load(io.BytesIO(content), map_location=place.device, weights_only=True)
    except Exception as error:
        raise Refused(f"{name} is not a checkpoint ({str(error).splitlines()[0]}): name another file") from error
    if not isinstance(state, dict):
        raise Refused(f"{name} is not a checkpoint (it holds a {type(state).__name__}): name another file")
    return state
