"""The progress of many runs: a table kept up to date in a terminal, and elsewhere a line for each run."""

from __future__ import annotations

import time
from collections import Counter

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from testbed.cli.console import plain_table
from testbed.report import text
from testbed.run.execute import Executed
from testbed.run.sweep.comparison import Comparison
from testbed.run.sweep.planned_run import PlannedRun, Point
from testbed.run.terminal.display import REFRESH_PER_S, printing, time_left, time_left_text


class SweepProgress:
    """Shows the progress of runs inside its context. The progress of the present run is below the table."""

    def __init__(self, console: Console, compared: Comparison) -> None:
        self._console = console
        self._compared = Comparison(compared.planned, dict(compared.made))
        self._before = len(compared.made)
        self._running: list[PlannedRun] = []
        self._began_s = time.monotonic()
        self._left = ""
        self._live: Live | None = None

    def __enter__(self) -> SweepProgress:
        if self._before:
            self._console.print(f"{self._before} of {self._planned} runs are already made", highlight=False)
        if self._console.is_interactive:
            self._live = Live(console=self._console, refresh_per_second=REFRESH_PER_S, transient=True)
            self._live.start()
            self._show()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            with printing(self._console):
                self._live.stop()

    def begin(self, run: PlannedRun) -> None:
        """Print which run begins, and the time left as estimated from the runs made since the start."""
        self._running.append(run)
        number = len(self._compared.made) + len(self._running)
        left = self._left and f"; {self._left}"
        line = f"[bold]{number} of {self._planned}[/]: {escape(run.words)}{left}"
        self._console.print(line, highlight=False, soft_wrap=True)
        self._show()

    def end(self, run: PlannedRun, executed: Executed) -> None:
        """Count a run that has ended."""
        self._running.remove(run)
        self._compared = Comparison(self._compared.planned, {**self._compared.made, run.key: executed})
        made, total = len(self._compared.made) - self._before, self._planned - self._before
        self._left = time_left_text(time_left(time.monotonic() - self._began_s, made, total))
        self._show()

    def lost(self, reason: str, run: PlannedRun | None) -> None:
        """Print which host was lost, and that its run, if it had one, is made again."""
        outcome = "it had no run"
        if run is not None:
            self._running.remove(run)
            outcome = f"its run is made again: {run.words}"
        self._console.print(escape(f"{reason}; {outcome}"), highlight=False, soft_wrap=True)
        self._show()

    @property
    def _planned(self) -> int:
        return len(self._compared.planned)

    def _show(self) -> None:
        if self._live is not None:
            line = f"{len(self._compared.made)} of {self._planned} runs"
            told = ", ".join(part for part in (line, self._left) if part)
            self._live.update(Group(self._table(), Text(told)), refresh=True)

    def _table(self) -> Table:
        points = self._compared.points
        table = plain_table(*points[0].labels, numbers=("runs", "round", "training"), then=["verdicts"])
        for point in points:
            table.add_row(*(Text(label) for label in point.labels.values()), *self._cells(point))
        return table

    def _cells(self, point: Point) -> tuple[str, ...]:
        figures = self._compared.figures(point)
        verdicts, running = Counter(figures["verdicts"]), sum(run.point is point for run in self._running)
        told = [f"{count} {verdict}" for verdict, count in verdicts.items()]
        planned = sum(run.point is point for run in self._compared.planned)
        return (
            f"{sum(verdicts.values())} of {planned}",
            text.seconds(figures["seconds_per_round_p50"]),
            text.seconds(figures["wall_seconds"]),
            ", ".join([*told, *([f"{running} running"] if running else [])]),
        )
