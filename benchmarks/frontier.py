"""Compare schemes by bytes, loss and time with all-reduce, over packing's trees and over a star.

    make documentation; sudo python -m benchmarks.frontier --forks [--task NAME] [--scheme NAME]
    python -m benchmarks.frontier --simulated

    cell: a task (network, data, how they are shared out), a scheme, a seed  --a run of its own-->  figures

Six tasks and the six schemes of benchmarks/support/frontier/cells.py are emulated; `--simulated` simulates all tasks,
with every scheme that `testbed simulate --gradients` supports. All runs of a task and seed begin with the same model
and data and take the same number of steps. All-reduce's loss is simulated, since it does not depend on the network. Its
time is its number of steps times a measured round's time, over a star (one server at the median place, one key: MXNet)
and over packing's trees.

A row is a scheme on a task. Cells are kept in runs/benchmark-frontier.json and not measured again; `--seconds 600`
begins none later than that. A figure of bytes against loss is written beside the file. The whole emulated table takes
eight hours.
"""

from __future__ import annotations

from math import lcm
from pathlib import Path

from benchmarks.support.campaign import Campaign, without_curves
from benchmarks.support.frontier.cells import (
    EMULATED,
    EMULATED_TASKS,
    QUICK_STEPS,
    SCHEMES,
    STEPS,
    TASKS,
    Cell,
    Task,
    emulated,
    simulated,
)
from benchmarks.support.frontier.measure import able, measure
from benchmarks.support.frontier.tables import compared, draw, figures, table
from benchmarks.support.options import Options
from benchmarks.support.program import run_program
from benchmarks.support.table import progress, show
from testbed.run.directory import RUNS
from testbed.schemes import SCHEMES as REGISTRY

KEPT = RUNS / "benchmark-frontier.json"
SEEDS, SIMULATED_SEEDS = 3, 5


def main() -> int:
    """Measure the missing cells and print all. Returns the exit code."""
    parser = Options(__doc__)
    parser.add_campaign(SEEDS, SIMULATED_SEEDS)
    parser.add_argument("--simulated", action="store_true", help="simulate all tasks instead of emulating six")
    parser.add_argument(
        "--task", action="append", choices=[task.name for task in TASKS], help="this task only; may be repeated"
    )
    parser.add_argument(
        "--scheme", action="append", choices=SCHEMES, help="this scheme only, beside all-reduce; may be repeated"
    )
    parser.add_steps(STEPS, QUICK_STEPS)
    parser.add_argument("--kept", type=Path, default=KEPT, help="the file that keeps the figures (default %(default)s)")
    parser.add_argument("--show", action="store_true", help="print the kept figures, and measure nothing")
    args = parser.parse()
    seeds, steps = args.seeds, args.steps
    periods = {name: SCHEMES[name].steps for name in args.scheme or (SCHEMES if args.simulated else EMULATED)}
    if uneven := [name for name, period in periods.items() if steps % period]:
        parser.error(
            f"--steps {steps}: {uneven[0]} exchanges every {periods[uneven[0]]} steps, and would be compared after "
            f"fewer steps than all-reduce; write a multiple of {lcm(*periods.values())}"
        )
    tasks = chosen_tasks(args.task, args.simulated, args.quick)
    schemes = chosen_schemes(args.scheme, args.simulated, tasks[0], steps)
    cells = (simulated if args.simulated else emulated)(tasks, schemes, seeds, steps)
    campaign = Campaign(args.kept)
    if not args.show:
        campaign.measure(cells, measure, forks=args.forks, most=args.cells, seconds=args.seconds)
    found = campaign.read()
    by_task = {
        task: ones
        for task in tasks
        if (ones := [its for name in schemes if (its := compared(found, task, name, seeds, steps, args.simulated))])
    }
    if by_task:
        draw({task.name: ones for task, ones in by_task.items()}, args.kept.with_suffix(".svg"))
    value = {
        "repeats": max((one.seeds for ones in by_task.values() for one in ones), default=0),
        "steps": steps,
        "tasks": {task.name: figures(ones) for task, ones in by_task.items()},
        "runs": without_curves(found),
    }
    show([table(ones, task, steps, args.simulated) for task, ones in by_task.items()], value, as_json=args.json)
    return 0


def chosen_tasks(names: list[str] | None, in_simulation: bool, quick: bool) -> list[Task]:
    """Return the named tasks; without names all that are measured this way, or the first of them if `quick`."""
    if names:
        return [task for task in TASKS if task.name in names]
    return list(TASKS if in_simulation else EMULATED_TASKS)[: 1 if quick else None]


def chosen_schemes(names: list[str] | None, in_simulation: bool, task: Task, steps: int) -> list[str]:
    """Return the named schemes, or all, without those that do not exist or cannot be simulated."""
    taken = []
    for name in names or (SCHEMES if in_simulation else EMULATED):
        strategy = SCHEMES[name].sync["strategy"]
        why = None if strategy in REGISTRY else f"the strategy {strategy} is not registered"
        if why is None and in_simulation:
            why = able(Cell(task, name, 1, True, steps))
        if why is None:
            taken.append(name)
        else:
            progress(f"left out: {name}: {why}")
    return taken


if __name__ == "__main__":
    run_program(main)
