"""Re-enact published runs at the scale of two cores, and print the claimed figures beside the measured ones.

    sudo python -m benchmarks.published [--only NAME] [--forks]
    python -m benchmarks.published --simulated

    experiments/published/NAME/claims.yaml: arms, claims
    arm: an experiment with changed fields  --a run of its own-->  figures  --two arms' ratio-->  a claim's row

NAME/README.md says what was claimed and where, how the run is scaled, and what differs. Arms take up to four minutes
each. Kept arms in runs/benchmark-published.json are not measured again, unless their verdict is `suspect`, or their
fields in claims.yaml or a file of their experiment have changed. With `--cells 1` or `--seconds 600` a sitting is
short. Arms marked `only: simulated` are simulated always: their losses do not depend on the network, and over it they
would take hours. `--record` writes the table to benchmarks/results/published.json, without figures of suspect runs. A
claim that does not hold here is a finding, so the exit code is 0.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any, Literal

import msgspec
from numpy import interp
from rich.console import Console

from benchmarks.results import RESULTS, Entry, entries
from benchmarks.support.campaign import Campaign, first_step_s, run_of, without_curves
from benchmarks.support.forkserver import ForkServer
from benchmarks.support.options import Options
from benchmarks.support.program import run_program
from benchmarks.support.table import Table, show
from testbed.run.conclusion.conclude import conclude
from testbed.run.conclusion.summary import late_part
from testbed.run.directory import RUNS, RunDirectory
from testbed.run.terminal.display import Display
from testbed.simulation.simulate import check_supported, train
from testbed.spec.experiment import Experiment
from testbed.telemetry.averages import mean_if_all
from testbed.telemetry.store import read_records, write_json

PUBLISHED = Path(__file__).parents[1] / "experiments" / "published"
NAMES = sorted(file.parent.name for file in PUBLISHED.glob("*/claims.yaml"))
KEPT = RUNS / "benchmark-published.json"
RECORDED = RESULTS / "published.json"
NOTE = "One seed each. A cell is empty where no trusted run was made; `holds` is by emulated runs where there are any."
COLUMNS: tuple[str, ...] = ("run", "claim", "source", "claimed", "emulated", "simulated", "holds")

Found = Mapping[str, Mapping[str, Any]]


class Arm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One side of a comparison: the run's experiment with other values of some fields."""

    #: Values by the fields' dotted paths, as in `testbed run --set`.
    set: dict[str, Any] = {}
    only: Literal["emulated", "simulated"] | None = None


class Claim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A published figure, and the arms whose figures stand beside it: the ratio of two, or one's own."""

    says: str
    where: str
    claimed: str
    figure: Literal["seconds", "round_s", "step_s", "loss", "seconds_to", "sent", "computing", "goodput"]
    of: str
    over: str | None = None
    #: The claim holds if the figure is at least, or at most, this much.
    least: float | None = None
    most: float | None = None
    #: The loss of `seconds_to`.
    loss: float = 0.0
    #: The seconds of training within which `round_s` counts rounds, so that all arms see the same rates of links.
    within: float = 0.0

    def __post_init__(self) -> None:
        if self.figure == "round_s" and self.within <= 0:
            raise ValueError("round_s needs `within`, the seconds in which rounds are counted, such as 220")

    @property
    def arms(self) -> list[str]:
        """The names of the arms."""
        return [arm for arm in (self.of, self.over) if arm]


class Published(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A published run: its experiment, arms and claims, as in the file claims.yaml."""

    arms: dict[str, Arm]
    claims: list[Claim]
    experiment: str = "experiment.yaml"

    @classmethod
    def load(cls, name: str) -> Published:
        """Read the claims of a folder of experiments/published."""
        return msgspec.yaml.decode((PUBLISHED / name / "claims.yaml").read_bytes(), type=cls)


class Cell(msgspec.Struct, frozen=True):
    """An arm of a published run, emulated or simulated."""

    run: str
    arm: str
    simulated: bool

    @property
    def key(self) -> str:
        """The cell's name in the campaign's file."""
        return f"{self.run}/{self.arm}/{'simulated' if self.simulated else 'emulated'}"

    def experiment(self) -> Experiment:
        """Load the arm's experiment."""
        published = Published.load(self.run)
        changed = {field: json.dumps(value) for field, value in published.arms[self.arm].set.items()}
        return Experiment.load((PUBLISHED / self.run / published.experiment).resolve(), changed)

    @property
    def settings(self) -> str:
        """A hash of the fields that the arm changes, and of the files that its experiment reads."""
        fields = Published.load(self.run).arms[self.arm].set
        hashed = hashlib.sha256(json.dumps(fields, sort_keys=True).encode())
        for file in self.experiment().files:
            hashed.update(file.read_bytes())
        return hashed.hexdigest()[:16]


def cells(names: Sequence[str], simulated: bool, quick: bool = False) -> Iterator[Cell]:
    """Yield the cells of the named runs; `quick` leaves only those of each run's first claim."""
    for name in names:
        published = Published.load(name)
        wanted = dict.fromkeys(arm for claim in published.claims[: 1 if quick else None] for arm in claim.arms)
        for arm in wanted:
            only = published.arms[arm].only
            if not (simulated and only == "emulated"):
                yield Cell(name, arm, simulated or only == "simulated")


def measure(cell: Cell, server: ForkServer | None) -> dict[str, Any]:
    """Run a cell and return its figures."""
    experiment, settings, began_s = cell.experiment(), cell.settings, time.monotonic()
    with closing(RunDirectory(experiment.name)) as directory:
        if cell.simulated:
            gradients = experiment.spec.own_train.model != "synthetic"
            check_supported(experiment, gradients)
            outcome = train(experiment, directory, Display(Console(quiet=True)), gradients)
        else:
            if experiment.spec.elastic:
                server = None  # a forked worker that died can't be started again
            outcome = run_of(experiment, directory, server).execute()
        summary = conclude(experiment, directory, outcome)
    goodput = summary["sync"].get("goodput")
    figures = figures_of(directory.path, experiment)
    loss = summary["training"].get("final_test_loss") or (figures["curve"][-1][1] if figures["curve"] else None)
    judged = {"verdict": summary["verdict"], "reasons": summary["reasons"], "wall_s": time.monotonic() - began_s}
    judged |= {"commit": head(), "settings": settings, "containers": server is None}
    return {**figures, "loss": loss, "goodput": goodput and 100 * goodput, **judged}


def head() -> str | None:
    """Return the commit of this checkout, or None where git does not tell it."""
    with suppress(OSError):
        git = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], cwd=PUBLISHED, capture_output=True, text=True)
        return git.stdout.strip() or None
    return None


def figures_of(directory: Path, experiment: Experiment) -> dict[str, Any]:
    """Return the figures of a run's records.

    Returns:
        seconds, ends: The whole time; when each round was over at all members. Time begins with the first step.
        steps, step_s: The steps of the member with the most, by the time that it computed; seconds over these.
        sent: The bytes that a member sent for each of these steps; the median of the members.
        computing: The percentage of the members' time in which they computed.
        curve: (seconds, the members' mean test loss, or None if that of one diverged).
    """
    # Members of a reduction evaluate at a round's end. Those that gossip evaluate what an iteration began with.
    at = "finished_s" if experiment.spec.sync.scheme.exchange == "all-reduce" else "started_s"
    reports = sorted(read_records(directory / "rounds.jsonl"), key=lambda report: float(report["finished_s"]))
    declared = {worker.name: experiment.spec.compute.step_seconds(worker) for worker in experiment.topology.workers}
    began, ended = first_step_s(reports, experiment.spec.sync), reports[-1]["finished_s"]
    computed: dict[str, float] = defaultdict(float)
    sent: dict[str, int] = defaultdict(int)
    ends: dict[int, float] = {}
    losses: dict[str, float | None] = {}
    curve = []
    for report in reports:
        member = report["member"]
        computed[member] += report["compute_s"] + report["paced_s"]
        sent[member] += report["sent_bytes"]
        ends[report["round"]] = report["finished_s"]
        if "test_loss" in report["metrics"]:
            losses[member] = report["metrics"]["test_loss"]
            curve.append((report[at] - began, mean_if_all(losses.values())))
    steps = max(seconds / declared[member] for member, seconds in computed.items())
    return {
        "seconds": ended - began,
        "ends": [at - began for at in ends.values()],
        "steps": steps,
        "step_s": (ended - began) / steps,
        "sent": median(sent.values()) / steps,
        "computing": 100 * sum(computed.values()) / (len(declared) * (ended - began)),
        "curve": curve,
        "late": late_part(reports, declared),
    }


def value_of(claim: Claim, figures: Mapping[str, Any]) -> tuple[float, bool]:
    """Return the claim's figure of an arm; its whole time, and False, where it never reached the claim's loss."""
    if claim.figure == "round_s":
        ends = [0.0, *sorted(figures["ends"])]
        until_s = min(claim.within, ends[-1])
        return until_s / float(interp(until_s, ends, range(len(ends)))), True
    if claim.figure == "seconds_to":
        reached = [at_s for at_s, loss in figures["curve"] if loss is not None and loss <= claim.loss]
        return (reached[0], True) if reached else (figures["seconds"], False)
    return float(figures[claim.figure]), True


def came(claim: Claim, run: str, found: Found, simulated: bool) -> tuple[str, bool | None]:
    """Return a claim's measured figure, and whether it holds: None where the arms are not measured, or not trusted.

    Where only the arm `of` never reached the loss, its whole time bounds the ratio from below.
    """
    only = [Published.load(run).arms[arm].only for arm in claim.arms]
    keys = [Cell(run, arm, simulated or its == "simulated").key for arm, its in zip(claim.arms, only, strict=True)]
    if not all(key in found for key in keys) or (not simulated and set(only) == {"simulated"}):
        return "", None
    if any(found[key]["verdict"] == "suspect" for key in keys):
        return "suspect", None
    if claim.figure == "loss" and any(found[key]["loss"] is None for key in keys):
        return "diverged", False
    value, exact = value_of(claim, found[keys[0]])
    base, reached = value_of(claim, found[keys[1]]) if claim.over else (1.0, True)
    if not reached:
        return "never", False
    ours = value / base
    if not exact:
        return f"> {ours:.3g}", True if claim.least is not None and ours >= claim.least else None
    return f"{ours:.3g}", ours >= claim.least if claim.least is not None else ours <= (claim.most or 0.0)


def rows_of(names: Sequence[str], found: Found, *, suspect: bool) -> list[tuple[str, ...]]:
    """Return a row for each claim, with empty cells for what is not measured; `suspect` marks suspect runs."""
    rows: list[tuple[str, ...]] = []
    for name in names:
        for claim in Published.load(name).claims:
            emulated, simulated = (came(claim, name, found, how) for how in (False, True))
            shown = emulated[0] if suspect or emulated[0] != "suspect" else ""
            holds = simulated[1] if emulated[1] is None else emulated[1]
            answer = {None: "", True: "yes", False: "**no**"}[holds]
            rows.append((name, claim.says, claim.where, claim.claimed, shown, simulated[0], answer))
    return rows


def current(kept: Found) -> dict[str, Any]:
    """Return the kept cells whose settings have not changed, and those of earlier versions, which lack a hash."""
    ones = {cell.key: cell for cell in (*cells(NAMES, False), *cells(NAMES, True))}
    return {
        key: figures
        for key, figures in kept.items()
        if "settings" not in figures or (key in ones and figures["settings"] == ones[key].settings)
    }


def commit_of(ones: Iterable[Cell], found: Found) -> str | None:
    """Return the commit at which the kept cells were measured, or None if it is not the same of all, or not known."""
    commits: set[str | None] = {found[cell.key].get("commit") for cell in ones if cell.key in found}
    return commits.pop() if len(commits) == 1 else None


def record(rows: Sequence[tuple[str, ...]], command: str, commit: str | None, today: str) -> None:
    """Add the table of all runs, and one of each run, to the file of results, in place of those of the same day."""
    new = [Entry("claims", commit, today, command, COLUMNS, tuple(rows), "two cores", note=NOTE)]
    for name in dict.fromkeys(row[0] for row in rows):
        own = tuple(row[1:] for row in rows if row[0] == name)
        new.append(msgspec.structs.replace(new[0], table=name, columns=COLUMNS[1:], rows=own))
    kept = entries(RECORDED) if RECORDED.exists() else []
    RECORDED.write_text(compact([*(one for one in kept if one.date != today), *new]))


def compact(tables: Sequence[Entry]) -> str:
    """Return a file of results, with a line for each field of an entry and for each row."""

    def field(name: str, value: Any) -> str:
        lines = ",\n".join(f"   {json.dumps(row, ensure_ascii=False)}" for row in value) if name == "rows" else ""
        return f'  "{name}": ' + (f"[\n{lines}\n  ]" if lines else json.dumps(value, ensure_ascii=False))

    def shown(one: Entry) -> dict[str, Any]:
        values = msgspec.to_builtins(one)
        return {name: value for name, value in values.items() if value or name in ("commit", "date")}

    texts = [",\n".join(field(name, value) for name, value in shown(one).items()) for one in tables]
    return "[\n" + ",\n".join(f" {{\n{text}\n }}" for text in texts) + "\n]\n"


def main() -> None:
    """Measure the missing arms and print all claims."""
    parser = Options(__doc__)
    parser.add_sittings()
    parser.add_argument("--only", action="append", choices=NAMES, help="this run only; may be repeated")
    parser.add_argument("--simulated", action="store_true", help="simulate all arms instead of emulating them")
    parser.add_argument(
        "--forks", action="store_true", help="processes in hosts, which start at once; containers where members die"
    )
    parser.add_argument("--show", action="store_true", help="print the kept figures, and measure nothing")
    parser.add_argument(
        "--record", action="store_true", help=f"write the table to {RECORDED.name} in benchmarks/results"
    )
    args = parser.parse()
    names, campaign = args.only or NAMES, Campaign(KEPT)
    if not args.show:
        kept = campaign.read()
        whole = {key: cell for key, cell in current(kept).items() if cell["verdict"] != "suspect"}
        if len(whole) < len(kept):
            write_json(KEPT, whole)
        campaign.measure(
            cells(names, args.simulated, args.quick), measure, forks=args.forks, most=args.cells, seconds=args.seconds
        )
    found = current(campaign.read())
    rows = rows_of(names, found, suspect=True)
    notes = [
        "emulated: `suspect` instead of a figure where a run's verdict is; simulated: by `testbed simulate`'s engine"
    ]
    show(
        [Table("Claimed and here", COLUMNS, rows, notes)],
        {"repeats": 1, "runs": without_curves(found)},
        as_json=args.json,
    )
    if args.record:
        command = f"python -m benchmarks.published{' --simulated' if args.simulated else ''}"
        commit = commit_of([*cells(NAMES, False), *cells(NAMES, True)], found)
        record(rows_of(NAMES, found, suspect=False), command, commit, str(date.today()))


if __name__ == "__main__":
    run_program(main)
