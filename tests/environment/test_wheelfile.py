"""What a wheel that a node has built may contain."""

from __future__ import annotations

import stat
import zipfile
from pathlib import Path

import pytest

from ddpctl.environment.wheelfile import BadWheel, check_wheel
from tests.environment.support import make_wheel


def test_a_wheel_as_backends_make_it(tmp_path: Path) -> None:
    check_wheel(make_wheel(tmp_path, "flash_attn", "2.6.0+cu12", tag="cp311-cp311-linux_x86_64"))
    check_wheel(make_wheel(tmp_path, "two", tag="py2.py3-none-any").rename(tmp_path / "two-1.0-py2.py3-none-any.whl"))


@pytest.mark.parametrize("name", ["weights/model.pth", "pkg/sitecustomize.py", "a-1.0.data/purelib/pkg/x.py"])
def test_files_that_do_not_run_by_themselves(tmp_path: Path, name: str) -> None:
    check_wheel(with_member(make_wheel(tmp_path, "a"), name))


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("evil.pth", "runs whenever Python starts"),
        ("EVIL.PTH", "runs whenever Python starts"),
        ("a-1.0.data/purelib/evil.pth", "runs whenever Python starts"),
        ("a-1.0.data/data/lib/python3.11/site-packages/evil.pth", "runs whenever Python starts"),
        ("sitecustomize.py", "runs whenever Python starts"),
        ("a-1.0.data/platlib/usercustomize.py", "runs whenever Python starts"),
        ("../evil.py", "leads out of it"),
        ("a/../../evil.py", "leads out of it"),
        ("/etc/evil", "leads out of it"),
        ("..\\evil.py", "leads out of it"),
        ("b-1.0.dist-info/METADATA", "2 .dist-info folders"),
        ("a/__init__.py", "twice"),
    ],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_what_a_wheel_must_not_have(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(BadWheel, match=why):
        check_wheel(with_member(make_wheel(tmp_path, "a"), name))


def test_a_symbolic_link(tmp_path: Path) -> None:
    with pytest.raises(BadWheel, match="leads out of it"):
        check_wheel(with_member(make_wheel(tmp_path, "a"), "link", stat.S_IFLNK | 0o777))


@pytest.mark.parametrize(
    ("called", "why"),
    [
        ("b-1.0-py3-none-any.whl", "is 'a' by its METADATA"),
        ("a-2.0-py3-none-any.whl", r"is version '1\.0' by its METADATA"),
        ("a-1.0-cp311-cp311-linux_x86_64.whl", "is for py3-none-any by its WHEEL"),
    ],
)
def test_a_name_that_the_content_denies(tmp_path: Path, called: str, why: str) -> None:
    with pytest.raises(BadWheel, match=why):
        check_wheel(make_wheel(tmp_path, "a").rename(tmp_path / called))


@pytest.mark.parametrize("content", [b"", b"PK", b"\0" * 1000])
def test_what_is_no_archive(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a-1.0-py3-none-any.whl"
    path.write_bytes(content)
    with pytest.raises(BadWheel, match="cannot be read"):
        check_wheel(path)


def with_member(wheel: Path, name: str, mode: int = 0o644) -> Path:
    member = zipfile.ZipInfo(name)
    member.external_attr = mode << 16
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr(member, "")
    return wheel
