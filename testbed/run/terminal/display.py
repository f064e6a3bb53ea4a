"""The terminal output of a run: each step with its time, then the training's progress, plan and links, live."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.status import Status
from rich.table import Table
from rich.text import Text

from testbed.api.entry import ApiPort
from testbed.link import LinkState
from testbed.plan import Plan
from testbed.run.terminal.wrap import wrapped

REFRESH_PER_S = 4

#: Seconds between two progress lines where the output is not a terminal (CI, a pipe).
LINE_EVERY_S = 5.0


class OutputClosedError(BrokenPipeError):
    """The program that reads the output has ended, such as `head`. The text is the reason of a run that this ends."""

    def __init__(self) -> None:
        super().__init__("the run was ended: the program that read its output has ended")


class ProgressConsole(Console):
    """A console whose closed pipe raises OutputClosedError, where Rich's own raises SystemExit(1)."""

    def on_broken_pipe(self) -> None:
        """Print nothing from now on.

        Raises:
            OutputClosedError: Always.
        """
        silence(self)
        raise OutputClosedError


def silence(console: Console) -> None:
    """Print nothing from now on. The rest in the buffer goes to /dev/null: its flush at the exit would fail."""
    console.quiet = True
    with suppress(OSError), Path(os.devnull).open("wb") as nowhere:  # OSError: the file has no descriptor
        os.dup2(nowhere.fileno(), console.file.fileno())


@contextmanager
def printing(console: Console) -> Iterator[None]:
    """Print in the context. Where the terminal is gone, print nothing: the signal that follows ends the program.

    Raises:
        OutputClosedError: The program that reads the output of a ProgressConsole has ended.
    """
    try:
        yield
    except BrokenPipeError:
        console.on_broken_pipe()
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        silence(console)


@contextmanager
def shown(live: Live | Status) -> Iterator[None]:
    """Show a live display in the context. Where the terminal is gone, its end hides no error of the body."""
    live.start()
    try:
        yield
    finally:
        with printing(live.console):
            live.stop()


@dataclass(frozen=True)
class Snapshot:
    """The state of a training at one moment, as it is shown."""

    #: The number of completed rounds.
    round: int
    rounds: int
    loss: float | None
    accuracy: float | None
    seconds_per_round: float | None
    plan: Plan | None
    states: Mapping[str, LinkState]
    #: The bit/s that arrived over each link.
    throughput: Mapping[str, float]
    events: tuple[str, ...] = ()


@dataclass
class Display:
    """Prints steps, and shows snapshots in place on a terminal or as lines elsewhere.

    Attributes:
        console: Where the display prints.
        api_port: The port at which a browser reaches the API of the next run, or None without one.
    """

    console: Console = field(default_factory=ProgressConsole)
    api_port: ApiPort | None = None
    _live: Live | None = None
    _last_line_s: float = 0.0
    _began_s: float = 0.0
    _printed: int = 0  # events

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Show a step's title while it is on, then print it with its seconds."""
        began = time.monotonic()
        with shown(self.console.status(escape(title))):
            yield
        self.say(f"  {escape(f'{title:<64}')} {time.monotonic() - began:6.1f} s")

    def say(self, text: str) -> None:
        """Print a line of markup; on a narrower terminal, wrapped."""
        with printing(self.console):
            self.console.print(wrapped(Text.from_markup(text), self.console), highlight=False, soft_wrap=True)

    def pass_on(self, line: str) -> None:
        """Print a line unchanged, but for characters that the output can't hold. Any thread may call this."""
        encoding = getattr(self.console.file, "encoding", None) or "utf-8"
        line = line.encode(encoding, errors="replace").decode(encoding)
        with printing(self.console):
            self.console.file.write(f"{line}\n")  # in one write, since other threads write too
            self.console.file.flush()

    def warn(self, what: str) -> None:
        """Print a warning in bold, also where progress is not shown."""
        begin, end = ("\x1b[1;33m", "\x1b[0m") if self.console.is_interactive else ("", "")
        self.pass_on(f"{begin}WARNING: {what}{end}")

    @contextmanager
    def live(self, rounds: int) -> Iterator[None]:
        """Show snapshots while the context is open. The progress bar ends at this number of rounds."""
        self._progress = Progress(
            TextColumn("  training"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self._task = self._progress.add_task("training", total=rounds)
        self._began_s, self._printed = time.monotonic(), 0
        if not self.console.is_interactive:
            yield
            return
        self._live = Live(console=self.console, refresh_per_second=REFRESH_PER_S, transient=True)
        with shown(self._live):
            yield
        self._live = None

    def show(self, snapshot: Snapshot) -> None:
        """Show a snapshot."""
        if self._live is None:
            self._print_line(snapshot)
            return
        self._progress.update(self._task, completed=snapshot.round)
        lines = (f"  {_figures(snapshot)}", _plan_line(snapshot))
        events = (f"  {event}" for event in snapshot.events[-4:])
        texts = [wrapped(Text.from_markup(line), self.console) for line in (*lines, *events)]
        self._live.update(Group(self._progress, *texts[:2], _link_table(snapshot), *texts[2:]))

    def _tell(self, events: Sequence[str]) -> None:
        """Print the events that were not printed yet."""
        for event in events[self._printed :]:
            self.say(f"  {event}")
        self._printed = max(self._printed, len(events))

    def _print_line(self, snapshot: Snapshot) -> None:
        self._tell(snapshot.events)
        now = time.monotonic()
        if now - self._last_line_s >= LINE_EVERY_S:
            self._last_line_s = now
            left = time_left_text(time_left(now - self._began_s, snapshot.round, snapshot.rounds))
            parts = (f"round {snapshot.round:>4} of {snapshot.rounds}", _figures(snapshot), left)
            self.say(f"  {'  '.join(part for part in parts if part)}")


def _figures(snapshot: Snapshot) -> str:
    parts = []
    if snapshot.loss is not None:
        parts.append(f"loss {snapshot.loss:.3f}")
    if snapshot.accuracy is not None:
        parts.append(f"accuracy {snapshot.accuracy:.1%}")
    if snapshot.seconds_per_round is not None:
        parts.append(f"last round {snapshot.seconds_per_round:.2f} s")
    if snapshot.plan is not None:
        parts.append(f"plan {snapshot.plan.epoch} ({escape(snapshot.plan.policy)})")
    return "  ".join(parts)


def _plan_line(snapshot: Snapshot) -> str:
    if snapshot.plan is None:
        return ""
    tree = max(snapshot.plan.trees, key=lambda tree: tree.share)
    hops = ", ".join(f"{child}->{parent}" for child, parent in sorted(tree.reduce.items()))
    return f"  [bold]plan {snapshot.plan.epoch}[/] root {tree.root}: {hops}"


def _link_table(snapshot: Snapshot) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for title, justify in (("  link", "left"), ("asked", "right"), ("carried", "right"), ("one way", "right")):
        table.add_column(title, justify=justify)  # type: ignore[arg-type]
    for name, state in sorted(snapshot.states.items()):
        asked = f"{state.rate_bps / 1e6:.1f} Mbit/s" if state.up else "[red]down[/]"
        carried = f"{snapshot.throughput.get(name, 0.0) / 1e6:.1f} Mbit/s"
        table.add_row(f"  {name}", asked, carried, f"{state.delay_s * 1e3:.1f} ms")
    return table


def time_left(elapsed_s: float, done: int, total: int) -> float | None:
    """Return the seconds until `total` equal tasks are done, of which `done` took `elapsed_s`.

    None before the first and after the last.
    """
    return elapsed_s / done * (total - done) if 0 < done < total else None


def time_left_text(seconds: float | None) -> str:
    """Return a time left in words, rounded: `about 40 s left`, `about 2 h 10 min left`. Empty for None."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f"about {max(1, round(seconds, -1 if seconds > 20 else 0)):.0f} s left"
    minutes = round(seconds / 60)
    if minutes <= 90:
        return f"about {minutes} min left"
    hours, rest = divmod(round(minutes, -1), 60)
    return f"about {hours} h {rest} min left" if rest else f"about {hours} h left"
