"""The recording of a run that is over, which the page plays: its changes over time, thinned to what people can follow.

Values over time are stored column by column, which takes a fifth of the text that an object per time would.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from testbed.api.models import LinkHistory, NetworkStatus
from testbed.api.requests import NOT_HERE, ApiProblem, Request
from testbed.api.stream import State
from testbed.api.subject import Subject
from testbed.link import link_ends, link_name
from testbed.report.link_states import Columns, link_columns
from testbed.report.record import site_of
from testbed.report.run_files import (
    CurveLine,
    EventLine,
    NotARun,
    TimedLine,
    TrafficLine,
    first_start,
    fits,
    recorded_manifest,
    recorded_summary,
)
from testbed.schema import decode_lines
from testbed.spec.errors import SpecError
from testbed.spec.load import parse_yaml
from testbed.spec.model import validate
from testbed.spec.topology import TopologyFile
from testbed.telemetry.averages import means_if_all
from testbed.telemetry.rate_steps import recorded_steps
from testbed.telemetry.round_span import span_of, time_spent
from testbed.telemetry.store import read_json, read_lines
from testbed.trace.text import as_line

#: The seconds between two values of a link or a counter …
STEP_S = 1.0
#: … and the most values, which long runs reach.
MOST = 3600

L = TypeVar("L", bound=msgspec.Struct)


class ReportLine(msgspec.Struct, gc=False):
    """The fields of a line of `rounds.jsonl` that the page shows."""

    member: str
    round: int
    epoch: int
    started_s: float
    finished_s: float
    compute_s: float = 0.0
    paced_s: float = 0.0
    waited: dict[str, float] = {}
    metrics: dict[str, float | None] = {}


def recording_of(path: Path) -> dict[str, Any]:
    """Return the recording of a run's directory. Times are seconds since training began.

    A run of two hours takes 1.3 s to read, of which links take 0.9 s.

    Raises:
        NotARun: The directory is not that of an experiment's run.
    """
    manifest = recorded_manifest(path)
    if manifest.get("spec") is None:
        raise NotARun(
            f"{path}: not the run of an experiment (its manifest.json has no `spec`); give the directory of one, such "
            "as runs/latest",
            rule="no-run",
            file=path,
        )
    samples = _lines(path / "traffic.jsonl", TrafficLine)
    reports = _lines(path / "rounds.jsonl", ReportLine)
    began = float(manifest.get("training_started_s") or first_start(path, [one.started_s for one in reports]))
    sampled_s = max([0.0, *(one.at_s - began for one in samples[-1:])])
    steps = min(MOST, ceil(sampled_s / STEP_S) + 1) if samples else MOST
    links = link_columns(path / "links.jsonl", began, steps)
    decisions = _since(path / "decisions.jsonl", began, TimedLine)
    rounds = _rounds(reports, began, gossips=not decisions)
    curves = sorted(_since(path / "curves.jsonl", began, CurveLine), key=lambda record: record["at_s"])
    seconds = max([sampled_s, *(one["finished_s"] for one in rounds[-1:])])
    every, samples = samples, _one_a_step(samples, seconds / steps)
    summary, topologies = recorded_summary(path), _topologies(manifest)
    own = Path(str(manifest["spec"].get("topology"))).stem  # of a file, or a preset's name
    first = next((topology for name, topology in topologies.items() if Path(name).stem == own), {})
    # Programs without a controller report no rounds, nor do members whose run failed before the first.
    workers = sorted({report.member for report in reports} or _declared_workers(first))
    events = _since(path / "events.jsonl", began, EventLine)
    return {
        "network": _overview(path, manifest),
        "sites": _sites(topologies, workers, links),
        "hosts": {name: {"kind": "worker", "site": site_of(name)} for name in workers},
        "seconds": seconds,
        "links": links,
        "traced": _traced(first, topologies, events),
        "changes": _changes(events, summary),
        "traffic_s": [sample.at_s - began for sample in samples],
        "bytes": _by_link(samples),
        "asked": (manifest["spec"].get("train") or {}).get("rounds"),
        "rounds": rounds,
        "curves": _thinned(curves),
        "events": sorted([*events, *_steps(links, every, began, events)], key=lambda event: event["at_s"]),
        "decisions": decisions,
        "plans": _plans(path, summary, rounds),
        "verdict": _verdict(summary),
    }


def _overview(path: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    spec = manifest["spec"]
    return {
        "kind": "recording",
        "name": as_line(str(manifest.get("id") or path.resolve().name)),
        "topology": Path(str(spec.get("topology"))).stem,
        "file": as_line(str(path)),
        "backend": str(manifest.get("backend")),
        "switch": str(manifest.get("switch")),
        "transport": {},
        "pid": 0,
        "failure": None,
        "replay": {"elapsed_s": 0.0, "links": 0, "late_ms_p99": None, "paused": False},
    }


def _topologies(manifest: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the values of the run's topology files by name, among all files that the experiment is made of."""
    found = {}
    for name, text in (manifest.get("inputs") or {}).items():
        if "sites" not in text:  # traces are long, and parsing them would take a while
            continue
        with suppress(yaml.YAMLError):  # a scheme or a policy is Python
            value = parse_yaml(text)
            if isinstance(value, dict) and isinstance(value.get("sites"), dict):
                found[name] = value
    return found


def _declared_workers(topology: Mapping[str, Any]) -> list[str]:
    """Return the names of the workers in the topology's file; none where the run did not keep the file."""
    sites = topology.get("sites", {})
    counts = {name: site.get("workers") for name, site in sites.items() if isinstance(site, dict)}
    return [f"{name}-w{n}" for name, count in counts.items() if isinstance(count, int) for n in range(count)]


def _sites(
    topologies: Mapping[str, Mapping[str, Any]], workers: Sequence[str], links: Iterable[str]
) -> dict[str, dict[str, Any]]:
    """Return the sites of all networks of the run, by their files, or else by the names of links and workers."""
    named = [*map(site_of, workers), *(site for link in links for site in link_ends(link))]
    found: dict[str, dict[str, Any]] = {site: _site({}, site, workers) for site in named}
    for topology in topologies.values():
        for name, site in topology["sites"].items():
            found[name] = _site(site if isinstance(site, dict) else {}, name, workers)
    return found


def _traced(
    first: Mapping[str, Any], topologies: Mapping[str, Mapping[str, Any]], events: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the links with a trace or background traffic, from the start and from each network swap on.

    `first` is the network at the start. `links` is None for a network whose file the run did not keep.
    """
    found = [{"at_s": 0.0, "links": _traced_in(first)}]
    for event in events:
        if event["kind"] == "swap":
            others = (topology for topology in topologies.values() if topology.get("name") == event["target"])
            found.append({"at_s": event["at_s"], "links": _traced_in(next(others, {}))})
    return found


def _traced_in(topology: Mapping[str, Any]) -> list[str] | None:
    try:
        file = validate(TopologyFile, topology, Path("topology"))
    except SpecError:
        return None
    loaded = file.traffic_by_link()
    ends = ((link_name(*ends), properties.trace) for ends, properties in file.directions())
    return [name for name, trace in ends if trace is not None or name in loaded]


def _changes(events: Iterable[Mapping[str, Any]], summary: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return, by link, the values that an event or a person put in force in place of its file's or its trace's.

    A network swap that changes the link ends them. `changed` is None in runs before 27 November 2026, which did not
    record the values.
    """
    swaps: Iterator[Mapping[str, Any]] = (one for one in summary.get("swaps") or () if one.get("kind") == "network")
    found: dict[str, list[dict[str, Any]]] = {}
    for event in events:
        if event["kind"] == "change":
            found.setdefault(event["target"], []).append({"at_s": event["at_s"], "changed": event.get("changed")})
        elif event["kind"] == "swap":
            swap: Mapping[str, Any] = next(swaps, {})
            for link in (*swap.get("changed", ()), *swap.get("removed", ())):
                if link in found:
                    found[link].append({"at_s": event["at_s"], "changed": {}})
    return found


def _steps(
    links: Mapping[str, Columns], samples: Sequence[TrafficLine], began: float, events: Iterable[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    tracks = {
        name: (
            columns["at_s"],
            [
                rate if up and there else None
                for rate, up, there in zip(columns["rate_bps"], columns["up"], columns["there"], strict=True)
            ],
        )
        for name, columns in links.items()
    }
    for step in recorded_steps(tracks, ((one.at_s - began, one.bytes) for one in samples), events):
        yield step.to_event()


def _site(known: Mapping[str, Any], name: str, workers: Sequence[str]) -> dict[str, Any]:
    own = [worker for worker in workers if site_of(worker) == name]
    return {"label": known.get("label"), "position": known.get("position"), "workers": own}


def _rounds(reports: Sequence[ReportLine], began: float, gossips: bool) -> list[dict[str, Any]]:
    """Return each round: its end and duration, the means of metrics over members, and how each member spent it."""
    by_round: dict[int, list[ReportLine]] = {}
    for report in reports:
        by_round.setdefault(report.round, []).append(report)
    return [
        {
            "round": number,
            "epoch": max(one.epoch for one in its),
            "finished_s": max(one.finished_s for one in its) - began,
            "seconds": span_of((one.started_s, one.finished_s) for one in its).seconds,
            "metrics": means_if_all(one.metrics for one in its),
            "workers": {one.member: _spent(one, gossips) for one in its},
        }
        for number, its in sorted(by_round.items())
    ]


def _spent(report: ReportLine, gossips: bool) -> list[float]:
    step_s = report.compute_s + report.paced_s
    figures = time_spent(report.finished_s - report.started_s, step_s, report.waited, gossips)
    return [round(seconds, 4) for seconds in figures.values()]


def _plans(path: Path, summary: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return each plan by epoch, with its swap and the time from which it was in force; the first one from 0."""
    swaps = {swap.get("epoch"): swap for swap in summary.get("swaps") or () if swap.get("kind") == "plan"}
    first: dict[int, float] = {}
    for done in rounds:
        first.setdefault(done["epoch"], done["finished_s"] - done["seconds"])
    plans: dict[str, dict[str, Any]] = {}
    for file in sorted((path / "plans").glob("*.json")):
        plan = _whole(file) or {}
        epoch = plan.get("epoch")
        if not isinstance(epoch, int):
            continue
        swap = swaps.get(epoch)
        at_s = swap["active_s"] if swap and swap.get("active_s") is not None else first.get(epoch)
        if at_s is not None:
            begin = 0.0 if not plans else at_s
            if plans and swap is None:  # a run that did not finish has no record of its swaps
                swap = {"kind": "plan", "epoch": epoch, "active_s": at_s}
            plans[str(epoch)] = {"plan": plan, "swap": swap, "active_s": begin}
    return plans


def _verdict(summary: Mapping[str, Any]) -> dict[str, Any]:
    if not summary:
        return {"verdict": "unfinished", "reasons": ["the run left no summary"]}
    return {"verdict": summary.get("verdict", "unfinished"), "reasons": summary.get("reasons") or []}


def _one_a_step(samples: Sequence[TrafficLine], step_s: float) -> list[TrafficLine]:
    kept: list[TrafficLine] = []
    for sample in samples:
        if not kept or sample.at_s - kept[-1].at_s >= step_s * 0.9:
            kept.append(sample)
    return kept


def _by_link(samples: Sequence[TrafficLine]) -> dict[str, list[int | None]]:
    names = {name for sample in samples for name in sample.bytes}
    return {name: [sample.bytes.get(name) for sample in samples] for name in sorted(names)}


def _thinned(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return about MOST of the records, the same part of those of each program with the same metrics."""
    every, seen = max(1, ceil(len(records) / MOST)), Counter[Any]()
    kept = []
    for record in records:
        kind = record["program"], *record["values"]
        if seen[kind] % every == 0:
            kept.append(record)
        seen[kind] += 1
    return kept


def _since(file: Path, began: float, kind: type[TimedLine]) -> list[dict[str, Any]]:
    """Return a file's records that have the fields of `kind`, without `estimates`.

    Their `at_s` counts from the begin of training, and is at least 0.
    """
    found = []
    for record in read_lines(file):
        if record is not None and fits(kind, record):
            record.pop("estimates", None)
            found.append({**record, "at_s": max(record["at_s"] - began, 0.0)})
    return found


def _lines(file: Path, kind: type[L]) -> list[L]:
    """Return the records of a file, without lines that were cut short or have another form."""
    return decode_lines(msgspec.json.Decoder(kind), _complete(file))


def _complete(file: Path) -> bytes:
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return b""
    return data[: data.rfind(b"\n") + 1]


def _whole(file: Path) -> dict[str, Any] | None:
    try:
        value = read_json(file)
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


class RecordedRun(Subject):
    """A run's recording as a subject of the API, which refuses every change."""

    def __init__(self, path: Path) -> None:
        self.executor = ThreadPoolExecutor(1)
        recording = recording_of(path)
        self._known = {name: recording[name] for name in ("network", "sites", "hosts")}
        self._recording = msgspec.json.encode(recording)

    def state(self) -> State:
        """Return the network, its sites and hosts; a recording has no live links."""
        there = {"address": "", "pid": 0, "start_ticks": None, "running": False}
        return self._known | {"links": {}, "hosts": {name: there | host for name, host in self._known["hosts"].items()}}

    def status(self) -> NetworkStatus:
        """Return the run's overview, without hosts and links."""
        return NetworkStatus(**self._known["network"], hosts={}, links={})

    def recording(self) -> bytes:
        """Return the recording as JSON."""
        return self._recording

    def history(self, since: int | None) -> LinkHistory:
        """Refuse: the recording itself has the states of links."""
        raise self._refusal()

    def do(self, request: Request) -> dict[str, Any]:
        """Refuse: a recording cannot be changed."""
        raise self._refusal()

    def _refusal(self) -> ApiProblem:
        return ApiProblem(NOT_HERE, f"{self._known['network']['name']} is a recording and cannot be changed")
