"""Print the tables of benchmarks, or their figures as JSON."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy import generic
from rich import box
from rich.console import Console
from rich.table import Table as RichTable

from testbed.telemetry.store import finite

#: Nothing is cut off, in a narrow terminal or a guest's console either.
WIDTH = 300

_console = Console(highlight=False, soft_wrap=True, width=WIDTH)


@dataclass(frozen=True, slots=True)
class Table:
    """Figures in a terminal: numbers stand right, the first column left. `notes` go below."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


def progress(text: str) -> None:
    """Print the progress to standard error."""
    print(text, file=sys.stderr, flush=True)


def show(tables: Sequence[Table], figures: Mapping[str, Any], *, as_json: bool, backend: str | None = None) -> None:
    """Print the tables, or the figures as one JSON object, with what they were measured on.

    `figures` should name the number of repeats and each ratio to a peer; `backend` is the shaper's name.
    """
    machine = {"kernel": platform.release(), "cpus": os.cpu_count(), "backend": backend}
    if as_json:
        # The interval of one seed is infinite, and the loss of a diverged training is no number: null in JSON.
        print(json.dumps(finite({**figures, **machine}), default=_plain))
        return
    for table in tables:
        _console.print(_rich(table))
        for note in table.notes:
            _console.print(f"  {note}", markup=False)
        _console.print()
    shaping = f", {backend} shaping" if backend else ""
    _console.print(f"kernel {machine['kernel']}, {machine['cpus']} CPUs{shaping}", markup=False)


def _rich(table: Table) -> RichTable:
    made = RichTable(title=table.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for number, column in enumerate(table.columns):
        made.add_column(column, justify="right" if number else "left", no_wrap=True)
    for row in table.rows:
        made.add_row(*row)
    return made


def _plain(value: object) -> object:
    """Return NumPy's number or truth value as Python's, for JSON."""
    if isinstance(value, generic):
        return value.item()
    raise TypeError(f"{value!r} is no value of JSON")
