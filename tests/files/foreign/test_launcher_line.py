"""What a launcher's command line says."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ddpctl.errors import InventoryError
from ddpctl.files.foreign.launcher_line import read_line
from ddpctl.spec.draft import Imported


def read(line: str) -> Imported:
    return read_line(shlex.split(line))


def test_torchrun_as_in_its_manual() -> None:
    found = read(
        "torchrun --nnodes=2 --nproc-per-node=8 --node_rank=1 --master-addr=10.0.0.1 --master_port 29501 "
        "train.py --lr 1e-3 --name 'a b' -- --nnodes 9"
    )
    assert (found.nodes, found.nproc, found.master, found.port) == (2, 8, "10.0.0.1", 29501)
    assert found.script == "train.py"
    assert found.args == ("--lr", "1e-3", "--name", "a b", "--", "--nnodes", "9")


def test_an_elastic_torchrun() -> None:
    found = read(
        "torchrun --nnodes 1:4 --nproc_per_node gpu --max_restarts=5 --rdzv_id=$JOB --rdzv_backend=c10d "
        "--rdzv_endpoint=node0:29400 -m pkg.train --epochs 3"
    )
    assert found.elastic is not None
    assert (found.elastic.min_nodes, found.elastic.max_nodes, found.elastic.max_restarts) == (1, 4, 5)
    assert (found.master, found.port, found.nproc) == ("node0", 29400, None)
    assert (found.module, found.script, found.args) == ("pkg.train", None, ("--epochs", "3"))


def test_the_old_launcher_with_variables_in_front() -> None:
    variables = "NCCL_DEBUG=INFO WANDB_API_KEY=hush OMP_NUM_THREADS=4 RANK=0"
    line = f"{variables} /opt/conda/bin/python3.10 -u -m torch.distributed.launch --use_env"
    found = read(f"{line} --nnodes 2 --node_rank= --master_addr= --nproc_per_node 4 ./train.py")
    assert dict(found.env) == {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4"}
    assert found.master is None
    assert found.script == "./train.py"
    assert any("RANK" in note for note in found.notes)
    assert "hush" not in repr(found), "a secret is not for the inventory"


def test_deepspeed() -> None:
    line = "deepspeed --hostfile=hosts.txt --include=worker-1:0,2@worker-2 --master_port 29600"
    found = read(f"{line} train.py --deepspeed ds.json")
    assert (found.hostfile, found.include, found.port) == ("hosts.txt", "worker-1:0,2@worker-2", 29600)
    assert found.args == ("--deepspeed", "ds.json")
    assert read("deepspeed --num_nodes 2 --num_gpus=8 train.py").nproc == 8


def test_a_script_alone() -> None:
    found = read("LR=1 src/train.py --epochs 2")
    assert (found.script, found.args, dict(found.env)) == ("src/train.py", ("--epochs", "2"), {"LR": "1"})


BROKEN = {
    "nothing": ("", 1, "no launcher"),
    "another program": ("mpirun -np 4 python train.py", 1, "'mpirun'"),
    "plain python": ("python train.py", 8, "does not start a launcher"),
    "an unknown option": ("torchrun --nodes=2 train.py", 10, "'--nodes'"),
    "no number": ("torchrun --nnodes two train.py", 19, "'two'"),
    "nodes backwards": ("torchrun --nnodes=4:2 train.py", 19, "'4:2'"),
    "no port": ("torchrun --master_port=x train.py", 24, "'x'"),
    "no script": ("torchrun --nnodes 2", 20, "no script"),
    "no value": ("torchrun --nnodes", 18, "needs a value"),
    "no module": ("torchrun -m pkg/train", 13, "not the name of a module"),
    "any program": ("torchrun --no_python ls", 10, "not supported"),
    "no address": ("torchrun --master_addr=a/b train.py", 24, "not a valid host name"),
}


@pytest.mark.parametrize(("line", "column", "word"), BROKEN.values(), ids=BROKEN)
def test_a_line_that_is_none_is_refused_at_its_place(line: str, column: int, word: str) -> None:
    with pytest.raises(InventoryError) as caught:
        read(line)
    assert (caught.value.line, caught.value.column) == (1, column)
    assert word in caught.value.summary


WORDS = st.sampled_from(
    [
        "torchrun", "deepspeed", "python", "-m", "torch.distributed.run", "--nnodes", "--nnodes=2", "--nnodes=1:3", "-",
        "--nproc_per_node", "8", "--master_addr", "10.0.0.1", "--rdzv_endpoint=h:1", "--", "--=", "A=b", "t.py", "env",
    ]
)  # fmt: skip


@given(st.lists(WORDS | st.text(max_size=8), max_size=9))
@example(["torchrun", "--rdzv_endpoint=:", "t"])
@example(["torchrun", "--rdzv_endpoint=[::1]:5", "t"])
def test_any_words_are_read_or_refused_with_a_column(words: list[str]) -> None:
    answer = read_or_error(words)
    if isinstance(answer, Imported):
        assert answer.script or answer.module
    else:
        assert answer.line == 1
        assert answer.column is not None
        assert 1 <= answer.column <= len(shlex.join(words)) + 2


def read_or_error(words: list[str]) -> Imported | InventoryError:
    try:
        return read_line(words)
    except InventoryError as error:
        return error


ARGS = st.lists(st.text(st.characters(exclude_characters="\0"), max_size=8), max_size=4)


@given(st.integers(1, 64), st.integers(1, 16), st.integers(1, 65535), ARGS, st.data())
def test_a_line_says_what_was_written(nodes: int, nproc: int, port: int, args: list[str], data: st.DataObject) -> None:
    options = [f"--nnodes={nodes}", f"--nproc_per_node={nproc}", f"--master_port={port}", "--node_rank=0"]
    split = [part for option in options for part in option.split("=")]
    chosen = data.draw(st.sampled_from([options, split, [option.replace("_", "-") for option in options]]))
    found = read_line(["torchrun", *chosen, "train.py", *args])
    assert (found.nodes, found.nproc, found.port, found.args) == (nodes, nproc, port, tuple(args))
