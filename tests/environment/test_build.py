"""Packages that no index has a wheel of: real uv, real build backends, nodes that are folders of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddpctl.environment import material
from ddpctl.environment.lock import SourcePackage
from ddpctl.environment.material import BuildSystem, build_system, last_lines, obtain_source
from ddpctl.environment.origins import Origins
from ddpctl.environment.wheelhouse import Wheelhouse
from ddpctl.errors import ProvisionError
from ddpctl.spec.inventory import Environment, Inventory
from ddpctl.spec.push import PushOutcome
from ddpctl.stages.launch import Launch
from ddpctl.stages.push import push
from tests.environment.support import (
    PYPROJECT,
    TORCH,
    Heard,
    backend,
    fleet_of,
    local_inventory,
    make_sdist,
    make_wheel,
)

pytestmark = pytest.mark.slow

HERE = f"cp{sys.version_info[0]}{sys.version_info[1]}"


@pytest.fixture
def shelf(wheels: Path) -> Path:
    make_wheel(wheels, "torch", "2.13.0+cpu", code=TORCH)
    return wheels


def source(folder: Path, name: str, *, requires: str = "", **keys: str) -> Path:
    """A source distribution with a backend of its own."""
    return make_sdist(
        folder, name, files={"pyproject.toml": PYPROJECT.format(requires=requires), "backend.py": backend(name, **keys)}
    )


def where(folder: Path, wheels: Path, *packages: str, nodes: int = 2, **keys: object) -> Inventory:
    values: dict[str, object] = {"mode": "managed", "find_links": (str(wheels),), **keys}
    if "requirements" not in keys:
        values["packages"] = (*packages, "torch")
    return local_inventory(folder, nodes, Environment.model_validate(values))


def run(inventory: Inventory, heard: Heard | None = None, *, locked: bool = False) -> PushOutcome:
    with fleet_of(inventory) as fleet:
        launch = Launch(inventory, None, inventory.hosts)
        return push(launch, fleet, Heard() if heard is None else heard, locked=locked)


def ask(outcome: PushOutcome, code: str) -> str:
    said = subprocess.run([outcome.nodes[-1].python, "-c", code], check=True, capture_output=True, text=True)
    return said.stdout.strip()


def stages(heard: Heard) -> list[str]:
    return [event.stage for event in heard if hasattr(event, "stage")]


def test_a_pure_package_is_built_here_once_and_then_like_any_wheel(tmp_path: Path, shelf: Path) -> None:
    make_wheel(shelf, "alpha", "0.1")
    make_wheel(shelf, "alpha", "1.3", requires=["old==1.0"])
    source(shelf, "old")
    inventory = where(tmp_path, shelf, "alpha")
    heard = Heard()
    first = run(inventory, heard)
    assert first.ok
    assert "build" in stages(heard)
    # The newest version, as anywhere else, though a package that it needs has no wheel.
    assert ask(first, "import alpha, old; print(alpha.__version__, old.where.split('/')[-1][:4])").startswith("1.3 ")
    assert not (tmp_path / "n0" / "envs").joinpath("build").exists()
    lock = next((tmp_path / "own").rglob("pylock.*.toml")).read_text()
    assert '[tool.ddpctl.built]\n"old" = { name = "old-1.0-py3-none-any.whl", sha256 = ' in lock

    heard = Heard()
    second = run(inventory, heard, locked=True)
    assert "build" not in stages(heard)
    assert second.traffic.sent_by_controller == second.traffic.relayed == 0
    assert second.nodes[0].environment == first.nodes[0].environment

    # Another inventory, and a node that is new: remembered by the source's hash, and sent like any wheel.
    other = tmp_path / "other"
    other.mkdir()
    heard = Heard()
    assert run(where(other, shelf, "old"), heard).ok
    assert "build" not in stages(heard)

    with pytest.raises(ProvisionError, match=r"build is false.*: old 1\.0; allow it"):
        run(where(tmp_path, shelf, "alpha", build=False))


def test_compiled_code_is_built_on_one_node_with_what_was_sent_there(tmp_path: Path, shelf: Path) -> None:
    """The backend needs a wheel by its pyproject.toml, and a second wheel that it names only when it is asked."""
    make_wheel(shelf, "tool")
    make_wheel(shelf, "more")
    source(
        shelf,
        "fast",
        requires='"tool"',
        asks='["more>=1"]',
        tag=f"{HERE}-{HERE}-linux_x86_64",
        body="import tool, more; code += 'base = ' + repr(sys.base_prefix) + chr(10)",
    )
    heard = Heard()
    inventory = where(tmp_path, shelf, "fast")
    outcome = run(inventory, heard)
    assert outcome.ok
    built_in = ask(outcome, "import fast; print(fast.where)")
    assert built_in.startswith(str(tmp_path / "n0" / "envs" / "build-"))
    assert list((tmp_path / "n0" / "envs").glob("build-*")) == []
    assert not any(path.name.startswith("build") for path in (tmp_path / "n1" / "envs").iterdir())
    heard = Heard()
    assert run(inventory, heard).traffic.sent_by_controller == 0
    assert "build" not in stages(heard)


def test_a_build_that_fails_names_package_and_host_and_shows_its_end(
    tmp_path: Path, shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = "print('\\x1b]52;c;aGk=\\x07half way\\x1b[31m there', flush=True); raise OSError('error: no header foo.h')"
    source(shelf, "broken", body=body)
    heard = Heard()
    with pytest.raises(ProvisionError) as caught:
        run(where(tmp_path, shelf, "broken"), heard)
    assert str(caught.value).startswith("n0: broken 1.0 has no wheel and cannot be built: ")
    assert "no header foo.h" in str(caught.value)
    assert caught.value.exit_code == 5
    assert any("half way there" in note for note in heard.notes)
    assert all(char.isprintable() for note in heard.notes for char in note)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ProvisionError, match="there is no C compiler: apt install gcc python3-dev, or dnf"):
        run(where(tmp_path, shelf, "broken"))


def test_what_fails_here_may_be_built_on_a_node_and_the_other_way_round(tmp_path: Path, shelf: Path) -> None:
    on_a_node = "'/envs/build-' in sys.prefix"
    source(shelf, "there", body=f"assert {on_a_node}", tag=f"{HERE}-{HERE}-linux_x86_64")
    source(shelf, "here", body=f"assert not {on_a_node}", tag=f"{HERE}-{HERE}-linux_x86_64")
    heard = Heard()
    outcome = run(where(tmp_path, shelf, "there", "here", nodes=1), heard)
    assert outcome.ok
    assert any("here" in note and "built on this machine" in note for note in heard.notes)


def test_a_nodes_wheel_is_for_its_own_cluster_alone(tmp_path: Path, shelf: Path) -> None:
    """Though it has no compiled code, by its name."""
    source(shelf, "there", body="assert '/envs/build-' in sys.prefix")
    own = where(tmp_path, shelf, "there", nodes=1)
    first, again, other = Heard(), Heard(), Heard()
    assert run(own, first).ok
    assert any("there-1.0-py3-none-any.whl on n0" in str(event) for event in first)
    assert run(own, again).ok
    assert "build" not in stages(again)
    (tmp_path / "other").mkdir()
    assert run(where(tmp_path / "other", shelf, "there", nodes=1), other).ok
    assert "build" in stages(other)


def test_what_a_build_needs_may_itself_have_no_wheel(tmp_path: Path, shelf: Path) -> None:
    source(shelf, "tool")
    source(shelf, "fast", requires='"tool"', body="import tool", tag=f"{HERE}-{HERE}-linux_x86_64")
    assert run(where(tmp_path, shelf, "fast", nodes=1)).ok


def test_a_project_is_built_when_its_files_change_and_only_then(tmp_path: Path, shelf: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    make_wheel(shelf, "alpha")
    (project / "pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "0.3"\ndependencies = ["alpha"]\n' + PYPROJECT.format(requires="")
    )
    reads = "code += pathlib.Path('said.txt').read_text()"
    (project / "backend.py").write_text(backend("mine", "0.3", body=reads).replace('META = "', 'META = "', 1))
    (project / "said.txt").write_text("said = 'one'\n")
    inventory = where(tmp_path, shelf, project=str(project), nodes=1)
    first = run(inventory)
    assert ask(first, "import mine, alpha; print(mine.said)") == "one"
    assert sorted(path.name for path in project.iterdir()) == ["backend.py", "pyproject.toml", "said.txt"]
    heard = Heard()
    assert run(inventory, heard, locked=True).nodes[0].environment == first.nodes[0].environment
    assert "build" not in stages(heard)
    (project / "said.txt").write_text("said = 'two'\n")
    heard = Heard()
    assert ask(run(inventory, heard, locked=True), "import mine; print(mine.said)") == "two"
    assert "build" in stages(heard)
    # The dependencies are read again once pyproject.toml has changed.
    make_wheel(shelf, "gamma", "3.0")
    text = (project / "pyproject.toml").read_text()
    (project / "pyproject.toml").write_text(text.replace('"alpha"', '"alpha", "gamma"'))
    with pytest.raises(ProvisionError, match="out of date"):
        run(inventory, locked=True)
    assert ask(run(inventory), "import gamma; print(gamma.__version__)") == "3.0"


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    return subprocess.run(
        ["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True, env={"PATH": os.environ["PATH"]}
    ).stdout.strip()


def test_requirements_as_people_have_them(tmp_path: Path, shelf: Path) -> None:
    """-e, -c, -r, a folder, a git reference, a file by address, a marker; paths count from the file."""
    place = tmp_path / "work"
    for name in ("mine", "lib", "repo"):
        folder = place / name
        folder.mkdir(parents=True)
        (folder / "pyproject.toml").write_text(
            f'[project]\nname = "{name}"\nversion = "1.0"\n' + PYPROJECT.format(requires="")
        )
        (folder / "backend.py").write_text(backend(name))
    git(place / "repo", "init", "-q")
    git(place / "repo", "add", "-A")
    git(place / "repo", "commit", "-q", "-m", "one")
    commit = git(place / "repo", "rev-parse", "HEAD")
    for version in ("1.0", "2.0"):
        make_wheel(shelf, "alpha", version)
    beta = make_wheel(place, "beta", "4.0")
    sdist = source(place, "delta")
    (place / "limits.txt").write_text("alpha<2\n")
    (place / "more.txt").write_text("torch\n")
    (place / "requirements.txt").write_text(
        f"-r more.txt\n-c limits.txt\n-e ./mine\n./lib\nrepo @ git+file://{place}/repo@main\n"
        f"beta @ file://{beta}\n./{sdist.name}\nalpha; sys_platform == 'linux'\nnone; sys_platform == 'win32'\n"
    )
    inventory = where(tmp_path, shelf, requirements=str(place / "requirements.txt"), nodes=1)
    outcome = run(inventory)
    assert ask(outcome, "import mine, lib, repo, delta, alpha, beta; print(alpha.__version__, beta.__version__)") == (
        "1.0 4.0"
    )
    lock = next((tmp_path / "own").rglob("pylock.*.toml")).read_text()
    assert commit in lock

    # A repository that is gone is needed no more: the wheel is remembered by its commit.
    (place / "repo").rename(place / "gone")
    assert run(inventory, locked=True).ok

    (place / "gone").rename(place / "repo")
    (place / "more.txt").write_text("torch\n\n--use-feature fast-deps\n")
    with pytest.raises(ProvisionError, match=r"more\.txt:3: uv does not know the option --use-feature; remove it"):
        run(inventory)


def test_uvs_own_sources_in_a_pyproject_hold(tmp_path: Path, shelf: Path) -> None:
    place = tmp_path / "work"
    (place / "lib").mkdir(parents=True)
    (place / "lib" / "pyproject.toml").write_text(
        '[project]\nname = "lib"\nversion = "1.0"\n' + PYPROJECT.format(requires="")
    )
    (place / "lib" / "backend.py").write_text(backend("lib"))
    (place / "pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "1"\ndependencies = ["lib", "torch"]\n'
        '[tool.uv.sources]\nlib = { path = "lib" }\n'
    )
    outcome = run(where(tmp_path, shelf, requirements=str(place / "pyproject.toml"), nodes=1))
    assert ask(outcome, "import lib; print(lib.__name__)") == "lib"


def test_an_environment_without_torch_is_refused_before_anything_is_sent(tmp_path: Path, wheels: Path) -> None:
    make_wheel(wheels, "alpha")
    bare = Environment.model_validate({"mode": "managed", "packages": ("alpha",), "find_links": (str(wheels),)})
    with pytest.raises(ProvisionError, match=r"do not include torch.*add torch to environment\.packages"):
        run(local_inventory(tmp_path, 1, bare))
    assert not (tmp_path / "n0" / "store").exists()


def test_the_family_of_torch_comes_from_one_place_and_is_imported_on_the_node(tmp_path: Path, shelf: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    error = "raise RuntimeError('operator torchvision::nms does not exist')"
    stranger = make_wheel(elsewhere, "torchvision", "0.28.0", code=error)
    mixed = where(tmp_path, shelf, "torchvision", nodes=1, find_links=(str(shelf), str(elsewhere)))
    words = r"do not fit each other: .*torch 2\.13\.0\+cpu from .*; .*torchvision 0\.28\.0 from"
    with pytest.raises(ProvisionError, match=words):
        run(mixed)
    stranger.rename(shelf / stranger.name)
    outcome = run(where(tmp_path, shelf, "torchvision", nodes=1))
    assert "torchvision::nms does not exist" in str(outcome.nodes[0].error)


def test_a_git_that_hangs_is_an_error_of_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = tmp_path / "git"
    git.write_text("#!/bin/sh\nexec sleep 60\n")
    git.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(material, "BUILD_S", 0.5)
    package = SourcePackage("a", "1.0", git="git+https://example.invalid/a", commit="c" * 40)
    with pytest.raises(ProvisionError, match=r"a 1.0: cannot get cccccccccccc .* within 0.5 s"):
        obtain_source(package, Wheelhouse(tmp_path / "wheels", Origins()), tmp_path)


def test_the_end_of_a_build_is_what_the_backend_said() -> None:
    uv_said = "error: Failed to build `x`\n  cause: The build backend returned an error\n\nhint: Build failures ..."
    said = (
        "Building wheel...\r\n" + "".join(f"\x1b[1mline {number}\x1b[0m\n" for number in range(40)) + "gcc: \tno\x07\n"
    )
    assert last_lines(said + uv_said)[-2:] == ["line 39", "gcc:    no"]
    assert len(last_lines(said + uv_said)) == 15
    assert "The build backend returned an error" in last_lines("Building wheel...\n" + uv_said)[1]
    assert last_lines("") == ["it printed nothing"]


def test_a_source_without_a_pyproject_is_built_by_setuptools(tmp_path: Path) -> None:
    assert build_system(make_sdist(tmp_path, "old", files={"setup.py": ""})) == BuildSystem()
    new = make_sdist(tmp_path, "new", files={"pyproject.toml": PYPROJECT.format(requires='"flit_core"')})
    assert build_system(new) == BuildSystem(("flit_core",), "backend", (".",))
