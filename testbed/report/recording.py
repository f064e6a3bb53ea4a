"""A run that is over, for the page to play: what changed when, thinned to what a person can follow.

What changes with time is said column by column, which is a fifth of the text that a value for each moment would be.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from math import ceil
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from testbed.link import link_ends
from testbed.report.errors import NotARun
from testbed.report.forked import ForkedCall
from testbed.report.link_states import link_columns
from testbed.report.member import site_of
from testbed.run.conclusion.spent import spent
from testbed.spec.load import parse_yaml

#: Of each link, and of the counters, one value is kept in so many seconds …
STEP_S = 1.0
#: … or, of a long run, so many over all.
MOST = 3600

L = TypeVar("L", bound=msgspec.Struct)


class ReportLine(msgspec.Struct, gc=False):
    """What is shown of a line of `rounds.jsonl`."""

    member: str
    round: int
    epoch: int
    started_s: float
    finished_s: float
    compute_s: float = 0.0
    paced_s: float = 0.0
    waited: dict[str, float] = {}
    metrics: dict[str, float | None] = {}


class TrafficLine(msgspec.Struct, gc=False):
    """What is shown of a line of `traffic.jsonl`."""

    at_s: float
    bytes: dict[str, int]


def recording_of(path: Path, forks: bool = False) -> dict[str, Any]:
    """What the page plays, of the run in a directory. Times are seconds since training began. NotARun when there is
    none.

    Of a run of two hours all takes 1.3 s, of which links are 0.9: where this process `forks`, another reads them.
    """
    manifest = _whole(path / "manifest.json")
    if not manifest or "spec" not in manifest:
        raise NotARun(
            f"{path}: not a run of an experiment that came to train; give its directory, such as runs/latest",
            rule="no-run",
            file=path,
        )
    samples = _lines(path / "traffic.jsonl", TrafficLine)
    began = float(manifest.get("training_started_s") or _first_start(path))
    sampled_s = max([0.0, *(one.at_s - began for one in samples[-1:])])
    steps = min(MOST, ceil(sampled_s / STEP_S) + 1) if samples else MOST
    of_links = partial(link_columns, path / "links.jsonl", began, steps)
    await_links = ForkedCall(of_links).result if forks else of_links
    reports = _lines(path / "rounds.jsonl", ReportLine)
    rounds = _rounds(reports, began)
    seconds = max([sampled_s, *(one["finished_s"] for one in rounds[-1:])])
    samples = _one_a_step(samples, seconds / steps)
    workers = sorted({report.member for report in reports})
    links = await_links()
    return {
        "network": _overview(path, manifest),
        "sites": _sites(manifest, workers, links),
        "hosts": {name: {"kind": "worker", "site": site_of(name)} for name in workers},
        "seconds": seconds,
        "links": links,
        "traffic_s": [sample.at_s - began for sample in samples],
        "bytes": _by_link(samples),
        "rounds": rounds,
        "events": _since(path / "events.jsonl", began),
        "decisions": _since(path / "decisions.jsonl", began),
        "plans": _plans(path, rounds),
        "verdict": _verdict(path),
    }


def _first_start(path: Path) -> float:
    """When the first round began, for a run that does not say when training did."""
    return min((one.started_s for one in _lines(path / "rounds.jsonl", ReportLine)), default=0.0)


def _overview(path: Path, manifest: Mapping[str, Any]) -> dict[str, Any]:
    spec = manifest["spec"]
    return {
        "kind": "recording",
        "name": str(manifest.get("id") or path.resolve().name),
        "topology": Path(str(spec.get("topology"))).stem,
        "file": str(path),
        "backend": str(manifest.get("backend")),
        "switch": str(manifest.get("switch")),
        "transport": {},
        "pid": 0,
        "failure": None,
        "replay": {"elapsed_s": 0.0, "links": 0, "late_ms_p99": None, "paused": False},
    }


def _sites(manifest: Mapping[str, Any], workers: Sequence[str], links: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Those of all networks that the run was over, as their files have them; or as links and workers tell of them."""
    told = [*map(site_of, workers), *(site for link in links for site in link_ends(link))]
    found: dict[str, dict[str, Any]] = {site: _site({}, site, workers) for site in told}
    for text in (manifest.get("inputs") or {}).values():
        value = parse_yaml(text) if text.lstrip().startswith(("name", "#", "{", "sites")) else None
        sites = value.get("sites") if isinstance(value, dict) else None
        for name, site in (sites if isinstance(sites, dict) else {}).items():
            found[name] = _site(site if isinstance(site, dict) else {}, name, workers)
    return found


def _site(known: Mapping[str, Any], name: str, workers: Sequence[str]) -> dict[str, Any]:
    own = [worker for worker in workers if site_of(worker) == name]
    return {"label": known.get("label"), "position": known.get("position"), "workers": own}


def _rounds(reports: Sequence[ReportLine], began: float) -> list[dict[str, Any]]:
    """Round by round: when it was, how long, metrics as means over members, and what each member did meanwhile."""
    by_round: dict[int, list[ReportLine]] = {}
    for report in reports:
        by_round.setdefault(report.round, []).append(report)
    return [
        {
            "round": number,
            "epoch": max(one.epoch for one in its),
            "finished_s": max(one.finished_s for one in its) - began,
            "seconds": max(one.finished_s for one in its) - max(one.started_s for one in its),
            "metrics": _means(its),
            "workers": {one.member: _spent(one) for one in its},
        }
        for number, its in sorted(by_round.items())
    ]


def _spent(report: ReportLine) -> list[float]:
    """In seconds: compute, wait, send."""
    figures = spent(report.finished_s - report.started_s, report.compute_s + report.paced_s, report.waited)
    return [round(seconds, 4) for seconds in figures.values()]


def _means(reports: Sequence[ReportLine]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for report in reports:
        for name, value in report.metrics.items():
            if value is not None:
                values.setdefault(name, []).append(value)
    return {name: sum(each) / len(each) for name, each in values.items()}


def _plans(path: Path, rounds: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Each plan, and since when it was in force: when its first round was over, or from the begin."""
    summary = _whole(path / "summary.json") or {}
    swaps = {swap.get("epoch"): swap for swap in summary.get("swaps") or () if swap.get("kind") == "plan"}
    first: dict[int, float] = {}
    for done in rounds:
        first.setdefault(done["epoch"], done["finished_s"] - done["seconds"])
    plans: dict[str, dict[str, Any]] = {}
    for file in sorted((path / "plans").glob("*.json")):
        plan = _whole(file)
        if plan is None:
            continue
        swap = swaps.get(plan["epoch"])
        at_s = swap["active_s"] if swap and swap.get("active_s") is not None else first.get(plan["epoch"])
        if at_s is not None:
            begin = 0.0 if not plans else at_s
            plans[str(plan["epoch"])] = {"plan": plan, "swap": swap, "active_s": begin}
    return plans


def _verdict(path: Path) -> dict[str, Any]:
    summary = _whole(path / "summary.json")
    if summary is None:
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


def _since(file: Path, began: float) -> list[dict[str, Any]]:
    """Records with their times since training began, without estimates, of which there are many."""
    found = []
    for line in _complete(file).splitlines():
        record = json.loads(line)
        record.pop("estimates", None)
        found.append({**record, "at_s": record["at_s"] - began})
    return found


def _lines(file: Path, kind: type[L]) -> list[L]:
    """The lines of a file, as far as it was written."""
    return msgspec.json.Decoder(kind).decode_lines(_complete(file))


def _complete(file: Path) -> bytes:
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return b""
    return data[: data.rfind(b"\n") + 1]


def _whole(file: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
