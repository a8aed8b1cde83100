"""The entries of a checkpoint folder that are checkpoints, and their steps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.checkpoint.folder import list_entries
from ddpctl_worker.rules import entries


def write(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(b"some")


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step_120", 120),
        ("step_000050", 50),
        ("ckpt-120.pt", 120),
        ("epoch3", 3),
        ("epoch3.pth", 3),
        ("checkpoint-500", 500),
        ("global_step100", 100),
        ("iter_0000100", 100),
        ("epoch=3-step=120.ckpt", 120),
        ("step=120-epoch=3.ckpt", 120),
        ("Epoch_7-val_loss=0.25.ckpt", 7),
        ("model_0005.pt", 5),
        ("120.pt", 120),
        ("saved_models/run2/model_12.pt", 12),
        ("run_3/best.pt", None),
        ("snapshot.pt", None),
        ("resnet50.pt", None),
        ("gpt2.bin", None),
        ("model-0.25.pt", None),
        ("model-00001-of-00002.safetensors", None),
        ("mp_rank_00_model_states.pt", None),
        ("rng_state_0.pth", None),
        ("__0_0.distcp", None),
    ],
)
def test_the_step_is_a_number_in_the_name(name: str, step: int | None) -> None:
    assert entries.step_of(name) == step


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("step_1", "step_20", True),
        ("epoch=1-val=0.5.ckpt", "epoch=12-val=0.25.ckpt", True),
        ("a/step_1", "b/step_1", False),
        ("step_1", "step_1.pt", False),
        ("run_1/epoch_1.pt", "run_2/epoch_1.pt", False),
        ("step_1_rank_0.pt", "step_2_rank_0.pt", True),
        ("step_1_rank_0.pt", "step_1_rank_1.pt", False),
        ("fold_0_epoch_1.pt", "fold_1_epoch_1.pt", False),
        ("fold0_epoch_1.pt", "fold0_epoch_20.pt", True),
        ("step1-shard-00001-of-00008.safetensors", "step2-shard-00001-of-00008.safetensors", True),
        ("step1-shard-00001-of-00008.safetensors", "step1-shard-00002-of-00008.safetensors", False),
        ("step_1-00001-of-00008.safetensors", "step_1-00002-of-00008.safetensors", False),
    ],
)
def test_names_of_a_series_differ_in_the_numbers_of_their_steps_alone(one: str, other: str, same: bool) -> None:
    assert (entries.series_of(one) == entries.series_of(other)) is same


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("step_1_rank_0.pt", "step_1_rank_12.pt", True),
        ("a/step1-shard-00001-of-00008.safetensors", "a/step1-shard-00002-of-00008.safetensors", True),
        ("step_1_rank_0.pt", "step_2_rank_0.pt", False),
        ("fold_0_epoch_1.pt", "fold_1_epoch_1.pt", False),
        ("epoch=1-val=0.5.ckpt", "epoch=1-val=0.25.ckpt", False),
        ("a/step_1", "b/step_1", False),
    ],
)
def test_files_of_one_save_differ_in_their_rank_or_shard_alone(one: str, other: str, same: bool) -> None:
    assert (entries.save_of(one) == entries.save_of(other)) is same


def test_what_has_no_step_is_in_no_series() -> None:
    assert entries.series_of("best.pt") is None


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        (["snapshot.pt"], ["snapshot.pt"]),
        (["snapshot.pt.tmp", ".snapshot.pt.x8", "a.part", "b.partial"], []),
        (["step_1/.metadata", "step_1/__0_0.distcp"], ["step_1"]),
        (["model/.metadata", "model/__0_0.distcp"], ["model"]),
        (["gpt/step_1/.metadata", "gpt/step_1/__0_0.distcp", "gpt/step_2/__0_0.distcp"], ["gpt/step_1", "gpt/step_2"]),
        (["saved_models/epoch_1.pt", "saved_models/best.pt"], ["saved_models/best.pt", "saved_models/epoch_1.pt"]),
        (["saved_models/model.pt", "saved_models/model.pt.prev"], ["saved_models"]),
        (["final/model-00001-of-00002.safetensors", "final/config.json"], ["final"]),
        (["checkpoint-500/rng_state_0.pth", "checkpoint-500/optimizer.pt"], ["checkpoint-500"]),
        (["global_step100/mp_rank_00_model_states.pt", "latest"], ["global_step100"]),
        (["run1/step_5/.metadata", "run1/step_5/__0_0.distcp"], ["run1/step_5"]),
        (["step-100/weights/.metadata", "step-100/weights/__0_0.distcp"], ["step-100"]),
        (["out/checkpoint-5/model.safetensors", "out/runs/events.out.tfevents.17.h.1", "out/README.md"],
         ["out/checkpoint-5"]),
        (["train.log", "results.csv", "config.yaml", "__0_0.distcp", ".metadata"], []),
        ([".ddpctl/snapshot.pt.json"], []),
    ],
)  # fmt: skip
def test_entries_are_what_is_saved_as_one_thing(tmp_path: Path, paths: list[str], found: list[str]) -> None:
    write(tmp_path, *paths)
    assert sorted(list_entries(str(tmp_path))) == found


def test_a_folders_files_are_known_by_their_place_in_it(tmp_path: Path) -> None:
    write(tmp_path, "step-1/weights/.metadata", "step-1/weights/__0_0.distcp", "step-1/.metadata.tmp", "step-1/x.log")
    (tmp_path / "step-1" / "link.pt").symlink_to("weights")
    files = list_entries(str(tmp_path))["step-1"]
    assert sorted(files) == ["weights/.metadata", "weights/__0_0.distcp"]
    assert files["weights/.metadata"].size == 4


def test_an_empty_file_and_an_empty_folder_are_nothing_yet(tmp_path: Path) -> None:
    (tmp_path / "model.pt").touch()
    (tmp_path / "step_1").mkdir()
    (tmp_path / "link.pt").symlink_to("model.pt")
    assert list_entries(str(tmp_path)) == {}


def test_a_folder_that_is_not_there_has_no_entries(tmp_path: Path) -> None:
    assert list_entries(str(tmp_path / "none")) == {}


def test_a_name_that_cannot_be_printed_is_no_entry(tmp_path: Path) -> None:
    (tmp_path / "a\nb.pt").write_bytes(b"some")
    with open(os.fsencode(tmp_path) + b"/\xff.pt", "wb") as file:
        file.write(b"some")
    assert list_entries(str(tmp_path)) == {}


stamps = st.integers(0, 9).map(lambda size: entries.Stamp(size, 0, 0))
some_names = st.sampled_from(["step_1", "best.pt", "a", ".metadata", "__0_0.distcp", "model_2.pt", "config.json"])
trees = st.recursive(stamps, lambda inner: st.dictionaries(some_names, inner, max_size=4), max_leaves=12).filter(
    lambda tree: isinstance(tree, dict)
)


@given(trees)
def test_no_file_is_in_two_entries(tree: entries.Tree) -> None:
    found = entries.entries_of(tree)
    paths = [f"{entry}/{name}" if name else entry for entry, files in found.items() for name in files]
    assert len(paths) == len(set(paths))
    for path in paths:
        node = tree
        for part in path.split("/"):
            node = node[part]  # type: ignore[assignment]
        assert isinstance(node, entries.Stamp)
