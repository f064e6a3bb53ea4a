"""The command `check`: tells whether a run passes, for continuous integration, and whether a file is right."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.cli.console import BAD_INPUT, FAILED, err, fail, out, quantity
from testbed.spec.units import Loss, count
from testbed.trace.text import MOST_BYTES, text_of, unpacked_name

if TYPE_CHECKING:
    from testbed.spec.topology import Topology


def check(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="a run's directory or summary.json, or a file that the testbed reads")
    ],
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="compare the run's rounds with this earlier run: its directory or summary.json"
        ),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(
            parser=quantity(Loss),
            metavar="SHARE",
            help="by how much rounds may be longer than the baseline's, such as 10%",
        ),
    ] = 0.1,
) -> None:
    """Check whether a run passes, or whether a file is right.

    A run passes if its verdict is `trusted` and its rounds are no longer than a baseline's; else the exit code is 1.
    A topology, experiment, sweep, hosts file, trace, plan or view is summarized, or its fault named with exit code 2.
    Nothing is built.
    """
    from testbed.run.conclusion.baseline import read_summary, round_seconds, shortfalls

    if not file.is_dir() and not _is_summary(file):
        if baseline is not None:
            raise fail(
                BAD_INPUT,
                f"{file}: is not a run, and --baseline compares runs\n    write instead: testbed check {file}",
            )
        out.print(f"{file}: {_checked(file)}", markup=False)
        return
    summary = read_summary(file)
    earlier = None if baseline is None else read_summary(baseline)
    found = shortfalls(summary, earlier, tolerance)
    for one in found:
        err.print(one, markup=False)
    if found:
        raise typer.Exit(FAILED)
    for note in summary.get("notes", ()):
        out.print(note, markup=False)
    seconds, before = round_seconds(summary), earlier and round_seconds(earlier)
    times = f"; a round took {seconds:.3g} s at the median" if seconds is not None else ""
    out.print(f"passed: {summary['verdict']}{times}{f', the baseline {before:.3g} s' if before else ''}", markup=False)


def _is_summary(file: Path) -> bool:
    return unpacked_name(file).suffix == ".json" and "verdict" in _object_in(file)


def _object_in(file: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(text_of(file, MOST_BYTES))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _checked(file: Path) -> str:
    """Return a file's kind and a summary of its content. Exit with bad input if something is wrong with the file."""
    from testbed.plan import Plan, PlanError
    from testbed.planning import View, ViewError
    from testbed.report.trace import facts
    from testbed.spec.load import kind_of, read_yaml
    from testbed.trace.read import read_trace

    suffix = unpacked_name(file).suffix.lower()
    if suffix in (".yaml", ".yml"):
        return _YAML[kind_of(read_yaml(file)) or "a topology"](file)
    found = _object_in(file) if suffix == ".json" else {}
    try:
        if "trees" in found:
            plan = Plan.from_json(found)
            there = f"{count(len(plan.members), 'member')}, {count(len(plan.trees), 'tree')}"
            return f"a plan of {plan.policy}: {there}"
        if "routes" in found:
            view = View.from_json(found)
            return f"a view: {count(len(view.members), 'member')}, {count(len(view.links), 'link')}"
    except (PlanError, ViewError) as error:
        raise fail(BAD_INPUT, f"{file}: {error}") from None
    return ", ".join(("a trace", *facts(read_trace(file))))


def _topology(file: Path) -> str:
    from testbed.spec.topology import Topology

    return f"a topology: {_network(Topology.load(file))}"


def _network(topology: Topology) -> str:
    there = {"site": topology.sites, "directed link": topology.links, "worker": topology.workers}
    return ", ".join(count(len(of), noun) for noun, of in there.items())


def _experiment(file: Path) -> str:
    from testbed.run.assignments import check_policy
    from testbed.spec.experiment import Experiment

    experiment = Experiment.load(file)
    check_policy(experiment)
    spec = experiment.spec
    trains = "a command" if spec.program else f"{spec.own_train.model} for {count(spec.own_train.rounds, 'round')}"
    events = count(len(spec.events), "event")
    return f"an experiment: {trains} over {experiment.topology.name} ({_network(experiment.topology)}), {events}"


def _sweep(file: Path) -> str:
    from testbed.spec.sweep import Sweep

    sweep = Sweep.load(file)
    runs = count(sweep.spec.points * len(sweep.spec.seeds) * sweep.spec.repeats, "run")
    return f"a sweep: {runs} of {_experiment(sweep.experiment)}"


def _hosts(file: Path) -> str:
    from testbed.spec.hosts import Hosts

    return f"a hosts file: {', '.join(Hosts.load(file).by_name)}"


_YAML = {"an experiment": _experiment, "a topology": _topology, "a sweep": _sweep, "a hosts file": _hosts}
