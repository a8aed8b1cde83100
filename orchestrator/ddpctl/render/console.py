"""The consoles: whether they have colours and live displays is decided once, from terminal and environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, Group, OverflowMethod, RenderableType, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from ddpctl.render.clean import clean
from ddpctl.spec.command import find_commands, name_inventory

_WIDEST = 100_000


def is_plain(stream: TextIO, environ: Mapping[str, str] | None = None) -> bool:
    """Return whether there are no colours and no live display: no terminal, or a dumb terminal."""
    environ = os.environ if environ is None else environ
    return not stream.isatty() or environ.get("TERM") == "dumb"


def has_colours(stream: TextIO, environ: Mapping[str, str] | None = None) -> bool:
    """Return whether there are colours. NO_COLOR removes only the colours (no-color.org)."""
    environ = os.environ if environ is None else environ
    return not is_plain(stream, environ) and not environ.get("NO_COLOR")


def _no_option() -> str:
    return ""


class _Console(Console):
    def __init__(self, option: Callable[[], str], **how: Any) -> None:
        """``option``: names the inventory in the commands of ddpctl that are printed; see ``spec.command``."""
        super().__init__(**how)
        self._option = option

    def on_broken_pipe(self) -> None:
        """Leave it to the program, which ends as if killed by SIGPIPE; rich would exit with 1."""
        raise

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Clean all text for a terminal: every text passes this method."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=clean(segment.text))

    def print(self, *objects: Any, **how: Any) -> None:
        """Do not cut lines at the edge of a narrow terminal, which folds long lines itself."""
        option = self._option()
        super().print(*(_name_inventory(each, option) for each in objects), **({"crop": False} | how))


def _name_inventory(view: Any, option: str) -> Any:
    """Return text, or a group of texts, with the inventory in its commands; tables have no commands."""
    if isinstance(view, Group):
        return Group(*(_name_inventory(each, option) for each in view.renderables))
    if isinstance(view, str):
        return name_inventory(view, option)
    if not isinstance(view, Text) or not option:
        return view
    first, *parts = view.divide(find_commands(view.plain))
    for part in parts:
        first.append(option).append_text(part)
    return first


class Whole:
    """A table in its own width, even on a narrower terminal: a run id that is cut off cannot be typed."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = own_width(self.table, console, options)
        yield from console.render(self.table, options.update(width=width, max_width=width))


class Fitted:
    """A table in its own width. A narrower terminal gets ``narrow``, shortened to its width but not below ``least``."""

    def __init__(self, table: Table, narrow: Table, least: int) -> None:
        self.table, self.narrow, self.least = table, narrow, least

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not console.is_terminal or own_width(self.table, console, options) <= options.max_width:
            yield Whole(self.table)
        else:
            yield from console.render(self.narrow, options.update(max_width=max(options.max_width, self.least)))


def own_width(table: Table, console: Console, options: ConsoleOptions) -> int:
    """Return the width of a table without any limit."""
    return Measurement.get(console, options.update(max_width=_WIDEST), table).maximum


def columns(*names: str, overflow: OverflowMethod = "ellipsis") -> Table:
    """Return a table with these columns and no lines."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        table.add_column(name, overflow=overflow)
    return table


def make_console(stream: TextIO, option: Callable[[], str] = _no_option) -> Console:
    """Return a console that never reads text as markup or emoji codes, and never folds a line of a pipe.

    ``option``: returns what names the inventory in printed commands, ``-i FILE`` and a space, or an empty text.
    """
    plain = is_plain(stream)
    return _Console(
        option,
        file=stream,
        markup=False,
        emoji=False,
        highlight=False,
        no_color=not has_colours(stream),
        force_terminal=not plain,
        soft_wrap=plain,
        width=None if not plain else 200,
    )
