"""What a script says of its local rank."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.spec.script import read_script

JOBS = Path(__file__).parents[2] / "worker" / "jobs"


@pytest.mark.parametrize(
    ("text", "style"),
    [
        ('parser.add_argument("--local_rank", type=int)', "--local_rank"),
        ("parser.add_argument('--local-rank', type=int)", "--local-rank"),
        ('parser.add_argument("--local-rank", "--local_rank", type=int)', "--local_rank"),
        ('p.add_argument("-l", "--local_rank")', "--local_rank"),
        ('p.add_argument(\n    "--local_rank",\n    type=int,\n)', "--local_rank"),
        ('p.add_argument(*["--local-rank"], type=int)', "--local-rank"),
        ('add = p.add_argument\nadd("--local_rank")', "--local_rank"),
        ('group = p.add_argument_group()\ngroup.add_argument("--local_rank")', "--local_rank"),
        ('@click.option("--local_rank", type=int)\ndef main(local_rank): pass', "--local_rank"),
        ('@click.option("--local-rank/--no-local-rank")\ndef main(): pass', "--local-rank"),
        ('def main(r: int = typer.Option(0, "--local-rank")): pass', "--local-rank"),
        ('flags.DEFINE_integer("local_rank", 0, "help")', "--local_rank"),
        ('p.add_option("--local_rank")', "--local_rank"),
        ('# p.add_argument("--local_rank")', None),
        ('"""p.add_argument("--local_rank")"""', None),
        ('def f():\n    """Takes p.add_argument("--local_rank")."""', None),
        ('print("--local_rank is not used")', None),
        ('print("--local_rank")', None),
        ('sys.argv.remove("--local_rank")', None),
        ('p.add_argument("--local_rank_file")', None),
        ('p.add_argument("--rank", help="not --local_rank")', None),
        ('p.add_argument("--rank", dest="--local_rank")', None),
        ("local_rank = int(os.environ['LOCAL_RANK'])", None),
        ("", None),
    ],
)
def test_the_spelling(text: str, style: str | None) -> None:
    assert read_script(text).local_rank_arg == style
    assert read_script(text).parsed


@pytest.mark.parametrize(
    ("text", "style"),
    [
        ('print "hello"\np.add_argument("--local_rank", type=int)', "--local_rank"),
        ('print "hello"\np.add_argument("-l", "--local-rank")', "--local-rank"),
        ('print "hello"\n# p.add_argument("--local_rank")', None),
        ("print 'x --local_rank'", None),
    ],
)
def test_a_script_that_is_not_python_for_us(text: str, style: str | None) -> None:
    facts = read_script(text)
    assert (facts.local_rank_arg, facts.parsed) == (style, False)


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ('int(os.environ["LOCAL_RANK"])', True),
        ('os.environ.get("LOCAL_RANK", 0)', True),
        ('os.getenv("LOCAL_RANK")', True),
        ('getenv("LOCAL_RANK", "0")', True),
        ('if "LOCAL_RANK" in os.environ: pass', True),
        ('from os import environ\nenviron["LOCAL_RANK"]', True),
        ('os.environ["RANK"]', False),
        ('x = {"LOCAL_RANK": 1}["LOCAL_RANK"]', False),
        ('# os.environ["LOCAL_RANK"]', False),
        ('"LOCAL_RANK"', False),
    ],
)
def test_the_environment(text: str, reads: bool) -> None:
    assert read_script(text).reads_local_rank is reads


@pytest.mark.parametrize(
    ("text", "does"),
    [
        ("dist.init_process_group('gloo')", True),
        ("from torch.distributed import init_process_group\ninit_process_group()", True),
        ("import accelerate", True),
        ("from transformers import Trainer", True),
        ("import lightning.pytorch as pl", True),
        ("import torch", False),
        ("# dist.init_process_group('gloo')", False),
        ("from .accelerate import x", False),
    ],
)
def test_the_process_group(text: str, does: bool) -> None:
    assert read_script(text).initialises is does


@pytest.mark.parametrize("name", ["common.py", "init_proc.py"])
def test_the_jobs_in_the_box(name: str) -> None:
    facts = read_script((JOBS / name).read_text())
    assert (facts.local_rank_arg, facts.initialises, facts.start) == ("--local_rank", True, "ranks")


def test_a_warning_of_somebodys_script_stays_there() -> None:
    assert read_script('x = "\\d"').parsed


WORDS = st.sampled_from(
    [
        "--local_rank",
        "--local-rank",
        "add_argument",
        "(",
        ")",
        '"',
        "'",
        "#",
        "\n",
        '"""',
        ",",
        "p.",
        " ",
        "x",
        "\0",
        "\\",
    ]
)


@given(st.lists(WORDS | st.text(max_size=3)).map("".join))
def test_any_text_is_read(text: str) -> None:
    assert read_script(text).local_rank_arg in ("--local_rank", "--local-rank", None)


@given(st.text(alphabet=st.characters(exclude_characters="\\\r\n\0", exclude_categories=["Cs"]), max_size=40))
def test_a_comment_never_counts(text: str) -> None:
    assert read_script(f'# p.add_argument("--local_rank") {text}\n').local_rank_arg is None


@given(st.sampled_from(["--local_rank", "--local-rank"]), st.lists(st.sampled_from(["-l", "--lr", "--x"]), max_size=3))
def test_an_option_is_found_at_any_place(style: str, others: list[str]) -> None:
    for place in range(len(others) + 1):
        words = [*others[:place], style, *others[place:]]
        assert read_script(f"p.add_argument({', '.join(map(repr, words))}, type=int)").local_rank_arg == style


def test_depth_is_no_trouble() -> None:
    assert not read_script("(" * 10000).parsed
    assert read_script("x" + "+x" * 50000).local_rank_arg is None
