"""The files that come back from a node."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from tests.worker.node import Node

SCRIPT = """
import os
if os.environ["RANK"] == "0":
    os.makedirs("saved_models/deep", exist_ok=True)
    open("saved_models/a.pt", "wb").write(bytes(range(256)) * 10_000)
    open("saved_models/deep/b.pt", "wb").write(b"b")
    open("loss.csv", "w").write("1,2")
    open("model", "w").write("m")
    os.symlink("/etc/passwd", "saved_models/link")
    os.symlink("/etc", "outside")
    open(os.path.join(os.environ["DDPCTL_OUTPUT_DIR"], "out"), "w").write("o")
    os.mkfifo("saved_models/pipe")
print("rank", os.environ["RANK"])
"""


def test_logs_records_and_outputs(node: Node) -> None:
    outputs = ["saved_models", "*.csv", "none", "out*/hostname", "../../secret", "mode[l]"]
    run = node.start(SCRIPT, node.record(outputs=outputs))
    node.wait_state(run)
    (node.base.parent / "secret").write_text("not for you")
    files, result = node.files(run)
    assert files["outputs/saved_models/a.pt"] == bytes(range(256)) * 10_000
    assert files["outputs/saved_models/deep/b.pt"] == b"b"
    assert files["outputs/loss.csv"] == b"1,2"
    assert files["outputs/model"] == b"m"
    assert files["output/out"] == b"o"
    assert files["logs/rank-0.log"] == b"rank 0\n"
    assert files["logs/rank-1.log"] == b"rank 1\n"
    assert b'"succeeded"' in files["record/exit.json"]
    of_one_rank, _ = node.files(run, ranks=[1])
    assert [name for name in of_one_rank if name.startswith("logs/")] == ["logs/rank-1.log"]
    assert set(of_one_rank) >= {name for name in files if not name.startswith("logs/")}
    assert not any("passwd" in name or "hostname" in name or "link" in name for name in files)
    assert result["files"] == len(files)
    assert "none" in result["missing"]
    assert "out*/hostname" in result["missing"]


def test_a_file_that_grows_comes_with_the_size_that_was_told(node: Node) -> None:
    script = """
import time
with open("growing.bin", "wb", buffering=0) as file:
    print("here", flush=True)
    while True:
        file.write(b"x" * 8192)
        time.sleep(0.001)
"""
    run = node.start(script, node.record(nproc=1, ranks=[0], outputs=["growing.bin"]))
    node.wait_state(run, "running")
    stream = node.open("fetch", run=run)
    stream.result()
    told = [frame["file"] for frame in stream.frames if "file" in frame]
    sizes: dict[str, int] = {}
    name = ""
    for frame, raw in zip(stream.frames, stream.raw, strict=True):
        name = frame["file"]["path"] if "file" in frame else name
        sizes[name] = sizes.get(name, 0) + len(raw)
    assert {one["path"]: one["size"] for one in told} == {one["path"]: sizes[one["path"]] for one in told}


def test_names_that_are_no_text(node: Node, tmp_path: Path) -> None:
    run = node.start(
        "import os; open(os.fsencode(os.environ['DDPCTL_OUTPUT_DIR']) + b'/bad\\xffname', 'w').write('1')",
        node.record(nproc=1, ranks=[0]),
    )
    assert node.wait_state(run)["state"] == "succeeded"
    files, _ = node.files(run)
    assert files["output/bad\\xffname"] == b"1"
    assert os.fsencode(os.listdir(node.folder(run) / "output")[0]) == b"bad\xffname"


def test_only_what_has_changed_travels_and_of_a_file_that_grew_the_rest(node: Node) -> None:
    script = "import os\nfor name in ('same', 'grows', 'changes'): open(name + '.txt', 'w').write('first ' + name)\n"
    run = node.start(script, node.record(nproc=2, ranks=[0, 1], outputs=["same.txt", "grows.txt", "changes.txt"]))
    node.wait_state(run)
    names = ("outputs/same.txt", "outputs/grows.txt", "outputs/changes.txt")
    stream = node.open("fetch", run=run, outputs_only=True)
    stream.result()
    told = {frame["file"]["path"]: frame["file"] for frame in stream.frames if "file" in frame}
    assert set(told) == set(names)
    folder = next(path for path in node.base.parent.rglob("grows.txt") if path.is_file()).parent
    have = {
        name: [told[name]["size"], told[name]["mtime_ns"], hashlib.sha256(f"first {name[8:-4]}".encode()).hexdigest()]
        for name in names
    }
    with open(folder / "grows.txt", "a") as file:
        file.write(" and more")
    (folder / "changes.txt").write_text("something else, and longer")
    files, result = node.files(run, outputs_only=True, have=have)
    assert files == {"outputs/grows.txt": b" and more", "outputs/changes.txt": b"something else, and longer"}
    assert (result["files"], result["bytes"], result["missing"]) == (2, 35, [])
