"""What a user may do about a failed run."""

from __future__ import annotations

import pytest

from ddpctl.spec.outcome import Cause, find_hint


def failed(message: str) -> Cause:
    return Cause("node0", "exited", message, "2026-01-02T03:04:05+00:00")


@pytest.mark.parametrize("path", ["saved_models/best.pt", "./data/cifar-10-batches-py", "last.pt"])
def test_a_relative_path_that_is_missing_in_the_folder_of_the_run(path: str) -> None:
    said = f"rank 0 exited with code 1: FileNotFoundError: [Errno 2] No such file or directory: '{path}'"
    hint = find_hint(failed(said))
    assert hint is not None
    assert "checkpoint.paths" in hint
    assert "links" in hint
    assert path in hint


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
