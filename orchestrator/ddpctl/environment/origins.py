"""The package sources: from the inventory, else from uv's own variables, else from pip's configuration.

A user who can `pip install torch` on this machine gets the same packages from ddpctl. A mirror, a folder of wheels or a
private index in pip's configuration is used unless the inventory or uv's variables name another. Index, extra indexes
and find-links are looked up separately.
"""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from ddpctl.spec.inventory import Environment


@dataclass(frozen=True)
class Origins:
    """Package sources. The addresses may hold passwords, so they are never printed unchanged."""

    index: str | None = field(default=None, repr=False)
    extra: tuple[str, ...] = field(default=(), repr=False)
    find_links: tuple[str, ...] = field(default=(), repr=False)
    certificates: str | None = None
    no_index: bool = False  # only find-links

    @property
    def own(self) -> bool:
        """True if a source other than the default package index is configured."""
        return bool(self.index or self.extra or self.find_links)

    def uv_env(self) -> dict[str, str]:
        """Return the sources as variables for uv: every user of this machine could read an argument."""
        env = {}
        if self.index:
            env["UV_DEFAULT_INDEX"] = self.index
        if self.extra:
            env["UV_INDEX"] = " ".join(self.extra)
        if self.find_links:
            env["UV_FIND_LINKS"] = ",".join(self.find_links)
        if self.certificates:
            env["SSL_CERT_FILE"] = self.certificates
        return env

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(address for address in (self.index, *self.extra, *self.find_links) if address)

    def secrets(self) -> list[str]:
        """Return every password in an address, for removal from messages."""
        found = []
        for address in self.all:
            password = urlsplit(address).password
            if password:
                found += [password, unquote(password)]
        return found

    def login(self, address: str) -> tuple[str, str] | None:
        """Return user and password for a download from the server of a configured source."""
        url = urlsplit(address)
        for known in map(urlsplit, self.all):
            if known.username and (known.scheme, known.hostname, known.port) == (
                url.scheme,
                url.hostname,
                url.port,
            ):
                return unquote(known.username), unquote(known.password or "")
        return None


def without_login(address: str) -> str:
    """Return the address without user and password."""
    parts = urlsplit(address)
    if not parts.username and not parts.password:
        return address
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=host))


def origins(environment: Environment, variables: Mapping[str, str], pip: Mapping[str, Sequence[str]]) -> Origins:
    """Return the sources in force. Pure.

    ``variables`` are this process's environment; for ``pip`` see ``pip_settings``. uv reads its own variables itself;
    they are needed here for downloads and messages.
    """
    get = variables.get
    index = environment.index_url or get("UV_DEFAULT_INDEX") or get("UV_INDEX_URL") or _first(pip, "index-url")
    named = (get("UV_INDEX") or get("UV_EXTRA_INDEX_URL") or "").split()
    addresses = [word.partition("=")[2] if "=" in word.split(":")[0] else word for word in named]  # NAME=URL
    extra = environment.extra_index_urls or addresses or pip.get("extra-index-url", ())
    links = [link for link in (get("UV_FIND_LINKS") or "").split(",") if link]
    no_index = not index and not extra and (_first(pip, "no-index") or "").lower() in ("1", "true", "yes", "on")
    return Origins(
        index,
        tuple(extra),
        tuple(environment.find_links or links or pip.get("find-links", ())),
        get("SSL_CERT_FILE") or _first(pip, "cert"),
        no_index,
    )


def _first(pip: Mapping[str, Sequence[str]], name: str) -> str | None:
    return next(iter(pip.get(name, ())), None)


def pip_settings(variables: Mapping[str, str], files: Sequence[Path] | None = None) -> dict[str, list[str]]:
    """Return pip's index-url, extra-index-url, find-links, cert and no-index.

    They come from pip's files, each overriding the file before it, and then from PIP_* variables.
    """
    found: dict[str, list[str]] = {}
    names = ("index-url", "extra-index-url", "find-links", "cert", "no-index")
    for file in files if files is not None else pip_files(variables):
        parser = configparser.RawConfigParser()
        try:
            parser.read(file, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue  # pip refuses such a file too, so a user of pip knows
        for section in ("global", "install"):  # later sections win, as in pip
            for name in names:
                if parser.has_option(section, name):
                    found[name] = parser.get(section, name).split()
    for name in names:
        value = variables.get("PIP_" + name.upper().replace("-", "_"))
        if value:
            found[name] = value.split()
    return found


def pip_files(variables: Mapping[str, str]) -> Iterator[Path]:
    """Yield pip's configuration files on this machine, weakest first."""
    chosen = variables.get("PIP_CONFIG_FILE")
    if chosen == os.devnull:
        return
    for folder in reversed((variables.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")):
        yield Path(folder) / "pip" / "pip.conf"
    yield Path("/etc/pip.conf")
    if sys.platform == "darwin":
        yield Path("/Library/Application Support/pip/pip.conf")
        yield Path.home() / "Library" / "Application Support" / "pip" / "pip.conf"
    yield Path.home() / ".pip" / "pip.conf"
    yield Path(variables.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "pip" / "pip.conf"
    yield Path(sys.prefix) / "pip.conf"
    if chosen:
        yield Path(chosen)
