"""Completes words for a shell: quickly, without a connection and without the libraries of the commands.

The shell's scripts are typer's (``ddpctl --install-completion``). Commands and options come from a cache, which
``vocabulary.py`` fills again when a file of the commands has changed. Names come from the inventory's text
(``files/completion_names.py``) and from this machine's records of runs.
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
from ddpctl.files.completion_names import Names, names_in

VARIABLE = "_DDPCTL_COMPLETE"
Words = Mapping[str, Any]  # as ``vocabulary`` returns it


def answer(environ: Mapping[str, str]) -> int:
    """Print an answer in the form that the shell's script expects; return the exit code.

    An error of this program must not appear between the words that a person types: it is shown with DDPCTL_DEBUG only.
    """
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
    """Return the words before the cursor's word, and the typed beginning of the cursor's word."""
    if shell == "bash":
        words, at = _split(environ.get("COMP_WORDS", "")), int(environ.get("COMP_CWORD", "1"))
        words, begun = words[1:at], (words[at] if at < len(words) else "")
        return ([*words, begun], "") if begun == "=" else (words, begun)  # bash splits --job=x into three words
    text = environ.get("_TYPER_COMPLETE_ARGS", "")
    words = _split(text)[1:]
    return (words, "") if not words or text.endswith(" ") else (words[:-1], words[-1])


def _split(text: str) -> list[str]:
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    try:
        words.extend(lexer)
    except ValueError:  # an open quotation mark
        words.append(lexer.token)
    return words


def _endings(vocabulary: Words, words: Sequence[str], begun: str, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the words that may stand at the cursor; the caller selects the words that start with ``begun``."""
    if "--" in words:
        return  # the user's own program
    commands: Words = vocabulary["commands"]
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
    options = {"--debug": None, **here["options"]}  # the only global option that may follow a command
    name, equals, value = begun.partition("=")
    if kind is None and equals and name in options:
        yield from (f"{name}={word}" for word in _values(options[name], value, vocabulary, file, environ))
    elif kind is not None:
        yield from _values(kind, begun, vocabulary, file, environ)
    elif begun.startswith("-"):
        yield from (option for option in options if option not in given)
    elif here["commands"]:
        yield from () if arguments else here["commands"]
    else:
        expected = here["arguments"][arguments : arguments + 1] or here["arguments"][-1:] * here["many"]
        for kind in expected:
            yield from _values(kind, begun, vocabulary, file, environ)


def _values(kind: Any, begun: str, vocabulary: Words, file: str | None, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the values of a kind. In a list with commas only the last item is completed."""
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
        names = _inventory(file, environ).hosts if kind == "hosts" else vocabulary["checks"]
        yield from (before + name for name in names if name not in before.split(","))


def _inventory(file: str | None, environ: Mapping[str, str]) -> Names:
    """Return the names in the inventory that the command would read."""
    path = Path(file or environ.get("DDPCTL_INVENTORY") or "inventory.yaml").expanduser()
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            return names_in(stream.read(INVENTORY_BYTES))
    except (OSError, RuntimeError):
        return Names()


def _recorded(folder: str, ending: str) -> list[str]:
    """Return names of jobs or runs from this machine's records (files/records.py)."""
    try:
        found = [entry.name for entry in os.scandir(platformdirs.user_state_path("ddpctl") / "controller" / folder)]
    except OSError:
        return []
    return [name.removesuffix(ending) for name in found if name.endswith(ending) and not name.startswith(".")]


def _vocabulary() -> Words:
    """Return the commands and options from the cache. If the files have changed, read typer, which takes a second."""
    folder = Path(__file__).parent
    files = [file for file in os.scandir(folder) if file.name.endswith(".py")]
    key = json.dumps([str(folder), sorted((file.name, file.stat().st_mtime_ns, file.stat().st_size) for file in files)])
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
        part = cache.with_name(f".completion.{os.getpid()}.part")
        part.write_text(json.dumps({"key": key, "words": words}))
        part.replace(cache)
    except OSError:
        pass  # the next completion is slow, too
    return words
