"""A command as a person and a report show it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpctl.cli.program import COMMANDS
from ddpctl.spec.command import REDACTED, hide_secrets, name_inventory


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        ("--api-key abcdef123456 --lr 0.1", f"--api-key {REDACTED} --lr 0.1"),
        ("--hub_token=abcdef123456", f"--hub_token={REDACTED}"),
        ("wandb.api_key=abcdef123456 model=gpt", f"wandb.api_key={REDACTED} model=gpt"),
        ("--apikey abcdef123456", f"--apikey {REDACTED}"),
        ("--password x", f"--password {REDACTED}"),
        ("--proxy http://me:word@proxy:80/", f"--proxy http://me:{REDACTED}@proxy:80/"),
        ("--token --lr 0.1", "--token --lr 0.1"),
        ("--num_keys 123456789 --tokenizer bert-base-uncased", "--num_keys 123456789 --tokenizer bert-base-uncased"),
        ("--pad_token <pad> --key step --max_tokens 100000000", "--pad_token <pad> --key step --max_tokens 100000000"),
        ("token abcdef123456", "token abcdef123456"),
    ],
)
def test_values_of_secret_arguments_are_hidden(argv: str, shown: str) -> None:
    assert hide_secrets(argv.split()) == shown.split()


@given(st.lists(st.text(max_size=20), max_size=6))
def test_any_words_keep_their_number_and_are_hidden_once(argv: list[str]) -> None:
    shown = hide_secrets(argv)
    assert len(shown) == len(argv)
    assert hide_secrets(shown) == shown


@given(st.text("abcdef0123456789", min_size=8), st.sampled_from(["--{}", "-{}", "{}="]))
def test_a_key_is_in_no_shown_word(key: str, form: str) -> None:
    name = form.format("api_key")
    argv = [name + key] if name.endswith("=") else [name, key]
    assert key not in " ".join(hide_secrets(argv))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_reads_an_inventory_can_name_it(command: str) -> None:
    named = name_inventory(f"then `ddpctl {command}`", "-i lab.yaml ")
    assert named == f"then `ddpctl {'' if command in ('init', 'schema') else '-i lab.yaml '}{command}`"


@pytest.mark.parametrize(
    "text", ["ddpctl sends the code", "see ddpctl up --help", "an old ddpctl uploads it", "ddpctl -i lab.yaml kill r1"]
)
def test_texts_without_a_command_to_type_stay_as_they_are(text: str) -> None:
    assert name_inventory(text, "-i lab.yaml ") == text
