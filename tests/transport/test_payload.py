"""The package that a node runs: the same bytes for the same sources."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.transport import bootstrap
from ddpctl.transport.bootstrap import build, payload

NAMES = st.from_regex(r"[a-z]{1,8}(/[a-z]{1,8}){0,2}\.py", fullmatch=True)


@pytest.mark.slow
@given(st.dictionaries(NAMES, st.binary(max_size=200), max_size=5), st.randoms())
def test_order_does_not_matter(content: dict[str, bytes], random) -> None:  # type: ignore[no-untyped-def]
    shuffled = list(content.items())
    random.shuffle(shuffled)
    data = build(content)
    assert build(dict(shuffled)) == data
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == content


@pytest.mark.slow
def test_another_process_in_another_place_gets_the_same_hash(tmp_path: Path) -> None:
    program = "from ddpctl.transport.bootstrap import payload; print(payload().sha256)"
    env = {**os.environ, "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "7"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path, env=env
    )
    assert done.stdout.strip() == payload().sha256


def test_the_payload_is_the_worker() -> None:
    package = payload()
    assert hashlib.sha256(package.data).hexdigest() == package.sha256
    with zipfile.ZipFile(io.BytesIO(package.data)) as archive:
        names = archive.namelist()
    assert {"ddpctl_worker/__main__.py", "ddpctl_worker/wire/contract.py", "ddpctl_worker/wire/channel.py"} <= set(
        names
    )
    assert all(name.endswith(".py") and "__pycache__" not in name for name in names)
    assert "def boot(" in package.boot


@pytest.mark.slow
def test_many_hosts_at_once_build_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def slow(content: dict[str, bytes]) -> bytes:
        calls.append(len(content))
        time.sleep(0.2)
        return build(content)

    monkeypatch.setattr(bootstrap, "build", slow)
    bootstrap._packed.cache_clear()
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: payload().sha256, range(8)))
    assert (len(found), len(calls)) == (1, 1)
