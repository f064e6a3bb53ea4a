"""Measure whether `make emulate` does well, also beside other work: the whole quickstart in containers, repeatedly.

    sudo python -m benchmarks.quickstart [--held] [--cells N]

A row is a run. Its kind is

    quiet     the machine does nothing else
    busy      a process beside the run keeps one processor busy
    held      the first plan of a policy stays; `auto`, which follows the network, is measured quiet

For each run the table has the verdict, how late traces were replayed, how long it trained, how often it swapped before
the link between Washington and London lost most of its rate, and what followed until that link recovered: when a plan
that relieves the link was asked for and when it was in force, the plans adopted that do not, and the rounds. A plan
relieves a link if a smaller part of the tensor goes over it than under the plan before the drop.

Five repeats take 25 minutes, `--held` half an hour more. Cells are kept in runs/benchmark-quickstart.json and not
measured again. The exit code is 1 where a claim is missed.
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
from benchmarks.support.program import run_program
from benchmarks.support.table import Table, show
from testbed.planning import policy_names
from testbed.report.record import RunRecord
from testbed.report.run_files import LinkRecord
from testbed.run.directory import RUNS

ROOT = Path(__file__).parents[1]
EXPERIMENT = ROOT / "experiments" / "quickstart.yaml"
KEPT = RUNS / "benchmark-quickstart.json"

REPEATS, QUICK_REPEATS = 5, 1
#: How often the first plan of `auto` is held: beside it, following is judged by its rounds while the link has dropped.
HELD_REPEATS = 3

#: The policies whose first plan is held. CPN's plans reduce inside groups, which the scheme `gradients` refuses.
HELD = tuple(sorted((policy for policy in policy_names() if policy != "cpn"), key=lambda policy: policy != "auto"))

#: A link has dropped if it keeps less than this part of its rate from one row of its trace to the next.
DROPPED = 0.5

#: Claims: the most seconds from the drop until a plan that relieves the link is in force, the replay's lateness at the
#: 99th percentile, and the least ratio of rounds in the drop to those under the first plan, held.
AROUND_S, REPLAY_LATE_MS, MORE_ROUNDS = 8.0, 1.0, 1.6


@dataclass(frozen=True, slots=True)
class Cell:
    """A run, the policy that it follows or holds, and whether a processor is kept busy beside it."""

    kind: str
    number: int = 1
    policy: str = "auto"

    @property
    def key(self) -> str:
        """The cell's name in the campaign's file."""
        return f"{self.kind}/{self.policy}/{self.number}"

    @property
    def settings(self) -> tuple[str, ...]:
        """The settings that differ from the experiment's file."""
        return (f"sync.policy={self.policy}", "controller.hold=true") if self.kind == "held" else ()


def main() -> int:
    """Measure the missing cells and print all. Returns 0 if all are measured and all claims hold, else 1."""
    parser = Options(__doc__)
    parser.add_repeats(REPEATS, QUICK_REPEATS)
    parser.add_sittings()
    parser.add_argument("--held", action="store_true", help="also hold the first plan of each policy (half an hour)")
    args = parser.parse()
    repeats = range(1, args.repeats + 1)
    cells = [Cell(kind, number) for kind in ("quiet", "busy") for number in repeats]
    if args.held:
        cells += [Cell("held", n, "auto") for n in range(1, min(args.repeats, HELD_REPEATS) + 1)]
        cells += [Cell("held", policy=policy) for policy in HELD if policy != "auto"]
    campaign = Campaign(KEPT)
    campaign.measure(cells, measured, forks=False, most=args.cells, seconds=args.seconds)
    kept = campaign.read()
    found = {cell: kept[cell.key] for cell in cells if cell.key in kept}
    show(list(_tables(found)), {"repeats": args.repeats, "cells": kept}, as_json=args.json)
    return 0 if len(found) == len(cells) and all(_holds(cell, found) for cell in found) else 1


def measured(cell: Cell, server: ForkServer | None) -> dict[str, Any]:
    """Run a cell and return its figures."""
    command = [sys.executable, "-m", "testbed", "run", str(EXPERIMENT), "--quiet"]
    for setting in cell.settings:
        command += ["--set", setting]
    with TemporaryDirectory(prefix="testbed-quickstart-") as folder, burner() if cell.kind == "busy" else nullcontext():
        done = subprocess.run(command, cwd=folder, text=True, capture_output=True, check=False)
        if done.returncode:
            raise RuntimeError(f"{cell.key}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return figures_of(RunRecord.read((Path(folder) / "runs" / "latest").resolve()))


def figures_of(record: RunRecord) -> dict[str, Any]:
    """Return the figures of a run's records."""
    late = [link["replay_late_ms_p99"] for link in record.section("links").values()]
    return {
        "verdict": record.summary["verdict"],
        "reasons": record.summary["reasons"],
        "wall_s": record.section("training")["wall_seconds"],
        "swaps": len(record.epochs) - 1,
        "replay_late_ms": max(ms for ms in late if ms is not None),
        **_around(record),
        "late": 0.0,  # the verdict says whether the host kept up
    }


def _around(record: RunRecord) -> dict[str, Any]:
    """Return what was decided around the first drop of a link, and the rounds until the link recovered.

    `asked_s` and `in_force_s`, in seconds after the drop, are those of the first plan that relieves the link; they are
    None without such a plan, or where the run ended before a round under it. `through` counts plans that do not.
    """
    first = min(((*drop, link) for link, states in record.states.items() for drop in _drops(states)), default=None)
    dropped_s, back_s, fallen = first or (inf, inf, "")
    asked = [line for line in record.decisions if line.get("epoch")]
    last = max((line["epoch"] for line in asked if line["at_s"] < dropped_s), default=0)
    within = [line for line in asked if dropped_s <= line["at_s"] < back_s]
    around = [one for one in within if _part(record, one, one["epoch"], fallen) < _part(record, one, last, fallen)]
    entered = [record.since(one.entered_s) for one in record.rounds if around and one.epoch == around[0]["epoch"]]
    return {
        "early": sum(line["at_s"] < dropped_s for line in asked),
        "through": len(within) - len(around),
        "asked_s": around[0]["at_s"] - dropped_s if around else None,
        "in_force_s": min(entered) - dropped_s if entered else None,
        "rounds": sum(dropped_s <= record.since(one.finished_s) < back_s for one in record.rounds),
    }


def _part(record: RunRecord, decision: Mapping[str, Any], epoch: int, link: str) -> float:
    """Return the part of the tensor that a plan sends over a link, by the routes of a decision's view."""
    view, plan = record.view(decision["view"]), record.plans[epoch]
    assert view is not None, f"{record.id} lacks {decision['view']}"
    used = (index for source, target, index in plan.edges() if link in view.routes[source, target])
    return sum(plan.trees[index].share for index in used)


def _drops(states: tuple[LinkRecord, ...]) -> Iterator[tuple[float, float]]:
    """Yield when a link dropped and when it had recovered, each time; infinity if it never did."""
    for before, after in pairwise(states):
        least_bps = DROPPED * before.rate_bps
        if before.passes and after.passes and after.rate_bps < least_bps:
            back = (one.at_s for one in states if one.at_s > after.at_s and one.rate_bps > least_bps)
            yield after.at_s, next(back, inf)


def _holds(cell: Cell, found: Mapping[Cell, Mapping[str, Any]]) -> bool:
    """Return whether a run meets its claims. A run with a held plan must not be faster than the runs that follow."""
    one = found[cell]
    if cell.kind == "held":
        return bool(one["wall_s"] >= _following_s(found))
    busy = cell.kind == "busy"
    trusted = not any("replay" in reason for reason in one["reasons"]) if busy else one["verdict"] == "trusted"
    around = one["in_force_s"] is not None and one["in_force_s"] <= AROUND_S
    held = [its["rounds"] for other, its in found.items() if (other.kind, other.policy) == ("held", "auto")]
    more = not held or one["rounds"] >= MORE_ROUNDS * median(held)
    decided = around and more and not one["early"] and not one["through"]
    return trusted and decided and one["replay_late_ms"] <= REPLAY_LATE_MS


def _following_s(found: Mapping[Cell, Mapping[str, Any]]) -> float:
    """Return the median training seconds of the quiet runs, which follow the network; 0 without any."""
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
            *(str(one[key]) for key in ("early", "through", "rounds")),
            *(("–" if one[key] is None else f"{one[key]:.1f}") for key in ("asked_s", "in_force_s")),
        )
        for cell, one in found.items()
    ]
    notes = [f"{cell.key}: {reason}" for cell, one in found.items() for reason in one["reasons"]]
    heads = ("run", "verdict", "trained s", "swaps", f"replay late ms, p99 (claimed ≤ {REPLAY_LATE_MS:g})")
    decided = (
        "swaps before the drop (claimed 0)",
        "plans in it that do not relieve the link (claimed 0)",
        "rounds in it",
    )
    around = ("s to a plan that relieves the link", f"until it was in force (claimed ≤ {AROUND_S:g})")
    yield Table("The quickstart", (*heads, *decided, *around), rows, notes)
    following_s = _following_s(found)
    held = {cell: one for cell, one in found.items() if cell.kind == "held"}
    if following_s and held:
        ratios = [
            (cell.key, f"{one['wall_s']:.0f}", f"{one['wall_s'] / following_s:.2f}", str(one["rounds"]))
            for cell, one in held.items()
        ]
        columns = ("first plan held", "trained s", "× auto, which follows (claimed ≥ 1)", "rounds in the drop")
        note = f"Claimed: each run that follows has {MORE_ROUNDS:g} × the rounds of `auto`, held, in the drop."
        yield Table("Each policy's first plan, held", columns, ratios, [note])


if __name__ == "__main__":
    run_program(main)
