"""A few stops of the campaign."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.e2e.site import until
from tests.saves.campaign import PLAIN, RESNET, Bench, campaign, left_of, of_run, ranks_of, wait_for_loaders


def test_a_program_without_torch(tmp_path: Path) -> None:
    stops = list(campaign(tmp_path, PLAIN, seed=1, number=2))
    assert [stop.wrong for stop in stops] == [[], []]
    assert all(stop.loaders == 4 for stop in stops)


@pytest.mark.full(covered_by="tests/saves/test_campaign.py::test_a_program_without_torch")
@pytest.mark.torch
def test_resnet_ddp_with_data_loaders(tmp_path: Path) -> None:
    stops = list(campaign(tmp_path, RESNET, seed=1, number=1))
    assert [stop.wrong for stop in stops] == [[]]


def test_a_run_that_cannot_save_is_stopped_all_the_same(tmp_path: Path) -> None:
    deaf = "import os, time; print('resumed', 0, flush=True); time.sleep(300)"
    with Bench(tmp_path, replace(PLAIN, job=lambda folder: {**PLAIN.job(folder), **program(folder, deaf)})) as bench:
        run = bench.up()
        bench.wait_for_resumed()
        until(lambda: len(ranks_of(run)) == 2, 60)
        refused = bench.ddpctl("checkpoint", run, inventory=bench.inventory)
        assert refused.rc == 1
        assert "would die of SIGUSR1" in refused.stderr
        assert "signal.signal(signal.SIGUSR1" in refused.stderr
        assert len(ranks_of(run)) == 2
        done = bench.ddpctl("kill", run, "--save", "--json", inventory=bench.inventory).ok()
        assert (done.json()["state"], done.json()["saved"]) == ("killed", None)
        assert "is killed without a new checkpoint" in done.stderr
        assert left_of(run) == []


def program(folder: Path, text: str) -> dict[str, str]:
    (folder / "deaf.py").write_text(text)
    return {"script": "deaf.py"}


def test_a_run_that_is_asked_continues(tmp_path: Path) -> None:
    with Bench(tmp_path, PLAIN) as bench:
        run = bench.up()
        wait_for_loaders(run)
        for _ in range(2):
            before = {(one.pid, one.start) for one in of_run(run)}
            saved = bench.ddpctl("checkpoint", run, "--json", inventory=bench.inventory).ok().json()
            assert saved["name"] == "state.json_step"
            assert {(one.pid, one.start) for one in of_run(run)} >= before
