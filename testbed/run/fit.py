"""Whether a host carries an experiment, by its measured budget; found out before anything is built."""

from __future__ import annotations

from collections.abc import Sequence

from rich.markup import escape

from testbed.emulation.host import budget
from testbed.run.conclusion.verdict import host_was_short
from testbed.run.errors import TooMuch
from testbed.run.terminal.display import Display
from testbed.spec.experiment import Experiment


def fits_host(experiment: Experiment, backend: str, strict: bool, display: Display) -> bool:
    """Say it where an experiment asks for more than the host carries under this backend; `strict` refuses then, with
    TooMuch. A budget that is not known is measured first, about five seconds; BudgetError when that fails."""
    kept = budget.host_budget(backend)
    if kept is None:
        with display.step("what this host carries"):
            kept = budget.measure_budget(backend)
    excess = budget.need(experiment, kept).excess(kept, experiment.spec.scale)
    if excess is None:
        return True
    text = f"{experiment.file} asks for more than this host carries: {excess} ({kept})"
    if strict:
        raise TooMuch(text)
    display.say(f"  [yellow]{escape(text)}[/]")
    return False


def hold_against(fits: bool | None, reasons: Sequence[str]) -> None:
    """Have the budget measured again where the `reasons` of a run's verdict say otherwise of the host than it did.

    `fits` is what it said of the run, None where nobody asked.
    """
    if fits is not None and fits == host_was_short(reasons):
        budget.contradict()
