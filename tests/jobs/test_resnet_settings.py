"""The options of the training, the options that it refuses, and its learning rate."""

from __future__ import annotations

import pytest

from tests.lazy import Lazy

torch = Lazy("torch")
settings = Lazy("resnet_settings")
common = Lazy("common")


def test_every_argument_has_a_default(alone: None) -> None:
    args = settings.parse_args([])
    assert (args.width, args.model_dir, args.backend, args.resume) == (64, "saved_models", "auto", None)
    assert (args.arch, args.amp, args.accumulate, args.schedule) == ("builtin", None, 1, "constant")


def test_resume_and_amp_take_a_value_or_none() -> None:
    args = settings.parse_args(["--resume", "--amp"])
    assert (args.resume, args.amp) == ("auto", "bf16")
    args = settings.parse_args(["--resume", "a.ckpt", "--amp", "fp16"])
    assert (args.resume, args.amp) == ("a.ckpt", "fp16")


def test_outputs_go_where_ddpctl_collects_them_and_checkpoints_where_it_keeps_them(
    alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DDPCTL_OUTPUT_DIR", "/run/outputs")
    assert settings.model_path(settings.parse_args([])) == "/run/outputs/resnet_ddp.pth"
    assert settings.checkpoint_path(settings.parse_args([])) == "/run/outputs/resnet_ddp.ckpt"
    monkeypatch.setenv("DDPCTL_CHECKPOINT_DIR", "/kept")
    assert settings.checkpoint_path(settings.parse_args([])) == "/kept/resnet_ddp.ckpt"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--num_epochs", "0"], "0 is not between 1 and"),
        (["--batch_size", "-1"], "-1 is not between 1 and"),
        (["--random_seed", str(2**32)], "is not between 0 and 4294967295"),
        (["--num_workers", "two"], "invalid whole number value: 'two'"),
        (["--backend", "mpi"], "invalid choice: 'mpi'"),
        (["--amp", "fp8"], "invalid choice: 'fp8'"),
        (["--epochs", "3"], "unrecognized arguments: --epochs 3"),
        (["--model_filename", "a.ckpt"], "must not end in .ckpt"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_bad_arguments_are_usage_errors(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        settings.parse_args(given)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--sync_bn"], "--sync_bn needs GPUs, .*: leave it out"),
        (["--amp", "fp16"], "--amp fp16 needs GPUs: use --amp bf16"),
    ],
)
def test_what_only_a_gpu_can_do_is_refused_on_the_cpu(given: list[str], said: str) -> None:
    with pytest.raises(common.Refused, match=said):
        settings.refuse(settings.parse_args(given), torch.device("cpu"))


def test_compiling_needs_a_new_torch_and_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    args = settings.parse_args(["--compile"])
    monkeypatch.setattr(torch, "compile", print, raising=False)
    monkeypatch.setenv("CXX", "true")
    settings.refuse(args, torch.device("cpu"))
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(common.JobError, match=r"needs a C\+\+ compiler, there is no no-such-compiler: install g\+\+"):
        settings.refuse(args, torch.device("cpu"))
    monkeypatch.delattr(torch, "compile")
    with pytest.raises(common.Refused, match=r"--compile needs torch 2\.0, this is .*: leave it out"):
        settings.refuse(args, torch.device("cpu"))


def test_the_rate_is_the_one_that_was_asked_for() -> None:
    args = settings.parse_args(["--learning_rate", "0.1", "--num_epochs", "4"])
    assert [settings.rate_at(args, 8, epochs) for epochs in (0, 1.5, 3.9)] == [0.1, 0.1, 0.1]


def test_the_scaled_rate_grows_with_the_images_in_a_step() -> None:
    args = settings.parse_args(["--learning_rate", "0.1", "--scale_lr", "--batch_size", "64", "--accumulate", "3"])
    assert settings.rate_at(args, 4, 1.0) == pytest.approx(0.1 * 64 * 3 * 4 / 128)


def test_the_rate_grows_in_the_warm_up_and_follows_the_cosine_after_it() -> None:
    given = ["--learning_rate", "0.2", "--num_epochs", "6", "--warmup_epochs", "2", "--schedule", "cosine"]
    args = settings.parse_args(given)
    rates = [settings.rate_at(args, 1, epochs) for epochs in (0, 1, 2, 4, 6)]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.1, 0])
