"""Answers a shell that asks how a word may end: quickly, without a connection, without the libraries of the commands.

The scripts that ask are typer's (``ddpctl --install-completion``). What commands and options there are is kept in the
cache, made by ``vocabulary.py`` when a file of the commands has changed. Names come from the inventory's text
(``files/glance.py``) and from what this machine remembers of its runs.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import platformdirs

from ddpctl.cli.limits import COMPLETED_RUNS, INVENTORY_BYTES
from ddpctl.files.glance import Names, names_in

VARIABLE = "_DDPCTL_COMPLETE"
Words = Mapping[str, Any]  # by command: its options, each with what it takes; its arguments; its commands


def answer(environ: Mapping[str, str]) -> int:
    """One answer, in the form that the shell's script expects. A mistake of ours is not for a person who types."""
    try:
        return _answer(environ)
    except Exception:
        if environ.get("DDPCTL_DEBUG"):
            raise
        return 1


def _answer(environ: Mapping[str, str]) -> int:
    shell = environ[VARIABLE].removeprefix("complete_")
    words, begun = _typed(shell, environ)
    found = sorted({word for word in _endings(_vocabulary(), words, begun, environ) if word.startswith(begun)})
    if shell == "zsh":
        quoted = "\n".join(f'"{word}"' for word in found)
        sys.stdout.write(f"_arguments '*: :(({quoted}))'\n" if found else "_files\n")
    elif environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        return 0 if found else 1  # 1: files
    else:
        sys.stdout.write("".join(f"{word}\n" for word in found))
    return 0


def _typed(shell: str, environ: Mapping[str, str]) -> tuple[list[str], str]:
    """The words before the one that is typed, and that one as far as it is there."""
    if shell == "bash":
        words, at = _split(environ.get("COMP_WORDS", "")), int(environ.get("COMP_CWORD", "1"))
        words, begun = words[1:at], (words[at] if at < len(words) else "")
        return ([*words, begun], "") if begun == "=" else (words, begun)  # bash takes --job=x for three words
    text = environ.get("_TYPER_COMPLETE_ARGS", "")
    words = _split(text)[1:]
    return (words, "") if not words or text.endswith(" ") else (words[:-1], words[-1])


def _split(text: str) -> list[str]:
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        words.extend(lexer)
    except ValueError:  # a quotation that is still open
        words.append(lexer.token)
    return words


def _endings(known: Words, words: Sequence[str], begun: str, environ: Mapping[str, str]) -> Iterator[str]:
    """What may stand where ``begun`` is; more than that begins so."""
    if "--" in words:
        return  # the user's own program
    commands: Words = known["commands"]
    path, kind, given, arguments, file = "", None, set(), 0, None
    for word in words:
        options = {**commands[""]["options"], **commands[path]["options"]}
        name, equals, value = word.partition("=")
        if word == "=":
            continue
        if kind is not None:
            file, kind = (word if kind == "inventory" else file), None
        elif word.startswith("-"):
            given.add(name)
            kind = None if equals else options.get(name)
            file = value if equals and options.get(name) == "inventory" else file
        elif (below := f"{path} {word}".strip()) in commands:
            path = below
        else:
            expected = commands[path]["arguments"][arguments : arguments + 1]
            file = word if expected == ["inventory"] else file
            arguments += 1
    here = commands[path]
    options = {"--debug": None, **here["options"]}  # of those for all commands the only one that may follow
    name, equals, value = begun.partition("=")
    if kind is None and equals and name in options:
        yield from (f"{name}={word}" for word in _values(options[name], value, known, file, environ))
    elif kind is not None:
        yield from _values(kind, begun, known, file, environ)
    elif begun.startswith("-"):
        yield from (option for option in options if option not in given)
    elif here["commands"]:
        yield from () if arguments else here["commands"]
    else:
        expected = here["arguments"][arguments : arguments + 1] or here["arguments"][-1:] * here["many"]
        for one in expected:
            yield from _values(one, begun, known, file, environ)


def _values(kind: Any, begun: str, known: Words, file: str | None, environ: Mapping[str, str]) -> Iterator[str]:
    """The values of one kind; of several with commas the last one."""
    if isinstance(kind, list):
        yield from kind
    elif kind == "job":
        yield from _inventory(file, environ).jobs
    elif kind == "run":
        yield from _inventory(file, environ).jobs
        yield from dict.fromkeys(name.partition("@")[0] for name in _recorded("last", ".json"))
        yield from sorted(_recorded("runs", ""), reverse=True)[:COMPLETED_RUNS] if begun else ()
    elif kind in ("hosts", "checks"):
        before = begun[: begun.rfind(",") + 1]
        names = _inventory(file, environ).hosts if kind == "hosts" else known["checks"]
        yield from (before + name for name in names if name not in before.split(","))


def _inventory(file: str | None, environ: Mapping[str, str]) -> Names:
    """The names in the file that the command would read."""
    path = Path(file or environ.get("DDPCTL_INVENTORY") or "inventory.yaml").expanduser()
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            return names_in(stream.read(INVENTORY_BYTES))
    except (OSError, RuntimeError):
        return Names()


def _recorded(folder: str, ending: str) -> list[str]:
    """The names of jobs and runs that this machine remembers (files/records.py)."""
    try:
        found = [one.name for one in os.scandir(platformdirs.user_state_path("ddpctl") / "controller" / folder)]
    except OSError:
        return []
    return [name.removesuffix(ending) for name in found if name.endswith(ending) and not name.startswith(".")]


def _vocabulary() -> Words:
    """From the cache, where it is that of these very commands; else from typer, which takes a second."""
    state = sorted((one.name, one.stat().st_mtime_ns, one.stat().st_size) for one in os.scandir(Path(__file__).parent))
    key = json.dumps([str(Path(__file__).parent), [one for one in state if one[0].endswith(".py")]])
    cache = platformdirs.user_cache_path("ddpctl") / "completion.json"
    try:
        kept = json.loads(cache.read_bytes())
        if kept["key"] == key:
            return dict(kept["words"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    from ddpctl.cli.vocabulary import vocabulary

    words = vocabulary()
    try:
        cache.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside = cache.with_name(f".completion.{os.getpid()}.part")
        aside.write_text(json.dumps({"key": key, "words": words}))
        aside.replace(cache)
    except OSError:
        pass  # the next one is as slow
    return words
