"""A report about a run, for a terminal and as a page: whatever is in it."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.render.console import make_console
from ddpctl.render.report import report_view, sparkline
from ddpctl.render.report_page import MOST_CHARTS, report_html
from ddpctl.spec.gpuuse import GpuUse
from ddpctl.spec.outcome import StuckRun
from ddpctl.spec.record import RecordedDoctor
from ddpctl.spec.report import RunReport
from tests.render.reports import at, gpu, small, worst


def shown(report: RunReport) -> str:
    out = io.StringIO()
    make_console(out).print(report_view(report))
    return out.getvalue()


def test_the_verdict_comes_first_then_the_metrics_then_what_ran() -> None:
    text = shown(small())
    assert text.startswith(
        "train  succeeded after 12 min 12 s  run 20261124T030000Z-aaaaaa  cluster lab  project exp\n"
    )
    order = [
        "succeeded after",
        "ATTEMPT",
        "loss",
        "started  2026-11-24 03:00:00 UTC from anna@desk:/home/anna/exp",
        "code     commit",
    ]
    places = [text.index(word) for word in order]
    assert places == sorted(places)
    assert "commit 3f2c91a0b2c4, with changes that were not committed" in text
    assert "network" not in text, "one host has none"


@pytest.mark.parametrize(
    ("printed", "words"),
    [({"loss": 0.43}, "loss 0.43  (read from the output)"), ({}, "no metrics: add lines such as")],
    ids=["printed", "none"],
)
def test_a_report_without_metrics_shows_the_values_in_the_output(printed: dict[str, float], words: str) -> None:
    full = small()
    run = replace(full.run, nodes=tuple(replace(node, printed=printed) for node in full.run.nodes))
    report = replace(full, run=run, curves=())
    assert words in shown(report)
    assert words in report_html(report)


def test_a_secret_in_the_environment_is_in_no_report() -> None:
    report = small()
    assert report.to_json()["settings"]["env"] == {"API_KEY": "********", "OMP_NUM_THREADS": "4"}
    assert "hunter2" not in report_html(report) + json.dumps(report.to_json()) + shown(report)


def test_how_busy_the_gpus_were() -> None:
    gpus = (gpu(index=0, use=80.0), gpu(index=1, use=20.0), gpu(index=2, use=80.0))
    report = replace(small(), gpus=gpus)
    assert "GPUs     3, busy 49 % of the time on average, node0:1 only 16 %; memory: 61 of 80 GiB\n" in shown(report)
    page = report_html(report)
    assert "3 × NVIDIA H100 80GB HBM3" in page
    assert page.index("node0:1</th>") < page.index("node0:0</th>") < page.index("node0:2</th>"), "least busy first"
    assert page.count('<svg class="use"') == 3
    assert page.count("<rect") - report_html(small()).count("<rect") == 6, "each was read twice, with a gap between"
    assert "could not be seen" not in page


def test_gpus_of_which_little_is_known() -> None:
    unknown = GpuUse("node0", 0, "NVIDIA H100", False, None, None, None, None, ())
    report = replace(small(), gpus=(unknown,))
    assert "GPUs     1\n" in shown(report)
    page = report_html(report)
    assert "which of them the run used could not be seen" in page
    assert "GPU use" not in page
    assert json.loads(json.dumps(report.to_json()))["gpus"][0]["use"] is None


def test_as_busy_as_the_others_is_not_worth_a_word() -> None:
    report = replace(small(), gpus=(gpu(index=0, use=80.0), gpu(index=1, use=75.0)))
    assert "only" not in shown(report)


def test_a_live_run_says_so() -> None:
    node = replace(small().run.nodes[0], state="running", ended=None)
    live = replace(small(), run=replace(small().run, nodes=(node,)))
    assert live.headline == "running for 13 min"
    assert "The run was live at that time." in report_html(live)


class Markup(HTMLParser):
    """The page's elements, each closed in its order."""

    VOID = frozenset({"meta"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("report", [small(), worst(8, 30)], ids=["small", "worst"])
def test_the_page_is_whole_and_nothing_in_it_is_markup_or_a_request(report: RunReport) -> None:
    page = report_html(report)
    markup = Markup()
    markup.feed(page)
    assert markup.open == []
    assert not markup.seen & {"script", "link", "img", "iframe", "a", "object"}
    assert not re.search(r"""@import|url\(|\ssrc=|javascript:|\x1b|\u202e""", page)


def test_the_largest_page_can_still_be_sent() -> None:
    assert len(report_html(worst())) < 8 << 20


def test_names_without_end_do_not_make_a_page_without_end() -> None:
    report = small()
    many = tuple(replace(report.curves[0], name=f"loss_{number}") for number in range(100))
    page = report_html(replace(report, curves=many))
    assert page.count('class="pygal-chart"') == MOST_CHARTS
    assert f"{100 - MOST_CHARTS} more names left out" in page


def test_the_largest_report_in_a_terminal() -> None:
    text = shown(worst())
    assert "not in this report: gpu-node-with-a-long-name-005" in text
    assert "17 values from step 812 on are not finite" in text
    assert "\x1b" not in text


def test_a_page_about_a_run_that_was_stuck_says_no_rank_was_waited_for_only_where_none_was() -> None:
    def page(**more: Any) -> str:
        report = small("killed")
        node = replace(report.run.nodes[0], **more)
        run = replace(report.run, nodes=(node,), record=replace(report.run.record, doctor=RecordedDoctor(30.0)))
        return report_html(replace(report, run=run))

    calm = "saw no rank that the others waited for"
    stuck = StuckRun("1 of 2 ranks waits", (), at(12), at(12))
    assert calm in page()
    assert calm not in page(diagnosis=stuck, reported=at(12))


@given(st.lists(st.floats(-1e299, 1e299), min_size=1, max_size=200))
def test_a_sparkline_of_any_values(values: list[float]) -> None:
    drawn = sparkline(values, 24)
    assert len(drawn) == min(24, len(values))
    assert set(drawn) <= set("▁▂▃▄▅▆▇█")
