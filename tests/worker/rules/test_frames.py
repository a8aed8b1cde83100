"""Python stacks: the output of py-spy and faulthandler, and a rank's place in the user's code."""

from __future__ import annotations

import faulthandler
import json
import tempfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl_worker.rules import frames
from ddpctl_worker.rules.frames import from_faulthandler, from_py_spy
from ddpctl_worker.rules.limits import MOST_FRAMES
from tests.examples import few
from tests.worker.looks import AUTOGRAD, C10D, DATA, LOADER, MAIN, READ, RECORDS, STEP, TRAIN
from tests.worker.rules.test_flight import JUNK

FRAME = {"filename": TRAIN, "line": 88, "name": "step", "locals": None}
THREAD = {"pid": 7, "thread_name": "MainThread", "os_thread_id": 7, "owns_gil": True, "frames": [FRAME]}


def recv(**values: str) -> dict[str, Any]:
    """A frame of torch's recv with these local values, as py-spy writes them."""
    kept = [{"name": name, "addr": 1, "arg": True, "repr": text} for name, text in values.items()]
    return {"filename": C10D, "line": 2799, "name": "recv", "locals": kept}


def read(*threads: dict[str, Any]) -> list[frames.Thread]:
    found = from_py_spy(json.dumps(threads), 7)
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["asleep", "skipped", "loader", "receive_cycle", "subgroup"])
def test_what_py_spy_said_of_real_ranks(name: str) -> None:
    for rank in json.loads((RECORDS / f"{name}.json").read_text())["ranks"]:
        (thread,) = from_py_spy(json.dumps(rank["py_spy"]), rank["pid"]) or []
        assert (thread.main, thread.name) == (True, "MainThread")
        assert thread.frames[-1][0] == TRAIN
        assert frames.place(thread.frames).startswith("train.py:")


def test_the_ends_of_real_receives() -> None:
    ranks = json.loads((RECORDS / "receive_cycle.json").read_text())["ranks"]
    found = [(from_py_spy(json.dumps(rank["py_spy"]), rank["pid"]) or [])[0] for rank in ranks]
    assert [one.peers for one in found] == [{"src": 1}, {"src": 0}, {}]
    assert [frames.operation(one.frames) for one in found] == ["recv", "recv", "all_reduce"]


def test_a_thread() -> None:
    other = {**THREAD, "os_thread_id": 8, "thread_name": None, "owns_gil": False}
    first, second = read(THREAD, other)
    assert first == frames.Thread("MainThread", True, True, [STEP], {})
    assert (second.main, second.name, second.gil) == (False, "", False)


@pytest.mark.parametrize(
    ("values", "peers"),
    [
        ({"src": "3"}, {"src": 3}),
        ({"src": "None", "group": "None", "group_src": "2"}, {"src": 2}),
        ({"src": "None", "group": "<ProcessGroup at 0x7>", "group_src": "2"}, {}),  # a rank of the group
        ({"src": "None", "group_src": "2"}, {}),
        ({"dst": "0", "group": "<ProcessGroup at 0x7>", "group_dst": "5"}, {"dst": 0}),
        ({"group_dst": "5", "group": "None", "dst": "0"}, {"dst": 0}),
        ({"src": "\u00b2"}, {}),
        ({"src": "-1"}, {}),
        ({"src": "9" * 5000}, {}),
        ({"src": "1\n"}, {}),
        ({"tensor": "<Tensor at 0x7>"}, {}),
    ],
)
def test_the_other_end_is_a_rank_or_not_known(values: dict[str, str], peers: dict[str, int]) -> None:
    (found,) = read({**THREAD, "frames": [recv(**values), FRAME]})
    assert found.peers == peers


def test_no_value_of_the_users_own_is_read() -> None:
    own = {**FRAME, "name": "recv", "locals": [{"name": "src", "repr": "1"}]}
    assert read({**THREAD, "frames": [own]})[0].peers == {}


def test_lines_and_names_have_bounds() -> None:
    frame = {"filename": "x" * 400, "line": 10**30, "name": "y" * 400}
    (found,) = read({**THREAD, "frames": [frame] * 100})
    assert len(found.frames) == MOST_FRAMES
    file, line, name = found.frames[0]
    assert (len(file), line <= 1 << 31, len(name)) == (300, True, 80)


@given(st.lists(st.dictionaries(st.sampled_from(sorted(THREAD)), JUNK), max_size=3) | JUNK)
@few
def test_junk_of_py_spy(made: Any) -> None:
    from_py_spy(json.dumps(made), 7)
    from_py_spy(
        json.dumps([{**THREAD, **one} for one in made if isinstance(one, dict)] if isinstance(made, list) else 0), 7
    )


@pytest.mark.slow
@given(st.lists(st.fixed_dictionaries({"name": JUNK, "filename": JUNK, "line": JUNK}, optional={"locals": JUNK})))
def test_junk_frames_of_py_spy(made: Any) -> None:
    from_py_spy(json.dumps([{**THREAD, "frames": made}]), 7)


@pytest.mark.parametrize("text", ["", "x", "[]", "{}", "7", "null", "[" * 100_000, '[{"frames": [{"line": 1e999}]}]'])
def test_what_is_no_stack(text: str) -> None:
    assert from_py_spy(text, 7) is None


def test_what_faulthandler_writes() -> None:
    with tempfile.TemporaryFile() as file:
        for _ in range(2):
            faulthandler.dump_traceback(file, all_threads=False)
        file.seek(0)
        found = from_faulthandler(file.read().decode())
    assert found is not None
    assert found[0][0] == __file__
    assert found[0][2] == "test_what_faulthandler_writes"
    assert sum(frame[2] == "test_what_faulthandler_writes" for frame in found) == 1


def test_the_stack_of_c_code_that_python_3_14_adds() -> None:
    text = (
        f'Current thread 0x00007f (most recent call first):\n  File "{TRAIN}", line 88 in step\n\n'
        'Current thread\'s C stack trace (most recent call first):\n  Binary file "/usr/bin/python", at x+0x1 [0x2]\n'
    )
    assert from_faulthandler(text) == [STEP]


@given(
    st.text(max_size=200)
    | st.lists(st.sampled_from(['  File "', "a", '", line ', "9" * 5000, " in ", "\n"])).map("".join)
)
def test_junk_of_faulthandler(text: str) -> None:
    found = from_faulthandler(text)
    assert found is None or all(line < 1 << 31 for _, line, _ in found)


def test_no_stack_of_faulthandler() -> None:
    assert from_faulthandler("") is None
    assert from_faulthandler('  File "x", line 99999999999999999999 in f') is None


@pytest.mark.parametrize(
    ("stack", "place", "reason"),
    [
        ([STEP, MAIN], "train.py:88 in step", ""),
        ([MAIN], "train.py:120", ""),
        ([[C10D, 5, "all_reduce"], STEP], "train.py:88 in step", "in all_reduce"),
        (
            [["/venv/lib/python3.8/site-packages/torch/distributed/c10d_logger.py", 5, "wrapper"], STEP],
            "train.py:88 in step",
            "",
        ),
        ([[LOADER, 5, "_next_data"], READ], "data.py:41 in blocked_read", "waiting for its data loader"),
        ([[AUTOGRAD, 5, "_engine_run_backward"], STEP], "train.py:88 in step", "in the backward pass"),
        (
            [["/usr/lib/python3.11/threading.py", 5, "acquire"], STEP],
            "train.py:88 in step",
            "waiting for a lock or another thread",
        ),
        (
            [["/usr/lib/python3.11/subprocess.py", 5, "wait"], STEP],
            "train.py:88 in step",
            "waiting for a program that it started",
        ),
        ([["<frozen runpy>", 5, "_run_code"]], "<frozen runpy>:5 in _run_code", ""),
        ([], "", ""),
        (None, "", ""),
    ],
)
def test_a_place_and_what_keeps_the_rank_there(stack: Any, place: str, reason: str) -> None:
    assert frames.place(stack) == place
    assert frames.reason(stack) == reason


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("all_reduce", "all_reduce"),
        ("_AllReduce.forward", None),
        ("batch_isend_irecv", "batch_isend_irecv"),
        ("_all_gather_base", None),
        ("wrapper", None),
    ],
)
def test_an_operation_by_the_name_of_its_function(name: str, found: str | None) -> None:
    assert frames.operation([[C10D, 5, name], STEP]) == found


SITE = "/venv/lib/python3.11/site-packages"
MODEL = "/venv/lib/python3.11/site-packages/torch/nn/modules/module.py"
RUNPY = [["<frozen runpy>", 88, "_run_code"], ["<frozen runpy>", 198, "_run_module_as_main"]]
OLD_RUNPY = [["/usr/lib/python3.8/runpy.py", 87, "_run_code"], ["/usr/lib/python3.8/runpy.py", 194, "_run_module"]]


def by_py_spy(stack: list[Any]) -> list[Any]:
    made = [{"filename": file, "line": line, "name": name} for file, line, name in stack]
    return read({**THREAD, "frames": made})[0].frames


def by_faulthandler(stack: list[Any]) -> list[Any]:
    lines = "".join(f'  File "{file}", line {line} in {name}\n' for file, line, name in stack)
    found = from_faulthandler(f"Current thread 0x7 (most recent call first):\n{lines}")
    assert found is not None
    return found


@pytest.mark.parametrize("reader", [by_py_spy, by_faulthandler])
@pytest.mark.parametrize("runpy", [RUNPY, OLD_RUNPY])
def test_the_package_whose_module_was_started_is_own_code_where_it_is_installed(reader: Any, runpy: Any) -> None:
    inner = [[C10D, 5, "all_reduce"], [f"{SITE}/pkg/nets/loss.py", 7, "reduce"], [MODEL, 9, "_call_impl"]]
    main = [f"{SITE}/pkg/train.py", 30, "<module>"]
    found = reader([*inner, [f"{SITE}/pkgs/other.py", 2, "run"], main, *runpy])
    assert frames.is_own_code(found) == [["pkg/nets/loss.py", 7, "reduce"], ["pkg/train.py", 30, "<module>"]]
    assert (frames.place(found), frames.operation(found)) == ("loss.py:7 in reduce", "all_reduce")
    assert frames.busy_in_own_code(reader([main, *runpy]))
    deep = reader([*inner, *[[MODEL, 9, "_call_impl"]] * 80, main, *runpy])
    assert (len(deep), frames.place(deep)) == (MOST_FRAMES, "loss.py:7 in reduce")


@pytest.mark.parametrize(
    "stack",
    [
        [[f"{SITE}/pkg/loss.py", 7, "reduce"], MAIN],  # a script of the user's has called it
        [[f"{SITE}/pkg/loss.py", 7, "reduce"], MAIN, *RUNPY],
        [[f"{SITE}/pkg/loss.py", 7, "reduce"], [f"{SITE}/train.py", 30, "<module>"], *RUNPY],
        [["/usr/lib/python3.11/threading.py", 7, "run"]],
        RUNPY,
    ],
)
def test_all_other_packages_are_libraries(stack: list[Any]) -> None:
    found = by_py_spy(stack)
    assert [frame for frame in found if frame[0].startswith("pkg")] == []
    assert len(found) == len(stack)


def test_own_code() -> None:
    assert frames.is_own_code([[C10D, 5, "recv"], STEP, [LOADER, 5, "x"], MAIN]) == [STEP, MAIN]
    assert frames.is_own_code([[C10D, 5, "recv"]]) == [[C10D, 5, "recv"]]
    assert not frames.busy_in_own_code([[C10D, 5, "recv"], STEP])
    assert frames.busy_in_own_code([[DATA, 5, "loop"]])
    assert not frames.busy_in_own_code([])
