"""The commands `trace`: show, check and convert trace files, import traces of other forms, or generate traces."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import ceil
from pathlib import Path
from typing import Annotated, Any

import typer

from testbed.atomic_file import check_new
from testbed.cli.console import bad_input, link_argument, out, quantity
from testbed.spec import units
from testbed.trace import generate as generators
from testbed.trace.csv import columns_of, write_csv
from testbed.trace.forms import FORMS, Form, ImportedTrace, write_imported
from testbed.trace.forms.pcap import STEP_S as CAPTURE_STEP_S
from testbed.trace.forms.pcap import Flow, import_capture
from testbed.trace.mahimahi import STEP_S, schedule_of, write_mahimahi
from testbed.trace.read import SUFFIXES, Format, TraceFile, format_of, read_trace
from testbed.trace.resample import MOST_ROWS, Resampled
from testbed.trace.text import as_line, unpacked_name
from testbed.trace.trace import Trace, TraceError, with_possible_rates

app = typer.Typer(no_args_is_help=True, help="Show, check, convert, import or generate trace files.")

STEP = quantity(units.Step)

File = Annotated[
    Path, typer.Argument(metavar="FILE", help="a trace: CSV, a Mahimahi packet-delivery file, or iperf3's JSON")
]
StepOption = Annotated[
    float | None,
    typer.Option(
        parser=STEP, metavar="TIME", help="the time step that a Mahimahi or iperf3 file is resampled to, such as 100ms"
    ),
]


@app.command()
def show(
    file: File,
    step: StepOption = None,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="also draw the trace into this PNG file")] = None,
) -> None:
    """Show a trace: its length, its range of values, and each column over time."""
    from testbed.report.trace import save_trace, sketch

    found = read_trace(file, step_s=step)
    _print_facts(found)
    for column in columns_of(found.trace):
        out.print("", *sketch(column), sep="\n", markup=False)
    if png:
        save_trace(found.trace, str(file), png)


@app.command()
def check(file: File, step: StepOption = None) -> None:
    """Check a trace: print its summary, or name its fault with exit code 2."""
    _print_facts(read_trace(file, step_s=step))


def _print_facts(found: TraceFile) -> None:
    from testbed.report.trace import facts, table

    _print(*facts(found))
    out.print(table(found))


def _print(*lines: str) -> None:
    for line in lines:
        out.print(as_line(line), markup=False)


@app.command()
def convert(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="[SOURCE] TARGET", help="the trace to read, then the file to write: .csv, .up, .down or .mahimahi"
        ),
    ],
    step: StepOption = None,
    run: Annotated[
        Path | None, typer.Option(metavar="RUN", help="write what this run measured on --link, instead of SOURCE")
    ] = None,
    link: Annotated[
        str | None, typer.Option(metavar="A->B", help="the link of the run, in quotes", parser=link_argument)
    ] = None,
) -> None:
    """Convert a trace to the format of TARGET's ending, or write what a run measured on a link as a trace."""
    if (run is None) != (link is None) or (run and step):
        rule = "--run takes no --step"
        if run is None or link is None:
            rule = "--run needs --link" if link is None else "--link needs --run"
        raise bad_input(f"convert: {rule}", "--run RUNS/ID --link 'A->B' TARGET")
    if len(files) != (1 if run else 2):
        raise bad_input(f"convert: got {len(files)} files", "SOURCE TARGET, or TARGET alone with --run and --link")
    from testbed.report.record import RunRecord
    from testbed.report.trace import measured_trace

    *source, target = files
    if run is not None and link is not None:
        trace, origin = measured_trace(RunRecord.read(run), link)
        comments = [origin]
    else:
        found = read_trace(source[0], step_s=step)
        trace, comments = found.trace, _origin(found)
    _write(target, trace, comments)


def _origin(found: TraceFile) -> list[str]:
    from testbed.report.trace import error_of

    return [f"from {found.path.name} ({found.format})", *([error_of(found.resampled)] if found.resampled else [])]


def _format_to_write(target: Path) -> Format:
    """Return the format of a file to write, by its ending. Raises TraceError for the ending of a compressed file."""
    if (plain := unpacked_name(target)) != target:
        raise TraceError(f"{target}: traces are written uncompressed; write {plain.name}, and then compress it")
    if target.suffix.lower() not in SUFFIXES and not target.is_relative_to("/dev"):
        raise TraceError(f"{target}: its ending tells no format; write one of .csv, .up, .down and .mahimahi")
    return format_of(target, "")


def _write(target: Path, trace: Trace, comments: list[str]) -> None:
    format_ = _format_to_write(target)
    if format_ == "iperf3":
        raise TraceError(f"{target}: iperf3's format can only be read; write .csv, .up or .down")
    check_new([target])
    if format_ == "csv":
        write_csv(target, trace, comments)
    else:
        schedule = schedule_of(trace)
        step_s = STEP_S * ceil(schedule.duration_s / STEP_S / MOST_ROWS)  # the error has MOST_ROWS windows at most
        error = Resampled(trace, STEP_S, schedule).error(step_s)
        comments += [
            f"{len(schedule.milliseconds)} packets; error of the bytes delivered: {error:.2%} in {step_s:g} s windows",
            "only the rate is kept, and rows that lose every packet",
        ]
        write_mahimahi(target, schedule)
    _print(str(target), *comments)


import_app = typer.Typer(no_args_is_help=True, help="Convert traces of other forms; each is written as CSV, NAME.csv.")


Files = Annotated[list[Path], typer.Argument(help="files of this form")]
Folder = Annotated[Path, typer.Option("--out", metavar="FOLDER", help="where to write them")]

HERE = Path()


def _import(files: list[Path], folder: Path, read: Callable[[Path], list[ImportedTrace]]) -> None:
    found = [each for file in files for each in read(file)]
    targets = write_imported(found, folder)
    for target, each in zip(targets, found, strict=True):
        columns = ", ".join(f"{column.name} {column.mean:.4g}" for column in columns_of(each.trace))
        _print(f"{target}: {units.count(len(each.trace.rows), 'row')}, {each.trace.duration_s:.6g} s; {columns}")
        _print(*(f"    {comment}" for comment in each.comments))


def _add_command(form: Form) -> None:
    option = typer.Option(parser=STEP, metavar="TIME", help=form.step)

    def plain(files: Files, folder: Folder = HERE) -> None:
        _import(files, folder, form.import_file)

    def in_steps(files: Files, folder: Folder = HERE, step: float | None = None) -> None:
        _import(files, folder, partial(form.import_file, step_s=step))

    in_steps.__annotations__["step"] = Annotated[float | None, option]
    import_app.command(form.name, help=form.help)(in_steps if form.step else plain)


for _form in FORMS.values():
    _add_command(_form)


@import_app.command("with")
def with_(
    form: Annotated[str, typer.Argument(metavar="FORM", help="./mine.py, or an installed package's entry point")],
    files: Files,
    folder: Folder = HERE,
) -> None:
    """Import files of a form of your own, whose function `read(text)` returns a trace (`testbed new form NAME`)."""
    from testbed.plugins import form_named

    read = form_named(form)
    mine = Form(Path(form).stem, "", lambda text, _: [ImportedTrace(read(text))])
    _import(files, folder, mine.import_file)


@import_app.command()
def pcap(
    files: Files,
    folder: Folder = HERE,
    step: Annotated[
        float, typer.Option(parser=STEP, metavar="TIME", help="length of a row", show_default="100ms")
    ] = CAPTURE_STEP_S,
    flow: Annotated[
        str | None,
        typer.Option(metavar="A->B", help="import this flow alone: 10.0.0.1:443->10.0.0.2, *->[2001:db8::2]:443"),
    ] = None,
) -> None:
    """Import a capture, pcap or pcapng, of Ethernet or raw IP: the rate of all its packets, or of a flow."""
    wanted = None if flow is None else Flow.parse(flow)
    _import(files, folder, partial(import_capture, step_s=step, flow=wanted))


generate_app = typer.Typer(
    no_args_is_help=True, help="Generate a trace from a seed; the first line of its file names the generator."
)

RATE, DURATION = (quantity(kind) for kind in (units.Rate, units.Duration))

Target = Annotated[Path, typer.Argument(metavar="TARGET", help="the CSV file to write")]
Rate = Annotated[float, typer.Option(parser=RATE, metavar="RATE", help="a rate, such as 20mbit")]
Share = Annotated[float, typer.Option(min=0, help="a share of the mean, such as 0.1")]
Seed = Annotated[int, typer.Option(help="a whole number; the same seed makes the same file")]


def _time(default: str) -> Any:
    return typer.Option(parser=DURATION, metavar="TIME", help="a duration, such as 180s", show_default=default)


def _generate(target: Path, generator: generators.Generator) -> None:
    if _format_to_write(target) != "csv":
        raise TraceError(f"{target}: a generated trace is CSV; name it .csv, then use `testbed trace convert`")
    check_new([target])
    trace = generator.trace()
    with_possible_rates(trace.rows)  # a noise of nan, or twice a mean of 60 Gbit/s, makes rates that the reader refuses
    write_csv(target, trace, [str(generator)])
    _print(f"{target}: {units.count(len(trace.rows), 'row')}, {trace.duration_s:.6g} s")


@generate_app.command()
def uniform(
    target: Target,
    low: Rate,
    high: Rate,
    seed: Seed,
    period: Annotated[float, _time("180s")] = 180.0,
    duration: Annotated[float, _time("1800s")] = 1800.0,
) -> None:
    """Draw the rate uniformly between --low and --high, again every --period (as NetStorm's network)."""
    _generate(target, generators.UniformRedraw(low, high, period, duration, seed))


@generate_app.command()
def walk(
    target: Target,
    mean: Rate,
    seed: Seed,
    spread: Share = 0.1,
    return_: Annotated[
        float,
        typer.Option(
            "--return",
            parser=DURATION,
            metavar="TIME",
            help="the time in which the rate returns to its mean",
            show_default="20s",
        ),
    ] = 20.0,
    step: Annotated[float, _time("1s")] = 1.0,
    duration: Annotated[float, _time("180s")] = 180.0,
) -> None:
    """Let the rate wander about its mean and return to it (Ornstein–Uhlenbeck)."""
    _generate(target, generators.OrnsteinUhlenbeck(mean, spread, return_, step, duration, seed))


@generate_app.command()
def markov(
    target: Target,
    state: Annotated[
        list[float],
        typer.Option(parser=RATE, metavar="RATE", help="the rate of a state, such as 20mbit; once for each state"),
    ],
    seed: Seed,
    dwell: Annotated[
        float | None,
        typer.Option(
            parser=DURATION,
            metavar="TIME",
            help="the mean time in a state, after which any other state follows; or give --next",
        ),
    ] = None,
    next_: Annotated[
        list[str] | None,
        typer.Option(
            "--next",
            metavar="P,P,…",
            help="the probabilities that each state follows this one, such as 0.9,0.1; once for each state",
        ),
    ] = None,
    step: Annotated[float, _time("1s")] = 1.0,
    duration: Annotated[float, _time("180s")] = 180.0,
) -> None:
    """Let the rate jump between states, after a mean time (--dwell) or by a transition matrix (--next)."""
    if (dwell is None) == (next_ is None):
        raise bad_input("markov: give one of --dwell and --next", "--dwell 10s, or --next 0.9,0.1 for each state")
    if dwell is not None:
        generator = generators.Markov.dwelling(state, dwell, step, duration, seed)
    else:
        generator = generators.Markov(tuple(state), tuple(map(_odds, next_ or [])), step, duration, seed)
    _generate(target, generator)


def _odds(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise TraceError(f"--next {text}: is not a list of probabilities; write for example --next 0.9,0.1") from None


@generate_app.command()
def diurnal(
    target: Target,
    mean: Rate,
    seed: Seed,
    swing: Share = 0.5,
    noise: Share = 0.05,
    day: Annotated[float, _time("86400s")] = 86_400.0,
    step: Annotated[float, _time("60s")] = 60.0,
    duration: Annotated[float, _time("86400s")] = 86_400.0,
) -> None:
    """Let the rate follow the time of day, lowest at its beginning."""
    _generate(target, generators.Diurnal(mean, swing, noise, day, step, duration, seed))


@generate_app.command()
def outages(
    target: Target,
    rate: Rate,
    seed: Seed,
    up: Annotated[float, _time("60s")] = 60.0,
    down: Annotated[float, _time("5s")] = 5.0,
    duration: Annotated[float, _time("600s")] = 600.0,
) -> None:
    """Interrupt a steady rate: up and down for exponentially distributed times with the means --up and --down."""
    _generate(target, generators.Outages(rate, up, down, duration, seed))


app.add_typer(generate_app, name="generate")
app.add_typer(import_app, name="import")
