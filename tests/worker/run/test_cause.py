"""The cause of a failed run, from the output of its processes. The texts were written by torch 2.13 and 1.13."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.machine.cgroup import Limit
from ddpctl_worker.run.aborts import find_last_words
from ddpctl_worker.run.cause import Evidence, Failure, candidates
from ddpctl_worker.run.last_output import read_last_output
from ddpctl_worker.run.limits import HUNG_EXIT_S, OOM_BEFORE_DEATH_S, SUSPECT_TRACEBACK_S

SHM = "ERROR: Unexpected bus error encountered in worker. It may be caused by insufficient shared memory (shm)."
ASSERTION = "../Indexing.cu:1289: indexSelectLargeIndex: block: [3,0,0] Assertion `srcIndex < srcSelectDimSize` failed."
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


def found_in(
    status: int | None = 256, launcher: str = "", ranks: dict[int, str] | None = None, **more: Any
) -> list[Failure]:
    tails: dict[tuple[int | None, str], str] = {(None, "e"): launcher, (None, "o"): ""}
    tails.update({(local, "e"): text for local, text in (ranks or {}).items()})
    tails.update({(local, "o"): text for local, text in more.pop("stdout", {}).items()})
    seen: dict[str, Any] = {"error_file": None, "now": 1000.0, **more}
    return candidates(Evidence(status, tails, {0: 4, 1: 5}, **seen))


def explained(*args: Any, **more: Any) -> Failure:
    return found_in(*args, **more)[0]


TIMED_OUT = (
    "[rank4]: Process group watchdog thread terminated with exception: Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=80, OpType=ALLREDUCE, NumelIn=1) ran for 600060 milliseconds before timing out.\n"
)
ABORTED, ENDED = (int(signal.SIGABRT), 998.0), (int(signal.SIGTERM), 999.0)


@pytest.mark.parametrize(
    ("outputs", "other_end", "in_time"),
    [
        ({0: TIMED_OUT, 1: ""}, ENDED, (5,)),
        ({0: TIMED_OUT, 1: ""}, None, (5,)),
        ({0: TIMED_OUT, 1: TIMED_OUT}, ABORTED, ()),
        ({0: TIMED_OUT, 1: TIMED_OUT}, None, ()),  # it waits for torch's dump
        ({0: TIMED_OUT}, ENDED, None),
        ({0: TIMED_OUT, 1: ""}, ABORTED, None),
    ],
    ids=[
        "ended by its launcher",
        "lives",
        "timed out",
        "timed out and lives",
        "without a pipe",
        "aborted without words",
    ],
)
def test_ranks_without_a_time_out(
    outputs: dict[int, str], other_end: tuple[int, float] | None, in_time: tuple[int, ...] | None
) -> None:
    deaths = {0: ABORTED, **({1: other_end} if other_end else {})}
    found = next(failure for failure in found_in(None, ranks=outputs, deaths=deaths) if failure.rank == 4)
    assert found.message.endswith("in ALLREDUCE #80 (a peer failed or hung first)")
    assert found.in_time == in_time


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


NAMES_A_RANK = """Traceback (most recent call last):
  File "/tmp/w1/s.py", line 9, in <module>
    dcp.load(state, checkpoint_id=folder)
torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([5])
Traceback (most recent call last): (RANK 5)
  File "/torch/distributed/checkpoint/state_dict_loader.py", line 10, in local_step
    raise AssertionError("metadata is None")
AssertionError: metadata is None

"""


def test_an_exception_that_names_its_rank_is_that_ranks() -> None:
    """torch.distributed.checkpoint raises it on all ranks."""
    died = {0: (256, 900.0), 1: (256, 901.0)}
    found, victim = found_in(ranks={0: NAMES_A_RANK, 1: NAMES_A_RANK}, deaths=died)
    assert (found.rank, found.victim, found.message) == (
        5,
        False,
        "rank 5 exited with code 1: AssertionError: metadata is None",
    )
    assert (victim.rank, victim.victim) == (4, True)
    assert explained(ranks={0: NAMES_A_RANK.replace("[5]", "[4, 5]")}, deaths={0: (256, 900.0)}).victim is False


def test_killed_by_a_signal() -> None:
    found = explained(launcher=REPORT.format(code=-11), ranks={1: "", 0: ""})
    assert (found.rank, found.exit_code, found.signal, found.reason) == (5, None, "SIGSEGV", "signaled")
    assert found.message == "rank 5 was killed by SIGSEGV"


def test_killed_for_memory_only_where_the_kernel_did_so_just_before() -> None:
    launcher, died = REPORT.format(code=-9), {1: (signal.SIGKILL, 900.0)}
    for oom in ((899.0, 900.5), (900 - OOM_BEFORE_DEATH_S - 1, 900 - OOM_BEFORE_DEATH_S)):
        assert explained(launcher=launcher, ranks={1: ""}, deaths=died, oom=[oom]).reason == "oom"
        limited = explained(launcher=launcher, ranks={1: ""}, deaths=died, oom=[oom], oom_limit=Limit(900 << 20, ""))
        assert limited.reason == "oom"
        assert limited.message.endswith(
            "the memory limit of its control group (900 MB) was reached, and the kernel killed it"
        )
    for others in ([], [(100.0, 101.0), (880.0, 881.0)], [(901.0, 902.0)]):
        plain = explained(launcher=launcher, ranks={1: ""}, deaths=died, oom=others)
        assert (plain.reason, plain.signal) == ("signaled", "SIGKILL")
        assert plain.message == "rank 5 was killed by SIGKILL, not by ddpctl (the OOM killer? see dmesg)"
    assert explained(launcher=launcher, ranks={1: ""}, oom=[(998.0, 999.0)]).reason == "oom"  # its death was not seen


@pytest.mark.parametrize(
    "said",
    [
        'Traceback (most recent call last):\n  File "s.py", line 1, in <module>\nRuntimeError: can\'t start new thread',
        "libgomp: Thread creation failed: Resource temporarily unavailable",
        "OpenBLAS blas_thread_init: pthread_create failed for thread 3 of 4: Resource temporarily unavailable\nended",
    ],
)
def test_the_limit_of_processes_is_named_where_the_rank_was_refused_one(said: str) -> None:
    unit, container = Limit(150, "/user.slice/user-7.slice"), Limit(150, "")
    assert explained(ranks={1: said}, deaths={1: (256, 900.0)}, task_limit=unit).message.endswith(
        " (control group user-7.slice allows 150 processes and threads, TasksMax)"
    )
    assert explained(ranks={1: said}, deaths={1: (256, 900.0)}, task_limit=container).message.endswith(
        " (its control group allows 150 processes and threads)"
    )
    assert "allows" not in explained(ranks={1: said}, deaths={1: (256, 900.0)}).message
    assert "allows" not in explained(ranks={1: BOOM}, deaths={1: (256, 900.0)}, task_limit=unit).message


@pytest.mark.parametrize(
    "noise",
    [
        "[W1121 19:30:48.123456789 socket.cpp:207] [c10d] The hostname of the client socket cannot be retrieved",
        "[rank5]:[W1121 19:30:48.1 ProcessGroupNCCL.cpp:1538] Warning: WARNING: destroy_process_group() was not called",
        "[W socket.cpp:601] [c10d] The client socket has failed to connect to [node0]:29500 (errno: 111)",
        "[I1121 19:30:48.1 ProcessGroup.cpp:1] Rank 5 uses backend gloo",
        "W1121 19:30:48.123000 28627 torch/distributed/run.py:852] Setting OMP_NUM_THREADS environment variable",
        "/env/lib/python3.11/site-packages/torch/nn.py:7: UserWarning: sync_bn is slow\n  warnings.warn(",
        "WARNING:torch.distributed.run:careful",
        "node1:77:99 [0] NCCL INFO comm 0x1 rank 5 destroyed",
    ],
)
def test_a_log_line_is_no_reason(noise: str) -> None:
    died = {1: (signal.SIGKILL, 900.0)}
    found = explained(None, ranks={1: f"{noise}\n"}, deaths=died)
    assert found.message == "rank 5 was killed by SIGKILL, not by ddpctl (the OOM killer? see dmesg)"
    found = explained(None, ranks={1: f"step 7\n{noise}\n"}, deaths=died)
    assert found.message.endswith("see dmesg); last line: step 7")
    found = explained(None, ranks={1: f"{noise}\nno such dataset\n{noise}"}, deaths={1: (256, 900.0)})
    assert found.message == "rank 5 exited with code 1; last line: no such dataset"


def test_the_last_line_is_called_that() -> None:
    found = explained(None, ranks={1: ""}, stdout={1: "rank 1 of 4 master 127.0.0.1\n"}, deaths={1: (9, 900.0)})
    assert found.message.endswith("; last line: rank 1 of 4 master 127.0.0.1")


@pytest.mark.parametrize(
    "text",
    ["OSError: [Errno 28] No space left on device", "RuntimeError: write failed: Disk quota exceeded: '/x'"],
)
def test_a_full_disk(text: str) -> None:
    found = explained(
        launcher=REPORT.format(code=1), ranks={1: f"Traceback (most recent call last):\n  File\n{text}\n"}
    )
    assert found.reason == "disk_full"


SEMLOCK = """  File "/usr/lib/python3.11/multiprocessing/synchronize.py", line 57, in __init__
    sl = self._semlock = _multiprocessing.SemLock(
OSError: [Errno 28] No space left on device
"""
WATCH = """  File "/env/lib/python3.11/site-packages/watchdog/observers/inotify_c.py", line 428, in _raise_error
    raise OSError(errno.ENOSPC, "inotify watch limit reached")
OSError: [Errno 28] inotify watch limit reached
"""
INSTANCES = """  File "/env/lib/python3.11/site-packages/watchdog/observers/inotify_c.py", line 430, in _raise_error
OSError: [Errno 24] inotify instance limit reached
"""
LIMITS = {"watches": "8192", "instances": "128", "memory": "64 MB", "semaphores": "32000 1024000000 500 32000"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            SEMLOCK,
            "not the disk: /dev/shm, which holds shared memory and semaphores, has no room left; its size is 64 MB",
        ),
        ("RuntimeError: unable to write to file </torch_77_0>: No space left on device (28)", "its size is 64 MB"),
        (WATCH, "not the disk: this account has no inotify watch left, fs.inotify.max_user_watches = 8192"),
        ("RuntimeError: OS file watch limit reached. about []", "fs.inotify.max_user_watches = 8192"),
        (INSTANCES, "this account has no inotify instance left, fs.inotify.max_user_instances = 128"),
        ("OSError: semget: No space left on device", "kernel.sem = 32000 1024000000 500 32000"),
    ],
)
def test_another_resource_without_room_is_no_full_disk(text: str, said: str) -> None:
    output = f"Traceback (most recent call last):\n  File\n{text}"
    for rest in ("", "\nDuring handling of the above exception, another exception occurred:\n\n" + raised("X: y")):
        found = explained(launcher=REPORT.format(code=1), ranks={1: output + rest}, limits=LIMITS)
        assert found.reason == "exited"
        assert found.message.endswith(f"{said})")


def test_a_full_disk_beside_another_resource_is_a_full_disk() -> None:
    link = "\nDuring handling of the above exception, another exception occurred:\n\n"
    disk = raised("OSError: [Errno 28] No space left on device: '/data/log'")
    text = f"Traceback (most recent call last):\n{SEMLOCK}{link}{disk}"
    assert explained(launcher=REPORT.format(code=1), ranks={1: text}).reason == "disk_full"


def test_a_full_disk_below_a_call_that_names_shared_memory_is_a_full_disk() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "train.py", line 30, in <module>\n'
        '    save(model, cache="/dev/shm/cache")\n'
        '  File "train.py", line 9, in save\n'
        "    file.write(data)\n"
        "    ~~~~~~~~~~^^^^^^\n"
        "OSError: [Errno 28] No space left on device\n"
    )
    found = explained(launcher=REPORT.format(code=1), ranks={1: text}, limits=LIMITS)
    assert (found.reason, "not the disk" in found.message) == ("disk_full", False)


def test_source_code_about_a_full_disk_is_no_full_disk() -> None:
    text = (
        "Traceback (most recent call last):\n"
        '  File "train.py", line 9, in save\n'
        '    raise SaveError("No space left on device?") from None\n'
        "SaveError: the server refused the file\n"
    )
    assert explained(launcher=REPORT.format(code=1), ranks={1: text}).reason == "exited"


@pytest.mark.parametrize(
    ("above", "error", "said"),
    [
        (SHM, "RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.", True),
        (SHM, "ValueError: no such sample", False),
        (ASSERTION, "RuntimeError: CUDA error: device-side assert triggered", True),
        (ASSERTION, "ValueError: no such sample", False),
    ],
)
def test_a_line_above_the_exception_counts_only_for_an_exception_that_it_explains(
    above: str, error: str, said: bool
) -> None:
    text = f"{above}\nTraceback (most recent call last):\n  File\n{error}\n"
    found = explained(launcher=REPORT.format(code=1), ranks={1: text})
    assert ("insufficient shared memory" in found.message or "Assertion" in found.message) is said


def test_the_thread_that_crashed_is_named_and_no_other() -> None:
    text = (
        "Fatal Python error: Segmentation fault\n\n"
        "Thread 0x01 (most recent call first):\n"
        '  File "/job/loader.py", line 3 in wait\n\n'
        "Current thread 0x02 (most recent call first):\n"
        '  File "/job/train.py", line 11 in step\n\n'
        "Thread 0x03 (most recent call first):\n"
        '  File "/job/log.py", line 5 in write\n'
    )
    words = find_last_words("SIGSEGV", text)
    assert words == "Segmentation fault in step, at train.py:11"


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


NCCL = """NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2005, {kind}, NCCL version 2.20.5
{name}: System call (e.g. socket, malloc) or external library call failed or device error.
Last error:
{last}
"""
SYSTEM = NCCL.format(kind="unhandled system error", name="ncclSystemError", last="{last}")
RESET = SYSTEM.format(last="socketProgress: Call to recv from 10.0.0.1<5000> failed : Connection reset by peer")
LOG = "[rank5]:[E1121 19:30:48.1 ProcessGroupNCCL.cpp:616] [Rank 5] "
WATCHDOG = f"""{LOG}Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE) ran for 600 s.
{LOG}Some NCCL operations have failed or timed out. To avoid data inconsistency, we are taking the process down.
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0(default_pg) Rank 5] Process group watchdog thread terminated with exception: [Rank 5] ...
Exception raised from checkTimeout at ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:618:
""" + "".join(f"frame #{number}: <unknown function> + 0x1 (0x2 in libtorch_cuda.so)\n" for number in range(90))


def raised(error: str, mark: str = "") -> str:
    lines = [
        "Traceback (most recent call last):",
        '  File "train.py", line 3, in <module>',
        *error.rstrip().split("\n"),
    ]
    return "".join(f"{mark}{line}\n" for line in lines)


@pytest.mark.parametrize("mark", ["", "[rank5]: "])
@pytest.mark.parametrize(
    "error",
    [
        f"torch.distributed.DistBackendError: {RESET}",
        "torch.distributed.DistBackendError: "
        + NCCL.format(
            kind="remote process exited or there was a network error",
            name="ncclRemoteError",
            last="Net : Connection closed by remote peer node1<50260>",
        ),
        "RuntimeError: all_reduce failed\nConnection reset by peer",
        "RuntimeError: Application timeout caused pair closure",
        "RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:547] Read error [10.9.0.11]:39583: Connection timed out",
        "RuntimeError: [/pytorch/gloo/transport/tcp/pair.cc:446] Write error [10.9.0.11]:39583: No route to host",
        "torch.distributed.DistBackendError: NCCL communicator was aborted on rank 5.",
        "RuntimeError: Rank 1 failed to pass monitoredBarrier in 1800000 ms",
    ],
)
def test_the_whole_exception_tells_a_victim(error: str, mark: str) -> None:
    found = explained(
        None, ranks={1: raised(error, mark) + "[W1121 19:30:48.1 x.cpp:1] bye\n"}, deaths={1: (256, 900.0)}
    )
    assert found.victim
    assert found.message.endswith("(a peer failed or hung first)")
    assert found.traceback is not None
    assert found.traceback.endswith(error.rstrip().split("\n")[-1])


@pytest.mark.parametrize(
    "text",
    [
        raised("ValueError: boom") + "[E1121 19:30:48.1 x.cpp:1] recv failed: Connection closed by peer\n",
        raised("ValueError: boom") + "\nhook: Connection closed by peer\n",
        raised("ValueError: boom", "[rank5]: ") + "hook: Connection closed by peer\n",
        raised("RuntimeError: " + SYSTEM.format(last="Error: segment /dev/shm/nccl-x: No space left on device (28)")),
        "\n".join(["Connection closed by peer, trying again", *["step"] * 100]),
        "[W1121 19:30:48.1 socket.cpp:1] The client socket has timed out, trying again\n",
    ],
)
def test_a_fault_of_its_own_stays_one(text: str) -> None:
    assert not explained(None, ranks={1: text}, deaths={1: (256, 900.0)}).victim


def test_an_abort_by_the_watchdog_is_a_victims() -> None:
    died = {1: (signal.SIGABRT, 900.0)}
    found = explained(None, ranks={1: WATCHDOG}, deaths=died)
    assert (found.victim, found.signal, found.when) == (True, "SIGABRT", 900.0)
    caught = raised("KeyError: 'logged, and caught'") + "step 8\n"
    found = explained(None, ranks={1: caught + WATCHDOG}, deaths=died, tracebacks={1: 100.0}, said={(1, "e"): 900.0})
    assert (found.victim, found.traceback, found.when) == (True, None, 900.0)
    fault = WATCHDOG.replace("Watchdog caught collective operation timeout", "CUDA error: device-side assert triggered")
    assert not explained(None, ranks={1: fault}, deaths=died).victim


@pytest.mark.parametrize("mark", ["", "[rank5]: "])
def test_an_exception_before_the_watchdogs_abort_is_the_cause(mark: str) -> None:
    """The rank hung in its exit until the watchdog ended it."""
    text = raised("ValueError: boom", mark) + WATCHDOG
    found = explained(None, ranks={1: text}, deaths={1: (signal.SIGABRT, 900.0)}, tracebacks={1: 300.0})
    assert (found.victim, found.when) == (False, 300.0)
    assert found.message == "rank 5 was killed by SIGABRT after ValueError: boom"


VICTIM = raised("RuntimeError: Connection closed by peer [10.9.0.11]:39583")


@pytest.mark.parametrize(
    "line",
    [
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 0 (pid: 7) of binary: x",
        "E1121 03:46:19.4 28627 torch/distributed/elastic/api.py:984] failed (exitcode: -9) local_rank: 0 (pid: 7) of",
    ],
)
def test_a_rank_that_its_launcher_collected_first_is_the_cause(line: str) -> None:
    """torch 1.13 then ends the other ranks, and reports minutes later. By then the first rank's wait status is gone."""
    deaths: dict[int, Any] = {0: (None, 990.0), 1: (signal.SIGTERM, 991.0)}
    first, second = found_in(None, line + "\n", deaths=deaths)
    assert (first.rank, first.signal, first.victim, first.when) == (4, "SIGKILL", False, 990.0)
    assert (second.rank, second.victim) == (5, True)
    known = {0: (256, 990.0), 1: (signal.SIGTERM, 991.0)}
    assert found_in(None, line + "\n", deaths=known)[0].exit_code == 1  # what the kernel said counts


ENDS = (
    "W1121 03:46:19.4 28627 torch/distributed/elastic/multiprocessing/api.py:1029] Sending process {} closing signal "
)


def test_a_rank_that_its_launcher_collected_first_failed_if_the_launcher_ends_the_others() -> None:
    """torch logs the exit code only after it has given the other ranks 30 s."""
    ends = ENDS.format(8) + "SIGTERM\n"
    deaths: dict[int, Any] = {0: (None, 990.0)}
    (found,) = found_in(None, ends, deaths=deaths, ranks={0: "no space for the cache\n"}, pids={0: 7, 1: 8})
    assert (found.rank, found.exit_code, found.signal, found.victim, found.when) == (4, None, None, False, 990.0)
    assert found.message == "rank 4 failed (only its launcher knows the exit code); last line: no space for the cache"
    told = "W1121 03:46:19.4 28627 api.py:753] Received 15 death signal, shutting down workers\n"
    assert found_in(None, told + ends, deaths=deaths, pids={0: 7, 1: 8}) == []
    assert found_in(None, "", deaths=deaths, pids={0: 7, 1: 8}) == []


@pytest.mark.parametrize(
    "deaths",
    [
        {0: (None, 100.0), 1: (None, 990.0)},  # rank 0 had ended long before, the launcher ends a third rank
        {1: (None, 990.0), 2: (None, 991.0)},  # the third rank has ended by the launcher's signal
    ],
)
def test_of_several_such_ranks_the_last_that_the_launcher_did_not_end(
    deaths: dict[int, Any],
) -> None:
    found = found_in(None, ENDS.format(9) + "SIGTERM\n", deaths=deaths, pids={0: 7, 1: 8, 2: 9})
    assert [one.rank for one in found if not one.victim][:1] == [5]


def test_no_launcher_has_ended_a_script_that_is_started_by_itself() -> None:
    found = found_in(15, deaths={0: (signal.SIGTERM, 999.0)}, plain=True)[0]
    assert (found.message, found.victim, found.signal) == ("rank 4 was killed by SIGTERM", False, "SIGTERM")
    assert found_in(15, deaths={0: (signal.SIGTERM, 999.0)})[0].victim


@pytest.mark.parametrize("mark", ["", "[rank4]: "])
def test_a_rank_that_raised_and_hangs_in_its_exit_comes_before_its_victims(mark: str) -> None:
    ranks = {0: raised("ValueError: boom", mark) + "[W1121 19:30:48.1 x.cpp:1] bye\n", 1: VICTIM}
    seen: dict[str, Any] = {"ranks": ranks, "deaths": {1: (256, 999.0)}, "tracebacks": {0: 990.0, 1: 999.0}}
    hung, victim = found_in(None, **seen, said={(0, "o"): 990.5})
    assert (hung.rank, hung.victim, hung.when, hung.suspect) == (4, False, 990.0, not mark)
    assert hung.message == "rank 4 has not ended, 10 s after ValueError: boom"
    assert (victim.rank, victim.victim) == (5, True)
    assert found_in(None, ranks={0: ranks[0]}, tracebacks={0: 990.0})[0].rank == 4  # asked by another node
    ended = {0: (signal.SIGTERM, 999.5), 1: (256, 999.0)}  # its launcher has ended it after the victim's death
    assert explained(256, **{**seen, "deaths": ended}).message == "rank 4 was killed by SIGTERM after ValueError: boom"


@pytest.mark.parametrize(
    "more",
    [
        {"said": {(0, "o"): 995.0}},
        {"tracebacks": {0: 1000 - SUSPECT_TRACEBACK_S - 1}},
        {"tracebacks": {0: 1000 - HUNG_EXIT_S + 1}},
        {"ranks": {0: raised("ValueError: boom") + "went on\n"}, "said": {(0, "e"): 995.0}},
        {"ranks": {0: VICTIM}},
        {"deaths": {0: (0, 995.0)}},
    ],
    ids=["talks", "long ago", "just now", "went on", "a victim", "succeeded"],
)
def test_a_living_rank_with_a_traceback_that_it_survived_is_not_suspected(more: dict[str, Any]) -> None:
    seen: dict[str, Any] = {
        "ranks": {0: raised("ValueError: boom")},
        "tracebacks": {0: 990.0},
        "said": {(0, "o"): 990.5, (0, "e"): 990.0},
    }
    assert found_in(None, **seen)
    assert [one for one in found_in(None, **{**seen, **more}) if not one.early] == []


def test_a_traceback_that_a_rank_survived_does_not_make_its_death_an_early_one() -> None:
    died = {0: (signal.SIGKILL, 950.0), 1: (256, 940.0)}
    logged = raised("OSError: a file was not there") + "went on without\n"
    found = explained(
        None, ranks={0: logged, 1: BOOM}, deaths=died, tracebacks={0: 100.0, 1: 940.0}, said={(0, "e"): 200.0}
    )
    assert (found.rank, found.when) == (5, 940.0)


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


NOTICE = """\
/opt/torch/distributed/launch.py:207: FutureWarning: The module torch.distributed.launch is deprecated
and will be removed in future. Use torchrun.
Note that --use-env is set by default in torchrun.
If your script expects `--local-rank` argument to be set, please
change it to read from `os.environ['LOCAL_RANK']` instead. See 
https://pytorch.org/docs/stable/distributed.html#launch-utility for 
further instructions

  main()
"""  # noqa: W291  as torch prints it


@pytest.mark.parametrize(("more", "told"), [("", ""), ("no space for the log\n", ": no space for the log")])
def test_what_the_launcher_says_of_itself_is_not_its_last_word(more: str, told: str) -> None:
    found = explained(status=signal.SIGKILL, launcher=NOTICE + more)
    assert found.message == f"the launcher was killed by SIGKILL, not by ddpctl (the OOM killer? see dmesg){told}"


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
    found = read_last_output(text).traceback
    assert found is not None
    assert found.startswith("Traceback (most recent call last):\n  File a\nKeyError: 'x'")
    assert found.endswith("pkg.errors.Broken: it is")


def test_torchs_rank_prefix_is_taken_off() -> None:
    text = "[rank5]: Traceback (most recent call last):\n[rank5]:   File a\n[rank5]: ValueError: boom\n"
    assert read_last_output(text).traceback == "Traceback (most recent call last):\n  File a\nValueError: boom"


@pytest.mark.slow
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


def test_a_rank_that_ended_before_its_victims_failed_is_suspected() -> None:
    deaths = {0: (0, 980.0), 1: (256, 990.0)}
    early, victim = found_in(None, ranks={0: "", 1: VICTIM}, deaths=deaths)
    assert (early.rank, early.exit_code, early.early, early.victim, early.when) == (4, 0, True, False, 980.0)
    assert (victim.rank, victim.victim) == (5, True)
    asked = found_in(None, deaths={1: (0, 985.0), 0: (0, 980.0)})  # by another node: nothing has failed here
    assert [one.rank for one in asked] == [4]


def test_a_rank_that_its_launcher_collected_first_and_does_not_report_had_ended_with_exit_code_0() -> None:
    block, _, root = REPORT.partition("Failures:")[2].partition("Root Cause")
    only = REPORT.replace(block, "\n  <NO_OTHER_FAILURES>\n").format(code=1)
    assert "rank      : 4" not in only
    assert root
    deaths = {0: (None, 980.0), 1: (256, 990.0)}
    early, victim = found_in(None, launcher=only, ranks={1: VICTIM}, deaths=deaths)
    assert (early.rank, early.exit_code, early.early) == (4, 0, True)
    assert (victim.rank, victim.victim) == (5, True)
    reported = found_in(None, launcher=REPORT.format(code=1), ranks={1: VICTIM}, deaths=deaths)
    assert not any(one.early for one in reported)


@pytest.mark.parametrize(
    "more",
    [
        {"ranks": {1: BOOM}},
        {"deaths": {0: (0, 991.0), 1: (256, 990.0)}},
        {"deaths": {0: (None, 980.0), 1: (256, 990.0)}},
        {"deaths": {0: (256, 980.0), 1: (256, 990.0)}, "ranks": {0: VICTIM, 1: VICTIM}},
    ],
    ids=["a culprit", "ended by its launcher", "not known how", "failed"],
)
def test_a_rank_that_did_not_end_early_is_not_suspected(more: dict[str, Any]) -> None:
    seen: dict[str, Any] = {"ranks": {1: VICTIM}, "deaths": {0: (0, 980.0), 1: (256, 990.0)}, "tracebacks": {1: 990.0}}
    assert any(one.early for one in found_in(None, **seen))
    assert not any(one.early for one in found_in(None, **{**seen, **more}))
