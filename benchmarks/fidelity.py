"""Measure a link's errors against its requested state, and those of the same link by Mininet's TCLink on one kernel.

    sudo python -m benchmarks.fidelity [grid] [ends] [toggle] [--loss 1] [--rates 5 50]

Parts:

    grid    rates by round trips by loss: the rate by TCP without loss and by UDP with loss, the idle round trip, the
            share of lost datagrams
    ends    the slowest and the fastest rates
    toggle  a busy link whose rate changes twenty times

A row is a cell, that is a rate, a round trip and a loss, with both subjects' figures. The bounds are the tolerances of
the verdict; the exit code is 1 where a link of the testbed misses one that this host can carry. The whole grid takes
ten minutes. `--guest` measures in the guest kernel, which has netem, where this kernel has none.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import product

from benchmarks.support.fidelity.cells import Cell, Result, all_within, measure, reasons, share_within, texts
from benchmarks.support.fidelity.subjects import MininetLink, TestbedLink
from benchmarks.support.fidelity.toggle import SLOW_BPS, TOGGLES, Toggled, asked, toggle
from benchmarks.support.options import Options
from benchmarks.support.program import run_program
from benchmarks.support.table import Table, progress, show
from testbed.run.conclusion.verdict import RATE_TOLERANCE, RTT_TOLERANCE_S
from tests.guest.kernel import run_in_guest

RATES_MBPS = (0.5, 5, 50, 200, 500)
RTTS_MS = (0, 20, 100, 300)
LOSSES_PCT = (0, 1)
QUICK_GRID = (Cell(0.5, 20, 0), Cell(200, 100, 0), Cell(5, 100, 1), Cell(50, 20, 1))
#: The slowest and the fastest links. UDP fills those with loss, TCP the others: only full super-packets come near 10
#: Gbit/s.
ENDS = (Cell(0.064, 20, 1), Cell(1000, 20, 0), Cell(10000, 20, 0))
PARTS = ("grid", "ends", "toggle")
GUEST_LIMIT_S = 1800.0


def main() -> int:
    """Measure the chosen parts and print them. Returns 1 where the testbed misses a tolerance, else 0."""
    parser = Options(__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all when none is named")
    parser.add_argument(
        "--loss", type=float, choices=LOSSES_PCT, help="measure only the grid's cells with this loss, in %%"
    )
    parser.add_argument(
        "--rates",
        type=float,
        nargs="+",
        choices=RATES_MBPS,
        help="measure only the grid's cells with these rates, in Mbit/s",
    )
    parser.add_argument("--guest", action="store_true", help="measure in the guest kernel")
    args = parser.parse()
    if unknown := set(args.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; the parts are {', '.join(PARTS)}")
    if args.guest:
        return _in_guest([word for word in sys.argv[1:] if word != "--guest"])
    parts = args.parts or (("grid", "toggle") if args.quick else PARTS)
    backend, results, toggled = _measure(parts, _grid(args))
    figures = {
        "cells": [result.values() for result in results],
        "within": {name: share_within(_of(results, name)) for name in (TestbedLink.name, MininetLink.name)},
        "toggle": [{**asdict(each), "within": each.within} for each in toggled],
        "repeats": 1,
    }
    tables = [*_cell_tables(results, backend), *([_toggle_table(toggled)] if toggled else [])]
    show(tables, figures, as_json=args.json, backend=backend)
    busy = all(each.within for each in toggled if each.subject == TestbedLink.name)
    return 0 if busy and all_within(_of(results, TestbedLink.name)) else 1


def _grid(args: Namespace) -> list[Cell]:
    cells = QUICK_GRID if args.quick else [Cell(*values) for values in product(RATES_MBPS, RTTS_MS, LOSSES_PCT)]
    # Cells with loss come last: from the first of them on, workers send single frames.
    wanted = (cell for cell in cells if args.loss in (None, cell.loss_pct))
    chosen = (cell for cell in wanted if args.rates is None or cell.rate_mbps in args.rates)
    return sorted(chosen, key=lambda cell: cell.loss_pct)


def _measure(parts: Iterable[str], grid: Sequence[Cell]) -> tuple[str, list[Result], list[Toggled]]:
    """Return the shaping backend, and the results of both subjects."""
    cells = [*(grid if "grid" in parts else ()), *(ENDS if "ends" in parts else ())]
    results: list[Result] = []
    toggled: list[Toggled] = []
    with TestbedLink(asked(SLOW_BPS)) as ours:
        if "toggle" in parts:
            progress(f"{TOGGLES} changes of a busy link, by the testbed and by Mininet")
            toggled.append(toggle(ours))
            with MininetLink(asked(SLOW_BPS)) as theirs:
                toggled.append(toggle(theirs))
        for number, cell in enumerate(cells, start=1):
            ours.change(cell.state)
            results.append(measure(ours, cell, ours.backend))
            with MininetLink(cell.state) as theirs:
                results.append(measure(theirs, cell, ours.backend))
            found = "; ".join(f"{each.subject} {', '.join(map(str, each.figures.values()))}" for each in results[-2:])
            progress(f"{number} of {len(cells)}, {cell}: {found}")
        return ours.backend, results, toggled


def _of(results: Iterable[Result], subject: str) -> list[Result]:
    return [result for result in results if result.subject == subject]


def _cell_tables(results: Sequence[Result], backend: str) -> list[Table]:
    if not results:
        return []
    ours, theirs = _of(results, TestbedLink.name), _of(results, MininetLink.name)
    rows = [[str(mine.cell), *texts(mine), *texts(other)] for mine, other in zip(ours, theirs, strict=True)]
    columns = ["asked", "testbed: rate", "round trip", "lost", "Mininet: rate", "round trip", "lost"]
    title = (
        f"A link as asked: rate within {RATE_TOLERANCE[backend]:.0%}, round trip within "
        f"{RTT_TOLERANCE_S[backend] * 1e3:g} ms, loss in its 99 % interval; !: outside, host: beyond this host"
    )
    within = f"within tolerance: testbed {share_within(ours)}, Mininet {share_within(theirs)}"
    rules = (
        "a ping's own time on the link (3.1 ms at 0.5 Mbit/s) is no error; a rate is known to within one packet as it "
        "arrives, which with TCP is a super-packet: some percent at 0.5 Mbit/s"
    )
    return [Table(title, columns, rows, [within, rules, *reasons(ours), *_complaints(theirs)])]


def _complaints(results: Iterable[Result]) -> list[str]:
    """Return each error that Mininet printed and ignored, with the number of cells in which it did."""
    cells = [set(result.complaints) for result in results]
    every = sorted(set().union(*cells))
    return [f"Mininet ignored an error in {sum(text in cell for cell in cells)} cells: {text}" for text in every]


def _toggle_table(toggled: Iterable[Toggled]) -> Table:
    rows = [
        [
            each.subject,
            f"{each.peak_bps / 1e6:.0f} Mbit/s",
            f"{each.excess:.2f}" + ("" if each.excess <= 1 else " !"),
            str(each.retransmissions),
            str(each.resets),
            f"{each.change_s * 1e3:.1f} ms",
        ]
        for each in toggled
    ]
    columns = ["subject", "most in 100 ms", "of what is allowed", "retransmissions", "resets", "longest change"]
    title = f"A busy link toggled between 50 and 100 Mbit/s {TOGGLES} times"
    return Table(title, columns, rows, ["allowed: 1.1 times the rate in force plus one burst; !: more"])


def _in_guest(words: Sequence[str]) -> int:
    """Run this benchmark in the guest kernel. Returns its exit status."""
    command = [sys.executable, "-m", "benchmarks.fidelity", *words]
    return run_in_guest(command, limit_s=GUEST_LIMIT_S, follow=partial(print, flush=True)).status


if __name__ == "__main__":
    run_program(main)
