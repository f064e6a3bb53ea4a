"""Measure what the controller knows of NetStorm's nine sites, and how it reacts, against the emulator's truth.

    sudo python -m benchmarks.awareness [--policy NAME] [--round-trips]

There are two runs of nine containers each: in one all links are drawn again every REDRAW_S seconds, in the other links
stay. A row is a figure of one of the runs, beside what is claimed. For the run with redraws:

    estimates    the error of estimates of links that were used in the last ten seconds, at each consideration of a plan
    unknown      how long links that members' routes lead over have no estimate, or one that is too old
    redraws      whole rounds from a redraw until the controller asks for another plan, and until members follow it,
                 which is two rounds later at the earliest. Beside it stands the part of a round that the policy's plan
                 by the true rates would save, simulated: a swap is due only where it exceeds the controller's margin.

For the run with constant links: the error of estimates, and the swaps after the first SETTLING rounds. The exit code is
1 where a claim is missed.
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
from benchmarks.support.program import run_program
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

#: NetStorm's rates. They are redrawn faster than in its evaluation (180 s), so that a short run has several draws.
LEAST_BPS, MOST_BPS = 20e6, 155e6
REDRAW_S = 45
#: The length of the traces, in seconds.
LASTS_S = 1800

ROUNDS, QUICK_ROUNDS = 100, 60
SETTLING = 8
WATCHED = 50

#: Claims: the median error of estimates, the longest time unknown, and the rounds from a redraw to another plan.
WITHIN, EXPLORED_S, SWAPPED_ROUNDS = 0.10, 30.0, 3


@dataclass(frozen=True, slots=True)
class Redraw:
    """A redraw of all links, and how the controller followed it."""

    at_s: float
    #: Whole rounds until another plan was asked for; None if that did not happen before the next redraw.
    asked: int | None
    #: Whole rounds until another plan was in force; None likewise.
    active: int | None
    #: The part of a round that the policy's plan by the true rates would save.
    gain: float


def written(folder: Path, original: Path, seed: int, redraw_s: int) -> Path:
    """Write an experiment on NetStorm's network, with traces of its own.

    Args:
        folder: The folder to write into.
        original: The experiment's file.
        seed: The seed of the traces.
        redraw_s: Seconds after which all links are drawn again.

    Returns:
        The experiment's new file.
    """
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
    """Run the experiment and return its record. Exits if the run does not finish."""
    overrides = {"train.rounds": str(rounds), "sync.policy": policy}
    executed = execute(file, overrides, False, lambda path: path, Display())
    if not executed.finished:
        sys.exit(f"the run in {executed.directory} did not finish; its log says why")
    return RunRecord.read(executed.directory)


def redraws(record: RunRecord) -> list[Redraw]:
    """Return each redraw that was followed by enough seconds of training: 20, or half of REDRAW_S."""
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
    """Return the number of the last round that was complete at a moment."""
    return max((one.number for one in record.rounds if record.since(one.finished_s) <= at_s), default=0)


def gain(record: RunRecord, decision: Mapping[str, Any]) -> float:
    """Return the part of a round that the policy's plan by the true rates would have saved at a decision."""
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
    """Return the seconds of each time in which a link was unknown, for the links that members' routes lead over.

    A time begins with the training, or where an estimate is too old. It ends with an estimate, or the last decision.
    """
    looks = [decision for decision in record.decisions if "view" in decision]  # the others have no estimates, either
    if not looks:
        return []
    seen = View.from_json(json.loads((record.path / looks[0]["view"]).read_text()))
    known_until = {link: 0.0 for route in seen.routes.values() for link in route if link in record.states}
    spells: list[float] = []
    for decision in looks:
        for link in known_until:
            estimate = decision["estimates"].get(link)
            if estimate is None or estimate["age_s"] > SILENCE_S:
                continue
            measured = decision["at_s"] - estimate["age_s"]
            if measured > known_until[link]:
                spells.append(measured - known_until[link])
            known_until[link] = measured + SILENCE_S
    ended = looks[-1]["at_s"]
    return [*spells, *(ended - until for until in known_until.values() if until < ended)]


def main() -> int:
    """Measure and print. Returns 0 if all claims hold, else 1."""
    parser = Options(__doc__)
    parser.add_argument("--policy", default="netstorm", help="the policy that makes plans (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the seed of the draws (default %(default)s)")
    parser.add_argument(
        "--round-trips", action="store_true", help="place the same sites 10 to 120 ms apart, with losses"
    )
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
    """Return all figures, and which claims are met."""
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
        "error": max(figures["error_median"], figures["error_median_static"]) <= WITHIN,
        "explored": figures["unknown_s_max"] <= EXPLORED_S,
        "swapped": all(step.asked is not None and step.asked <= SWAPPED_ROUNDS for step in due),
        "no churn": churn == 0,
    }
    return figures


def _table(figures: dict[str, Any]) -> Table:
    rows = [
        ("error of estimates, median", f"{figures['error_median']:.1%}", f"{WITHIN:.0%}"),
        ("error of estimates, 90th percentile", f"{figures['error_p90']:.1%}", ""),
        ("error of estimates, median, constant links", f"{figures['error_median_static']:.1%}", f"{WITHIN:.0%}"),
        ("longest time a link was unknown, s", f"{figures['unknown_s_max']:.1f}", f"{EXPLORED_S:g}"),
        *(
            (
                f"rounds until a swap was asked for (in force), with {one['gain']:.0%} to save",
                f"{one['asked']} ({one['active']})",
                str(SWAPPED_ROUNDS),
            )
            for one in figures["redraws"]
        ),
        (f"swaps in {WATCHED} rounds, constant links", str(figures["swaps_static"]), "0"),
    ]
    return Table(
        "What the controller knows and does",
        ("figure", "measured", "claimed at most"),
        rows,
        [f"{figures['estimates']} estimates"],
    )


if __name__ == "__main__":
    run_program(main)
