"""The job's code as one archive."""

from __future__ import annotations

import hashlib
import io
import os
import socket
import subprocess
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ddpctl.code import CodeArchive, archive, pack
from ddpctl.code import git as git_module
from ddpctl.errors import ProvisionError, UsageError
from ddpctl_worker.unpack import unpack

Pack = Callable[..., CodeArchive]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "code"
    path.mkdir()
    return path


@pytest.fixture
def packed(cache: Path, folder: Path) -> Pack:
    return lambda **options: pack(folder, **{"cache": cache, **options})


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


# --- what is in it ---------------------------------------------------------------------------------------------------


def test_without_git_everything_but_what_is_never_code(folder: Path, packed: Pack) -> None:
    write(folder, "train.py", "pkg/a.py", "pkg/__pycache__/a.pyc", "x.pyc", ".venv/bin/python", ".hidden", "data/big")
    write(folder, "logs/a.txt", "keep/logs/b.txt")
    (folder / ".ddpctlignore").write_text("# comment\n/data/\n/logs\n*.tmp\n")
    write(folder, "a.tmp")
    code = packed()
    assert list(members(code)) == [".ddpctlignore", ".hidden", "keep/logs/b.txt", "pkg/a.py", "train.py"]
    assert (code.files, code.git_commit, code.dirty) == (5, None, None)


def test_an_ignored_file_can_be_taken_back(folder: Path, packed: Pack) -> None:
    write(folder, "a.pyc", "b.pyc")
    (folder / ".ddpctlignore").write_text("!a.pyc\n")
    assert list(members(packed())) == [".ddpctlignore", "a.pyc"]


def test_an_empty_folder_is_kept_without_git(folder: Path, packed: Pack) -> None:
    (folder / "out" / "deep").mkdir(parents=True)
    assert {name: member.isdir() for name, member in members(packed()).items()} == {"out/deep": True}


def test_with_git_tracked_and_untracked_but_not_ignored(folder: Path, packed: Pack) -> None:
    git(folder, "init", "-q")
    write(folder, "tracked.py", "deleted.py", "sub/changed.py", "ignored.log", "build/x", "large.bin")
    (folder / ".gitignore").write_text("*.log\nbuild/\n")
    git(folder, "add", "tracked.py", "deleted.py", "sub", ".gitignore", "large.bin")
    git(folder, "commit", "-qm", "x")
    clean = packed()
    assert (clean.git_commit, clean.dirty) == (git(folder, "rev-parse", "HEAD"), False)
    (folder / "deleted.py").unlink()
    write(folder, "new file.py")
    (folder / "sub" / "changed.py").write_text("changed")
    (folder / ".ddpctlignore").write_text("large.bin\n")
    code = packed()
    assert code.dirty is True
    assert list(members(code)) == [".ddpctlignore", ".gitignore", "new file.py", "sub/changed.py", "tracked.py"]


def test_a_folder_inside_a_repository(tmp_path: Path, folder: Path, packed: Pack) -> None:
    git(tmp_path, "init", "-q")
    write(tmp_path, "code/a.py", "other.py")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "x")
    (tmp_path / "other.py").write_text("changed elsewhere")
    code = packed()
    assert list(members(code)) == ["a.py"]
    assert code.dirty is False


def test_a_repository_without_a_commit(folder: Path, packed: Pack) -> None:
    git(folder, "init", "-q")
    write(folder, "a.py")
    code = packed()
    assert (list(members(code)), code.git_commit, code.dirty) == (["a.py"], None, True)


def test_a_folder_that_git_ignores_is_packed_without_git(tmp_path: Path, folder: Path, packed: Pack) -> None:
    git(tmp_path, "init", "-q")
    (tmp_path / ".gitignore").write_text("*\n")
    write(folder, "a.py")
    code = packed()
    assert (list(members(code)), code.dirty) == (["a.py"], None)


def test_submodules_and_repositories_inside(tmp_path: Path, folder: Path, packed: Pack) -> None:
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "-q")
    write(library, "lib.py", "junk.log")
    (library / ".gitignore").write_text("*.log\n")
    git(library, "add", ".")
    git(library, "commit", "-qm", "x")
    git(folder, "init", "-q")
    git(folder, "submodule", "add", "-q", str(library), "lib")
    git(folder, "submodule", "add", "-q", str(library), "absent")
    git(folder, "commit", "-qm", "x")
    git(folder, "submodule", "--quiet", "deinit", "-f", "absent")
    (folder / "nested").mkdir()
    git(folder / "nested", "init", "-q")
    write(folder, "nested/n.py", "lib/junk.log")
    code = packed()
    assert list(members(code)) == [".gitmodules", "lib/.gitignore", "lib/lib.py", "nested/n.py"]
    assert code.notes == ("the submodule absent is not checked out; its files are not sent",)


def test_a_secret_never_travels(folder: Path, packed: Pack) -> None:
    write(folder, "a.py", ".env")
    os.link(folder / ".env", folder / "same.env")
    assert list(members(packed(exclude=[folder / ".env"]))) == ["a.py"]
    assert list(members(packed(exclude=[folder / "not-there"]))) == [".env", "a.py", "same.env"]
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    assert list(members(packed(exclude=[str(folder / ".env")]))) == ["a.py"]


# --- bytes -----------------------------------------------------------------------------------------------------------


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


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
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


# --- links and other things ------------------------------------------------------------------------------------------


def test_links_inside_stay_links(folder: Path, packed: Pack) -> None:
    write(folder, "a.py", "d/b.py")
    (folder / "d" / "up.py").symlink_to("../a.py")
    (folder / "dir").symlink_to("d")
    (folder / "dangling").symlink_to("nothing")
    found = members(packed())
    assert {n: m.linkname for n, m in found.items() if m.issym()} == {
        "d/up.py": "../a.py",
        "dir": "d",
        "dangling": "nothing",
    }


@pytest.mark.parametrize("target", ["/etc/passwd", "../x", "d/../../x", "d/deep/root/../x", "{folder}/a.py"])
@pytest.mark.parametrize("use_git", [False, True])
def test_links_out_are_refused(folder: Path, packed: Pack, target: str, use_git: bool) -> None:
    write(folder, "a.py", "d/deep/b.py")
    (folder / "d" / "deep" / "root").symlink_to("../..")
    (folder / "out").symlink_to(target.format(folder=folder))
    if use_git:
        git(folder, "init", "-q")
    with pytest.raises(ProvisionError, match=r"out is a link out of the code folder.*add /out to \.ddpctlignore"):
        packed()
    (folder / ".ddpctlignore").write_text("/out\n")
    assert "out" not in members(packed())


def test_a_tracked_folder_that_became_a_link_is_sent_as_the_link(folder: Path, packed: Pack) -> None:
    git(folder, "init", "-q")
    write(folder, "d/a.py", "e/a.py")
    git(folder, "add", "-A")
    (folder / "d" / "a.py").unlink()
    (folder / "d").rmdir()
    (folder / "d").symlink_to("e")
    assert {name: member.issym() for name, member in members(packed()).items()} == {"d": True, "e/a.py": False}


def test_what_is_no_file_is_refused(folder: Path, packed: Pack) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(ProvisionError, match=r"pipe is a socket, a pipe or a device.*add /pipe to"):
        packed()
    (folder / "pipe").unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(folder / "sock"))
        with pytest.raises(ProvisionError, match="sock is a socket"):
            packed()


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
    with pytest.raises(UsageError, match="is not there"):
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
    with pytest.raises(ProvisionError, match=r"b\.py changes while it is packed"):
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


# --- a git that fails ------------------------------------------------------------------------------------------------


def test_a_repository_of_somebody_else_is_an_error_with_gits_own_remedy(folder: Path, packed: Pack) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder away")
    git(folder, "init", "-q")
    write(folder, "a.py")
    for path in (folder, folder / ".git"):
        os.chown(path, 65534, 65534)
    with pytest.raises(ProvisionError, match=r"dubious ownership.*git config --global --add safe.directory"):
        packed()


def test_a_damaged_repository_is_an_error(folder: Path, packed: Pack) -> None:
    git(folder, "init", "-q")
    write(folder, "a.py")
    git(folder, "add", "a.py")
    (folder / ".git" / "index").write_bytes(b"junk")
    with pytest.raises(ProvisionError, match="git cannot read"):
        packed()


def test_no_git_on_this_machine(folder: Path, packed: Pack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write(folder, "a.py")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert packed().files == 1
    (folder / ".git").mkdir()
    with pytest.raises(ProvisionError, match="there is no git here"):
        packed()


def test_variables_of_another_repository_do_not_lead_astray(
    folder: Path, packed: Pack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "-q")
    write(other, "wrong.py")
    git(other, "add", ".")
    git(folder, "init", "-q")
    write(folder, "right.py")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    assert list(members(packed())) == ["right.py"]


def test_a_repositorys_own_programs_are_not_run(folder: Path, packed: Pack, tmp_path: Path) -> None:
    git(folder, "init", "-q")
    write(folder, "a.py")
    program = tmp_path / "monitor"
    program.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    program.chmod(0o755)
    git(folder, "config", "core.fsmonitor", str(program))
    assert packed().files == 1
    assert not (tmp_path / "ran").exists()


def test_git_is_not_waited_for_for_ever(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (folder / ".git").mkdir()
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", f"{slow.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(git_module, "TIMEOUT_S", 0.2)
    with pytest.raises(ProvisionError, match="git did not answer"):
        pack(folder, cache=tmp_path / "cache")
