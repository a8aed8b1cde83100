"""The parts of the views: a table that keeps its cursor, a page of text, a question."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import DataTable, RichLog, Static

from ddpctl.render.clean import clean
from ddpctl.render.top import TopRow


class Rows(DataTable[Text]):
    """A table of rows with keys. The cursor stays on its row and leaves the table at its end."""

    def __init__(self, names: Sequence[str], name: str) -> None:
        super().__init__(id=name, cursor_type="row", cell_padding=0, show_cursor=True)
        self._names = names
        self._shown: tuple[TopRow, ...] = ()
        self._widths: tuple[int, ...] = ()

    @property
    def chosen(self) -> str | None:
        """The key of the row under the cursor."""
        return self._shown[self.cursor_row].key if 0 <= self.cursor_row < len(self._shown) else None

    def show(self, rows: Iterable[TopRow]) -> None:
        """Update the cells that differ. Fill the table again if a row has come or gone, or needs more room."""
        new = tuple(rows)
        needed = self._needed(new)
        same = [row.key for row in new] == [row.key for row in self._shown]
        if same and all(width <= there for width, there in zip(needed, self._widths, strict=False)) and self._widths:
            for row, old in zip(new, self._shown, strict=True):
                for name, cell, before in zip(self._names, row.cells, old.cells, strict=True):
                    if cell != before or cell.style != before.style:
                        self.update_cell(row.key, name, cell)
        else:
            self._fill(new, needed)
        self._shown = new

    def _needed(self, rows: Sequence[TopRow]) -> tuple[int, ...]:
        """Return the width of each column: the table may compute its widths only after drawing."""
        columns = zip(self._names, zip(*(row.cells for row in rows), strict=True), strict=True) if rows else ()
        found = {name: max(len(name), *(cell.cell_len for cell in cells)) for name, cells in columns}
        return tuple(found.get(name, len(name)) for name in self._names)

    def _fill(self, rows: Sequence[TopRow], widths: tuple[int, ...]) -> None:
        chosen, offset = self.chosen, self.scroll_offset
        self.clear(columns=True)
        self._widths = widths
        for name, width in zip(self._names, widths, strict=True):
            self.add_column(name, width=width + 1, key=name)
        for row in rows:
            self.add_row(*row.cells, key=row.key)
        keys = [row.key for row in rows]
        if chosen in keys:
            self.move_cursor(row=keys.index(chosen), scroll=False)
        self.scroll_to(offset.x, offset.y, animate=False)

    def action_cursor_down(self) -> None:
        if self.cursor_row >= self.row_count - 1:
            self.screen.focus_next("Rows, RichLog")
        else:
            super().action_cursor_down()

    def action_cursor_up(self) -> None:
        if self.cursor_row <= 0:
            self.screen.focus_previous("Rows")
        else:
            super().action_cursor_up()


class Cleaned:
    """A page of another command, without characters that control the terminal."""

    def __init__(self, inner: RenderableType) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._inner, options):
            yield segment if segment.control else segment._replace(text=clean(segment.text))


class Sheet(ModalScreen[None]):
    """A page of text over the screen; Escape closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,enter", "dismiss")]

    def __init__(self, title: str, page: RenderableType) -> None:
        super().__init__()
        self._title, self._page = title, page

    def compose(self) -> ComposeResult:
        with Vertical(classes="box"):
            yield Static(Text(f"{self._title}   (Escape closes, arrows scroll)", "bold"))
            yield RichLog(wrap=True, min_width=0, markup=False, highlight=False, auto_scroll=False)

    def on_mount(self) -> None:
        page = self.query_one(RichLog)
        page.write(Cleaned(self._page))
        page.focus()


class Confirm(ModalScreen[bool]):
    """A question: `y` means yes, `n` and Escape mean no."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with Vertical(classes="box question"):
            yield Static(Text(f"{clean(self._text)}\n\n[y] yes   [n] no"))

    def key_y(self) -> None:
        self.dismiss(True)

    def key_n(self) -> None:
        self.dismiss(False)

    def key_escape(self) -> None:
        self.dismiss(False)
