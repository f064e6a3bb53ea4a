"""Running an experiment from a program, and what it came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testbed.report import frames
from testbed.report.record import RunRecord

if TYPE_CHECKING:
    from pandas import DataFrame

    from testbed.report.export import Form
    from testbed.report.figures.canvas import Drawing


def execute(experiment: str | Path, overrides: Mapping[str, str] | None = None, *, strict: bool = False) -> Result:
    """Run an experiment as `testbed run` does: its directory comes to lie under `runs/`, and how far it is is printed.

    `overrides` has values as `--set` takes them, `{"train.rounds": "20"}`. Training that breaks off is no error: then
    the result is not `finished`. SpecError when something is wrong with the files; EmulationError when this machine
    cannot do it, and under `strict` when the experiment asks for more than the machine carries. Nothing is left of
    the network then, nor after Ctrl-C.
    """
    from testbed.report.page import write_report
    from testbed.run.execute import execute as run
    from testbed.run.terminal.display import Display

    return Result(run(Path(experiment), overrides or {}, strict, write_report, Display()).directory)


@dataclass(frozen=True)
class Result:
    """A run that is over, as its directory recorded it; also one of another day: `Result(Path("runs/latest"))`.

    Tables are pandas frames; PandasMissing where pandas is not installed. Times in them are seconds since training
    began. NotARun when no run wrote the directory.
    """

    directory: Path

    @property
    def finished(self) -> bool:
        """Whether training came to its end."""
        return self._record.finished

    @property
    def verdict(self) -> str:
        """Whether the emulation did what the files asked: `trusted`; or `suspect`, also where the run broke off.
        `simulated` of what was not emulated."""
        return str(self.summary.get("verdict", "suspect"))

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the verdict is `suspect`."""
        return tuple(self.summary.get("reasons", ()))

    @property
    def summary(self) -> Mapping[str, Any]:
        """All figures of `summary.json` (docs/report.md); empty where the run left none."""
        return self._record.summary

    @property
    def rounds(self) -> DataFrame:
        """By its number, each round over all members: `seconds`, and the means of the members' metrics."""
        return frames.rounds(self._record)

    @property
    def reports(self) -> DataFrame:
        """Each round as each member saw it: computing, bytes sent and received, metrics."""
        return frames.reports(self._record)

    @property
    def links(self) -> DataFrame:
        """The states that each link had, and from when on: `rate_bps`, `delay_s`, `loss`, `up`."""
        return frames.links(self._record)

    @property
    def traffic(self) -> DataFrame:
        """What had arrived over each link, once a second: `bytes`, and `busy_s` with a queue."""
        return frames.traffic(self._record)

    @property
    def events(self) -> DataFrame:
        """Swaps of the plan and of the network, and the experiment's events, in order."""
        return frames.events(self._record)

    @property
    def figures(self) -> Mapping[str, Drawing]:
        """The figures of the run's page, by name, as far as there is something to draw; a notebook shows them."""
        from testbed.report.export import drawings

        return {drawing.name: drawing for drawing in drawings(self._record)}

    def export(self, target: Path, forms: Sequence[Form] = ("svg", "csv")) -> list[Path]:
        """Write figures and tables into a folder, as `testbed export` does; the files that were written."""
        from testbed.report.export import export

        return export([self._record], target, forms)

    @cached_property
    def _record(self) -> RunRecord:
        return RunRecord.read(self.directory)
