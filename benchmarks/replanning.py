"""Compare controllers that follow the network, hold the first plan or know the truth, by completed rounds.

    sudo python -m benchmarks.replanning [--networks drop-5,wander-6] [--seeds 1,2] [--unseen]
    python -m benchmarks.replanning --simulated --kept FILE

    cell: a network, a seed, a mode  --a window over the same traces-->  rounds, and what the run recorded

The networks are a seeded family of wide-area networks (`benchmarks.support.wans`), measured for about a minute, and
networks like those of regions and clouds, measured for three minutes. A row is a network and seed. The modes are

    hold      the first plan stays
    follow    plans follow what the members' own transfers show
    oracle    the controller is told the true rates each period; where that brought less than holding, holding counts

Workers are processes in the network's hosts. The whole takes an hour and a half, `--quick` 12 minutes. Cells are kept
in runs/benchmark-replanning.json and not measured again; their run directories stay. `--score RUN…` reads any run's
records: the errors of estimates and predictions, and what swaps promised and brought. `--replay RUN` feeds a run's
records through today's controller and prints its decisions (`benchmarks.support.replayed`). Neither needs emulation.

`--simulated` measures the same cells in the simulator, which drives the same controller on simulated time. A cell takes
seconds, so a change of decisions can be judged on dozens of networks. These cells are kept in
runs/benchmark-replanning-simulated.json: remove that file, or name another by `--kept`, to measure a changed
controller.

The exit code is 1 where a claim is missed; the last lines on standard error name the missed claims.
"""

from __future__ import annotations

import hashlib
import json
from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from statistics import geometric_mean, mean
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, cast, get_args

from msgspec import structs

from benchmarks.support.campaign import Campaign
from benchmarks.support.forkserver import ForkServer
from benchmarks.support.options import Options, numbers
from benchmarks.support.program import run_program
from benchmarks.support.replayed import Replayed, replay
from benchmarks.support.table import Table, progress, show
from benchmarks.support.wans import (
    CLASS_WINDOW_S,
    CLASSES,
    FAMILY,
    LEAST_SITES,
    MOST_SITES,
    RECORDINGS,
    WINDOW_S,
    Kind,
    Wan,
)
from benchmarks.support.window import MODES, Cell, measure, simulate
from testbed.report.record import RunRecord
from testbed.report.replanning import score
from testbed.report.score import Score
from testbed.run.conclusion.summary import late_part
from testbed.run.conclusion.verdict import CPU_BUSY
from testbed.run.directory import RUNS
from testbed.spec.experiment import Experiment

KEPT, KEPT_SIMULATED = RUNS / "benchmark-replanning.json", RUNS / "benchmark-replanning-simulated.json"

#: The family's networks differ in kind and size; those of a class differ by their seeds alone.
SEEDS: Sequence[int] = (1,)
CLASS_SEEDS: Sequence[int] = (1, 2, 3)
#: Networks on which no change was tuned; they are measured at the end, with seeds that were never run.
UNSEEN: Sequence[tuple[Kind, int]] = (("drop", 6), ("wander", 5), ("redraw", 7), ("constant", 5), *CLASSES)
QUICK: Sequence[tuple[Kind, int]] = (("drop", 5), ("redraw", 6), ("constant", 6))

#: Claims. Networks on which the oracle makes at least WORTH times the rounds of holding are worth following.
WORTH, GAINED = 1.3, 1.3
KEPT_UP, LEAST, OF_ORACLE = 0.99, 0.95, 0.92
REGIONS_GAINED = 1.4
#: Of the swaps that stayed, the parts whose rounds were as promised, and shorter than before.
AS_PROMISED, SHORTER = 0.8, 0.8
#: The errors of estimates, the parts of them far above and far below the truth, and the part of steps noticed soon.
MEDIAN_OFF, P90_OFF, FAR_ABOVE_PART, FAR_BELOW_PART, NOTICED_SOON = 0.03, 0.2, 0.02, 0.03, 0.9
#: Costs of following: trials as a part of the time, considering plans of a processor, probes of the links' capacity.
TRIALS_PART, CONSIDERED_PART, PROBED_PART = 0.01, 0.05, 0.02
#: Swaps, and trials, on a constant network within this time, in seconds.
MOST_QUIET, QUIET_S = 1, 120.0


def measured(cell: Cell, server: ForkServer | None) -> dict[str, Any]:
    """Emulate a cell. Returns its figures."""
    return {**figures_of(*measure(cell, server), cell.wan.window_s), **_links(cell)}


def simulated(cell: Cell, _server: ForkServer | None) -> dict[str, Any]:
    """Simulate a cell. Returns its figures: no step is late on simulated time, and no processor is short."""
    record, _ = simulate(cell)
    figures = {**_outcome(record, cell.wan.window_s), "late": 0.0, "simulated": True, "containers": False}
    return {**figures, **_links(cell)}


def _links(cell: Cell) -> dict[str, str]:
    """Return the hash of the recorded links, which figures of the kind `lte` follow from. Keys of cells lack it."""
    return {"recorded": links_in(cell.wan.recorded)} if cell.wan.kind == "lte" else {}


def figures_of(record: RunRecord, experiment: Experiment, window_s: float = inf) -> dict[str, Any]:
    """Return a run's outcome, and whether the host kept up."""
    declared = {worker.name: experiment.spec.compute.step_seconds(worker) for worker in experiment.topology.workers}
    cpu = [sample.cpu for sample in record.samples if sample.cpu is not None]
    return {
        **_outcome(record, window_s),
        "late": late_part([structs.asdict(report) for report in record.reports], declared),
        "starved": mean(busy > CPU_BUSY for busy in cpu),
        "cpu": mean(cpu),
    }


def _outcome(record: RunRecord, window_s: float) -> dict[str, Any]:
    """Return the rounds that were over in the window, the swaps, and where the run's records are."""
    return {
        "rounds": sum(record.since(one.finished_s) <= window_s for one in record.rounds),
        "swaps": len(record.epochs) - 1,
        "directory": str(record.path),
    }


@dataclass(frozen=True, slots=True)
class Compared:
    """The three modes on a network and seed: rounds of each."""

    network: str
    seed: int
    rounds: Mapping[str, int]
    swaps: int

    @property
    def oracle(self) -> float:
        """The oracle's rounds divided by those of holding, at least 1."""
        return max(self.rounds["oracle"] / self.rounds["hold"], 1.0)

    @property
    def follow(self) -> float:
        """The rounds of following divided by those of holding."""
        return self.rounds["follow"] / self.rounds["hold"]


def compared(found: Mapping[str, Mapping[str, Any]], policy: str) -> list[Compared]:
    """Return all networks and seeds with all three modes measured, in the family's order."""
    by_network: dict[tuple[str, int], dict[str, Mapping[str, Any]]] = {}
    for key, cell in found.items():
        its, network, seed, mode = key.split("/")
        if its == policy:
            by_network.setdefault((network, int(seed)), {})[mode] = cell
    return [
        Compared(name, seed, {mode: cells[mode]["rounds"] for mode in MODES}, cells["follow"]["swaps"])
        for (name, seed), cells in by_network.items()
        if cells.keys() >= MODES.keys()
    ]


class Claim(NamedTuple):
    """A figure with the least or the most that is claimed."""

    name: str
    value: float
    limit: float
    at_least: bool = True

    @property
    def held(self) -> bool:
        """True if the figure is within its limit."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    @property
    def claimed(self) -> str:
        """The limit in words."""
        return f"{'≥' if self.at_least else '≤'} {self.limit:g}"


def claims(ones: Sequence[Compared]) -> list[Claim]:
    """Return the claims on following, with the measured figures."""
    worth = [one.follow for one in ones if one.oracle >= WORTH]
    others = [one.follow for one in ones if one.oracle < WORTH]
    regions = [one.follow for one in ones if one.network.startswith("regions")]
    found = []
    if worth:
        found.append(Claim(f"follow : hold, where the oracle gains {WORTH:g}", geometric_mean(worth), GAINED))
    if others:
        found.append(Claim("follow : hold elsewhere", geometric_mean(others), KEPT_UP))
    if ones:
        found.append(Claim("follow : hold, the worst network", min(one.follow for one in ones), LEAST))
        found.append(Claim("follow : oracle", mean(one.follow / one.oracle for one in ones), OF_ORACLE))
    if regions:
        found.append(Claim("follow : hold, regions", geometric_mean(regions), REGIONS_GAINED))
    return found


def score_claims(scores: Mapping[str, Score]) -> list[Claim]:
    """Return the claims on estimates, predictions and swaps of runs that followed, by the keys of their cells."""
    whole = Score.together(scores.values())
    # LTE's rates are others twice a second.
    known = Score.together(one for key, one in scores.items() if not _network(key).startswith("lte"))
    figures = (
        ("swaps that stayed: rounds as promised", whole.as_promised, AS_PROMISED, True),
        ("swaps that stayed: rounds shorter", whole.shorter, SHORTER, True),
        ("estimates off, median, without LTE", known.off(50), MEDIAN_OFF, False),
        ("estimates off, 90th percentile, without LTE", known.off(90), P90_OFF, False),
        ("estimates far above, without LTE", known.far_above, FAR_ABOVE_PART, False),
        ("estimates far below, without LTE", known.far_below, FAR_BELOW_PART, False),
        ("steps noticed soon", _share_of(whole.soon), NOTICED_SOON, True),
        ("steps noticed soon, of links with transfers meanwhile", _share_of(whole.soon_where_sent), NOTICED_SOON, True),
        ("trials' part of the time", whole.trials_share, TRIALS_PART, False),
        ("considering plans, of a processor", whole.considered, CONSIDERED_PART, False),
        ("probes, of what links could carry", whole.probes_share, PROBED_PART, False),
    )
    found = [Claim(name, value, limit, least) for name, value, limit, least in figures if value is not None]
    constant = [one for key, one in scores.items() if _network(key).startswith("constant")]
    if constant:
        for name, events in (("swaps", [one.swaps for one in constant]), ("trials", [one.trials for one in constant])):
            most = max(_most_within([its.at_s for its in run], QUIET_S) for run in events)
            found.append(Claim(f"constant networks: {name} in {QUIET_S:g} s", most, MOST_QUIET, at_least=False))
    return found


def _share_of(values: Sequence[bool]) -> float | None:
    return mean(values) if values else None


def _network(key: str) -> str:
    """Return the network's name in a cell's key."""
    return key.split("/")[1]


def _most_within(moments: Sequence[float], seconds: float) -> int:
    """Return the largest number of moments that lie within that many seconds of each other."""
    return max((sum(first <= one < first + seconds for one in moments) for first in moments), default=0)


def tables(ones: Sequence[Compared], scores: Mapping[str, Score], *, simulated: bool) -> list[Table]:
    """Return the rounds by network, the claims, and the scores of what was followed."""
    rows = [
        [
            f"{one.network}, seed {one.seed}",
            *(str(one.rounds[mode]) for mode in MODES),
            f"{one.follow:.2f}",
            f"{one.oracle:.2f}",
            f"{one.follow / one.oracle:.2f}",
            str(one.swaps),
        ]
        for one in ones
    ]
    columns = ["", *MODES, "follow : hold", "oracle : hold", "follow : oracle", "swaps"]
    notes = ["oracle : hold is at least 1: where its swaps cost more than they brought, it had better held"]
    how = ", simulated" if simulated else ""
    claimed = [
        [
            claim.name,
            f"{claim.value:.3f}",
            claim.claimed,
            "yes" if claim.held else "NO",
        ]
        for claim in (*claims(ones), *score_claims(scores))
    ]
    return [
        Table(f"Rounds in {WINDOW_S:g} s, in {CLASS_WINDOW_S:g} s of regions and clouds{how}", columns, rows, notes),
        Table(f"Claims{how}", ["", "measured", "claimed", "held"], claimed),
        *score_tables(scores),
    ]


def score_tables(scores: Mapping[str, Score]) -> list[Table]:
    """Return the tables with a row a run, and one for all runs together."""
    if len(scores) > 1:
        scores = {**scores, "all": Score.together(scores.values())}
    kinds = (
        ("What was known of links", Score.known_cells, Score.KNOWN_NOTES),
        ("What was foreseen and done", Score.done_cells, Score.DONE_NOTES),
        ("What following cost", Score.cost_cells, Score.COST_NOTES),
    )
    return [
        Table(title, ["", *cells(Score())], [[name, *cells(one).values()] for name, one in scores.items()], notes)
        for title, cells, notes in kinds
    ]


def replay_tables(record: RunRecord, found: Replayed) -> list[Table]:
    """Return the decisions of a replay, and its swaps and rounds beside those of the record."""
    since_s = found.simulated_from_s
    source = "all rounds are as recorded: today's controller has the same plans in force as the record"
    if since_s is not None:
        source = (
            f"from round {found.simulated_round} on, at {since_s:.1f} s, the plan in force is another than in the "
            "record: those rounds are simulated, with the true rates"
        )
    rows = [
        [
            f"{one['at_s']:.1f} s",
            "recorded" if since_s is None or one["at_s"] < since_s else "simulated",
            str(one["last"] if one["last"] is not None else ""),
            *("" if one[name] is None else f"{one[name]:.2f}" for name in ("current_s", "proposed_s", "bound_s")),
            f"{one['why']}" + (f" -> plan {one['epoch']}" if one["epoch"] is not None else ""),
        ]
        for one in found.decisions
    ]
    columns = ["decided", "rounds", "plan", "its round, s", "proposed, s", "bound, s", "decision"]
    recorded = [swap for swap in record.summary.get("swaps", ()) if swap["kind"] == "plan"]
    ends = [record.since(one.finished_s) for one in record.rounds]
    last_s = max((end_s for end_s, _ in found.rounds), default=0.0)
    compared_rows = []
    for name, swaps, rounds in (
        ("record", _named(record, recorded), sum(end_s <= last_s for end_s in ends)),
        ("today", found.swaps, len(found.rounds)),
    ):
        to = ", ".join(f"{swap['policy']} at {swap['requested_s']:.1f} s" for swap in swaps)
        compared_rows.append([name, str(len(swaps)), to, str(rounds)])
    return [
        Table(f"Today's decisions, {record.id} replayed", columns, rows, [source]),
        Table(f"Up to {last_s:.1f} s", ["", "swaps", "to", "rounds"], compared_rows),
    ]


def _named(record: RunRecord, swaps: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the swaps, each with the policy that made its plan."""
    return [{**swap, "policy": record.plans[swap["epoch"]].policy} for swap in swaps if swap["epoch"] in record.plans]


def wanted(args: Any) -> list[Cell]:
    """Return the cells that were asked for, a network and seed at a time."""
    family = UNSEEN if args.unseen else QUICK if args.quick else (*FAMILY, *CLASSES)
    return [
        Cell(Wan(kind, sites, seed, args.recorded), mode, args.policy)
        for kind, sites in args.networks or family
        for seed in args.seeds or (CLASS_SEEDS if (kind, sites) in CLASSES else SEEDS)
        for mode in MODES
    ]


def networks(names: str) -> list[tuple[Kind, int]]:
    """Return the kinds and numbers of sites of `drop-5,wander-6`."""
    found: list[tuple[Kind, int]] = []
    for name in names.split(","):
        kind, _, sites = name.rpartition("-")
        if kind not in get_args(Kind) or not sites.isdecimal() or not LEAST_SITES <= int(sites) <= MOST_SITES:
            raise ArgumentTypeError(
                f"{name!r} is no network; write a kind ({', '.join(get_args(Kind))}), a dash and {LEAST_SITES} to "
                f"{MOST_SITES} sites, such as drop-5"
            )
        found.append((cast(Kind, kind), int(sites)))
    return found


def recordings(name: str) -> Path:
    """Return the folder of this name, which has recorded LTE links."""
    if not any(Path(name).glob(RECORDINGS)):
        raise ArgumentTypeError(
            f"{name} has no file {RECORDINGS}; name a folder with packet-delivery files of LTE links, or leave the "
            "option out"
        )
    return Path(name)


def recorded() -> Path | None:
    """Return the folder of recorded LTE links beside the checkout, or None."""
    folders = (folder / "shared" / "data" / "mahimahi" for folder in Path(__file__).resolve().parents)
    return next((folder for folder in folders if any(folder.glob(RECORDINGS))), None)


def links_in(folder: Path | None) -> str:
    """Return a hash of the recorded LTE links in a folder; empty without a folder."""
    if folder is None:
        return ""
    files = [(file.name, hashlib.sha256(file.read_bytes()).hexdigest()) for file in sorted(folder.glob(RECORDINGS))]
    return hashlib.sha256(json.dumps(files).encode()).hexdigest()[:16]


def main(words: Sequence[str] | None = None) -> int:
    """Measure what is missing and show all. Returns the exit code."""
    parser = Options(__doc__)
    parser.add_argument("--policy", default="auto", help="the policy in all three modes (default %(default)s)")
    parser.add_argument("--seeds", type=numbers, help="seeds of the networks, with commas between")
    parser.add_argument("--networks", type=networks, help="only these: `drop-5,wander-6`")
    parser.add_argument(
        "--unseen", action="store_true", help="measure networks that no change was tuned on; name their `--seeds`"
    )
    parser.add_argument("--recorded", type=recordings, default=recorded(), help="a folder with recorded LTE links")
    parser.add_argument("--simulated", action="store_true", help="simulate the cells instead of emulating them")
    parser.add_argument("--kept", type=Path, help=f"where figures are kept ({KEPT}, simulated ones {KEPT_SIMULATED})")
    parser.add_argument("--show", action="store_true", help="print the kept figures, and measure nothing")
    parser.add_argument("--score", nargs="+", type=Path, metavar="RUN", help="score these runs' directories instead")
    parser.add_argument("--replay", type=Path, metavar="RUN", help="replay this run's directory through the controller")
    args = parser.parse(words)
    if args.replay:
        record = RunRecord.read(args.replay)
        with TemporaryDirectory() as folder:
            again = replay(record, Path(folder))
        shown = {"repeats": 1, **asdict(again), "plans": {}}
        show(replay_tables(record, again), shown, as_json=args.json)
        return 0
    if args.score:
        scores = {path.name: score(RunRecord.read(path)) for path in args.score}
        show(score_tables(scores), {name: asdict(one) for name, one in scores.items()}, as_json=args.json)
        return 0
    cells = wanted(args)
    file = args.kept or (KEPT_SIMULATED if args.simulated else KEPT)
    campaign = Campaign(file)
    kept = campaign.read()
    known = {cell: kept[cell.key] for cell in cells if cell.key in kept}
    if any(figures.get("simulated", False) != args.simulated for figures in known.values()):
        other = "emulated" if args.simulated else "simulated"
        parser.error(f"--kept: the cells in {file} were {other}; name another file")
    by_default, asked = links_in(recorded()), links_in(args.recorded)  # cells of earlier versions lack the hash
    if any(its.get("recorded", by_default) != asked for cell, its in known.items() if cell.wan.kind == "lte"):
        parser.error(f"--kept: the LTE cells in {file} are of other recorded links; name another file")
    if args.show and not known:
        parser.error(f"--show: {file} has no cell of these networks and seeds; measure them first, without --show")
    if not args.show:
        campaign.measure(cells, simulated if args.simulated else measured, forks=not args.simulated)
    kept = campaign.read()
    found = {cell.key: kept[cell.key] for cell in cells if cell.key in kept}
    ones = compared(found, args.policy)
    scores = {
        key: score(RunRecord.read(Path(cell["directory"])))
        for key, cell in found.items()
        if key.endswith("/follow") and Path(cell["directory"]).exists()
    }
    claimed = [*claims(ones), *score_claims(scores)]
    missed = [claim for claim in claimed if not claim.held]
    figures = {
        "repeats": len({one.seed for one in ones}),
        "simulated": args.simulated,
        "compared": [{**asdict(one), "follow": one.follow, "oracle": one.oracle} for one in ones],
        "claims": {claim.name: claim.value for claim in claimed},
        "missed": {claim.name: claim.claimed for claim in missed},
        "scores": {name: asdict(one) for name, one in scores.items()},
    }
    show(tables(ones, scores, simulated=args.simulated), figures, as_json=args.json)
    for claim in missed:
        progress(f"claim missed: {claim.name}: {claim.value:.3f}, claimed {claim.claimed}")
    return 1 if missed else 0


if __name__ == "__main__":
    run_program(main)
