"""Runs of experiments from a program, and their results."""

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
    """Run an experiment as `testbed run` does, with its directory under `runs/` and its progress in the terminal.

    Training that breaks off is no error: then the result is not `finished`. The network is removed in any case, also
    after Ctrl-C.

    Args:
        experiment: The experiment's file, or the name of a preset.
        overrides: Values of fields as `--set` takes them: `{"train.rounds": "20"}`.
        strict: Refuse an experiment that asks for more than this machine carries.

    Returns:
        The recorded result.

    Raises:
        SpecError: A file is wrong.
        EmulationError: This machine can't run the experiment, or `strict` refuses it.
    """
    from testbed.report.page import write_report
    from testbed.run.execute import execute as run
    from testbed.run.terminal.display import Display

    return Result(run(Path(experiment), overrides or {}, strict, write_report, Display()).directory)


@dataclass(frozen=True)
class Result:
    """A finished run, as its directory recorded it. `Result(Path("runs/latest"))` reads a past run.

    Tables are pandas frames, with times in seconds since training began.

    Raises:
        NotARun: On the first access, where no run wrote the directory.
        PackageMissing: On access to a table, where pandas is not installed.
    """

    directory: Path

    @property
    def finished(self) -> bool:
        """True if training came to its end."""
        return self._record.finished

    @property
    def verdict(self) -> str:
        """The verdict: `trusted` if the emulation did what the files asked, else `suspect`.

        A run that broke off is `suspect`, a simulation `simulated`.
        """
        return str(self.summary.get("verdict", "suspect"))

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons why the verdict is `suspect`."""
        return tuple(self.summary.get("reasons", ()))

    @property
    def summary(self) -> Mapping[str, Any]:
        """The figures of `summary.json` (docs/report.md); empty where the run left no summary."""
        return self._record.summary

    @property
    def rounds(self) -> DataFrame:
        """A row for each round over all members: `seconds`, and the means of the members' metrics."""
        return frames.rounds(self._record)

    @property
    def reports(self) -> DataFrame:
        """A row for each round of each member: time of computing, bytes sent and received, metrics."""
        return frames.reports(self._record)

    @property
    def links(self) -> DataFrame:
        """A row for each state of a link, with its start: `rate_bps`, `delay_s`, `loss`, `up`."""
        return frames.links(self._record)

    @property
    def traffic(self) -> DataFrame:
        """A row a second for each link: the `bytes` that arrived so far, and the seconds `busy_s` with a queue."""
        return frames.traffic(self._record)

    @property
    def events(self) -> DataFrame:
        """A row for each swap of the plan or the network and each event of the experiment, in order."""
        return frames.events(self._record)

    @property
    def figures(self) -> Mapping[str, Drawing]:
        """The figures of the run's page by name, for which there are data; a notebook shows them."""
        from testbed.report.export import drawings

        return {drawing.name: drawing for drawing in drawings(self._record)}

    def export(self, target: Path, forms: Sequence[Form] = ("svg", "csv")) -> list[Path]:
        """Write figures and tables into a folder, as `testbed export` does. Return the files that were written."""
        from testbed.report.export import export

        return export([self._record], target, forms)

    @cached_property
    def _record(self) -> RunRecord:
        return RunRecord.read(self.directory)
