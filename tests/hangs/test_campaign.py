"""Jobs side by side: all are played, and the rounds under way end before an error is raised."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from tests.hangs.campaign import side_by_side


def test_every_task_is_played_some_at_once() -> None:
    done: list[int] = []
    both = threading.Barrier(2)

    def play(task: int, began: float) -> None:
        both.wait(60)
        done.append(task)

    side_by_side(range(6), play, 2)
    assert sorted(done) == list(range(6))


@pytest.mark.slow  # threads that wait
def test_a_signal_lets_those_under_way_end_and_leaves_out_the_rest() -> None:
    begun: list[int] = []
    ended: list[int] = []

    def play(task: int, began: float) -> None:
        begun.append(task)
        if task == 1:  # by one thread alone: a second signal would interrupt the wait
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)
        ended.append(task)

    with pytest.raises(KeyboardInterrupt):
        side_by_side(range(200), play, 2)
    assert sorted(ended) == sorted(begun)
    assert len(ended) < 200


@pytest.mark.slow  # threads that wait
def test_a_signal_during_the_start_of_the_threads_leaves_none_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread gets it, so Python raises in the middle of the start."""
    threads: list[threading.Thread] = []
    start = threading.Thread.start

    def signalled() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        os.kill(os.getpid(), signal.SIGINT)

    def interrupted(thread: threading.Thread) -> None:
        threads.append(thread)
        start(thread)
        if len(threads) == 2:  # the pool does not know it yet
            other = threading.Thread(target=signalled)
            start(other)
            other.join()

    def play(task: int, began: float) -> None:
        time.sleep(0.5)

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        side_by_side(range(20), play, 2)
    assert len(threads) == 2
    assert not any(thread.is_alive() for thread in threads)


def test_an_error_is_raised_and_leaves_out_the_rest() -> None:
    ended: list[int] = []

    def play(task: int, began: float) -> None:
        if task == 1:
            raise ValueError("no such lab")
        time.sleep(0.2)
        ended.append(task)

    with pytest.raises(ValueError, match="no such lab"):
        side_by_side(range(200), play, 2)
    assert 0 in ended
    assert len(ended) < 200
