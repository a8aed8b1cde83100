"""Managed environments end to end on nodes that are folders of this machine: real uv, real workers, small wheels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddpctl.errors import ProvisionError
from ddpctl.files.records import state_dir
from ddpctl.spec.inventory import Environment, Inventory
from ddpctl.spec.push import PushOutcome
from ddpctl.stages.launch import Launch
from ddpctl.stages.push import push
from tests.environment.support import TORCH, Heard, blobs, fleet_of, local_inventory, make_wheel

pytestmark = pytest.mark.slow


def managed(wheels: Path, *packages: str, **keys: object) -> Environment:
    wanted = (*(packages or ("alpha",)), "torch")
    values = {"mode": "managed", "packages": wanted, "find_links": (str(wheels),), **keys}
    return Environment.model_validate(values)


def run(inventory: Inventory, heard: Heard | None = None, *, locked: bool = False) -> PushOutcome:
    with fleet_of(inventory) as fleet:
        launch = Launch(inventory, None, inventory.hosts)
        return push(launch, fleet, Heard() if heard is None else heard, locked=locked)


def ask(python: str, code: str) -> str:
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def shelf(wheels: Path) -> Path:
    """alpha needs beta; torch is a tiny stand-in."""
    make_wheel(wheels, "alpha", requires=["beta>=1"], ballast=os.urandom(300_000))
    make_wheel(wheels, "beta", "1.2")
    make_wheel(wheels, "gamma", "3.0", ballast=os.urandom(200_000))
    make_wheel(wheels, "torch", "2.13.0+cpu", code=TORCH)
    return wheels


def folders(python: str) -> list[tuple[str, int]]:
    """Return the path and inode of each folder of an environment.

    The inodes of its files would not show a second installation: the files are links to the cache.
    """
    top = Path(python).parents[1]
    return sorted((str(path), path.stat().st_ino) for path in (top, *top.rglob("*/")) if path.name != "__pycache__")


def test_nodes_get_what_the_lock_says_and_a_second_push_sends_nothing(tmp_path: Path, shelf: Path) -> None:
    inventory = local_inventory(tmp_path, 3, managed(shelf))
    first = run(inventory)
    assert first.ok
    assert first.traffic.needed == first.traffic.sent_by_controller + first.traffic.relayed
    assert len({node.environment for node in first.nodes}) == 1
    for node in first.nodes:
        assert node.versions == {"python": ".".join(map(str, sys.version_info[:3])), "torch": "2.13.0+cpu"}
        assert ask(node.python, "import alpha, beta; print(alpha.__version__, beta.__version__)") == "1.0 1.2"
        assert Path(node.python).is_relative_to(tmp_path / node.host / "envs")
        assert Path(node.python).parents[1].stat().st_mode & 0o077 == 0
    before = [folders(node.python) for node in first.nodes]
    second = run(inventory)
    assert second.traffic.sent_by_controller == second.traffic.relayed == 0
    assert second.traffic.reused == second.traffic.needed == first.traffic.needed
    assert [node.python for node in second.nodes] == [node.python for node in first.nodes]
    assert [folders(node.python) for node in second.nodes] == before, "installed again"


def test_the_folder_of_an_inventory_may_have_a_name_that_is_not_utf_8(tmp_path: Path, shelf: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    inventory = local_inventory(tmp_path, 1, managed(shelf))
    inventory = inventory.model_copy(update={"file": str(folder / "inventory.yaml")})
    assert run(inventory).ok
    assert run(inventory, locked=True).ok


def test_one_package_more_and_only_its_wheel_travels(tmp_path: Path, shelf: Path) -> None:
    before = run(local_inventory(tmp_path, 2, managed(shelf, "alpha")))
    after = run(local_inventory(tmp_path, 2, managed(shelf, "alpha", "gamma")))
    gamma = (shelf / "gamma-3.0-py3-none-any.whl").stat().st_size
    assert after.traffic.sent_by_controller + after.traffic.relayed == 2 * gamma
    assert after.nodes[0].environment != before.nodes[0].environment
    one, other = (Path(node.python).parents[1] for node in (before.nodes[0], after.nodes[0]))
    inside = Path("lib") / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages/alpha/ballast.bin"
    assert (one / inside).samefile(other / inside)  # a hard link: the second environment takes no room


def test_a_new_version_in_the_sources_does_not_change_what_is_locked(tmp_path: Path, shelf: Path) -> None:
    inventory = local_inventory(tmp_path, 1, managed(shelf))
    first = run(inventory)
    make_wheel(shelf, "beta", "9.9")
    assert run(inventory, locked=True).nodes[0].environment == first.nodes[0].environment
    changed = inventory.model_copy(update={"environment": managed(shelf, "alpha", "gamma")})
    with pytest.raises(ProvisionError, match="out of date") as caught:
        run(changed, locked=True)
    assert caught.value.exit_code == 5
    assert ask(run(changed).nodes[0].python, "import beta; print(beta.__version__)") == "9.9"


@pytest.mark.parametrize("damage", [lambda data: data[:120], lambda data: data[:-1] + b"\xff", lambda data: b"\xff"])
def test_a_damaged_lock_is_made_again(tmp_path: Path, shelf: Path, damage: Callable[[bytes], bytes]) -> None:
    inventory = local_inventory(tmp_path, 1, managed(shelf))
    first = run(inventory)
    (lock,) = (state_dir() / "locks").rglob("pylock.*.toml")
    whole = lock.read_bytes()
    lock.write_bytes(damage(whole))
    with pytest.raises(ProvisionError, match="cannot be used"):
        run(inventory, locked=True)
    assert run(inventory).nodes[0].environment == first.nodes[0].environment
    assert lock.read_bytes() == whole


def test_locked_without_a_lock_says_what_to_do(tmp_path: Path, shelf: Path) -> None:
    with pytest.raises(ProvisionError, match=r"no lock .* ddpctl push"):
        run(local_inventory(tmp_path, 1, managed(shelf)), locked=True)


def test_a_requirements_file_and_a_pylock_do_as_well(tmp_path: Path, shelf: Path) -> None:
    (tmp_path / "more.txt").write_text("gamma\n")
    (tmp_path / "requirements.txt").write_text("alpha\ntorch\n-r more.txt\n")
    by_file = managed(shelf).model_copy(update={"packages": (), "requirements": str(tmp_path / "requirements.txt")})
    first = run(local_inventory(tmp_path, 1, by_file))
    assert ask(first.nodes[0].python, "import alpha, gamma; print(gamma.__version__)") == "3.0"
    lock = next((tmp_path / "own").rglob("pylock.*.toml"))
    mine = tmp_path / "pylock.toml"
    mine.write_text(lock.read_text())
    by_lock = managed(shelf).model_copy(update={"packages": (), "requirements": str(mine)})
    assert run(local_inventory(tmp_path, 1, by_lock)).nodes[0].environment == first.nodes[0].environment


def test_what_cannot_be_solved_comes_with_uvs_explanation(tmp_path: Path, shelf: Path) -> None:
    with pytest.raises(ProvisionError, match=r"no version of beta==7.*unsatisfiable"):
        run(local_inventory(tmp_path, 1, managed(shelf, "alpha", "beta==7")))


def test_a_package_without_a_wheel_for_the_nodes_is_named(tmp_path: Path, shelf: Path) -> None:
    make_wheel(shelf, "winonly", tag="cp311-cp311-win_amd64")
    with pytest.raises(ProvisionError, match="winonly"):
        run(local_inventory(tmp_path, 1, managed(shelf, "winonly")))


def test_an_import_that_fails_is_that_nodes_error(tmp_path: Path, wheels: Path) -> None:
    make_wheel(wheels, "torch", "2.13.0+cpu", code="raise ImportError('libgomp.so.1: cannot open')")
    outcome = run(local_inventory(tmp_path, 2, managed(wheels, "torch")))
    assert not outcome.ok
    for node in outcome.nodes:
        assert "libgomp.so.1" in str(node.error)
        envs = tmp_path / node.host / "envs"
        assert [path for path in envs.iterdir() if not path.name.startswith(".")] == []
    assert json.dumps(outcome.to_json())


def test_an_unreachable_host_does_not_keep_the_others_from_it(tmp_path: Path, shelf: Path) -> None:
    inventory = local_inventory(tmp_path, 3, managed(shelf))
    broken = inventory.hosts[1].model_copy(update={"python": str(tmp_path / "no-such-python")})
    inventory = inventory.model_copy(update={"hosts": (inventory.hosts[0], broken, inventory.hosts[2])})
    outcome = run(inventory)
    assert [node.error is None for node in outcome.nodes] == [True, False, True]
    assert "no-such-python" in str(outcome.nodes[1].error)


def test_a_blob_that_rotted_on_a_node_is_found_and_sent_again(tmp_path: Path, shelf: Path) -> None:
    inventory = local_inventory(tmp_path, 2, managed(shelf, "gamma"))
    first = run(inventory)
    changed = inventory.model_copy(update={"environment": managed(shelf, "gamma", "alpha")})
    store = tmp_path / "n1" / "store"
    size = (shelf / "gamma-3.0-py3-none-any.whl").stat().st_size
    rotten = next(path for path in store.iterdir() if path.stat().st_size == size)
    data = bytearray(rotten.read_bytes())
    data[100_000] ^= 1
    rotten.write_bytes(bytes(data))
    # The cache of uv has it unpacked from before: without it the file must be read again.
    subprocess.run(["rm", "-rf", str(tmp_path / "n1" / "uv-cache")], check=True)
    heard = Heard()
    second = run(changed, heard)
    assert second.ok
    assert any("gamma-3.0-py3-none-any.whl" in note for note in heard.notes)
    assert ask(second.nodes[1].python, "import gamma, alpha; print(gamma.__version__)") == "3.0"
    assert ask(first.nodes[1].python, "import gamma; print(gamma.__version__)") == "3.0"


def test_a_wheel_that_changed_on_the_controller_is_never_installed(tmp_path: Path, shelf: Path) -> None:
    inventory = local_inventory(tmp_path, 2, managed(shelf, "gamma"))
    run(inventory)  # makes the lock
    subprocess.run(["rm", "-rf", str(tmp_path / "n0"), str(tmp_path / "n1")], check=True)
    make_wheel(shelf, "gamma", "3.0", code="import os; os.system('touch /tmp/owned')")
    heard = Heard()
    outcome = run(inventory, heard, locked=True)
    assert not any(node.error is None for node in outcome.nodes)
    assert all("gamma-3.0" in str(node.error) or "SHA-256" in str(node.error) for node in outcome.nodes)
    assert any("gamma-3.0-py3-none-any.whl" in note for note in heard.notes)
    for host in ("n0", "n1"):
        assert list((tmp_path / host).glob("envs/[0-9a-f]*")) == []
        assert [name for name in blobs(tmp_path / host) if name.endswith(".part")] == []
