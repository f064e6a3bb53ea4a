"""The display: lines where there is no terminal, a picture that fits where there is one, and the time left."""

from __future__ import annotations

import errno
import io
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from testbed.emulation.interrupt import Interrupted
from testbed.link import LinkState
from testbed.plan import Plan, Tree
from testbed.run.terminal import display as module
from testbed.run.terminal.display import (
    Display,
    OutputClosedError,
    ProgressConsole,
    Snapshot,
    time_left,
    time_left_text,
)

MEMBERS = tuple(f"site{i}-w0" for i in range(12))
PLAN = Plan(
    3, MEMBERS, (Tree(MEMBERS[0], parents := dict.fromkeys(MEMBERS[1:], MEMBERS[0]), parents),), policy="netstorm"
)


def snapshot(number: int, *events: str) -> Snapshot:
    states = {"paris->tokyo": LinkState(50e6, 0.11)}
    return Snapshot(number, 200, 0.4, 0.9, 0.5, PLAN, states, {"paris->tokyo": 1e6}, events)


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    monkeypatch.setattr(module, "LINE_EVERY_S", 0.0)
    return io.StringIO()


@pytest.mark.local
def test_without_a_terminal_there_are_plain_lines_with_what_is_left(lines: io.StringIO) -> None:
    display = Display(Console(file=lines))
    with display.live(200):
        display.show(snapshot(0))
        display.show(snapshot(50, "toronto-tokyo down"))
        display.show(snapshot(200, "toronto-tokyo down"))
    first, event, second, last = lines.getvalue().splitlines()
    assert "left" not in first
    assert event == "  toronto-tokyo down"
    assert second.startswith("  round   50 of 200  loss 0.400  accuracy 90.0%")
    assert second.endswith(" left")
    assert last.startswith("  round  200 of 200")
    assert "\x1b" not in lines.getvalue()


@pytest.mark.local
def test_brackets_in_a_step_s_title_are_printed(lines: io.StringIO) -> None:
    display = Display(Console(file=lines))
    with display.step("building [/old]/Dockerfile again"):
        pass
    assert "building [/old]/Dockerfile again" in lines.getvalue()


@pytest.mark.local
def test_each_run_s_events_are_told_also_of_a_second_run(lines: io.StringIO) -> None:
    display = Display(Console(file=lines))
    for _ in range(2):
        with display.live(200):
            display.show(snapshot(1, "toronto-tokyo down"))
    assert lines.getvalue().count("toronto-tokyo down") == 2


@pytest.mark.local
def test_a_terminal_of_80_columns_shows_everything(lines: io.StringIO) -> None:
    display = Display(Console(file=lines, width=80, height=60, force_terminal=True, color_system=None))
    with display.live(200):
        display.show(
            snapshot(50, "plan 1 in force from round 48: saves 38% of a round, more than 10% of a round wanted")
        )
    shown = lines.getvalue()
    assert "more than 10% of a round wanted" in shown
    assert "site11-w0->site0-w0" in shown
    assert "…" not in shown


@pytest.mark.local
@pytest.mark.parametrize(("encoding", "shown"), [("utf-8", "epoch 1 ✓ caf?\n"), ("ascii", "epoch 1 ? caf?\n")])
def test_a_line_that_the_output_cannot_hold_is_printed_without_what_it_cannot(encoding: str, shown: str) -> None:
    output = io.TextIOWrapper(written := io.BytesIO(), encoding=encoding)
    Display(Console(file=output)).pass_on("epoch 1 ✓ caf\udce9")
    assert written.getvalue().decode(encoding) == shown


@pytest.mark.local
def test_a_warning_is_printed_also_where_progress_is_not(lines: io.StringIO) -> None:
    display = Display(Console(file=lines, quiet=True))
    display.say("progress")
    display.warn("nothing was emulated")
    assert lines.getvalue() == "WARNING: nothing was emulated\n"


@pytest.mark.local
def test_a_terminal_that_cannot_move_its_cursor_shows_lines(
    lines: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    display = Display(Console(file=lines, force_terminal=True))
    with display.live(200):
        display.show(snapshot(50))
    display.warn("nothing was emulated")
    assert "round   50 of 200" in lines.getvalue()
    assert lines.getvalue().endswith("\nWARNING: nothing was emulated\n")


class Terminal(io.StringIO):
    """A terminal that may be closed, as when the connection to the machine ends."""

    closed_now = False

    def write(self, text: str) -> int:
        if self.closed_now:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().write(text)


@pytest.mark.local
@pytest.mark.parametrize("what", ["live", "step"])
def test_a_terminal_that_is_gone_hides_no_interrupt(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    display = Display(ProgressConsole(file=(terminal := Terminal()), force_terminal=True))
    with pytest.raises(Interrupted), display.live(200) if what == "live" else display.step("training"):
        terminal.closed_now = True
        raise Interrupted("SIGHUP")
    display.say("the page was written")
    display.warn("some containers are left")


@pytest.mark.local
def test_a_pipe_that_is_read_no_longer_is_said_once() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:
        display = Display(ProgressConsole(file=pipe))
        with pytest.raises(OutputClosedError):
            display.pass_on("training")
        display.say("the rest is not printed")
        display.pass_on("as little is a line of a program")


@pytest.mark.pure
@given(st.floats(0.1, 1e6), st.integers(1, 1000), st.integers(1, 1000))
def test_things_alike_take_as_long_as_those_before(each_s: float, done: int, more: int) -> None:
    assert time_left(each_s * done, done, done + more) == pytest.approx(each_s * more)


@pytest.mark.pure
def test_before_the_first_is_done_nothing_is_said() -> None:
    assert time_left(12.0, 0, 5) is None
    assert time_left_text(None) == ""


@pytest.mark.pure
def test_after_the_last_nothing_is_left() -> None:
    assert time_left(12.0, 5, 5) is None


@pytest.mark.pure
@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "about 1 s left"),
        (7.4, "about 7 s left"),
        (44.0, "about 40 s left"),
        (89.9, "about 90 s left"),
        (200.0, "about 3 min left"),
        (5380.0, "about 90 min left"),
        (7300.0, "about 2 h left"),
        (7800.0, "about 2 h 10 min left"),
    ],
)
def test_it_is_said_no_finer_than_it_is_known(seconds: float, words: str) -> None:
    assert time_left_text(seconds) == words
