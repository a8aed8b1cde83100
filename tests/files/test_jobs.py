"""Jobs from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpctl.errors import InventoryError, UsageError
from ddpctl.files import inspect_script, script_file, script_job
from ddpctl.files.inventory import load_text
from ddpctl.spec.inventory import Inventory, job_hosts
from ddpctl.spec.job import JobSpec


@pytest.fixture
def inventory(tmp_path: Path) -> Inventory:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text('p.add_argument("--local-rank")\n')
    text = "hosts: [a, b]\njobs: {train: {script: train.py, args: [x], code: code, nodes: 1}}\n"
    return load_text(text.encode(), str(tmp_path / "c.yaml"))


def test_a_script_is_a_job_of_its_own(inventory: Inventory, tmp_path: Path) -> None:
    changed, job = script_job(inventory, ["my train.py", "--lr", "$(id)"], folder=tmp_path)
    assert (job.name, job.script, job.args, job.code) == ("my-train", "my train.py", ("--lr", "$(id)"), str(tmp_path))
    assert changed.job("my-train") is job
    assert [host.name for host in job_hosts(changed, job)] == ["a", "b"]
    assert "my-train" not in inventory.jobs


@pytest.mark.parametrize(
    ("program", "script", "code"),
    [
        ("sub/t.py", "sub/t.py", "."),
        ("./sub/t.py", "sub/t.py", "."),
        ("../t.py", "t.py", ".."),
        ("{abs}/sub/t.py", "sub/t.py", "."),
        ("/elsewhere/t.py", "t.py", "/elsewhere"),
    ],
)
def test_the_code_is_the_current_folder_or_the_scripts(
    inventory: Inventory, tmp_path: Path, program: str, script: str, code: str
) -> None:
    _, job = script_job(inventory, [program.format(abs=tmp_path)], folder=tmp_path)
    assert (job.name, job.script, job.code) == ("t", script, str((tmp_path / code).resolve()))


def test_a_module(inventory: Inventory, tmp_path: Path) -> None:
    _, job = script_job(inventory, ["-m", "pkg.train", "-x"], folder=tmp_path)
    assert (job.name, job.module, job.script, job.args) == ("pkg.train", "pkg.train", None, ("-x",))


def test_a_named_job_keeps_the_rest(inventory: Inventory, tmp_path: Path) -> None:
    _, job = script_job(inventory, ["code/train.py", "--y"], job="train", folder=tmp_path)
    assert (job.name, job.script, job.args, job.nodes) == ("train", "train.py", ("--y",), 1)
    _, job = script_job(inventory, ["other.py"], job="train", folder=tmp_path)
    assert (job.script, job.args) == ("other.py", ())
    _, job = script_job(inventory, ["-m", "pkg"], job="train", folder=tmp_path)
    assert (job.script, job.module) == (None, "pkg")


@pytest.mark.parametrize("words", [[], [""], ["-m"], ["-x.py"], ["a.py", "\0"], ["-m", "--lr"]])
def test_what_is_no_program(inventory: Inventory, words: list[str]) -> None:
    with pytest.raises(UsageError):
        script_job(inventory, words)
    with pytest.raises(UsageError):
        script_job(inventory, words, job="train")


def test_a_bad_module_is_refused_in_our_words(inventory: Inventory) -> None:
    for job in (None, "train"):
        with pytest.raises(UsageError, match="module"):
            script_job(inventory, ["-m", "a-b"], job=job)


def test_names_that_are_no_names(inventory: Inventory, tmp_path: Path) -> None:
    assert script_job(inventory, ["训练.py"], folder=tmp_path)[1].name == "job"
    assert script_job(inventory, ["x" * 200 + ".py"], folder=tmp_path)[1].name == "x" * 63


def test_the_script_is_found_and_read(inventory: Inventory, tmp_path: Path) -> None:
    job = inventory.job("train")
    assert script_file(job) == tmp_path / "code" / "train.py"
    facts = inspect_script(job)
    assert facts is not None
    assert facts.local_rank_arg == "--local-rank"
    assert inspect_script(JobSpec(name="j", script="x.py", code=None)) is None
    assert inspect_script(JobSpec(name="j", module="x", code=str(tmp_path))) is None


def test_a_missing_script_or_folder(inventory: Inventory, tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match=r"no script 'trian.py' in the code folder; did you mean train.py"):
        script_file(inventory.job("train").model_copy(update={"script": "trian.py"}))
    with pytest.raises(InventoryError, match="the code folder is not there"):
        script_file(inventory.job("train").model_copy(update={"code": str(tmp_path / "x")}))
