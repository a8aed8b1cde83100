"""The backend that a script names for certain, and the arguments that may say otherwise."""

from __future__ import annotations

import pytest

from ddpctl.spec.backend import backend_of
from ddpctl.spec.script import read_script

OPTION = "p.add_argument({})\nargs = p.parse_args()\ndist.init_process_group(backend=args.{})"
TUTORIAL = (
    "def init_process(rank, size, fn, backend='gloo'):\n"
    "    dist.init_process_group(backend, rank=rank, world_size=size)\n"
)


@pytest.mark.parametrize(
    ("text", "backend"),
    [
        ("dist.init_process_group('nccl')", "nccl"),
        ("dist.init_process_group(backend='NCCL')", "nccl"),
        ("torch.distributed.init_process_group(init_method='env://', backend='gloo')", "gloo"),
        ("dist.init_process_group(dist.Backend.NCCL)", "nccl"),
        ("BACKEND = 'nccl'\ndef main():\n    dist.init_process_group(BACKEND)", "nccl"),
        ("A = 'nccl'\nB: str = A\ndist.init_process_group(backend=B)", "nccl"),
        ("def main():\n    backend = 'nccl'\n    dist.init_process_group(backend)", "nccl"),
        (OPTION.format("'--backend', default='nccl'", "backend"), "nccl"),
        (OPTION.format("'--dist-backend', default='nccl', type=str", "dist_backend"), "nccl"),
        (OPTION.format("'-b', '--comm', dest='backend', default='nccl'", "backend"), "nccl"),
        (TUTORIAL + "p = Process(target=init_process, args=(rank, size, run))", "gloo"),
        (TUTORIAL + "init_process(0, 2, run, backend='nccl')", "nccl"),
        (TUTORIAL + "init_process(0, 2, run, 'nccl')", "nccl"),
        (TUTORIAL, "gloo"),
        ("if world > 1:\n    dist.init_process_group('nccl')", "nccl"),
        ("try:\n    dist.init_process_group('nccl')\nfinally:\n    dist.destroy_process_group()", "nccl"),
        # Not certain: the script chooses, or another program does.
        ("dist.init_process_group()", None),
        ("dist.init_process_group(None)", None),
        ("dist.init_process_group('mpi')", None),
        ("dist.init_process_group('cpu:gloo,cuda:nccl')", None),
        ("dist.init_process_group('nccl' if torch.cuda.is_available() else 'gloo')", None),
        ("b = 'nccl' if torch.cuda.is_available() else 'gloo'\ndist.init_process_group(b)", None),
        ("b = torch.cuda.is_available() and 'nccl' or 'gloo'\ndist.init_process_group(b)", None),
        ("b = 'gloo'\nif torch.cuda.is_available():\n    b = 'nccl'\ndist.init_process_group(b)", None),
        ("if use_cuda:\n    b = 'nccl'\n    dist.init_process_group(b)", None),
        ("if torch.cuda.is_available():\n    dist.init_process_group('nccl')", None),
        ("if args.device == 'cuda':\n    dist.init_process_group('nccl')\nelse:\n    pass", None),
        ("try:\n    dist.init_process_group('nccl')\nexcept RuntimeError:\n    pass", None),
        ("dist.init_process_group('nccl')\ndist.init_process_group('gloo')", None),
        (OPTION.format("'--backend'", "backend"), None),
        (OPTION.format("'--backend', default='nccl'", "backend") + "\nargs.backend = 'gloo'", None),
        (OPTION.format("'--backend', default=pick()", "backend"), None),
        ("for b in ('nccl', 'gloo'):\n    dist.init_process_group(b)", None),
        ("b = os.environ['BACKEND']\ndist.init_process_group(b)", None),
        (TUTORIAL + "p = Process(target=init_process, args=(rank, size, run, 'nccl'))", None),
        (TUTORIAL + "init_process(0, 2, run)\ninit_process(0, 2, run, 'nccl')", None),
        (TUTORIAL + "init_process(0, 2, run, backend=pick())", None),
        ("a = b\nb = a\ndist.init_process_group(a)", None),
        ("dist.init_process_group(*args)", None),
        ("no python: init_process_group('nccl')", None),
        ("", None),
    ],
)
def test_the_backend_of_a_script(text: str, backend: str | None) -> None:
    found = read_script(text).backend
    assert (found.name if found is not None else None) == backend


def test_the_place_is_that_of_the_word() -> None:
    found = read_script("B = (\n    'nccl'\n)\ndist.init_process_group(B)").named("train.py").backend
    assert found is not None
    assert found.place == "train.py:2"


@pytest.mark.parametrize(
    ("args", "backend"),
    [
        ("", "nccl"),
        ("--comm gloo", "gloo"),
        ("--comm=gloo", "gloo"),
        ("--comm ucc", None),
        ("--backend gloo", "gloo"),
        ("--lr 1", "nccl"),
    ],
)
def test_arguments_win_over_the_script(args: str, backend: str | None) -> None:
    script = read_script(OPTION.format("'--comm', default='nccl'", "comm")).backend
    assert script is not None
    assert backend_of(args.split(), script) == backend
