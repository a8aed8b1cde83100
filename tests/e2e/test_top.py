"""The live screen, typed at and looked at as a person does, over a training on real hosts."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyte
import pytest

from tests.e2e.site import Site, of_run, ranks, until
from tests.lab import Lab
from tests.lab.command import COLUMNS, ROWS, AtTerminal

TRAINS = """
import json, os, time
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
with open(os.environ["DDPCTL_METRICS"], "a") as metrics:
    for step in range(100000):
        dist.barrier()
        metrics.write(json.dumps({"step": step, "samples_per_s": 100.0 + rank}) + "\\n")
        metrics.flush()
        if step % 5 == 0:
            print("\\x1b[2Jstep", step, flush=True)
        time.sleep(0.2)
"""
COLOURS = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;\d+)*m")
DOWN, ESCAPE, ENTER = "\x1b[B", "\x1b", "\r"


class Glass:
    """What a person sees of a terminal."""

    def __init__(self, program: AtTerminal) -> None:
        self._program = program
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)
        self._fed = 0

    @property
    def text(self) -> str:
        assert self._program.stdout is not None  # the property reads the new output
        new = self._program.screen[self._fed :]
        self._fed += len(new)
        # Questions to the terminal, which pyte takes for text.
        self._stream.feed(re.sub(rb"\x1b\[[<>=?][0-9;]*[$]?[pu]", b"", new))
        return "\n".join(self._screen.display)

    def press(self, keys: str, *wanted: str, without: str = "", seconds: float = 60) -> str:
        """Type, then wait until all of these can be read, and ``without`` no more."""
        if keys:
            self._program.type(keys)

        def there() -> bool:
            text = self.text
            return all(re.search(one, text) for one in wanted) and not (without and re.search(without, text))

        until(there, seconds, lambda: f"{keys!r} did not lead to {wanted}:\n{self.text}")
        return self.text


@pytest.fixture
def lab_of_three() -> Iterator[Lab]:
    """Hosts for a single test: `top` shows the runs that other tests have left on their hosts."""
    with Lab(3) as lab:
        yield lab


@pytest.fixture
def training(site: Site) -> tuple[Site, str]:
    site.only(0, 1)
    run = site.up(site.job("train", TRAINS))["run"]
    site.wait_for_output("train", "step 5")
    return site, run


def opened(site: Site, *args: str, **env: str) -> tuple[Glass, AtTerminal]:
    program = site.start("top", *args, terminal=True, env=env)
    assert isinstance(program, AtTerminal)
    return Glass(program), program


def step(text: str) -> int:
    found = re.search(r"step (\d+)", text)
    return int(found[1]) if found else -1


def ends(program: AtTerminal) -> str:
    """It has ended well, and given the terminal back; returns all that it wrote."""
    done = program.wait(20)
    assert done.rc == 0, done.stdout
    assert done.stdout.rindex("\x1b[?1049l") > done.stdout.rindex("\x1b[?1049h")
    return done.stdout


def test_every_key(training: tuple[Site, str]) -> None:
    site, run = training
    glass, program = opened(site)
    names = [host["name"] for host in site.hosts]
    text = glass.press("", "2 hosts", rf"train +running +2 +\d+ +201 .*{run}", *(rf"{name} .* train" for name in names))
    assert "k kill" in text

    glass.press("/" + names[1], "2 hosts", without=rf"(?m)^{names[0]} ")
    glass.press(ESCAPE, rf"(?m)^{names[0]} ")

    # A line of the job's that would clear the screen is shown, not obeyed.
    rows = (
        rf"(?m)^0 +{names[0]} +\d+ +(running|sleeping) +\d+% +\d+MB +- +\d+ +100 +\d+s",
        rf"(?m)^1 +{names[1]} +\d+ +(running|sleeping) +\d+% +\d+MB +- +\d+ +101 +\d+s",
    )
    text = glass.press(ENTER, rf"train +running +run {run}", r"samples_per_s 201", r"\\x1b\[2Jstep \d+", *rows)
    before = step(text)
    until(lambda: step(glass.text) > before + 10, 20, lambda: glass.text)  # it is live

    glass.press("d", "doctor of train", "nobody (is stuck|waits)", r"RANK +HOST")
    glass.press(ESCAPE, without="doctor of train")
    glass.press(DOWN + "s", "stack of rank 1", rf"rank 1 on {names[1]}", r"train\.py:\d+ in")
    glass.press(ESCAPE, without="stack of rank")
    glass.press("?", "asks first", "quit; no run is touched")
    glass.press(ESCAPE, without="asks first")

    glass.press("k", f"Kill train, run {run}", r"\[y\] yes")
    glass.press("n", "nothing was killed", without=r"\[y\] yes")
    assert all(ranks(host, run) for host in list(site.lab)[:2])
    glass.press("k", f"Kill train, run {run}")
    text = glass.press("y", "kill of train", "nothing of it is left")
    assert all(re.search(rf"{name} .* none", text) for name in names)
    assert [of_run(host, run) for host in list(site.lab)[:2]] == [[], []]
    glass.press(ESCAPE, rf"train +killed +run {run}", r"(?m)^0 .* killed", without="Escape closes")
    glass.press("k", "train is over: killed")
    glass.press(ESCAPE, r"train +killed +2 ", "2 hosts")
    program.type("q")
    assert COLOURS.search(ends(program))


def test_readonly_and_no_color(training: tuple[Site, str]) -> None:
    """Begins inside the run that is named; a host that goes away is a row, and comes back."""
    site, run = training
    glass, program = opened(site, "train", "--readonly", NO_COLOR="1")
    text = glass.press("", rf"train +running +run {run}", r"step \d+")
    assert "k kill" not in text
    glass.press("k", "--readonly: nothing can be killed", without=r"\[y\] yes")
    assert "asks first" not in glass.press("?", "quit; no run is touched")
    glass.press(ESCAPE, without="quit; no run")
    glass.press(ESCAPE, "2 hosts", rf"train .* {run}")
    site.lab[1].drop(port=22)
    name = site.hosts[1]["name"]
    glass.press("", rf"2 hosts, 1 without an answer \({name}\)")
    site.lab[1].heal()
    glass.press("", "2 hosts  1 live run")
    assert all(ranks(host, run) for host in list(site.lab)[:2])
    program.type("\x03")
    assert not COLOURS.search(ends(program))


def test_without_a_terminal_it_is_printed_once(training: tuple[Site, str]) -> None:
    site, run = training

    def look() -> list[str]:
        """A look at a busy host may miss the speed of a rank."""
        lines = site("top").ok().stdout.splitlines()
        return lines if any(re.match(rf"train .*running +2 +\d+ +201 +.* {run}", line) for line in lines) else []

    first = until(look, 60, "no look shows the speed of both ranks")
    assert first[0] == "2 hosts  1 live run"
    assert [line.split()[0] for line in first[2:5]] == ["HOST", *(host["name"] for host in site.hosts)]

    def look_inside() -> str:
        screen = site("top", run[:19]).ok().stdout
        return screen if re.search(r"(?m)^1 .* 101 ", screen) else ""

    assert "\x1b" not in until(look_inside, 60, "no look shows the speed of rank 1")
    assert site("top", "nothing").rc == 7


def test_the_page_for_prometheus(training: tuple[Site, str]) -> None:
    """A host that does not answer is a value of the page, and a warning."""
    site, run = training
    first, second = (host["name"] for host in site.hosts)
    labels = f'cluster="lab",project="{site.project}",job_name="train",run="{run}"'
    site.lab[1].drop(port=22)
    done = site("metrics").ok()
    assert f'ddpctl_host_up{{cluster="lab",host="{first}"}} 1\n' in done.stdout
    assert f'ddpctl_host_up{{cluster="lab",host="{second}"}} 0\n' in done.stdout
    assert f'ddpctl_host_slots_held{{cluster="lab",host="{first}"}} 1\n' in done.stdout
    assert f'ddpctl_run_state{{{labels},state="running"}} 1\n' in done.stdout
    assert re.search(rf"(?m)^ddpctl_run_step\{{{re.escape(labels)}\}} \d+$", done.stdout)
    assert re.search(rf"warning: {second}: \S", done.stderr)


def test_progress_that_a_script_only_prints(site: Site) -> None:
    prints = "import time\nprint('epoch 3 step 120 loss 0.43', flush=True)\ntime.sleep(600)\n"
    job = site.only(0).job("prints", prints)
    site.up(job)
    said = "epoch 3  step 120  loss 0.43  (read from the output)"
    until(lambda: said in site("status", job).stdout, 30, "no progress in the status")
    assert said in site("top", job).ok().stdout
    assert re.search(rf"(?m)^{job} .*running +1 +120 ", site("top").ok().stdout)
    assert said in site("report", job).ok().stdout
    site("kill", job).ok()
