"""Checkpoints that survive the end of the training, and of the machine, at any moment.

Saving: only rank 0 writes, under another name, and renames the file when every byte is on the disk. So the checkpoint's
name never belongs to an incomplete file. The checkpoint before it stays as ``NAME.prev``.

Resuming: only rank 0 reads, and sends the bytes to all ranks, so the nodes need not share a disk. torch.save writes a
zip archive with a checksum for each tensor, but torch.load does not check it: after a flipped bit on the disk a
training would silently continue from wrong weights. So this module checks the checksums before it loads.

    NAME            the newest               NAME.old        the newest of an earlier training, set aside
    NAME.prev       the checkpoint before    NAME.damaged    was found damaged
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

# Tensors, whole numbers, strings, and lists and dictionaries with such values. A float goes into a tensor: with
# ``weights_only`` torch 1.13 loads no other floats.
State = Dict[str, Any]


def save(path: str, state: State) -> None:
    """Write the state under this name, or leave the old file. For rank 0 only.

    Raises:
        JobError: the disk is full, or the folder cannot be written.
    """
    content = io.BytesIO()
    torch.save(state, content)  # in memory first, so that an error of the disk is an OSError
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
    """Make new names in a folder survive a power failure."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def start_anew(path: str) -> None:
    """Set aside the checkpoint of an earlier training, so that it is not resumed by mistake. For rank 0 only."""
    with suppress(FileNotFoundError):
        os.replace(path, f"{path}.old")
        say(f"{path} of an earlier training is now {path}.old")
    for suffix in (".prev", ".part"):
        with suppress(FileNotFoundError):
            os.remove(path + suffix)


def resume(path: str, place: Place) -> tuple[str, State] | None:
    """Return the newest intact checkpoint: its file (on rank 0) and its state, or ``None``. All ranks call this.

    If the newest checkpoint is damaged, a message names it, and the checkpoint before it counts.
    """
    name, content = newest(path) if place.rank == 0 else (path, None)
    content = share(content, place)
    return None if content is None else (name, parse(content, name, place))


def load(path: str, place: Place) -> State:
    """Return the state in exactly this file of rank 0's host. All ranks call this.

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
    """Return name and content of the newest intact checkpoint; the content is ``None`` without a checkpoint."""
    with suppress(FileNotFoundError):
        os.remove(f"{path}.part")  # left by a process that was killed while it wrote
    for name in (path, f"{path}.prev"):
        try:
            return name, read(name)
        except FileNotFoundError:
            continue
        except zipfile.BadZipFile as error:
            os.replace(name, f"{name}.damaged")  # or the next save would rename it to .prev
            say(f"{name} is damaged ({error}), now {name}.damaged: looking for the one before it")
    return path, None


def read(path: str) -> bytes:
    """Return the content of a file that torch.save wrote.

    Raises:
        OSError: the file cannot be read.
        zipfile.BadZipFile: the file has changed; the message says where.
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
    """Return rank 0's content on every rank."""
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
    """Return the state in these bytes. ``weights_only``: a checkpoint is data, and must not run code.

    Raises:
        Refused: the bytes are not a state. Every rank has the same bytes and finds the same fault.
    """
    try:
        state = torch.load(io.BytesIO(content), map_location=place.device, weights_only=True)
    except Exception as error:
        raise Refused(f"{name} is not a checkpoint ({str(error).splitlines()[0]}): name another file") from error
    if not isinstance(state, dict):
        raise Refused(f"{name} is not a checkpoint (it holds a {type(state).__name__}): name another file")
    return state
