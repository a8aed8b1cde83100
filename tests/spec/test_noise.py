"""What is held back, and above all what is not."""

from __future__ import annotations

import pytest

from ddpctl.spec.event import Line
from ddpctl.spec.limits import HELD_LETTERS, HELD_LINES
from ddpctl.spec.noise import Held

NOTICE = """/opt/env/lib/python3.11/site-packages/torch/distributed/launch.py:207: FutureWarning: The module torch.distributed.launch is deprecated
and will be removed in future. Use torchrun.
Note that --use-env is set by default in torchrun.
If your script expects `--local-rank` argument to be set, please
change it to read from `os.environ['LOCAL_RANK']` instead. See
https://pytorch.org/docs/stable/distributed.html#launch-utility for
further instructions

  main()""".splitlines()  # noqa: E501

BARRIER = """[W1121 03:48:40.783490640 TCPStore.cpp:138] [c10d] recvValueWithTimeout failed on SocketImpl(fd=4, addr=[::ffff:127.0.0.1]:42132, remote=[::ffff:127.0.0.1]:29808): Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?
Exception raised from recvBytes at /torch/csrc/distributed/c10d/Utils.hpp:787 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x9d (0x7f9e87d79b8d in libc10.so)
<omitting python frames>
frame #34: _start + 0x21 (0x55935e13f081 in python)

E1121 03:48:40.634000 30735 torch/distributed/elastic/agent/server/api.py:1008] Error waiting on exit barrier. Elapsed: 0.01 seconds
E1121 03:48:40.634000 30735 torch/distributed/elastic/agent/server/api.py:1008] Traceback (most recent call last):
E1121 03:48:40.634000 30735 torch/distributed/elastic/agent/server/api.py:1008] torch.distributed.DistNetworkError: got 0 bytes.""".splitlines()  # noqa: E501

REPORT = """E1128 10:18:52.658000 84 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0 (pid: 100) of binary: /opt/env/bin/python
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "/opt/env/lib/python3.11/site-packages/torch/distributed/launch.py", line 207, in <module>
    main()
    ^^^^^^
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
/root/.local/state/ddpctl/runs/20261128T101840Z-f27e78/node1/python FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-28_10:18:52
  exitcode  : 1 (pid: 100)
============================================================""".splitlines()  # noqa: E501

SIGNALLED = [
    "W1128 56 torch/distributed/elastic/agent/server/api.py:753] Received 15 death signal, shutting down workers",
    *REPORT[1:6],
    "torch.distributed.elastic.multiprocessing.api.SignalException: Process 56 got signal: 15",
]


def shown(*lines: Line) -> list[str]:
    held = Held()
    return [line.text for line in lines if not held.takes(line)]


def launcher(text: str, host: str = "node0") -> Line:
    return Line(host, None, "stderr", 0.0, text)


def test_the_blocks_are_held_back() -> None:
    assert shown(*map(launcher, NOTICE + BARRIER + REPORT + NOTICE + SIGNALLED)) == []


def test_the_launcher_s_own_failure_is_shown() -> None:
    traceback = [*REPORT[1:5], "torch.distributed.DistNetworkError: port: 29500 is in use", "", "  more"]
    assert shown(*map(launcher, traceback)) == traceback


def test_hosts_may_be_interleaved() -> None:
    both = [launcher(text, host) for text in NOTICE for host in ("a", "b")]
    assert shown(*both) == []


def test_anything_else_of_the_launcher_is_shown_at_once() -> None:
    lines = [
        "run.py: error: ambiguous option",
        "",
        "E1121 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: 1) local_rank: 0 (pid: 80)",
        "E1121 torch/distributed/elastic/agent/server/api.py:900] Worker group failed",
        "[W1121 socket.cpp:697] [c10d] The client socket has failed to connect to [node0]:29500 (errno: 111).",
    ]
    assert shown(*map(launcher, lines)) == lines
    assert shown(*map(launcher, [*NOTICE, *lines])) == lines[:1] + lines[1:]


@pytest.mark.parametrize("rank", [None, 3])
@pytest.mark.parametrize("time", ["W1121", "W1128 11:06:26.245092216"])
def test_a_connection_without_a_host_name_is_no_news_from_any_process(rank: int | None, time: str) -> None:
    text = f"[{time} socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved. err=-3"
    assert shown(Line("node0", rank, "stderr", 0.0, text)) == []
    assert shown(Line("node0", rank, "stderr", 0.0, f"said: {text}")) == [f"said: {text}"]


def test_a_rank_may_print_the_very_same() -> None:
    line = Line("node0", 0, "stderr", 0.0, NOTICE[0])
    assert shown(line) == [NOTICE[0]]


def test_a_host_that_repeats_the_notice_for_ever_fills_no_memory() -> None:
    held = Held()
    assert held.takes(launcher(NOTICE[0]))
    for number in range(HELD_LINES + 5):
        assert held.takes(launcher(f"further instructions {number}"))
    assert [line.text for (line,) in held.groups()][-1] == f"further instructions {HELD_LINES + 4}"
    assert len(held.groups()) == HELD_LINES
    assert not held.takes(launcher("further instructions" + "x" * HELD_LETTERS))
