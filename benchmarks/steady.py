"""Count swaps on constant networks where all links have one round trip, under a controller that follows the network.

    sudo python -m benchmarks.steady

    round trip  --a run of WINDOW_S-->  swaps in the first minute, and after it

A row is a round trip. A plan may change while the controller finds out what links carry, so the first minute is left
out of the claim; a later swap takes noise for a change. Workers are processes in the network's hosts, as in
`benchmarks.replanning`. The whole takes five minutes.
"""

from __future__ import annotations

from statistics import median

from benchmarks.support.forkserver import ForkServer
from benchmarks.support.options import Options
from benchmarks.support.program import run_program
from benchmarks.support.table import Table, progress, show
from benchmarks.support.wans import Wan
from benchmarks.support.window import Cell, measure

ROUND_TRIPS_MS = (20, 100, 250)
SITES, SEED = 6, 1

#: Seconds of the run, and of its beginning, in which the controller finds out what links carry.
WINDOW_S, FOUND_OUT_S = 150.0, 60.0

#: Claim: the most swaps after that beginning.
MOST = 1


def main() -> int:
    """Measure and print. Returns 1 where there are more swaps than claimed."""
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
    run_program(main)
