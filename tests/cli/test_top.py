"""``ddpctl top`` before its screen is there: the imports, and the hosts that may be asked."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from ddpctl.cli.top import _Asked


class Person:
    """Answers once it may."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.answers = threading.Event()

    def passphrase(self, path: str) -> str | None:
        return "phrase"

    def password(self, account: str, same_as: str) -> str | None:
        self.asked.set()
        assert self.answers.wait(60)
        return "word"

    def answer(self, question: str) -> str | None:
        return "code"


@pytest.mark.slow  # a process
def test_the_library_of_the_screen_is_not_for_a_pipe() -> None:
    program = "import sys, ddpctl.cli.top; sys.exit('textual' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_under_the_screen_nobody_is_asked_and_an_open_question_is_waited_for() -> None:
    person, told = Person(), []
    asked = _Asked(person)
    assert asked.passphrase("key") == "phrase"
    question = threading.Thread(target=lambda: told.append(asked.password("a@b", "")))
    question.start()
    assert person.asked.wait(60)
    hushed = threading.Thread(target=asked.hush)
    hushed.start()
    hushed.join(0.1)
    assert hushed.is_alive()
    person.answers.set()
    hushed.join(60)
    question.join(60)
    assert told == ["word"]
    assert asked.password("a@b", "") is None
    assert asked.answer("Verification code") is None
