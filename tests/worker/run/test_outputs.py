"""Folders of the job's outputs, made before its script starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpctl_worker.run.outputs import folder_of_output, make_output_folders


@pytest.mark.parametrize(
    ("output", "folder"),
    [
        ("saved_models", "saved_models"),
        ("./saved//models/", "saved/models"),
        ("saved/model.pt", "saved"),
        ("saved/*.pt", "saved"),
        ("runs/*/events", "runs"),
        ("v1.2/", "v1.2"),
        (".cache", ".cache"),
        ("model.pt", ""),
        ("mode[l]", ""),
        ("saved/mode[l]", "saved"),
        ("*.pt", ""),
        ("run[0-9]/log", ""),
        (".", ""),
        ("/data/out", ""),
        ("~/out", ""),
        ("{output_dir}/x", ""),
        ("../elsewhere", ""),
        ("a/../../b", ""),
    ],
)
def test_which_folder_an_output_lies_in(output: str, folder: str) -> None:
    assert folder_of_output(output) == folder


def test_the_folders_are_made_and_what_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("of the script")
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "there").mkdir()
    outputs = ["saved/models", "log", "link", "there", "saved/model.pt", "*.csv"]
    assert make_output_folders(outputs, str(tmp_path)) is None
    assert (tmp_path / "saved" / "models").is_dir()
    assert (tmp_path / "log").read_text() == "of the script"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "log", "saved", "there"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("")
    why = make_output_folders(["log/of/today"], str(tmp_path))
    assert why == f"the folder {tmp_path}/log/of/today of outputs could not be made: Not a directory"
