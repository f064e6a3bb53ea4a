"""What the controller knows of NetStorm's nine sites, and what it does about it, against the emulator's truth.

Two runs, nine containers each: one whose links are drawn anew every REDRAW_S seconds, one whose links stay. Of the
first: how far estimates are off for links used in the last ten seconds (each time that a plan is considered), how long
links that nothing was known of stay unknown, and how many whole rounds go by from a redraw until the controller asks
for another plan, and until the members go by it, two rounds later at the earliest. Beside each redraw stands what the
policy's plan by the true rates would save of a round, simulated: only where that is more than the controller's margin
is there anything to swap for. Of the second: the swaps after the first SETTLING rounds, and how far estimates are off.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from benchmarks.support.options import Options
from benchmarks.support.table import Table, progress, show
from testbed.planning import View, make_policy, simulate
from testbed.report.record import RunRecord
from testbed.report.series import estimate_errors
from testbed.run.execute import execute
from testbed.run.terminal.display import Display
from testbed.telemetry.estimate import SILENCE_S
from testbed.trace.csv import write_csv
from testbed.trace.generate import UniformRedraw

HERE = Path(__file__).parents[1]
DYNAMIC, STATIC, ROUND_TRIPS = (
    HERE / "experiments" / f"netstorm9-{kind}.yaml" for kind in ("dynamic", "static", "rtt")
)

#: NetStorm's rates; redrawn faster than its 180 s, so that a short run has several draws.
LEAST_BPS, MOST_BPS = 20e6, 155e6
REDRAW_S = 45
#: Of the traces.
LASTS_S = 1800

ROUNDS, QUICK_ROUNDS = 100, 60
SETTLING = 8
WATCHED = 50

#: What must be met.
WITHIN, EXPLORED_S, SWAPPED_ROUNDS = 0.10, 30.0, 3


@dataclass(frozen=True, slots=True)
class Redraw:
    """A redraw, and the whole rounds until another plan was asked for, and until it was in force.

    None when none followed before the next redraw.
    `gain`: the part of a round that the policy's plan by the true rates would save.
    """

    at_s: float
    asked: int | None
    active: int | None
    gain: float


def written(folder: Path, original: Path, seed: int, redraw_s: int) -> Path:
    """An experiment on NetStorm's network with traces of its own, drawn anew each `redraw_s`; its file, in `folder`."""
    experiment = yaml.safe_load(original.read_text())
    topology = yaml.safe_load((original.parent / experiment["topology"]).read_text())
    for number, link in enumerate(topology["links"]):
        for way in ("forward", "backward"):
            name = f"{number}-{way}.csv"
            trace_seed = 1000 * seed + 2 * number + (way == "backward")
            write_csv(folder / name, UniformRedraw(LEAST_BPS, MOST_BPS, redraw_s, LASTS_S, trace_seed).trace())
            link[way] = {"trace": {"file": name}}
    (folder / "topology.yaml").write_text(yaml.safe_dump(topology))
    experiment["topology"] = "topology.yaml"
    file = folder / "experiment.yaml"
    file.write_text(yaml.safe_dump(experiment))
    return file


def run(file: Path, rounds: int, policy: str) -> RunRecord:
    """Run the experiment; what it recorded."""
    overrides = {"train.rounds": str(rounds), "sync.policy": policy}
    executed = execute(file, overrides, False, lambda path: path, Display())
    if not executed.finished:
        sys.exit(f"{executed.directory} did not come to its end")
    return RunRecord.read(executed.directory)


def redraws(record: RunRecord) -> list[Redraw]:
    """What followed each redraw that another one, or 20 s of training, came after."""
    at = sorted({round(state.at_s) for states in record.states.values() for state in states if state.at_s > 1})
    swaps = sorted(
        (swap for swap in record.summary["swaps"] if swap["active_round"] is not None),
        key=lambda swap: float(swap["requested_s"]),
    )
    found = []
    for began, ended in zip(at, [*at[1:], record.end_s], strict=True):
        if ended - began < min(REDRAW_S / 2, 20):
            continue
        first = next(one for one in record.decisions if one["at_s"] > began and one["last"] is not None)
        asked = active = None
        if swap := next((swap for swap in swaps if began < swap["requested_s"] < ended), None):
            on = done(record, began) + 1  # the round in which the redraw fell
            asked, active = max(done(record, swap["requested_s"]) - on, 0), swap["active_round"] - on - 1
        found.append(Redraw(began, asked, active, gain(record, first)))
    return found


def done(record: RunRecord, at_s: float) -> int:
    """The last round that was over."""
    return max((one.number for one in record.rounds if record.since(one.finished_s) <= at_s), default=0)


def gain(record: RunRecord, decision: Mapping[str, Any]) -> float:
    """The part of a round that the policy's plan by the true rates would have saved when `decision` was made."""
    seen = View.from_json(json.loads((record.path / decision["view"]).read_text()))
    now = {name: [one for one in states if one.at_s <= decision["at_s"]][-1] for name, states in record.states.items()}
    links = {
        name: replace(link, rate_bps=now[name].rate_bps) if name in now else link for name, link in seen.links.items()
    }
    true = View.of_network(seen.members, links, seen.routes, seen.model_bytes)
    last = record.plans[decision["last"]]
    fresh = make_policy(decision["policy"], decision["options"]).replan(true, last)
    return 1 - simulate(fresh, true).seconds / simulate(last, true).seconds


def unknown_s(record: RunRecord) -> list[float]:
    """Seconds that links which were known some time stayed unknown, each time that they were."""
    spells: list[float] = []
    known_until: dict[str, float] = {}
    links = {link for decision in record.decisions for link in decision["estimates"] if link in record.states}
    for decision in record.decisions:
        for link in links:
            estimate = decision["estimates"].get(link)
            if estimate is None or estimate["age_s"] > SILENCE_S:
                continue
            measured = decision["at_s"] - estimate["age_s"]
            if measured > known_until.get(link, 0.0):
                spells.append(measured - known_until.get(link, 0.0))
            known_until[link] = measured + SILENCE_S
    return spells


def main() -> int:
    """Measure and show; the exit code says whether what must be met was."""
    parser = Options(__doc__)
    parser.add_argument("--policy", default="netstorm", help="how plans are made")
    parser.add_argument("--seed", type=int, default=1, help="of the draws")
    parser.add_argument("--round-trips", action="store_true", help="the same sites 10 to 120 ms apart, with losses")
    args = parser.parse()
    rounds = QUICK_ROUNDS if args.quick else ROUNDS
    with tempfile.TemporaryDirectory() as folder:
        progress(f"links that change, {rounds} rounds")
        changing = ROUND_TRIPS if args.round_trips else DYNAMIC
        dynamic = run(written(Path(folder), changing, args.seed, REDRAW_S), rounds, args.policy)
        progress(f"links that stay, {SETTLING + WATCHED} rounds")
        still = written(Path(folder), ROUND_TRIPS, args.seed, LASTS_S) if args.round_trips else STATIC
        static = run(still, SETTLING + WATCHED, args.policy)
    figures = figures_of(dynamic, static)
    show([_table(figures)], figures, as_json=args.json, backend=str(dynamic.manifest.get("backend")))
    return 0 if all(figures["met"].values()) else 1


def figures_of(dynamic: RunRecord, static: RunRecord) -> dict[str, Any]:
    """All that is printed."""
    off = {
        name: [abs(error) for one in estimate_errors(record).values() for error in one.off]
        for name, record in (("dynamic", dynamic), ("static", static))
    }
    spells = unknown_s(dynamic)
    steps = redraws(dynamic)
    margin = float(dynamic.spec["controller"]["margin"])
    due = [step for step in steps if step.gain > margin]
    churn = sum((swap["active_round"] or 0) > SETTLING for swap in static.summary["swaps"])
    figures: dict[str, Any] = {
        "repeats": 1,
        "error_median": median(off["dynamic"]),
        "error_p90": sorted(off["dynamic"])[int(0.9 * len(off["dynamic"]))],
        "error_median_static": median(off["static"]),
        "estimates": len(off["dynamic"]),
        "unknown_s_max": max(spells, default=0.0),
        "unknown_s_median": median(spells) if spells else 0.0,
        "redraws": [asdict(step) for step in steps],
        "swaps_static": churn,
        "verdicts": [record.summary["verdict"] for record in (dynamic, static)],
    }
    figures["met"] = {
        "error": figures["error_median"] <= WITHIN,
        "explored": figures["unknown_s_max"] <= EXPLORED_S,
        "swapped": all(step.asked is not None and step.asked <= SWAPPED_ROUNDS for step in due),
        "no churn": churn == 0,
    }
    return figures


def _table(figures: dict[str, Any]) -> Table:
    rows = [
        ("estimates off, median", f"{figures['error_median']:.1%}", f"{WITHIN:.0%}"),
        ("estimates off, 90th percentile", f"{figures['error_p90']:.1%}", ""),
        ("estimates off, median, links that stay", f"{figures['error_median_static']:.1%}", f"{WITHIN:.0%}"),
        ("seconds unknown, at most", f"{figures['unknown_s_max']:.1f}", f"{EXPLORED_S:g}"),
        *(
            (
                f"rounds to the swap (in force), where {one['gain']:.0%} is to save",
                f"{one['asked']} ({one['active']})",
                str(SWAPPED_ROUNDS),
            )
            for one in figures["redraws"]
        ),
        (f"swaps in {WATCHED} rounds, links that stay", str(figures["swaps_static"]), "0"),
    ]
    return Table("Awareness", ("", "measured", "at most"), rows, [f"{figures['estimates']} estimates"])


if __name__ == "__main__":
    sys.exit(main())
