"""What a person sees while a run goes on: each step with its time, then progress, plan and links, live."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from testbed.api.entry import ApiPort
from testbed.link import LinkState
from testbed.plan import Plan
from testbed.run.terminal.phrases import fitted
from testbed.run.terminal.time_left import in_words, time_left

REFRESH_PER_S = 4

#: Without a terminal (CI, a pipe) a line is printed instead, this often.
LINE_EVERY_S = 5.0


@dataclass(frozen=True)
class Snapshot:
    """What is shown of a moment in training. `throughput` is bit/s that arrived over each link."""

    round: int
    rounds: int
    loss: float | None
    accuracy: float | None
    seconds_per_round: float | None
    plan: Plan | None
    states: Mapping[str, LinkState]
    throughput: Mapping[str, float]
    events: tuple[str, ...] = ()


@dataclass
class Display:
    """Prints steps, and shows snapshots in place on a terminal or as lines elsewhere; a browser reaches the API at
    `api_port`, if there is any."""

    console: Console = field(default_factory=Console)
    api_port: ApiPort | None = None
    _live: Live | None = None
    _last_line_s: float = 0.0
    _began_s: float = 0.0
    _said: int = 0

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """A step of the run: its title, then how long it took."""
        began = time.monotonic()
        with self.console.status(title):
            yield
        self.say(f"  {title:<64} {time.monotonic() - began:6.1f} s")

    def say(self, text: str) -> None:
        """A line of its own, or several where the terminal is narrower."""
        self.console.print(fitted(Text.from_markup(text), self.console), highlight=False, soft_wrap=True)

    def pass_on(self, line: str) -> None:
        """A line as it is. Any thread may."""
        self.console.file.write(f"{line}\n")  # in one piece: others write too
        self.console.file.flush()

    def warn(self, what: str) -> None:
        """Print a line that is not to be missed, also where progress is not shown."""
        begin, end = ("\x1b[1;33m", "\x1b[0m") if self.console.is_terminal else ("", "")
        self.pass_on(f"{begin}WARNING: {what}{end}")

    @contextmanager
    def live(self, rounds: int) -> Iterator[None]:
        """While inside, snapshots are shown."""
        self._progress = Progress(
            TextColumn("  training"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        self._task = self._progress.add_task("training", total=rounds)
        self._began_s, self._said = time.monotonic(), 0
        if not self.console.is_terminal:
            yield
            return
        with Live(console=self.console, refresh_per_second=REFRESH_PER_S, transient=True) as self._live:
            yield
        self._live = None

    def show(self, snapshot: Snapshot) -> None:
        """Show a moment."""
        if self._live is None:
            self._print_line(snapshot)
            return
        self._progress.update(self._task, completed=snapshot.round)
        lines = (f"  {_figures(snapshot)}", _plan_line(snapshot))
        events = (f"  {event}" for event in snapshot.events[-4:])
        said = [fitted(Text.from_markup(line), self.console) for line in (*lines, *events)]
        self._live.update(Group(self._progress, *said[:2], _link_table(snapshot), *said[2:]))

    def tell(self, events: Sequence[str]) -> None:
        """Print those of the run's events that were not printed yet."""
        for event in events[self._said :]:
            self.say(f"  {event}")
        self._said = max(self._said, len(events))

    def _print_line(self, snapshot: Snapshot) -> None:
        self.tell(snapshot.events)
        now = time.monotonic()
        if now - self._last_line_s >= LINE_EVERY_S:
            self._last_line_s = now
            left = in_words(time_left(now - self._began_s, snapshot.round, snapshot.rounds))
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
        parts.append(f"plan {snapshot.plan.epoch} ({snapshot.plan.policy})")
    return "  ".join(parts)


def _plan_line(snapshot: Snapshot) -> str:
    if snapshot.plan is None:
        return ""
    tree = max(snapshot.plan.trees, key=lambda tree: tree.share)
    hops = ", ".join(f"{child}→{parent}" for child, parent in sorted(tree.reduce.items()))
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
