"""Why a run failed, from what its processes said. The texts were written by torch 2.13 and 1.13."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.cause import Evidence, Verdict, explain, last_traceback

REPORT = """E1121 03:46:19.400000 28627 torch/distributed/elastic/api.py] failed (exitcode: {code}) local_rank: 1
Traceback (most recent call last):
  File "/env/lib/python3.11/site-packages/torch/distributed/launch.py", line 207, in <module>
    main()
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
/tmp/w1/s.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-21_03:46:19
  host      : box
  rank      : 4 (local_rank: 0)
  exitcode  : -15 (pid: 28631)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 28631
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_03:46:19
  host      : box
  rank      : 5 (local_rank: 1)
  exitcode  : {code} (pid: 28632)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
BOOM = """some words
Traceback (most recent call last):
  File "/tmp/w1/s.py", line 5, in <module>
    train()
  File "/tmp/w1/s.py", line 3, in train
    raise ValueError("boom")
ValueError: boom
[W1121 process_group destroyed]
"""


def explained(
    status: int | None = 256, launcher: str = "", ranks: dict[int, str] | None = None, **more: Any
) -> Verdict:
    tails: dict[tuple[int | None, str], str] = {(None, "e"): launcher, (None, "o"): ""}
    tails.update({(local, "e"): text for local, text in (ranks or {}).items()})
    seen: dict[str, Any] = {"error_file": None, "oom_kills": 0, **more}
    return explain(Evidence(status, tails, {0: 4, 1: 5}, **seen))


def test_the_root_cause_of_torchs_report_and_that_ranks_traceback() -> None:
    found = explained(
        launcher=REPORT.format(code=1), ranks={0: "Traceback (most recent call last):\nKeyError: 1", 1: BOOM}
    )
    assert (found.rank, found.exit_code, found.signal, found.reason) == (5, 1, None, "exited")
    assert found.message == "rank 5 exited with code 1: ValueError: boom"
    assert found.traceback is not None
    assert found.traceback.splitlines()[0] == "Traceback (most recent call last):"
    assert found.traceback.splitlines()[-1] == "ValueError: boom"
    assert not found.victim


def test_killed_by_a_signal() -> None:
    found = explained(launcher=REPORT.format(code=-11), ranks={1: "", 0: ""})
    assert (found.rank, found.exit_code, found.signal, found.reason) == (5, None, "SIGSEGV", "signaled")
    assert found.message == "rank 5 was killed by SIGSEGV"


def test_killed_for_memory_only_with_evidence() -> None:
    launcher = REPORT.format(code=-9)
    assert explained(launcher=launcher, ranks={1: ""}, oom_kills=1).reason == "oom"
    plain = explained(launcher=launcher, ranks={1: ""})
    assert (plain.reason, plain.signal) == ("signaled", "SIGKILL")
    assert "ddpctl did not send it" in plain.message


@pytest.mark.parametrize(
    "text",
    ["OSError: [Errno 28] No space left on device", "RuntimeError: write failed: Disk quota exceeded: '/x'"],
)
def test_a_full_disk(text: str) -> None:
    found = explained(
        launcher=REPORT.format(code=1), ranks={1: f"Traceback (most recent call last):\n  File\n{text}\n"}
    )
    assert found.reason == "disk_full"


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.9.0.11]:39583",
        "RuntimeError: [../gloo/pair.cc:598] Connection reset by peer",
        "RuntimeError: Timed out waiting 12000ms for recv operation to complete",
        "DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (h, 1).",
        "torch.distributed.DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote",
        "torch.distributed.DistStoreError: Timed out after 901 seconds waiting for clients. 1/2 clients joined.",
    ],
)
def test_victims(text: str) -> None:
    found = explained(
        launcher=REPORT.format(code=1), ranks={1: f"Traceback (most recent call last):\n  File\n{text}\n"}
    )
    assert found.victim
    assert "exited with code 1" in found.message


def test_a_script_that_is_not_there() -> None:
    text = "/usr/bin/python3: can't open file '/data/train.py': [Errno 2] No such file or directory"
    found = explained(launcher=REPORT.format(code=2), ranks={1: text, 0: text})
    assert found.message == "rank 5 exited with code 2: there is no script /data/train.py on this node"


def test_a_launcher_that_refuses_its_arguments() -> None:
    text = "usage: run.py [-h]\nrun.py: error: ambiguous option: --n could match --nnodes, --nproc-per-node\n"
    found = explained(status=2 << 8, launcher=text)
    assert found.rank is None
    assert "ambiguous option: --n" in found.message


def test_a_launcher_without_torch() -> None:
    found = explained(
        launcher="/usr/bin/python3: Error while finding module specification for 'torch.distributed.run'\n"
    )
    assert found.message.startswith("the launcher exited with code 1: /usr/bin/python3: Error while finding module")


def test_a_launcher_killed_by_a_signal() -> None:
    found = explained(status=signal.SIGKILL)
    assert (found.rank, found.signal, found.exit_code) == (None, "SIGKILL", None)


def test_launchers_before_the_agent() -> None:
    one = "subprocess.CalledProcessError: Command '['/usr/bin/python3', '-u', 's.py']' returned non-zero exit status 7."
    assert explained(launcher=one).exit_code == 7
    two = "subprocess.CalledProcessError: Command '['python3', 's.py']' died with <Signals.SIGKILL: 9>."
    assert explained(launcher=two).signal == "SIGKILL"


def test_the_error_file_helps_where_no_traceback_was_printed() -> None:
    content = {
        "message": {"message": "ValueError: x", "extraInfo": {"py_callstack": "Traceback (most...\nValueError: x"}}
    }
    found = explained(launcher=REPORT.format(code=1), ranks={1: ""}, error_file=content)
    assert found.message.endswith("ValueError: x")


@pytest.mark.parametrize(
    "content", [{}, {"message": None}, {"message": "text"}, {"message": {"extraInfo": 3}}, {"message": []}]
)
def test_error_files_of_other_shapes_do_no_harm(content: dict[str, Any]) -> None:
    assert explained(launcher=REPORT.format(code=1), ranks={1: BOOM}, error_file=content).rank == 5


def test_chained_tracebacks_stay_together_and_ignored_ones_do_not_count() -> None:
    text = (
        "Traceback (most recent call last):\n  File a\nKeyError: 'early, logged'\nwent on\n"
        "Traceback (most recent call last):\n  File a\nKeyError: 'x'\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\n  File b\npkg.errors.Broken: it is\n"
        "Exception ignored in: <function f>\nTraceback (most recent call last):\n  File c\nTypeError: no\n"
    )
    found = last_traceback(text)
    assert found is not None
    assert found.startswith("Traceback (most recent call last):\n  File a\nKeyError: 'x'")
    assert found.endswith("pkg.errors.Broken: it is")


def test_torchs_rank_prefix_is_taken_off() -> None:
    text = "[rank5]: Traceback (most recent call last):\n[rank5]:   File a\n[rank5]: ValueError: boom\n"
    assert last_traceback(text) == "Traceback (most recent call last):\n  File a\nValueError: boom"


@given(st.text(max_size=400), st.text(max_size=400), st.integers(0, 0xFFFF))
def test_any_output_gets_a_cause_of_one_line(launcher: str, rank: str, status: int) -> None:
    found = explained(status=status, launcher=REPORT.format(code=1) + launcher, ranks={0: BOOM + rank, 1: rank})
    assert "\n" not in found.message
    assert len(found.message) <= 400
    assert found.reason


def test_a_victim_that_torch_names_first_gives_way_to_the_culprit() -> None:
    """torch 1.13 looks every few seconds, finds both dead, and calls the lower local rank the root cause."""
    victim = "Traceback (most recent call last):\n  File\nRuntimeError: Connection closed by peer [127.0.0.1]:2485\n"
    report = REPORT.format(code=1).replace("exitcode  : -15", "exitcode  : 1")
    found = explained(launcher=report, ranks={1: victim, 0: BOOM})
    assert (found.rank, found.victim) == (4, False)
    assert found.message == "rank 4 exited with code 1: ValueError: boom"


def test_of_two_culprits_the_earlier_one() -> None:
    report = REPORT.format(code=1).replace("exitcode  : -15", "exitcode  : 1")
    found = explained(launcher=report, ranks={1: BOOM, 0: BOOM}, tracebacks={0: 100.0, 1: 100.5})
    assert (found.rank, found.when) == (4, 100.0)


def test_ranks_ended_by_the_launcher_are_no_culprits() -> None:
    deaths = {0: (signal.SIGTERM, 100.0), 1: (256, 101.0)}
    found = explained(launcher=REPORT.format(code=1), ranks={1: BOOM}, deaths=deaths)
    assert (found.rank, found.exit_code) == (5, 1)


def test_a_dead_rank_whose_launcher_says_nothing() -> None:
    found = explained(status=None, ranks={0: "", 1: ""}, deaths={0: (signal.SIGKILL, 100.0)})
    assert (found.rank, found.signal, found.when) == (4, "SIGKILL", 100.0)
