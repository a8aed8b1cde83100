"""Jobs from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddpctl.errors import InventoryError, UsageError
from ddpctl.files.inventory import load_inventory, load_script
from ddpctl.files.program import inspect_script, script_file
from ddpctl.spec.inventory import Inventory, job_hosts
from ddpctl.spec.job import JobSpec

TEXT = "hosts: [a, b]\njobs: {train: {script: train.py, args: [x], code: code, nodes: 1}}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text('p.add_argument("--local-rank")\n')
    (tmp_path / "c.yaml").write_text(TEXT)
    return tmp_path / "c.yaml"


@pytest.fixture
def inventory(file: Path) -> Inventory:
    return load_inventory(file)


def test_a_script_is_a_job_of_its_own(file: Path, tmp_path: Path) -> None:
    inventory, job = load_script(file, ["my train.py", "--lr", "$(id)", "010", "no"], folder=tmp_path)
    assert (job.name, job.script, job.code) == ("my-train", "my train.py", str(tmp_path))
    assert job.args == ("--lr", "$(id)", "010", "no")
    assert inventory.job("my-train") is job
    assert [host.name for host in job_hosts(inventory, job)] == ["a", "b"]
    assert inventory.job("train").args == ("x",)


def test_a_file_without_jobs_is_enough(file: Path, tmp_path: Path) -> None:
    for text in ("hosts: [a]\n", "hosts: [a]\njobs:\n", "hosts: [a]\njobs: {}\n"):
        file.write_text(text)
        assert load_script(file, ["t.py"], folder=tmp_path)[1].script == "t.py"
    file.write_text("hosts: [a]\njobs: 5\n")
    with pytest.raises(InventoryError, match=r"c\.yaml:2:7: jobs: must be a mapping"):
        load_script(file, ["t.py"], folder=tmp_path)


def test_set_goes_into_this_job(file: Path, tmp_path: Path) -> None:
    sets = ["timeouts.stop=3", "env.A=1", "defaults.slots=2", "args=[z]"]
    inventory, job = load_script(file, ["t.py", "x"], sets=sets, folder=tmp_path)
    assert (job.timeouts.stop, job.env, job.args) == (3, {"A": "1"}, ("z",))
    assert inventory.hosts[0].slots == 2
    assert inventory.job("train").timeouts.stop == 30


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
    file: Path, tmp_path: Path, program: str, script: str, code: str
) -> None:
    _, job = load_script(file, [program.format(abs=tmp_path)], folder=tmp_path)
    assert (job.name, job.script, job.code) == ("t", script, str((tmp_path / code).resolve()))


def test_a_module(file: Path, tmp_path: Path) -> None:
    _, job = load_script(file, ["-m", "pkg.train", "-x"], folder=tmp_path)
    assert (job.name, job.module, job.script, job.args) == ("pkg.train", "pkg.train", None, ("-x",))


def test_a_named_job_keeps_the_rest(file: Path, tmp_path: Path) -> None:
    _, job = load_script(file, ["code/train.py", "--y"], job="train", folder=tmp_path)
    assert (job.name, job.script, job.args, job.nodes) == ("train", "train.py", ("--y",), 1)
    _, job = load_script(file, ["other.py"], job="train", folder=tmp_path)
    assert (job.script, job.args) == ("other.py", ())
    _, job = load_script(file, ["-m", "pkg"], job="train", folder=tmp_path)
    assert (job.script, job.module) == (None, "pkg")


@pytest.mark.parametrize("job", ["train", None])
def test_options_are_added_to_the_jobs_own_arguments(file: Path, tmp_path: Path, job: str | None) -> None:
    _, found = load_script(file, ["--lr", "0.1", "train.py"], job=job, sets=["nodes=2"], folder=tmp_path)
    assert (found.name, found.script, found.nodes) == ("train", "train.py", 2)
    assert found.args == ("x", "--lr", "0.1", "train.py")


def test_options_come_after_what_the_file_adds(file: Path, tmp_path: Path) -> None:
    file.write_text(TEXT.replace("}}", "}, long: {extends: train, args_extra: [z]}}"))
    assert load_script(file, ["--y"], job="long", folder=tmp_path)[1].args == ("x", "z", "--y")
    assert load_script(file, ["--y"], job="train", folder=tmp_path)[0].job("long").args == ("x", "--y", "z")
    assert load_script(file, ["t.py", "--y"], job="long", folder=tmp_path)[1].args == ("--y",)


def test_options_need_a_job(file: Path, tmp_path: Path) -> None:
    file.write_text(TEXT.replace("}}", "}, long: {extends: train}}"))
    with pytest.raises(UsageError, match="--lr after -- is an option of a job, but the file has 2 jobs") as several:
        load_script(file, ["--lr", "1"], folder=tmp_path)
    assert (several.value.hint or "").startswith("choose one with --job: train, long;")
    with pytest.raises(UsageError, match="the file has no job 'tran' to add --lr to") as unknown:
        load_script(file, ["--lr", "1"], job="tran", folder=tmp_path)
    assert unknown.value.hint == "did you mean train?"
    file.write_text("hosts: [a]\n")
    with pytest.raises(UsageError, match="but the file has 0 jobs") as none:
        load_script(file, ["--lr", "1"], folder=tmp_path)
    assert (none.value.hint or "").startswith("name a script before it: -- SCRIPT ARGS")


def test_a_script_is_looked_for_in_the_code_that_the_job_inherits(file: Path, tmp_path: Path) -> None:
    file.write_text(TEXT.replace("}}", "}, long: {extends: train}}"))
    _, job = load_script(file, ["code/train.py"], job="long", folder=tmp_path)
    assert (job.script, job.code) == ("train.py", str(tmp_path / "code"))


def test_a_new_job_may_be_named(file: Path, tmp_path: Path) -> None:
    assert load_script(file, ["t.py"], job="mine", folder=tmp_path)[1].name == "mine"
    with pytest.raises(UsageError, match="'a b' is not a valid name for a job"):
        load_script(file, ["t.py"], job="a b", folder=tmp_path)


@pytest.mark.parametrize(
    "words", [[], [""], ["-m"], ["-x", "\0"], ["a.py", "\0"], ["-m", "--lr"], ["-m", "a-b"], ["a.py", "\ud800"]]
)
@pytest.mark.parametrize("job", [None, "train"])
def test_what_is_no_program(file: Path, words: list[str], job: str | None) -> None:
    with pytest.raises(UsageError):
        load_script(file, words, job=job)


def test_names_that_are_no_names(file: Path, tmp_path: Path) -> None:
    assert load_script(file, ["训练.py"], folder=tmp_path)[1].name == "job"
    assert load_script(file, ["x" * 200 + ".py"], folder=tmp_path)[1].name == "x" * 63


def test_the_script_is_found_and_read(inventory: Inventory, tmp_path: Path) -> None:
    job = inventory.job("train")
    assert script_file(job) == tmp_path / "code" / "train.py"
    facts = inspect_script(job)
    assert facts is not None
    assert facts.local_rank_arg == "--local-rank"
    assert inspect_script(JobSpec(name="j", script="x.py", code=None)) is None
    assert inspect_script(JobSpec(name="j", module="x", code=str(tmp_path))) is None


def test_a_missing_script_or_folder(inventory: Inventory, tmp_path: Path) -> None:
    with pytest.raises(InventoryError, match=r"script 'trian.py' not found in the code folder; did you mean train.py"):
        script_file(inventory.job("train").model_copy(update={"script": "trian.py"}))
    with pytest.raises(InventoryError, match="code folder not found"):
        script_file(inventory.job("train").model_copy(update={"code": str(tmp_path / "x")}))


def test_a_module_beside_the_script_may_join_the_process_group(file: Path, inventory: Inventory) -> None:
    job = inventory.job("train")
    (file.parent / "code" / "train.py").write_text("import os, common\nfrom other import x\n")
    facts = inspect_script(job)
    assert facts is not None
    assert not facts.initialises
    (file.parent / "code" / "common.py").write_text("import torch\ntorch.distributed.init_process_group()\n")
    facts = inspect_script(job)
    assert facts is not None
    assert facts.initialises
