"""The configuration as OpenSSH reads it (``ssh -G``): where it has criteria of Match that ``ssh_config`` does not know.

A host costs a process and about 5 ms of CPU time, so ``ssh_config`` reads all other configurations.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from functools import cache

from ddpctl.errors import Unreachable, UsageError
from ddpctl.transport.limits import ERROR_LETTERS, OPENSSH_READ_S
from ddpctl.transport.ssh_config import WHOLE_LINE, Options

_SWITCHES = {"true": "yes", "false": "no"}


class AskedConfig:
    """A configuration that OpenSSH reads. ``config``: the file for ``ssh -F``; ``None``: the files that ssh reads."""

    def __init__(self, config: str | None) -> None:
        self._file = [] if config is None else ["-F", config]

    def lookup(self, *names: str, given: Mapping[str, str] | None = None) -> Options:
        """Return every option for a host; see ``SSHConfig.lookup``. Only the first name counts.

        Raises:
            UsageError: ssh does not read the configuration.
        """
        words = [word for key, value in (given or {}).items() for word in ("-o", f'{key}="{value}"')]
        found = read_options(["ssh", *self._file, *words, "--", names[0]])
        options = {key: values for key, values in found.items() if values != _defaults().get(key)}
        for key in WHOLE_LINE & options.keys():  # a blank in a name cannot be told from a blank between two names
            options[key] = ["\n".join(options[key][0].split(" "))]
        return {**options, "hostname": found["hostname"]}


@cache
def _defaults() -> Options:
    """Return the options without a configuration: ssh prints them like options that are set."""
    return read_options(["ssh", "-F", "none", "--", "host"])


def read_options(words: Sequence[str]) -> Options:
    """Return the options that ssh would use for a command line, by lower-case name. Nothing is connected.

    Raises:
        UsageError: ssh does not accept the options or the configuration.
        Unreachable: there is no ssh, or it does not end.
    """
    done = run_ssh([words[0], "-G", *words[1:]])
    if done.returncode:
        said = "; ".join(line.strip() for line in done.stderr.splitlines())[:ERROR_LETTERS]
        raise UsageError(f"ssh does not accept its configuration: {said}")
    options: Options = {}
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        options.setdefault(key, []).append(_SWITCHES.get(value, value))
    return options


def run_ssh(words: Sequence[str], timeout: float = OPENSSH_READ_S) -> subprocess.CompletedProcess[str]:
    """Run ssh where it opens no connection.

    Raises:
        Unreachable: there is no ssh, or it does not end: a command of ``Match exec`` may hang.
    """
    try:
        return subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
            check=False,
        )
    except FileNotFoundError:
        raise Unreachable("there is no ssh on this machine", hint="install the client of OpenSSH") from None
    except subprocess.TimeoutExpired:
        raise Unreachable(
            f"ssh does not read its configuration within {timeout:g} s",
            hint="see which command of `Match exec` in ssh_config does not end",
        ) from None
