"""An archive, the same bytes for the same code."""

from __future__ import annotations

import os
import tarfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddpctl.code import CodeArchive, archive, pack
from ddpctl.errors import ProvisionError, UsageError
from ddpctl_worker.store.unpack import unpack
from tests.code.support import Pack, git, members, write


def test_the_same_code_has_the_same_hash(tmp_path: Path, folder: Path, packed: Pack) -> None:
    write(folder, "b.py", "a/c.py")
    first = packed()
    twin = tmp_path / "elsewhere"
    twin.mkdir()
    write(twin, "a/c.py", "b.py")
    for path in twin.rglob("*.py"):
        os.utime(path, (1, 1))
        path.chmod(0o600)
    second = pack(twin, cache=tmp_path / "another cache")
    assert (second.sha256, second.path.read_bytes()) == (first.sha256, first.path.read_bytes())
    (twin / "b.py").write_text("b.py ")
    assert pack(twin, cache=tmp_path / "another cache").sha256 != first.sha256


def test_members_are_normalised(folder: Path, packed: Pack) -> None:
    write(folder, "a.py", "run.sh")
    (folder / "a.py").chmod(0o640)
    (folder / "run.sh").chmod(0o770)
    found = members(packed())
    assert {name: oct(member.mode) for name, member in found.items()} == {"a.py": "0o644", "run.sh": "0o755"}
    assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in found.values()} == {(0, 0, "", "", 0)}


def test_unchanged_code_is_not_packed_again(folder: Path, packed: Pack, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, "a.py")
    first = packed()
    monkeypatch.setattr(archive, "_write", lambda *_: pytest.fail("packed again"))
    assert packed() == first


def test_a_damaged_archive_in_the_cache_is_made_anew(folder: Path, packed: Pack) -> None:
    write(folder, "a.py")
    first = packed()
    whole = first.path.read_bytes()
    first.path.write_bytes(whole[:-5])
    assert packed() == first
    assert first.path.read_bytes() == whole


def test_old_archives_are_forgotten(folder: Path, cache: Path, packed: Pack) -> None:
    write(folder, "a.py")
    first = packed()
    (cache / ".x.part").touch()
    for path in cache.iterdir():
        os.utime(path, (1, 1))
    (folder / "a.py").write_text("2")
    second = packed()
    assert list(cache.iterdir()) == [second.path]
    assert not first.path.exists()


@pytest.mark.slow  # processes
@settings(
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture], deadline=None, max_examples=30
)
@given(
    files=st.dictionaries(
        st.binary(min_size=1, max_size=8).filter(
            lambda n: not set(n) & set(b"\0/") and n not in (b".", b"..", b".git")
        ),
        st.binary(max_size=200),
        max_size=5,
    ),
    use_git=st.booleans(),
)
def test_any_name_and_any_bytes_survive(
    tmp_path_factory: pytest.TempPathFactory, files: dict[bytes, bytes], use_git: bool
) -> None:
    folder = tmp_path_factory.mktemp("code")
    for name, data in files.items():
        Path(os.fsdecode(bytes(folder) + b"/d" + name + b"/f" + name)).parent.mkdir()
        Path(os.fsdecode(bytes(folder) + b"/d" + name + b"/f" + name)).write_bytes(data)
    if use_git:
        git(folder, "init", "-q")
    code = pack(folder, cache=tmp_path_factory.mktemp("cache"))
    with tarfile.open(code.path, encoding="utf-8", errors="surrogateescape") as tar:
        found = {os.fsencode(m.name): tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
    assert found == {b"d" + name + b"/f" + name: data for name, data in files.items()}


@pytest.mark.slow  # git
def test_hostile_names(folder: Path, packed: Pack) -> None:
    names = ["a b", "$(id)", "new\nline", "*", "-x", "Übung", '"', "'", ";", "\\", "#x", "!x", "tab\t"]
    write(folder, *names)
    assert sorted(members(packed())) == sorted(names)
    git(folder, "init", "-q")
    assert sorted(members(packed())) == sorted(names)


def test_chunks_go_on_from_any_offset(folder: Path, packed: Pack) -> None:
    write(folder, "a.py")
    code = packed()
    assert b"".join(code.chunks(offset=7)) == code.path.read_bytes()[7:]


def test_what_is_packed_here_is_unpacked_there(folder: Path, packed: Pack, tmp_path: Path) -> None:
    write(folder, "a b", "new\nline", "pkg/x.py", "run.sh", "deep/" * 60 + "f")
    Path(os.fsdecode(bytes(folder) + b"/\xff\xfe")).write_bytes(b"\0\1")
    (folder / "run.sh").chmod(0o755)
    (folder / "empty").mkdir()
    (folder / "link").symlink_to("pkg")
    (folder / "pkg" / "up").symlink_to("../a b")
    target = tmp_path / "node"
    unpack(str(packed().path), str(target))
    tree = {path.relative_to(folder): path for path in folder.rglob("*")}
    assert {path.relative_to(target) for path in target.rglob("*")} == set(tree)
    for name, path in tree.items():
        copy = target / name
        assert path.is_symlink() == copy.is_symlink()
        if path.is_symlink():
            assert os.readlink(path) == os.readlink(copy)
        elif path.is_file():
            assert path.read_bytes() == copy.read_bytes()
            assert path.stat().st_mode & 0o100 == copy.stat().st_mode & 0o100


def test_a_folder_that_is_too_big_names_what_is_big(folder: Path, packed: Pack) -> None:
    write(folder, "train.py")
    (folder / "data").mkdir()
    for name in ("a", "b"):
        (folder / "data" / name).write_bytes(b"x" * 2_000_000)
    (folder / "model.bin").write_bytes(b"x" * 3_000_000)
    with pytest.raises(
        ProvisionError, match=r"holds 7 MB, more than 4 MB; biggest: data/ \(4 MB\), model.bin \(3 MB\)"
    ):
        packed(limit=4_000_000)
    (folder / ".ddpctlignore").write_text("data\n")
    assert packed(limit=4_000_000).files == 3


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"code folder .* not found"):
        pack(tmp_path / "x")


def test_a_file_that_changes_while_it_is_packed(
    folder: Path, cache: Path, packed: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once is taken up again; always is an error; a half-made archive is never left."""
    write(folder, "a.py", "b.py")
    real, times = archive._write, [1]

    def changing(*args: object) -> Path:
        if times[0]:
            times[0] -= 1
            (folder / "b.py").write_text(str(time.monotonic_ns()))
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(archive, "_write", changing)
    code = packed()
    with tarfile.open(code.path) as tar:
        assert tar.extractfile("b.py").read() == (folder / "b.py").read_bytes()  # type: ignore[union-attr]
    times[0] = 99
    (folder / "a.py").write_text("not packed yet")
    with pytest.raises(ProvisionError, match=r"b\.py kept changing while it was packed"):
        packed()
    assert [path.name for path in cache.iterdir()] == [code.path.name]


def test_two_at_once(folder: Path, cache: Path) -> None:
    write(folder, *(f"{number}.py" for number in range(50)))
    found: list[CodeArchive] = []
    threads = [threading.Thread(target=lambda: found.append(pack(folder, cache=cache))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1


def test_large_code_is_sent_with_a_warning_that_names_what_is_big(
    folder: Path, packed: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "MUCH_BYTES", 2_000_000)
    write(folder, "train.py")
    assert packed().notes == ()
    for name, size in (("data/a", 2), ("data/b", 2), ("saved/x", 3), ("model.bin", 1), ("small/x", 0)):
        write(folder, name)
        (folder / name).write_bytes(bytes(size * 1_000_000))
    (note,) = packed().notes
    assert note.startswith(
        f"the code folder {folder} holds 8 MB; biggest: data/ (4 MB), saved/ (3 MB), model.bin (1 MB)"
    )
    assert note.endswith("; list what is not code in .ddpctlignore")
    (folder / ".ddpctlignore").write_text("/data\n/saved\n")
    assert packed().notes == ()
