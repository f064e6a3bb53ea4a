"""Traces of other forms as ours: a file into one trace, or one for each direction.

Each function reads a file, and says in comments what was made of it. TraceError names the file and, where there is
one, the line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testbed.trace import iperf3
from testbed.trace.csv import write_csv
from testbed.trace.forms.cellular import parse_cellular
from testbed.trace.forms.flow import Flow
from testbed.trace.forms.pensieve import parse_pensieve
from testbed.trace.forms.ping import parse_ping, says_times
from testbed.trace.forms.rates import read_capture
from testbed.trace.forms.round_trips import Samples, by_windows, window_for
from testbed.trace.forms.rtt_csv import parse_rtt_csv
from testbed.trace.resample import resample
from testbed.trace.text import read_text, unpacked_name
from testbed.trace.trace import Trace, TraceError

#: Of a capture's rates, where none is asked for.
STEP_S = 0.1


@dataclass(frozen=True, slots=True)
class ImportedTrace:
    """A trace and the file that it is for, by name, such as `log-down.csv`; `comments` say where it is from."""

    name: str
    trace: Trace
    comments: tuple[str, ...]


def import_pensieve(path: Path) -> list[ImportedTrace]:
    """Lines of seconds and Mbit/s."""
    with _naming(path):
        trace = parse_pensieve(read_text(path).splitlines())
    return [_made(path, "pensieve", trace, "each rate holds for the time that ended at its line")]


def import_cellular(path: Path) -> list[ImportedTrace]:
    """A log of a phone's bit rates and pings: a trace for each direction that it has."""
    with _naming(path):
        log = parse_cellular(read_text(path).splitlines())
    measured = any(row.delay_s is not None for trace in log.traces.values() for row in trace.rows)
    delays = "delay: half of PINGAVG" if measured else "no delay: the log has no PINGAVG"
    left_out = (f"the other direction is left out: {reason}" for reason in log.left_out.values())
    comments = (delays, *left_out)
    return [_made(path, "5g-csv", trace, *comments, ending=f"-{way}") for way, trace in log.traces.items()]


def import_rtt_csv(path: Path, window_s: float | None = None) -> list[ImportedTrace]:
    """Round trips in CSV."""
    with _naming(path):
        return [_of_round_trips(path, "rtt-csv", parse_rtt_csv(read_text(path).splitlines()), window_s)]


def import_ping(path: Path, window_s: float | None = None) -> list[ImportedTrace]:
    """What ping printed."""
    with _naming(path):
        lines = read_text(path).splitlines()
        assumed = () if says_times(lines) else ("packets count as a second apart: the output says no times",)
        return [_of_round_trips(path, "ping", parse_ping(lines), window_s, *assumed)]


def import_iperf3(path: Path, step_s: float | None = None) -> list[ImportedTrace]:
    """What iperf3 measured."""
    with _naming(path):
        text = read_text(path)
        made = iperf3.resampled(iperf3.parse_iperf3(text), step_s)
    left_out = ["the other direction is left out (--bidir)"] if '"sum_bidir_reverse"' in text else []
    return [_made(path, "iperf3", made.trace, f"in steps of {made.step_s:g} s", *left_out)]


def import_capture(path: Path, step_s: float = STEP_S, flow: Flow | None = None) -> list[ImportedTrace]:
    """The rate of a capture's packets, or of those of one flow."""
    with _naming(path):
        found = read_capture(path, flow)
        made = resample(found.arrivals, step_s)
    of = f"{found.packets} packets of {flow or 'all flows'}, in steps of {step_s:g} s"
    largest = ", ".join(f"{one} {share:.0%}" for one, share in found.largest)
    comments = (of, *([f"largest flows, of all bytes: {largest}"] if largest else []))
    return [_made(path, "pcap", made.trace, *comments)]


def import_text(path: Path, read: Callable[[str], Trace], form: str) -> list[ImportedTrace]:
    """A text of another form, which `read` makes a trace of."""
    with _naming(path):
        return [_made(path, form, read(read_text(path)))]


def write_imported(found: Sequence[ImportedTrace], sources: Sequence[Path], folder: Path) -> list[Path]:
    """Write the traces into the folder, and tell their files. TraceError where there is none, two would have the same,
    or one is a source; then none is written."""
    if not folder.is_dir():
        raise TraceError(f"{folder}: is no folder; name one that is there with --out", rule="no-folder", file=folder)
    targets = [folder / each.name for each in found]
    for number, target in enumerate(targets):
        if target in targets[:number]:
            raise TraceError(
                f"{target}: two sources would be written to it; give them names that differ, or import one",
                rule="two-sources",
                file=target,
            )
        if any(target.exists() and target.samefile(source) for source in sources):
            raise TraceError(
                f"{target}: is a source, and would be written over; name another folder with --out",
                rule="is-source",
                file=target,
            )
    for each, target in zip(found, targets, strict=True):
        write_csv(target, each.trace, each.comments)
    return targets


def _of_round_trips(path: Path, form: str, samples: Samples, window_s: float | None, *more: str) -> ImportedTrace:
    window_s = window_for(samples) if window_s is None else window_s
    lost = sum(trip is None for _, trip in samples)
    counted = f"{len(samples)} round trips, {lost} lost, in windows of {window_s:g} s"
    meaning = "delay: half of their median; loss: what, met both ways, loses as many. For both directions of a link"
    return _made(path, form, by_windows(samples, window_s), counted, meaning, *more)


def _made(path: Path, form: str, trace: Trace, *comments: str, ending: str = "") -> ImportedTrace:
    return ImportedTrace(f"{unpacked_name(path).stem}{ending}.csv", trace, (f"from {path.name} ({form})", *comments))


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """What is wrong in a file, with its name."""
    try:
        yield
    except TraceError as error:
        raise error if error.file else error.located(path, file=path) from None
