"""What a user may do about a failed run."""

from __future__ import annotations

import pytest

from ddpctl.spec.outcome import Cause, find_hint


def failed(message: str) -> Cause:
    return Cause("node0", "exited", message, "2026-01-02T03:04:05+00:00")


def missed(path: str) -> Cause:
    return failed(f"rank 0 exited with code 1: FileNotFoundError: [Errno 2] No such file or directory: '{path}'")


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("./data/cifar-10-batches-py", "`links: {data: /PATH/ON/THE/NODES}`"),
        ("saved_models/best.pt", "`links: {saved_models: /PATH/ON/THE/NODES}`"),
        ("set.csv", "`links: {set.csv: /PATH/ON/THE/NODES}`"),
        ("../data/x", "an absolute path of the node"),
    ],
)
def test_a_missing_relative_path_gets_the_line_for_the_inventory(path: str, line: str) -> None:
    hint = find_hint(missed(path)) or ""
    assert line in hint
    assert "checkpoint" not in hint


@pytest.mark.parametrize(
    ("path", "step"),
    [
        ("./saved/best.pt", "to keep it from run to run, add `checkpoint: {paths: [saved]}` to the job"),
        ("last.pt", "to keep it from run to run, write it to a folder of `checkpoint.paths`"),
    ],
)
def test_a_path_that_an_earlier_run_wrote_is_kept_from_run_to_run(path: str, step: str) -> None:
    hint = find_hint(missed(path), "r1") or ""
    assert hint.startswith("run r1 wrote ")
    assert hint.endswith(step)
    assert "links" not in hint


def test_a_data_set_that_torchvision_does_not_find_gets_the_line_too() -> None:
    said = "RuntimeError: Dataset not found or corrupted. You can use download=True to download it"
    assert "`links: {data: /PATH/ON/THE/NODES}`" in (find_hint(failed(said)) or "")


@pytest.mark.parametrize(
    "message",
    [
        "rank 0 exited with code 1: FileNotFoundError: [Errno 2] No such file or directory: '/data/x'",
        "rank 0 exited with code 1: FileNotFoundError: [Errno 2] No such file or directory: 'ffmpeg'",
        "rank 0 exited with code 1: ValueError: boom",
    ],
)
def test_any_other_failure_has_no_hint_of_its_own(message: str) -> None:
    assert find_hint(failed(message)) is None
    assert find_hint(None) is None


def test_a_missing_folder_for_results_gets_a_hint_about_outputs() -> None:
    hint = find_hint(failed("RuntimeError: Parent directory saved_models does not exist."))
    assert hint is not None
    assert hint.startswith("`outputs: [saved_models]` in the job makes the folder")
    assert find_hint(failed("RuntimeError: Parent directory /srv/out does not exist.")) is None
