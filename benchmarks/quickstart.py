"""Does `make emulate` do well, also beside other work? The quickstart, whole, in containers, again and again.

    quiet     the machine does nothing else
    busy      a process beside it keeps one processor busy
    held      the first plan of each policy stays; `auto`, which follows, is measured quiet

Of each run: its verdict, how late traces were replayed, how long it trained, and how long after Washington and London
lost most of the rate between them a plan was asked for that is another one, and the first round by it was over. Cells
are kept in runs/benchmark-quickstart.json and not measured again.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.support.campaign import Campaign
from benchmarks.support.flood import burner
from benchmarks.support.forkserver import ForkServer
from benchmarks.support.options import Options
from benchmarks.support.table import Table, show
from testbed.planning import policy_names
from testbed.report.record import RunRecord
from testbed.report.run_files import LinkRecord
from testbed.run.directory import RUNS

ROOT = Path(__file__).parents[1]
EXPERIMENT = ROOT / "experiments" / "quickstart.yaml"
KEPT = RUNS / "benchmark-quickstart.json"

REPEATS, QUICK_REPEATS = 5, 1

#: All but CPN's, whose plans reduce inside groups: gradients refuse it.
HELD = tuple(policy for policy in policy_names() if policy != "cpn")

#: A link that keeps less than this part of its rate from one row of its trace to the next has dropped.
DROPPED = 0.5

#: What is claimed: seconds from the drop until another plan is asked for, and milliseconds at the 99th percentile.
AROUND_S, REPLAY_LATE_MS = 10.0, 1.0


@dataclass(frozen=True, slots=True)
class Cell:
    """A run, the policy that it follows or holds, and whether a processor is kept busy beside it."""

    kind: str
    number: int = 1
    policy: str = "auto"

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.policy}/{self.number}"

    @property
    def settings(self) -> tuple[str, ...]:
        """What differs from the experiment's file."""
        return (f"sync.policy={self.policy}", "controller.hold=true") if self.kind == "held" else ()


def main() -> int:
    """Measure what is missing, and show all; the exit code."""
    parser = Options(__doc__)
    parser.add_repeats(REPEATS, QUICK_REPEATS)
    parser.add_sittings()
    parser.add_argument("--held", action="store_true", help="the first plan of each policy, too (half an hour)")
    args = parser.parse()
    repeats = range(1, args.repeats + 1)
    cells = [Cell(kind, number) for kind in ("quiet", "busy") for number in repeats]
    if args.held:
        cells += [Cell("held", policy=policy) for policy in HELD]
    campaign = Campaign(KEPT)
    campaign.measure(cells, measured, forks=False, most=args.cells, seconds=args.seconds)
    kept = campaign.read()
    found = {cell: kept[cell.key] for cell in cells if cell.key in kept}
    show(list(_tables(found)), {"repeats": args.repeats, "cells": kept}, as_json=args.json)
    return 0 if len(found) == len(cells) and all(_holds(cell, found) for cell in found) else 1


def measured(cell: Cell, server: ForkServer | None) -> dict[str, Any]:
    """Run a cell; its figures."""
    command = [sys.executable, "-m", "testbed", "run", str(EXPERIMENT), "--quiet"]
    for setting in cell.settings:
        command += ["--set", setting]
    with TemporaryDirectory(prefix="testbed-quickstart-") as folder, burner() if cell.kind == "busy" else nullcontext():
        done = subprocess.run(command, cwd=folder, text=True, capture_output=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{cell.key}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return figures_of(RunRecord.read((Path(folder) / "runs" / "latest").resolve()))


def figures_of(record: RunRecord) -> dict[str, Any]:
    """What a run's records say."""
    late = [link["replay_late_ms_p99"] for link in record.section("links").values()]
    asked_s, over_s = _around(record)
    return {
        "verdict": record.summary["verdict"],
        "reasons": record.summary["reasons"],
        "wall_s": record.section("training")["wall_seconds"],
        "swaps": len(record.epochs) - 1,
        "replay_late_ms": max(ms for ms in late if ms is not None),
        "asked_s": asked_s,
        "over_s": over_s,
        "late": 0.0,  # whether its host kept up is in the verdict
    }


def _around(record: RunRecord) -> tuple[float | None, float | None]:
    """Seconds from the drop until another plan was asked for, and until the first round by it was over; None where
    there was none before the link came back."""
    dropped_s, back_s = min(drop for states in record.states.values() for drop in _drops(states))
    for line in record.decisions:
        if line.get("epoch") and dropped_s <= line["at_s"] < back_s:
            ends = [record.since(one.finished_s) for one in record.rounds if one.epoch >= line["epoch"]]
            return line["at_s"] - dropped_s, min(ends) - dropped_s
    return None, None


def _drops(states: tuple[LinkRecord, ...]) -> Iterator[tuple[float, float]]:
    """When a link dropped, and when it had come back, each time; infinite where it never did."""
    for before, after in pairwise(states):
        least_bps = DROPPED * before.rate_bps
        if before.passes and after.passes and after.rate_bps < least_bps:
            back = (one.at_s for one in states if one.at_s > after.at_s and one.rate_bps > least_bps)
            yield after.at_s, next(back, inf)


def _holds(cell: Cell, found: Mapping[Cell, Mapping[str, Any]]) -> bool:
    """Whether a run is as claimed. What is held is no faster than what follows."""
    one = found[cell]
    if cell.kind == "held":
        return bool(one["wall_s"] >= _following_s(found))
    busy = cell.kind == "busy"
    trusted = not any("replay" in reason for reason in one["reasons"]) if busy else one["verdict"] == "trusted"
    around = one["asked_s"] is not None and one["asked_s"] <= AROUND_S
    return trusted and around and one["replay_late_ms"] <= REPLAY_LATE_MS


def _following_s(found: Mapping[Cell, Mapping[str, Any]]) -> float:
    """The median of the quiet runs, which follow; 0 without any."""
    quiet = [one["wall_s"] for cell, one in found.items() if cell.kind == "quiet"]
    return median(quiet) if quiet else 0.0


def _tables(found: Mapping[Cell, Mapping[str, Any]]) -> Iterator[Table]:
    rows = [
        (
            cell.key,
            one["verdict"],
            f"{one['wall_s']:.0f}",
            str(one["swaps"]),
            f"{one['replay_late_ms']:.2f}",
            *(("–" if one[key] is None else f"{one[key]:.1f}") for key in ("asked_s", "over_s")),
        )
        for cell, one in found.items()
    ]
    notes = [f"{cell.key}: {reason}" for cell, one in found.items() for reason in one["reasons"]]
    heads = ("run", "verdict", "trained s", "swaps", f"replay late ms, p99 ({REPLAY_LATE_MS:g} at most)")
    around = (f"another plan asked for s after the drop ({AROUND_S:g} at most)", "a round by it over")
    yield Table("The quickstart", (*heads, *around), rows, notes)
    following_s = _following_s(found)
    held = {cell.policy: one["wall_s"] for cell, one in found.items() if cell.kind == "held"}
    if following_s and held:
        ratios = [(policy, f"{wall_s:.0f}", f"{wall_s / following_s:.2f}") for policy, wall_s in held.items()]
        columns = ("held", "trained s", "over auto, which follows (at least 1)")
        yield Table("Following against every policy's first plan", columns, ratios)


if __name__ == "__main__":
    sys.exit(main())
