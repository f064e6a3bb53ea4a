"""Compare a link that is cut between two hosts with the same link on one host, on the grid of `benchmarks.fidelity`.

    sudo python -m benchmarks.split [--rates 5 50]

    source --- router ==== VXLAN over the hosts' network, 2 ms one way ==== router --- target     cut
    source --- router ==== veth ============================================ router --- target     uncut

Both links have the same MTU and are measured in the same run. A row is a cell: rate, round trip and loss of both links,
and the cut link's rate divided by the uncut one's. The hosts are pretended: network namespaces on the same processors.
The network between them has no rate limit of its own; half of its measured round trip is taken off each declared delay.
Both links are held to the verdict's tolerances. The exit code is 1 where one of them misses a tolerance that this host
can carry.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from benchmarks.support.cut_link import CutLink, UncutLink
from benchmarks.support.fidelity.cells import Cell, Result, all_within, measure, reasons, share_within, texts
from benchmarks.support.options import Options
from benchmarks.support.program import run_program
from benchmarks.support.table import Table, progress, show
from testbed.run.conclusion.verdict import RATE_TOLERANCE, RTT_TOLERANCE_S

ONE_WAY_S = 2e-3
RATES_MBPS = (0.5, 5, 50, 200)
#: The least round trip is longer than the hosts' network takes; a shorter one is refused.
RTTS_MS = (6, 20, 100, 300)
LOSSES_PCT = (0, 1)
QUICK = (Cell(0.5, 20, 0), Cell(50, 6, 0), Cell(200, 100, 0), Cell(5, 100, 1), Cell(50, 20, 1))


def main() -> int:
    """Measure the cells and print them. Returns 1 where a tolerance is missed, else 0."""
    parser = Options(__doc__)
    parser.add_argument("--rates", type=float, nargs="+", choices=RATES_MBPS, help="only cells with these, in Mbit/s")
    args = parser.parse()
    cells = QUICK if args.quick else [Cell(*values) for values in product(RATES_MBPS, RTTS_MS, LOSSES_PCT)]
    # Cells with loss come last: from the first of them on, workers send single frames.
    named = [cell for cell in cells if args.rates is None or cell.rate_mbps in args.rates]
    chosen = sorted(named, key=lambda cell: cell.loss_pct)
    results: list[tuple[Result, Result]] = []
    with CutLink(chosen[0].state, ONE_WAY_S) as cut, UncutLink(chosen[0].state) as uncut:
        backend = cut.backend
        (floor_s,) = (cut.underlay.floor_s(pair) for pair in cut.underlay.round_trips)
        progress(f"one way between the hosts: {floor_s * 1e3:.3f} ms, MTU {cut.mtu}")
        for number, cell in enumerate(chosen, start=1):
            found = []
            for subject in (cut, uncut):
                subject.change(cell.state)
                found.append(measure(subject, cell, backend))
            results.append((found[0], found[1]))
            said = "; ".join(f"{one.subject} {', '.join(map(str, one.figures.values()))}" for one in found)
            progress(f"{number} of {len(chosen)}, {cell}: {said}")
        figures = {
            "cells": [one.values() for pair in results for one in pair],
            "within": {name: share_within([pair[at] for pair in results]) for at, name in enumerate(("cut", "uncut"))},
            "goodput_ratios": {str(mine.cell): ratio for mine, other in results if (ratio := _ratio(mine, other))},
            "floor_s": floor_s,
            "mtu": cut.mtu,
            "repeats": 1,
        }
    show([_table(results, backend, floor_s)], figures, as_json=args.json, backend=backend)
    return 0 if all_within(one for pair in results for one in pair) else 1


def _ratio(cut: Result, uncut: Result) -> float | None:
    """Return the rate that the cut link carries, divided by that of the uncut one."""
    if cut.rate.error is None or uncut.rate.error is None:
        return None
    return (1 + cut.rate.error) / (1 + uncut.rate.error)


def _table(results: Sequence[tuple[Result, Result]], backend: str, floor_s: float) -> Table:
    rows = [
        [str(cut.cell), *texts(cut), *texts(uncut), f"{ratio:.4f}" if (ratio := _ratio(cut, uncut)) else ""]
        for cut, uncut in results
    ]
    columns = ["asked", "cut: rate", "round trip", "lost", "uncut: rate", "round trip", "lost", "cut / uncut"]
    title = (
        f"A link across two hosts {floor_s * 1e3:.2f} ms apart: rate within {RATE_TOLERANCE[backend]:.0%}, round trip "
        f"within {RTT_TOLERANCE_S[backend] * 1e3:g} ms, loss in its 99 % interval; ! is outside"
    )
    cuts, uncuts = zip(*results, strict=True)
    notes = [f"within tolerance: cut {share_within(cuts)}, uncut {share_within(uncuts)}"]
    notes += [f"{one.subject}, {reason}" for pair in results for one in pair for reason in reasons([one])]
    return Table(title, columns, rows, notes)


if __name__ == "__main__":
    run_program(main)
