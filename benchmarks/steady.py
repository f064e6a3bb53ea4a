"""Do plans stay where nothing changes? Swaps after the first minute on constant networks whose links all have one round
trip, with a controller that follows what the members' transfers show.

    round trip  --a run of WINDOW_S-->  swaps in the first minute, and after it

A plan may change while the controller finds out what links carry; what comes after that is noise taken for news.
Workers are processes in the network's hosts, as in `benchmarks.replanning`.
"""

from __future__ import annotations

import sys
from statistics import median

from benchmarks.support.forkserver import ForkServer
from benchmarks.support.options import Options
from benchmarks.support.table import Table, progress, show
from benchmarks.support.wans import Wan
from benchmarks.support.window import Cell, measure

ROUND_TRIPS_MS = (20, 100, 250)
SITES, SEED = 6, 1

#: Of the run, of which the first minute is for finding out.
WINDOW_S, FOUND_OUT_S = 150.0, 60.0

#: What is claimed.
MOST = 1


def main() -> int:
    """Measure and show all; the exit code."""
    args = Options(__doc__).parse()
    rows, figures, held = [], {}, True
    with ForkServer() as server:
        for rtt_ms in ROUND_TRIPS_MS[:1] if args.quick else ROUND_TRIPS_MS:
            progress(f"{rtt_ms} ms")
            cell = Cell(Wan("constant", SITES, SEED, rtt_s=rtt_ms / 1e3), "follow", "auto")
            record, _ = measure(cell, server, WINDOW_S)
            began_s = [record.since(rounds[0].entered_s) for epoch, rounds in record.epochs.items() if epoch]
            after = sum(at_s > FOUND_OUT_S for at_s in began_s)
            round_s = median(one.seconds for one in record.rounds)
            row = [f"{rtt_ms} ms", str(len(record.rounds)), f"{round_s:.2f}", str(len(began_s) - after), str(after)]
            rows.append([*row, "yes" if after <= MOST else "NO"])
            held = held and after <= MOST
            figures[str(rtt_ms)] = {"rounds": len(record.rounds), "swaps_at_s": began_s, "run": str(record.path)}
    columns = ["round trip", "rounds", "their median s", "swaps in the first minute", "after it", f"at most {MOST}"]
    show([Table("Swaps where nothing changes", columns, rows)], {"repeats": 1, "swaps": figures}, as_json=args.json)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
