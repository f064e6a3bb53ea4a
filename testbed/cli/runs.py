"""The commands that look at runs and files: `report`, `view`, `export`, `check` and `runs`."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from testbed.cli.console import BAD_INPUT, FAILED, Json, Port, bad_input, err, fail, interruptible_verb, out, quantity
from testbed.emulation.interrupt import Interrupted, interruptible
from testbed.run.directory import RUNS
from testbed.spec.units import Loss, count
from testbed.sudo import give_back
from testbed.trace.text import MOST_BYTES, text_of, unpacked_name

if TYPE_CHECKING:
    from testbed.spec.topology import Topology

RunDirectories = Annotated[list[Path], typer.Argument(metavar="RUN…", help="run directories, such as runs/latest")]

app = typer.Typer()


def report(runs: RunDirectories) -> None:
    """Write the report page of a run, or one page that compares several runs."""
    from testbed.report.opening import ended_early
    from testbed.report.page import write_comparison, write_page
    from testbed.report.record import RunRecord

    records = [RunRecord.read(run) for run in runs]
    for record in records:
        for reason in () if record.finished else (*ended_early(record), *record.gaps):
            err.print(f"{record.path} has not finished: {reason}", markup=False)
    page = write_page(records[0]) if len(runs) == 1 else write_comparison(records, Path("runs/comparison.html"))
    give_back([page])
    typer.echo(page)


def view(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run's directory, such as runs/latest")],
    port: Port = None,
) -> None:
    """Play a run that is over on a page in your browser, at any speed; Ctrl-C ends it."""
    from testbed.api.entry import ApiPort, show_in_browser, write_entry
    from testbed.api.server import ApiServer
    from testbed.report.recording import RecordedRun

    with (
        suppress(Interrupted),
        interruptible(),
        tempfile.TemporaryDirectory(prefix="testbed-view-") as folder,
        ApiServer(RecordedRun(run), Path(folder) / "view.sock", port or 0) as server,
    ):
        assert server.port is not None
        page = write_entry(Path(folder), server.port, server.token)
        give_back([Path(folder)])  # the browser of the user behind sudo must enter it
        out.print(show_in_browser(page, ApiPort(server.port, shown=True)))
        server.join()


def export(
    runs: RunDirectories,
    target: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="the folder to write to; default: RUN/export for one run, runs/comparison for several",
        ),
    ] = None,
    form: Annotated[
        str,
        typer.Option(
            metavar="FORM,…",
            help="comma-separated: png, svg or pdf for figures; csv or parquet for tables; tensorboard for curves; "
            "otlp for rounds and swaps as spans",
        ),
    ] = "svg,csv",
) -> None:
    """Write the figures of one run, or of several in comparison, and their records as tables."""
    from testbed.report.export import FIGURE_FORMS, OTHER_FORMS, TABLE_FORMS, Form, remove_links
    from testbed.report.export import export as write
    from testbed.report.record import RunRecord

    known: dict[str, Form] = {known: known for known in (*FIGURE_FORMS, *TABLE_FORMS, *OTHER_FORMS)}
    if unknown := [name for name in form.split(",") if name not in known]:
        remedy = f"one or more of {', '.join(known)}, separated by commas"
        raise bad_input(f"--form {form}: unknown form {unknown[0]!r}", remedy)
    records = [RunRecord.read(run) for run in runs]
    if target is None and len(runs) == 1:
        target = runs[0] / "export"
        if target.is_symlink():
            raise bad_input(f"{target}: is a link, which this command does not follow", "--out DIR")
        remove_links(target, records[0])
    folder = target or Path("runs/comparison")
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    written: list[Path] = []
    with interruptible_verb("; files that were written until then stay"):
        try:
            for file in write(records, folder, [known[name] for name in form.split(",")]):
                written.append(file)
                typer.echo(file)
        finally:
            inside = {above for file in written for above in file.parents if folder in above.parents}
            files = folder.rglob("*") if folder in made else (*inside, *written)
            give_back([*made, *files])


@app.callback(invoke_without_command=True)
def runs(context: typer.Context, json_: Json = False) -> None:
    """List the runs in `runs/`, or remove some; without a command, list them."""
    if context.invoked_subcommand is None:
        list_runs(context, json_)
    elif json_ and context.invoked_subcommand != "list":
        raise bad_input(f"runs --json {context.invoked_subcommand}: only the list has JSON", "it without --json")


@app.command("list")
def list_runs(context: typer.Context, json_: Json = False) -> None:
    """List the runs in `runs/`, newest last, with start time, verdict and size."""
    from testbed.cli.tables import print_runs
    from testbed.run.directory import past_runs

    found = past_runs()
    if json_ or (context.parent is not None and context.parent.params.get("json_")):  # `runs --json list` is the same
        typer.echo(json.dumps([{**asdict(run), "path": str(run.path)} for run in found]))
    else:
        print_runs(found)


@app.command()
def rm(
    wanted: Annotated[list[str], typer.Argument(metavar="RUN…", help="names of runs in runs/, or run directories")],
) -> None:
    """Remove runs with all their records; a run that is still going on, or is in a sweep under way, is refused."""
    from testbed.run.directory import NotRemoved, remove_run

    try:
        for name in wanted:
            run = remove_run(RUNS / name if (RUNS / name / "manifest.json").exists() else Path(name))
            out.print(f"removed {run.path} ({run.bytes / 1e6:.1f} MB)", markup=False)
    except NotRemoved as error:
        raise fail(BAD_INPUT, error) from None


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
            show_default="10%",
        ),
    ] = 0.1,
) -> None:
    """Check whether a run passes, or whether a file is valid.

    A run passes if its verdict is `trusted` and its median round at most `--tolerance` longer than a baseline's; else
    the exit code is 1.
    A topology, experiment, sweep, hosts file, trace, plan or view is summarized, or its fault named with exit code 2.
    Nothing is built.
    """
    from testbed.run.conclusion.baseline import read_summary, round_seconds, shortfalls

    if not file.is_dir() and not _is_summary(file):
        if baseline is not None:
            raise bad_input(f"{file}: is not a run, and --baseline compares runs", f"testbed check {file}")
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
    seconds, before = round_seconds(summary), None if earlier is None else round_seconds(earlier)
    times = f"; a round took {seconds:.3g} s at the median" if seconds is not None else ""
    times += f", the baseline {before:.3g} s" if before is not None else ""
    out.print(f"passed: {summary['verdict']}{times}", markup=False)


def _is_summary(file: Path) -> bool:
    return unpacked_name(file).suffix == ".json" and "verdict" in _object_in(file)


def _object_in(file: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(text_of(file, MOST_BYTES))
    except (OSError, ValueError, RecursionError):  # RecursionError: brackets thousands deep
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
            plan.check_codecs()
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


def _experiment(file: Path, overrides: Mapping[str, str] | None = None) -> str:
    from testbed.run.assignments import check_policy
    from testbed.spec.experiment import Experiment

    experiment = Experiment.load(file, overrides)
    check_policy(experiment)
    spec = experiment.spec
    trains = "a command" if spec.program else f"{spec.own_train.model} for {count(spec.own_train.rounds, 'round')}"
    events = count(len(spec.events), "event")
    return f"an experiment: {trains} over {experiment.topology.name} ({_network(experiment.topology)}), {events}"


def _sweep(file: Path) -> str:
    from testbed.run.sweep.sweep import planned_sweep
    from testbed.spec.sweep import Sweep

    sweep = Sweep.load(file)
    planned = planned_sweep(sweep)
    return f"a sweep: {count(len(planned), 'run')} of {_experiment(sweep.experiment, planned[0].overrides)}"


def _hosts(file: Path) -> str:
    from testbed.spec.hosts import Hosts

    return f"a hosts file: {', '.join(Hosts.load(file).by_name)}"


#: Kind of file → the function that checks and summarizes it.
_YAML: Mapping[str, Callable[[Path], str]] = {
    "an experiment": _experiment,
    "a topology": _topology,
    "a sweep": _sweep,
    "a hosts file": _hosts,
}
