"""The unpacking of a source distribution on this machine."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import pytest

from ddpctl.environment.material import extract_sources
from ddpctl.errors import ProvisionError


@pytest.mark.parametrize("old", [False, True])
def test_no_file_outside_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, old: bool) -> None:
    """Python 3.10.11 and 3.11.3 have no filter that refuses such files."""
    if old:
        monkeypatch.delattr(tarfile, "data_filter")
    blob = io.BytesIO()
    with tarfile.open(fileobj=blob, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("../outside"))
    blob.seek(0)
    (tmp_path / "tree").mkdir()
    with (
        tarfile.open(fileobj=blob) as archive,
        pytest.raises(ProvisionError if old else tarfile.OutsideDestinationError),
    ):
        extract_sources(archive, tmp_path / "tree")
    assert not (tmp_path / "outside").exists()
