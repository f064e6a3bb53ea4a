"""Writes the directory of a made-up run with all files of a real one: eight workers, fourteen links, four plans."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from testbed.controller.model.plan_history import store_plan
from testbed.plan import Plan, Tree
from testbed.protocol import PeerSample, Report, encode

ZERO_S = 1_790_000_000.0
MEMBERS = (
    "toronto-w0",
    "toronto-w1",
    "washington-w0",
    "london-w0",
    "madrid-w0",
    "madrid-w1",
    "tokyo-w0",
    "tokyo-w1",
)
PAIRS = {
    ("toronto", "washington"): (40e6, 19e-3),
    ("toronto", "tokyo"): (25e6, 162e-3),
    ("washington", "london"): (30e6, 75e-3),
    ("toronto", "london"): (20e6, 82.5e-3),
    ("washington", "madrid"): (20e6, 87.5e-3),
    ("london", "madrid"): (40e6, 27e-3),
    ("london", "tokyo"): (12e6, 243.5e-3),
}
LATE_PAIR = ("washington", "tokyo")
DROP_S, SLOW_S, DOWN_S, UP_S, NETWORK_S = (30.0, 36.0, 70.0, 85.0, 100.0)


def _plan(epoch: int, parents: Mapping[str, str], root: str) -> Plan:
    return Plan(epoch, MEMBERS, (Tree(root, parents, parents),), policy="mst")


def _parents(**site_parents: str) -> dict[str, str]:
    """Return a tree in which second workers are below the first of their site, and first workers below other sites'."""
    parents = {"toronto-w1": "toronto-w0", "madrid-w1": "madrid-w0", "tokyo-w1": "tokyo-w0"}
    return parents | {f"{site}-w0": f"{parent}-w0" for site, parent in site_parents.items()}


PLANS = (
    _plan(0, _parents(toronto="washington", london="washington", madrid="london", tokyo="toronto"), "washington-w0"),
    _plan(1, _parents(toronto="washington", london="madrid", madrid="washington", tokyo="toronto"), "washington-w0"),
    _plan(2, _parents(toronto="washington", london="madrid", madrid="washington", tokyo="london"), "washington-w0"),
    _plan(3, _parents(toronto="washington", london="washington", madrid="london", tokyo="washington"), "washington-w0"),
)


def build_run(path: Path, rounds: int = 160, seed: int = 1, policy: str = "mst", slower: float = 1.0) -> Path:
    """Write a run to `path`: the rate of one link drops, a pair goes down and comes up, the network is swapped."""
    draw = random.Random(seed)
    for folder in ("plans", "logs"):
        (path / folder).mkdir(parents=True)
    reports, end = _reports(draw, rounds, slower)
    _write_lines(path / "rounds.jsonl", reports)
    _write_lines(path / "links.jsonl", _states(draw, end))
    _write_lines(path / "traffic.jsonl", _traffic(draw, end))
    events = [
        ("down", DOWN_S, "toronto-tokyo"),
        ("up", UP_S, "toronto-tokyo"),
        ("swap", NETWORK_S, "quickstart-uplink"),
    ]
    events = [event for event in events if event[1] < end]
    _write_lines(
        path / "events.jsonl", ({"at_s": ZERO_S + at, "kind": kind, "target": what} for kind, at, what in events)
    )
    swaps = _swaps(reports, end)
    _write_lines(path / "decisions.jsonl", _decisions(swaps, end))
    for plan in PLANS:
        if plan.epoch == 0 or any(swap["epoch"] == plan.epoch for swap in swaps):
            store_plan(path / "plans", plan)
    times = sorted(report["finished_s"] - report["started_s"] for report in reports)
    middle, high = times[len(times) // 2], times[int(len(times) * 0.95)]
    summary = {
        "verdict": "trusted",
        "reasons": [],
        "training": {"rounds": rounds, "final_loss": 0.093, "final_accuracy": 0.972, "wall_seconds": end},
        "sync": {
            "policy": policy,
            "strategy": "gradients",
            "seconds_per_round": {"p50": middle, "p95": high},
            "wan_bytes": 1_210_000_000,
            "lower_bound_seconds": 0.38,
            "ratio_to_lower_bound": 1.2 * slower,
            "bound_seconds": 0.31,
            "ratio_to_bound": middle / 0.31,
        },
        "swaps": swaps,
        "events": [{"kind": kind, "target": what, "at_s": at} for kind, at, what in events],
        "links": {
            f"{a}->{b}": {
                "rate_error_pct": draw.gauss(0, 0.5),
                "rtt_error_ms": draw.gauss(0.2, 0.1),
                "replay_late_ms_p99": 0.6,
            }
            for pair in PAIRS
            for a, b in (pair, pair[::-1])
        },
    }
    (path / "summary.json").write_text(json.dumps(summary, indent=1))
    (path / "manifest.json").write_text(json.dumps(_manifest(path, seed, end, rounds, policy), indent=1))
    return path


def without_plans(run: Path) -> Path:
    """Remove the plans and decisions of a run, as of members that gossip."""
    (run / "decisions.jsonl").unlink()
    for plan in (run / "plans").iterdir():
        plan.unlink()
    return run


def _manifest(path: Path, seed: int, end: float, rounds: int, policy: str) -> dict[str, Any]:
    return {
        "id": path.name,
        "experiment": "quickstart",
        "started_s": ZERO_S - 25,
        "training_started_s": ZERO_S,
        "ended_s": ZERO_S + end,
        "backend": "userspace",
        "seed": seed,
        "scale": 1.0,
        "spec": {"train": {"rounds": rounds}, "sync": {"policy": policy}},
        "host": {
            "kernel": "6.1.0",
            "cpus": 2,
            "memory_bytes": 25_000_000_000,
            "python": "3.11.2",
            "versions": {"torch": "2.13.0"},
        },
        "congestion_control": "bbr",
        "offload": True,
        "git_commit": "af7174393fd1c3a10cdb1d4a0cc0ff2dcd6b5a53+",
        "inputs": {"experiments/quickstart.yaml": "name: quickstart\ntrain:\n  model: cnn   # <b>not bold</b>\n"},
    }


def _epoch(at: float) -> int:
    return sum(at >= start for start in (SLOW_S, DOWN_S + 2, NETWORK_S + 2))


def _reports(draw: random.Random, rounds: int, slower: float) -> tuple[list[dict[str, Any]], float]:
    reports, at = [], 0.2
    for number in range(rounds):
        epoch = _epoch(at)
        seconds = slower * {0: 0.55, 1: 0.8, 2: 0.95, 3: 0.5}[epoch] * draw.uniform(0.92, 1.15)
        if DROP_S <= at < SLOW_S or DOWN_S <= at < DOWN_S + 2:
            seconds *= 2.4
        finished = at + 0.12 + seconds
        for member in MEMBERS:
            reports.append(_report(draw, number, epoch, member, at, finished, rounds))
        at = finished
    return reports, at


def _report(
    draw: random.Random, number: int, epoch: int, member: str, at: float, finished: float, rounds: int
) -> dict[str, Any]:
    tree = PLANS[epoch].trees[0]
    near = {*tree.children(member, tree.reduce), *([tree.reduce[member]] if member != tree.root else [])}
    step = 0.12 if member.startswith("tokyo") else 0.06
    started = ZERO_S + at + step + draw.uniform(0, 0.004)
    length = ZERO_S + finished - started
    metrics = {"loss": 2.2 * math.exp(-number / 30) + 0.1 + draw.gauss(0, 0.02)}
    if number % 10 == 9 or number == rounds - 1:
        metrics["accuracy"] = 0.975 - 0.8 * math.exp(-number / 18)
    report = Report(
        member=member,
        round=number,
        epoch=epoch,
        started_s=started,
        finished_s=ZERO_S + finished - draw.uniform(0, 0.05),
        compute_s=0.021,
        paced_s=step - 0.021,
        sent_bytes=606_000 * len(near),
        received_bytes=606_000 * len(near),
        lost=0,
        duplicated=0,
        waited={peer: length * draw.uniform(0.2, 0.95) for peer in near},
        peers=tuple(PeerSample(peer, 606_000, 0.2, 0.05, draw.randrange(2)) for peer in near),
        metrics=metrics,
    )
    return {**json.loads(encode(report)), "at_s": report.finished_s + 0.05}


def _rate(pair: tuple[str, str], at: float, draw: random.Random) -> float:
    rate = PAIRS[pair][0] * (1 + 0.12 * math.sin(at / 7) + draw.gauss(0, 0.03))
    return rate / 6 if pair == ("washington", "london") and DROP_S <= at < 60 else rate


def _states(draw: random.Random, end: float) -> Iterable[dict[str, Any]]:
    for tick in range(-4, int(end * 2)):
        at = tick / 2
        for pair, (rate, rtt) in PAIRS.items():
            traced = pair in (("toronto", "washington"), ("toronto", "tokyo"), ("washington", "london"))
            if at > -2 and not traced:
                continue
            up = not (pair == ("toronto", "tokyo") and DOWN_S <= at < UP_S)
            for a, b in (pair, pair[::-1]):
                now = _rate(pair, at, draw) if traced else rate
                yield _state(ZERO_S + at, a, b, now, rtt / 2, up)
        if at == NETWORK_S:
            for a, b in (LATE_PAIR, LATE_PAIR[::-1]):
                yield _state(ZERO_S + at, a, b, 30e6, 0.0825, True)
            for a, b in (("toronto", "london"), ("london", "toronto")):
                yield {"at_s": ZERO_S + at, "link": f"{a}->{b}", "removed": True}


def _state(at: float, a: str, b: str, rate: float, delay: float, up: bool) -> dict[str, Any]:
    return {"at_s": at, "link": f"{a}->{b}", "rate_bps": rate, "delay_s": delay, "jitter_s": 0.0, "loss": 0.0, "up": up}


def _traffic(draw: random.Random, end: float) -> Iterable[dict[str, Any]]:
    carried: dict[str, float] = {}
    busy: dict[str, float] = {}
    for at in range(-3, int(end) + 1):
        tree = PLANS[_epoch(at)].trees[0]
        used = {
            "->".join(name.rsplit("-w", 1)[0] for name in hop)
            for child, parent in tree.reduce.items()
            for hop in ((child, parent), (parent, child))
        }
        for pair, (rate, _) in {**PAIRS, LATE_PAIR: (30e6, 0.0)}.items():
            if (pair == LATE_PAIR and at < NETWORK_S) or (pair == ("toronto", "london") and at > NETWORK_S):
                continue
            for link in ("->".join(pair), "->".join(pair[::-1])):
                share = min(1.0, (draw.uniform(0.3, 0.6) if rate > 15e6 else 0.9)) if link in used and at > 0 else 0.0
                if pair == ("washington", "london") and DROP_S <= at < SLOW_S:
                    share = 1.0
                now = _rate(pair, at, draw) if pair in PAIRS else rate
                carried[link] = carried.get(link, 0) + share * now / 8 * draw.uniform(0.98, 1.02)
                busy[link] = busy.get(link, 0.0) + share * draw.uniform(0.9, 1.0)
        yield {
            "at_s": ZERO_S + at + draw.uniform(0, 0.01),
            "bytes": {link: int(count) for link, count in carried.items()},
            "busy_s": dict(busy),
            "cpu": min(1.0, max(0.0, draw.gauss(0.62, 0.08))),
        }


def _swaps(reports: list[dict[str, Any]], end: float) -> list[dict[str, Any]]:
    swaps = []
    for epoch in (1, 2, 3):
        first = min((r["started_s"] for r in reports if r["epoch"] == epoch), default=None)
        if first is not None:
            swaps.append(_swap("plan", epoch, first - ZERO_S - 1.3, first - ZERO_S))
    if end > NETWORK_S:
        swaps.append(_swap("network", 2, NETWORK_S - 0.2, NETWORK_S))
    return swaps


def _swap(kind: str, epoch: int, requested: float, active: float) -> dict[str, Any]:
    return {
        "kind": kind, "epoch": epoch, "requested_s": requested, "active_s": active,
        "pause_ms": 12.5, "lost_updates": 0, "duplicated_updates": 0,
    }  # fmt: skip


def _decisions(swaps: list[dict[str, Any]], end: float) -> Iterable[dict[str, Any]]:
    for at in range(0, int(end), 2):
        adopted = next((s for s in swaps if s["kind"] == "plan" and at <= s["requested_s"] < at + 2), None)
        yield {
            "at_s": ZERO_S + at,
            "adopted": adopted is not None,
            "why": "saves 38% of a round, more than 10% wanted" if adopted else "the policy would change nothing",
            "epoch": adopted and adopted["epoch"],
            "current_s": 0.9,
            "proposed_s": 0.5,
            "bound_s": 0.44 if DROP_S <= at < 60 else 0.3,
        }


def _write_lines(file: Path, records: Iterable[Mapping[str, Any]]) -> None:
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
