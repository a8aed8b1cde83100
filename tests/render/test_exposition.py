"""The page of ``ddpctl metrics``: the values of hosts and runs, in the grammar of Prometheus."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.render.clean import clean
from ddpctl.render.exposition import HELP, render_exposition
from ddpctl.spec.outcome import AgreedRun, Attempt, CheckpointLag
from ddpctl.spec.slots import HostSlots
from ddpctl.spec.top import HostView, Overview, RankPulse
from tests.render.test_top import CLAIM, gpu, pulse, run, seen

NOW = datetime(2026, 11, 28, 12, 0, tzinfo=timezone.utc)
STARTED = (NOW - timedelta(seconds=90)).isoformat()
_SERIES = re.compile(r'([a-z_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\\\|\\"|\\n)*",?)*)\} (\S+)')
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
_UNESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}

Page = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parse(text: str) -> Page:
    """Read a page by its grammar: HELP, TYPE and the series of each metric together, no series twice."""
    found: Page = {}
    families: list[str] = []
    for line in text.split("\n")[:-1]:
        if line.startswith("# HELP "):
            families.append(line.split(" ", 3)[2])
        elif line.startswith("# "):
            assert line == f"# TYPE {families[-1]} gauge"
        else:
            series = _SERIES.fullmatch(line)
            assert series is not None, line
            assert series[1] == families[-1]
            labels = {
                name: re.sub(r"\\.", lambda it: _UNESCAPED[it[0]], text) for name, text in _LABEL.findall(series[2])
            }
            key = (series[1], frozenset(labels.items()))
            assert key not in found
            found[key] = float(series[3])
    assert text.endswith("\n") or not text
    assert len(families) == len(set(families))
    return found


def values(page: Page, **labels: str) -> dict[str, float]:
    """Metric -> value, of the series with these labels."""
    return {name: value for (name, has), value in page.items() if labels.items() <= has}


def page_of(seen: Overview, slots: Mapping[str, HostSlots] | None = None) -> Page:
    return parse(render_exposition("lab", seen, slots or {}, NOW))


def test_a_host_with_its_gpus_and_slots() -> None:
    page = page_of(
        seen(HostView("node0", pulse(gpu(0), gpu(1, use=None, memory=None)))),
        {"node0": HostSlots((CLAIM, replace(CLAIM, run="r2", slots=(2,))))},
    )
    assert values(page, host="node0", gpu="0") == {
        "ddpctl_gpu_use_ratio": 0.97,
        "ddpctl_gpu_memory_used_bytes": 40e9,
        "ddpctl_gpu_memory_bytes": 80e9,
    }
    assert values(page, gpu="1", model="NVIDIA H100", cluster="lab") == {"ddpctl_gpu_memory_bytes": 80e9}
    host = frozenset({"cluster": "lab", "host": "node0"}.items())
    assert page["ddpctl_host_up", host] == 1
    assert page["ddpctl_host_slots_held", host] == 3


def test_a_silent_host_is_down_and_unknown_slots_have_no_value() -> None:
    silent = HostView("node1", error="no route")
    assert values(page_of(seen(silent))) == {"ddpctl_host_up": 0}
    unknown = page_of(seen(HostView("node0", pulse())), {"node0": HostSlots(trouble="the folder cannot be read")})
    assert values(unknown) == {"ddpctl_host_up": 1}


def test_a_live_run() -> None:
    attempts = tuple(Attempt(number, ("node0",), STARTED, None) for number in (3, 4))
    lag = CheckpointLag("step_8", 1.0, 42.5, None, late=False, copies=1)
    live = run("running", started=STARTED, attempt=4, agreed=AgreedRun(1, 1, attempts, None), lag=lag)
    ranks = {"r1": {"0": RankPulse(metrics={"step": 8, "loss": 0.5, "samples_per_s": 100.0})}}
    page = page_of(seen(HostView("node0", pulse(runs=ranks)), runs=[live]))
    labels = {"cluster": "lab", "project": "exp", "job_name": "train", "run": "r1"}
    assert values(page, **labels, state="running") == {"ddpctl_run_state": 1}
    assert values(page, **labels) == {
        "ddpctl_run_state": 1,
        "ddpctl_run_attempt": 4,
        "ddpctl_run_restarts": 1,
        "ddpctl_run_seconds": 90,
        "ddpctl_run_checkpoint_age_seconds": 42.5,
        "ddpctl_run_step": 8,
        "ddpctl_run_loss": 0.5,
        "ddpctl_run_samples_per_second": 100,
    }


def test_progress_that_was_only_printed() -> None:
    ranks = {"r1": {"0": RankPulse(printed={"step": 3, "epoch": 1})}}
    page = page_of(seen(HostView("node0", pulse(runs=ranks)), runs=[run("running")]))
    assert {name: values(page)[name] for name in ("ddpctl_run_step", "ddpctl_run_epoch")} == {
        "ddpctl_run_step": 3,
        "ddpctl_run_epoch": 1,
    }


@pytest.mark.parametrize(("started", "seconds"), [(STARTED, {30.0}), (None, set())])
def test_the_seconds_of_a_run_that_is_over(started: str | None, seconds: set[float]) -> None:
    over = run("failed", started=started, ended=(NOW - timedelta(seconds=60)).isoformat())
    page = page_of(seen(runs=[over]))
    assert {value for (name, _), value in page.items() if name == "ddpctl_run_seconds"} == seconds
    assert values(page, state="failed") == {"ddpctl_run_state": 1}


@given(st.lists(st.text(st.characters(codec=None)), max_size=3), st.floats(0, 100), st.integers(0, 1 << 62))
def test_any_text_and_any_number_come_back(models: list[str], use: float, memory: int) -> None:
    gpus = [gpu(0, name=model, use=use, memory=memory) for model in models]
    text = render_exposition("lab", seen(HostView("node0", pulse(*gpus))), {}, NOW)
    text.encode()
    page = parse(text)
    ratios: dict[Any, float] = {
        dict(labels)["model"]: value for (name, labels), value in page.items() if name == "ddpctl_gpu_use_ratio"
    }
    assert ratios == {clean(model): use / 100 for model in models}
    assert {page[key] for key in page if key[0] == "ddpctl_gpu_memory_used_bytes"} == (
        {float(memory)} if models else set()
    )


def test_every_metric_has_a_help_of_one_line() -> None:
    assert all(re.fullmatch(r"[^\\\n]+\.", text) for text in HELP.values())
