"""Compare Hop with standard decentralized training, AD-PSGD, NetMax and Prague: sixteen workers, slow at times.

    sudo python -m benchmarks.hop [--forks] [--seeds N]

A cell is a run of its own: which members are slow and when, a graph, a protocol, a seed. In every protocol the same
seed has the same slow steps, so cells are compared seed by seed. The first table has a row a claim, the second the
synchronous modes' loss beside all-reduce's, the third a row a kind of cell.

Measured cells are kept in runs/benchmark-hop.json and not measured again; `--cells 1` measures one more and shows the
tables so far. `--forks` runs the workers as processes in the network's hosts, which spares the minute in which sixteen
containers load PyTorch: the 90 cells of five seeds then take twenty minutes.
The exit code is 1 where a claim is missed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.support.campaign import Campaign, first_step_s, load, run_of, seeds_in, without_curves
from benchmarks.support.forkserver import ForkServer
from benchmarks.support.options import Options
from benchmarks.support.paired import interval
from benchmarks.support.program import run_program
from benchmarks.support.table import Table, show
from testbed.run.conclusion.conclude import conclude
from testbed.run.conclusion.summary import late_part
from testbed.run.conclusion.verdict import STEP_OVERRUN_SHARE
from testbed.run.directory import RUNS, RunDirectory
from testbed.spec.sync import SyncSection
from testbed.telemetry.averages import mean_if_all
from testbed.telemetry.store import read_records
from testbed.worker.pace import Slowness
from testbed.workload import Workload

CAMPAIGN = Campaign(RUNS / "benchmark-hop.json", most_late=STEP_OVERRUN_SHARE)
TOPOLOGY = Path(__file__).parents[1] / "topologies" / "hop16.yaml"
MEMBERS = 16
SEEDS = 5

#: The experiment of all cells. A local step takes 60 ms, so that the work of sixteen workers is half of what a host of
#: two cores can do. After sixty iterations the losses of protocols differ; a cell then takes 11 seconds.
EXPERIMENT: Mapping[str, Any] = {
    "name": "benchmark-hop",
    "topology": str(TOPOLOGY),
    "train": {
        "model": "svm",
        "batch": 16,
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "rounds": 60,
        "evaluate_every": 5,
    },
}
STEP_S = 0.06
STEP = {"step_time": f"{STEP_S * 1e3:g}ms"}
COMPUTE: Mapping[str, Mapping[str, Any]] = {
    "random": {**STEP, "slowdown": {"factor": 6, "probability": 1 / 16}},
    "one": {**STEP, "stragglers": {"rack-w0": 4}},
    # Two pairs of neighbours: the minimum over out-neighbours shows no lag where one of them is as slow.
    "four": {**STEP, "stragglers": {f"rack-w{i}": 4 for i in (0, 1, 8, 9)}},
}

BACKUP = {"strategy": "hop", "backup": 1, "max_ig": 4}
PROTOCOLS: Mapping[str, Mapping[str, Any]] = {
    "standard": {"strategy": "hop"},
    "backup": BACKUP,
    "jump 2": {**BACKUP, "skip": {"jump": 2}},
    "jump 10": {**BACKUP, "skip": {"jump": 10}},
    "quantile": {**BACKUP, "skip": {"jump": 10, "rule": 0.75}},
    "notify-ack": {"strategy": "hop", "mode": "notify_ack"},
    "AD-PSGD": {"strategy": "adpsgd"},
    "NetMax": {"strategy": "netmax"},
    "Prague": {"strategy": "prague"},
    "all-reduce": {"strategy": "gradients", "policy": "ring"},
}

#: Protocols without a graph: all members reduce together, or a generator draws their groups for each exchange.
WITHOUT_GRAPH = ("all-reduce", "Prague")

#: The mean test loss over the members that counts as learned.
TARGET_LOSS = 0.35


@dataclass(frozen=True, slots=True)
class Cell:
    """One run. Protocols in WITHOUT_GRAPH ignore `graph`."""

    compute: str
    graph: str
    protocol: str
    seed: int

    @property
    def key(self) -> str:
        """The cell's name in the campaign's file."""
        return f"{self.compute}/{self.graph}/{self.protocol}/{self.seed}"

    def experiment(self) -> dict[str, Any]:
        """Return the value of the experiment's file."""
        sync = dict(PROTOCOLS[self.protocol])
        graph = {} if self.protocol in WITHOUT_GRAPH else {"graph": self.graph}
        return {**EXPERIMENT, "compute": COMPUTE[self.compute], "sync": {**sync, **graph}, "seed": self.seed}


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim that `better` beats `than` under the same compute, graph and seed."""

    name: str
    compute: str
    graph: str
    better: str
    than: str
    #: The least ratio claimed, or None without a claim.
    bar: float | None

    def cells(self, seed: int) -> list[Cell]:
        """Return the two runs of a seed that are compared."""
        return [Cell(self.compute, self.graph, protocol, seed) for protocol in (self.than, self.better)]


GRAPHS = ("ring", "ring-based", "double-ring")
CLAIMS = (
    *(Claim(f"random slowdown, {g}", "random", g, "backup", "standard", 1.2) for g in GRAPHS),
    *(
        Claim(f"random slowdown, ring, {peer}", "random", "ring", "backup", peer, None)
        for peer in ("AD-PSGD", "NetMax", "Prague")
    ),
    Claim("random slowdown, all-reduce", "random", "ring", "backup", "all-reduce", None),
    Claim("one straggler, jump <= 2", "one", "ring-based", "jump 2", "standard", 1.8),
    Claim("one straggler, jump <= 10", "one", "ring-based", "jump 10", "standard", 3.0),
    Claim("one straggler, AD-PSGD", "one", "ring", "jump 10", "AD-PSGD", None),
    Claim("four stragglers, quantile over min", "four", "ring", "quantile", "jump 10", 1.0),
)
#: Modes that wait for all neighbours. They learn what all-reduce does, so the losses at the last iteration are
#: compared.
SYNCHRONOUS = ("standard", "notify-ack")
REFERENCE = Cell("random", "ring", "all-reduce", 0)


def cells(seeds: int) -> Iterator[Cell]:
    """Yield all cells, seed by seed, each once."""
    for seed in range(1, seeds + 1):
        wanted = [cell for claim in CLAIMS for cell in claim.cells(seed)]
        wanted += [Cell("random", "ring", protocol, seed) for protocol in SYNCHRONOUS]
        yield from dict.fromkeys(wanted)


def measure(cell: Cell, server: ForkServer | None) -> dict[str, Any]:
    """Run a cell to its end and return its figures; without a fork server, in containers."""
    with TemporaryDirectory() as folder, closing(RunDirectory(f"benchmark-hop-{cell.compute}")) as directory:
        experiment = load(cell.experiment(), Path(folder))
        conclude(experiment, directory, run_of(experiment, directory, server).execute())
    return figures_of(directory.path, experiment.spec.sync)


def figures_of(directory: Path, sync: SyncSection) -> dict[str, Any]:
    """Return the figures of a run's records.

    `curve` has (seconds, least iteration, the members' mean test loss, or None if that of one diverged).
    """
    reports = sorted(read_records(directory / "rounds.jsonl"), key=lambda report: float(report["finished_s"]))
    summary = json.loads((directory / "summary.json").read_text())
    began = first_step_s(reports, sync)
    loss: dict[str, float | None] = {}
    iteration: dict[str, int] = {}
    curve = []
    for report in reports:
        iteration[report["member"]] = report["round"]
        if "test_loss" in report["metrics"]:
            loss[report["member"]] = report["metrics"]["test_loss"]
            curve.append((report["finished_s"] - began, min(iteration.values()), mean_if_all(loss.values())))
    learned = [at for at, _, value in curve if value is not None and value <= TARGET_LOSS]
    return {
        "seconds": reports[-1]["finished_s"] - began,
        "iterations": summary["training"]["rounds"],
        # In gossip the newest evaluations during the run are of parameters that are some iterations old.
        "final_loss": summary["training"].get("final_test_loss", curve[-1][2]),
        "final_accuracy": summary["training"]["final_accuracy"],
        "seconds_to_target": learned[0] if learned else None,
        "widest_gap": (summary["sync"].get("gap") or {}).get("widest"),
        "late": late_part(reports, dict.fromkeys(iteration, STEP_S)),
        "verdict": summary["verdict"],
        "reasons": summary["reasons"],
        "curve": curve,
    }


def alone_s(compute: str, seed: int) -> float:
    """Return the declared seconds of all steps of the slowest member.

    A protocol in which every member makes each of its steps takes at least that long; a member that skips makes fewer
    steps.
    """
    declared = COMPUTE[compute]
    slowdown, stragglers = declared.get("slowdown", {}), declared.get("stragglers", {})
    rounds: int = EXPERIMENT["train"]["rounds"]

    def seconds(shard: int) -> float:
        slow = {f"slow_{name}": value for name, value in slowdown.items()}
        slowness = Slowness(Workload("svm", 16, "sgd", 0.1, seed, shard, MEMBERS, **slow))
        factor: float = stragglers.get(f"rack-w{shard}", 1.0)
        return factor * STEP_S * sum(slowness.factor(step, 0.0) for step in range(1, rounds + 1))

    return max(map(seconds, range(MEMBERS)))


def ratios(claim: Claim, found: Mapping[str, Mapping[str, Any]], figure: str) -> list[float]:
    """Return the ratios seed by seed, for seeds of which both cells have the figure."""
    pairs = [[found.get(cell.key, {}).get(figure) for cell in claim.cells(seed)] for seed in seeds_in(found)]
    return [than / better for than, better in pairs if than and better]


def claims_table(found: Mapping[str, Mapping[str, Any]]) -> tuple[Table, dict[str, Any]]:
    """Return the table of claims and its figures for JSON."""
    rows, figures = [], {}
    for claim in CLAIMS:
        speed, learning = ratios(claim, found, "seconds"), ratios(claim, found, "seconds_to_target")
        if not speed:
            continue
        got, half = interval(speed)
        figures[claim.name] = {
            "ratio": got,
            "half_interval": half if half < inf else None,
            "ratios": speed,
            "bar": claim.bar,
            "ratio_to_target_loss": mean(learning) if learning else None,
        }
        bar = "-" if claim.bar is None else f"{claim.bar:g}"
        reached = "" if claim.bar is None else "yes" if got >= claim.bar else "NO"
        rows.append(
            [
                claim.name,
                f"{claim.better} / {claim.than}",
                _with_half(speed),
                bar,
                reached,
                _with_half(learning),
                str(len(speed)),
            ]
        )
    columns = [
        "claim",
        "faster / than",
        "finishes × faster",
        "bar",
        "reached",
        f"× faster to loss {TARGET_LOSS}",
        "seeds",
    ]
    notes = ["mean over paired seeds ± half of the 95 % interval; to the loss: seeds where both protocols reached it"]
    return Table(
        f"Time to finish {EXPERIMENT['train']['rounds']} iterations, 16 members", columns, rows, notes
    ), figures


def losses_table(found: Mapping[str, Mapping[str, Any]]) -> tuple[Table, dict[str, Any]]:
    """Compare the synchronous modes' final test loss with the interval of all-reduce's over the seeds."""
    reference = _finals(found, REFERENCE.protocol)
    rows, figures = [], {}
    for protocol in SYNCHRONOUS:
        losses = _finals(found, protocol)
        if len(reference) < 2 or not losses:
            continue
        (middle, half), got = interval(reference), mean(losses)
        within = abs(got - middle) <= half
        figures[protocol] = {"loss": got, "all_reduce": middle, "half_interval": half, "within": within}
        rows.append([protocol, _with_half(losses), _with_half(reference), "yes" if within else "NO", str(len(losses))])
    columns = ["protocol", "test loss", "all-reduce's", "mean within its interval", "seeds"]
    return Table(f"Test loss at iteration {EXPERIMENT['train']['rounds']}, ring", columns, rows, []), figures


def _finals(found: Mapping[str, Mapping[str, Any]], protocol: str) -> list[float]:
    wanted = [replace(REFERENCE, protocol=protocol, seed=seed).key for seed in seeds_in(found)]
    return [loss for key in wanted if key in found and (loss := found[key]["final_loss"]) is not None]


def runs_table(found: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return the table with a row for each kind of cell."""
    rows = []
    for kind in dict.fromkeys(key.rpartition("/")[0] for key in found):
        runs = [value for key, value in found.items() if key.rpartition("/")[0] == kind]
        seeds = [int(key.rpartition("/")[2]) for key in found if key.rpartition("/")[0] == kind]
        alone = mean(alone_s(kind.partition("/")[0], seed) for seed in seeds)
        targets = [run["seconds_to_target"] for run in runs if run["seconds_to_target"] is not None]
        gaps = [run["widest_gap"] for run in runs if run["widest_gap"] is not None]
        losses = [run["final_loss"] for run in runs if run["final_loss"] is not None]
        diverged = f" ({len(runs) - len(losses)} diverged)" if len(losses) < len(runs) else ""
        rows.append(
            [
                kind,
                _with_half([run["seconds"] for run in runs]),
                f"{alone:.3g}",
                _with_half([run["iterations"] / run["seconds"] for run in runs]),
                _with_half(losses) + diverged,
                _with_half([run["final_accuracy"] for run in runs]),
                _with_half(targets),
                str(max(gaps)) if gaps else "-",
                str(len(runs)),
            ]
        )
    columns = ["compute/graph/protocol", "s", "alone", "iterations/s", "test loss", "accuracy", "s to target"]
    notes = [
        f"target: mean test loss {TARGET_LOSS}; gap: the widest between members, in iterations",
        "alone: the declared seconds of all steps of the slowest member",
    ]
    return Table("Runs", [*columns, "gap", "seeds"], rows, notes)


def _with_half(values: Sequence[float]) -> str:
    if not values:
        return "-"
    middle, half = interval(values)
    return f"{middle:.3g}" if half == inf else f"{middle:.3g} ± {half:.2g}"


def missed(claims: Mapping[str, Mapping[str, Any]], losses: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the claims whose ratio is below their bar, and the protocols whose loss is not all-reduce's."""
    slow = [name for name, its in claims.items() if its["bar"] is not None and its["ratio"] < its["bar"]]
    return slow + [name for name, its in losses.items() if not its["within"]]


def main() -> int:
    """Measure the missing cells and print all. Returns 1 where a claim is missed, else 0."""
    parser = Options(__doc__)
    parser.add_campaign(SEEDS)
    args = parser.parse()
    CAMPAIGN.measure(cells(args.seeds), measure, forks=args.forks, most=args.cells, seconds=args.seconds)
    found = CAMPAIGN.read()
    table, figures = claims_table(found)
    repeats = max((len(claim["ratios"]) for claim in figures.values()), default=0)
    losses, compared = losses_table(found)
    value = {"repeats": repeats, "claims": figures, "losses": compared, "runs": without_curves(found)}
    show([table, losses, runs_table(found)], value, as_json=args.json)
    return 1 if missed(figures, compared) else 0


if __name__ == "__main__":
    run_program(main)
