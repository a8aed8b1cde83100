"""The application: two views, the keys, and a new overview every two seconds.

The main thread never waits for a host. Slow work runs in a thread, which shows a page at its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from rich.console import RenderableType
from rich.text import Text
from textual.actions import SkipAction
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.screen import Screen
from textual.widgets import DataTable, Input, RichLog, Static

from ddpctl.errors import to_ddpctl_error
from ddpctl.render.clean import clean
from ddpctl.render.errors import error_lines
from ddpctl.render.lines import Bars, where
from ddpctl.render.top import HOST_COLUMNS, RANK_COLUMNS, RUN_COLUMNS, host_rows, rank_rows, run_head, run_rows, summary
from ddpctl.screen.parts import Confirm, Rows, Sheet
from ddpctl.spec.event import Event, Note
from ddpctl.spec.lines import Group
from ddpctl.spec.status import RunStatus
from ddpctl.spec.top import Overview

EVERY_S = 2.0  # between two overviews: the hosts send a pulse that often
SOON_S = 0.3  # from the opening of a view to its first overview
LINES = 2000  # of a run's output that are kept

T = TypeVar("T")
Stop = Callable[[], bool]

HELP = """\
arrows, Tab   move; from one table into the next
Enter         on a run: its ranks and its output; on a host: its GPUs
Escape        back; or clear the filter
/             show only what has these letters in it
d             doctor: why the run hangs or is slow
s             stacks: where the chosen rank is, line by line
{kill}?             this page
q             quit; no run is touched
"""


@dataclass(frozen=True)
class Actions:
    """The functions behind the keys, over the open connections. ``kill`` is ``None`` with --readonly."""

    overview: Callable[[], Overview]
    doctor: Callable[[str], RenderableType]
    stacks: Callable[[str, int], RenderableType]
    log: Callable[[RunStatus, Callable[[Event], None], Callable[[Sequence[Group]], None], Stop], None]
    kill: Callable[[RunStatus], RenderableType] | None = None


class TopView(Screen[None]):
    """The common part of both views: the head, the filter, a line for messages, the keys."""

    app: TopApp
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", priority=True),  # handled before the next key
        Binding("escape", "back"),
        Binding("d", "doctor"),
        Binding("s", "stacks"),
        Binding("k", "kill"),
        Binding("question_mark", "help"),
        Binding("q", "app.quit"),
    ]

    @property
    def word(self) -> str:
        return self.query_one(Input).value

    @property
    def chosen_run(self) -> RunStatus | None:
        raise NotImplementedError

    def say_no_run(self) -> None:
        self.say("choose a run first")

    def draw(self, seen: Overview) -> None:
        raise NotImplementedError

    def bottom(self) -> ComposeResult:
        yield Input(placeholder="filter", compact=True)
        yield Static(id="said")
        kill = "k kill  " if self.app.actions.kill else ""
        yield Static(f"Enter open  Esc back  / filter  d doctor  s stacks  {kill}? help  q quit", id="keys")

    def on_mount(self) -> None:
        self.draw(self.app.seen)
        self.set_timer(SOON_S, self.app.look)

    def say(self, text: str) -> None:
        self.query_one("#said", Static).update(Text(clean(text)))

    def on_input_changed(self) -> None:
        self.draw(self.app.seen)

    def on_input_submitted(self) -> None:
        self.set_focus(self.query_one(Rows))

    def action_filter(self) -> None:
        field = self.query_one(Input)
        if self.focused is field:
            raise SkipAction  # in the filter a slash is a letter
        field.display = True
        self.set_focus(field)

    def action_back(self) -> None:
        field = self.query_one(Input)
        if field.value or self.focused is field:
            field.value = ""
            field.display = False
            self.set_focus(self.query_one(Rows))
        else:
            self.leave()

    def leave(self) -> None:
        """Close this view. The first view stays: it has no view above it."""

    def action_help(self) -> None:
        kill = "k             kill the run: asks first, and shows the proof\n" if self.app.actions.kill else ""
        self.app.push_screen(Sheet("keys", Text(HELP.format(kill=kill))))

    def action_doctor(self) -> None:
        run = self.chosen_run
        if run is None:
            self.say_no_run()
        else:
            self._work(f"doctor of {run.job}", lambda: self.app.actions.doctor(run.run))

    def action_stacks(self) -> None:
        self.say("open a run with Enter and choose a rank: s shows its stack")

    def action_kill(self) -> None:
        run, kill = self.chosen_run, self.app.actions.kill
        if kill is None:
            self.say("this screen was opened with --readonly: nothing can be killed from here")
        elif run is None:
            self.say_no_run()
        elif run.verdict.terminal:
            self.say(f"{run.job} is over: {run.verdict.state}")
        else:
            self._ask_kill(run, kill)

    def _ask_kill(self, run: RunStatus, kill: Callable[[RunStatus], RenderableType]) -> None:
        def answered(yes: bool | None) -> None:
            if yes:
                self._work(f"kill of {run.job}", lambda: kill(run))
            else:
                self.say("nothing was killed")

        hosts = f"{len(run.hosts)} hosts" if len(run.hosts) > 3 else ", ".join(run.hosts)
        self.app.push_screen(Confirm(f"Kill {run.job}, run {run.run}, on {hosts}?"), answered)

    def _work(self, title: str, work: Callable[[], RenderableType]) -> None:
        """Run ``work`` in a thread, then show its page."""
        self.say(f"{title} ...")
        app = self.app  # a closed screen has no app

        def show(page: RenderableType) -> None:
            self.say("")
            app.push_screen(Sheet(title, page))

        def at_work() -> None:
            try:
                page = work()
            except Exception as error:
                page = Text("\n".join(error_lines(to_ddpctl_error(error))), "bold red")
            app.hand_over(show, page)

        threading.Thread(target=at_work, name=title, daemon=True).start()


def _account(key: str) -> str | None:
    """Return the account in the key of a row of runs; ``None``: it is a run of this account."""
    account, slash, _ = key.partition("/")
    return account if slash else None


class Cluster(TopView):
    """All hosts with their GPUs, and the runs."""

    def __init__(self) -> None:
        super().__init__()
        self._opened: set[str] = set()

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield Rows(RUN_COLUMNS, "runs")
        yield Rows(HOST_COLUMNS, "hosts")
        yield from self.bottom()

    @property
    def chosen_run(self) -> RunStatus | None:
        return self.app.seen.run(self.query_one("#runs", Rows).chosen or "")

    def say_no_run(self) -> None:
        account = _account(self.query_one("#runs", Rows).chosen or "")
        if account is None:
            super().say_no_run()
        else:
            self.say(f"a run of {account}: no other account may look into it or end it")

    def draw(self, seen: Overview) -> None:
        self.query_one("#head", Static).update(summary(seen))
        self.query_one("#runs", Rows).show(row for row in run_rows(seen) if row.has(self.word))
        self.query_one("#hosts", Rows).show(row for row in host_rows(seen, self._opened) if row.has(self.word))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        key = str(event.row_key.value)
        if event.data_table.id == "runs":
            self.app.push_screen(Inside(key)) if _account(key) is None else self.say_no_run()
        else:
            self._opened ^= {key.partition("/")[0]}
            self.draw(self.app.seen)


class Inside(TopView):
    """A run: its ranks, and below them its live output."""

    def __init__(self, run: str) -> None:
        super().__init__()
        self._run = run
        self._lines: deque[Text] = deque(maxlen=LINES)
        self._new: deque[Text] = deque(maxlen=LINES)
        self._bars = Bars()
        self._reading = False
        self._left = threading.Event()
        self._filtered = ""

    def compose(self) -> ComposeResult:
        yield Static(id="head")
        yield Rows(RANK_COLUMNS, "ranks")
        yield RichLog(max_lines=LINES, wrap=False, min_width=0, markup=False, highlight=False, id="log")
        yield from self.bottom()

    @property
    def chosen_run(self) -> RunStatus | None:
        return self.app.seen.run(self._run)

    def draw(self, seen: Overview) -> None:
        run = seen.run(self._run)
        if run is None:
            self.query_one("#head", Static).update(Text(f"run {self._run}: no host that answers knows it"))
            return
        self.query_one("#head", Static).update(run_head(seen, run))
        rows = rank_rows(seen, run)
        self.query_one(Rows).show(
            [row for row in rows if row.has(self.word)] or rows
        )  # the word may be in the output only
        if not self._reading:
            self._reading = True
            threading.Thread(target=self._read, args=(run,), name="top-log", daemon=True).start()
        self._draw_log()

    def _draw_log(self) -> None:
        log, fresh = self.query_one(RichLog), []
        while self._new:
            fresh.append(self._new.popleft())
        self._lines.extend(fresh)
        if self.word != self._filtered:
            log.clear()
            self._filtered, fresh = self.word, list(self._lines)
        log.auto_scroll = log.is_vertical_scroll_end  # after scrolling up a person is reading
        for line in fresh:
            if self.word.lower() in line.plain.lower():
                log.write(line)

    def _read(self, run: RunStatus) -> None:
        try:
            self.app.actions.log(run, self._hear, self._show, self._left.is_set)
        except Exception as error:
            self._new.append(Text(clean(str(to_ddpctl_error(error))), "yellow"))

    def _hear(self, event: Event) -> None:
        if isinstance(event, Note):
            self._new.append(Text(clean(f"{event.host or 'ddpctl'}: {event.message}"), "yellow"))

    def _show(self, groups: Sequence[Group]) -> None:
        shown = (group for group in groups if self._bars.shows(group[0]))
        self._new.extend(Text(clean(f"{where(group)} | {group[0].text.expandtabs()}")) for group in shown)

    def leave(self) -> None:
        self.dismiss()

    def on_unmount(self) -> None:
        self._left.set()

    def action_stacks(self) -> None:
        chosen = self.query_one(Rows).chosen
        if chosen is None:
            self.say("no rank is to be seen")
        else:
            rank = int(chosen)
            self._work(f"stack of rank {rank}", lambda: self.app.actions.stacks(self._run, rank))


class TopApp(App[None]):
    """The application. ``run``: the id of a run to open at the start."""

    ENABLE_COMMAND_PALETTE = False
    TITLE = "ddpctl top"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "quit", priority=True)]
    # Only the terminal's own colours, so that NO_COLOR removes every colour.
    CSS = """
    * { scrollbar-size: 0 1; }
    Screen { background: ansi_default; color: ansi_default; }
    #head { height: auto; max-height: 5; text-style: bold; }
    #runs { height: auto; max-height: 30%; margin-top: 1; }
    #hosts { height: 1fr; margin-top: 1; }
    #ranks { height: auto; max-height: 40%; margin-top: 1; }
    #log { height: 1fr; margin-top: 1; border-top: ascii ansi_default; background: ansi_default; }
    #said { height: auto; max-height: 2; }
    #keys { height: 1; text-style: reverse; }
    Input { display: none; height: 1; border: none; background: ansi_default; }
    DataTable { background: ansi_default; color: ansi_default; }
    DataTable > .datatable--header { background: ansi_default; color: ansi_default; text-style: bold underline; }
    DataTable > .datatable--cursor { background: ansi_default; color: ansi_default; }
    DataTable:focus > .datatable--cursor { text-style: reverse; }
    Sheet, Confirm { align: center middle; background: ansi_default; }
    .box { width: 96%; height: 90%; border: ascii ansi_default; padding: 0 1; background: ansi_default; }
    .question { height: auto; max-height: 50%; }
    Sheet RichLog { background: ansi_default; }
    """

    def __init__(self, actions: Actions, run: str | None = None) -> None:
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self.actions = actions
        self.seen = Overview()
        self._run = run
        self._looking = threading.Lock()
        self.fault: Exception | None = None  # the reason why the application ended by itself

    def on_mount(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            if threading.current_thread() is threading.main_thread():
                loop.add_signal_handler(number, self.exit)
        self.push_screen(Cluster())
        if self._run is not None:
            self.push_screen(Inside(self._run))
        self.set_interval(EVERY_S, self.look)

    def look(self) -> None:
        """Merge the hosts' pulses in a thread, unless such a thread is still at work."""
        if self._looking.acquire(blocking=False):
            threading.Thread(target=self._look, name="top-look", daemon=True).start()

    def _look(self) -> None:
        try:
            self.hand_over(self._show, self.actions.overview())
        except Exception as error:  # otherwise the screen would stay as it is, without a word
            self.hand_over(self._give_up, error)
        finally:
            self._looking.release()

    def _give_up(self, error: Exception) -> None:
        self.fault = error
        self.exit()

    def _show(self, seen: Overview) -> None:
        self.seen = seen
        for screen in reversed(self.screen_stack):
            if isinstance(screen, TopView):
                with contextlib.suppress(NoMatches):  # the view is being built or closed
                    screen.draw(seen)
                return

    def hand_over(self, show: Callable[[T], None], value: T) -> None:
        """Call ``show`` on the main thread, without waiting for it. Without a screen the value is dropped."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has just been closed
                self._loop.call_soon_threadsafe(lambda: self.call_later(show, value))
