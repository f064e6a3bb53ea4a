"""The directory of an invented run, of any length and size, to load a page or a report with."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count, takewhile
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import networkx as nx
import yaml

from testbed.controller.model.plan_history import store_plan
from testbed.plan import Plan, Tree

ZERO_S = 1_790_000_000.0
ROUND_S = 0.7
RATE_BPS, DELAY_S = 40e6, 0.03
#: How often traces change every link, and how often counters are read.
TICK_S, SAMPLE_S = 0.1, 1.0
#: The time that a plan stays in force, and the time between two decisions.
PLAN_S, DECISION_S = 600.0, 10.0


@dataclass(frozen=True)
class MadeRun:
    """A run of `seconds` with a worker at each of `sites`, each linked to `neighbours` others, drawn from a seed."""

    sites: int
    neighbours: int
    seconds: float
    seed: int = 1

    @cached_property
    def members(self) -> tuple[str, ...]:
        """The workers' names."""
        return tuple(f"s{number}-w0" for number in range(self.sites))

    @cached_property
    def graph(self) -> nx.Graph:
        """The sites and their links."""
        return nx.connected_watts_strogatz_graph(self.sites, self.neighbours, 0.3, seed=self.seed)

    @cached_property
    def links(self) -> tuple[str, ...]:
        """The directed links' names."""
        return tuple(f"s{a}->s{b}" for pair in self.graph.edges for a, b in (pair, pair[::-1]))

    def write(self, path: Path) -> None:
        """Write the directory, which must not exist."""
        path.mkdir(parents=True)
        _write_lines(path / "links.jsonl", self._states())
        _write_lines(path / "traffic.jsonl", self._traffic())
        _write_lines(path / "rounds.jsonl", self._reports())
        _write_lines(path / "decisions.jsonl", self._decisions())
        _write_lines(path / "events.jsonl", self._events())
        swaps = []
        for epoch, at_s in enumerate(_every(PLAN_S, self.seconds)):
            store_plan(path / "plans", self._plan(epoch))
            swaps.append(_swap(epoch, at_s))
        summary = {"verdict": "trusted", "reasons": [], "swaps": swaps[1:]}
        (path / "summary.json").write_text(json.dumps(summary))
        (path / "manifest.json").write_text(json.dumps(self._manifest()))

    def _manifest(self) -> dict[str, Any]:
        places = {f"s{n}": {"workers": 1, "position": _position(n, self.sites)} for n in range(self.sites)}
        return {
            "id": "made",
            "spec": {"topology": "made"},
            "backend": "userspace",
            "switch": "bridge",
            "training_started_s": ZERO_S,
            "inputs": {"made.yaml": yaml.safe_dump({"name": "made", "sites": places}, sort_keys=False)},
        }

    def _states(self) -> Iterator[dict[str, Any]]:
        draw = Random(self.seed)
        for at_s in _every(TICK_S, self.seconds):
            share = 1 + 0.3 * math.sin(at_s / 40)
            for link in self.links:
                yield {
                    "at_s": ZERO_S + at_s,
                    "link": link,
                    "rate_bps": RATE_BPS * share * draw.uniform(0.9, 1.1),
                    "delay_s": DELAY_S,
                    "jitter_s": 0.0,
                    "loss": 0.0,
                    "up": True,
                }

    def _traffic(self) -> Iterator[dict[str, Any]]:
        draw = Random(self.seed)
        carried = dict.fromkeys(self.links, 0)
        for at_s in _every(SAMPLE_S, self.seconds):
            for link in self.links:
                carried[link] += int(draw.random() * RATE_BPS * SAMPLE_S / 8)
            busy = {link: round(at_s * 0.4, 4) for link in self.links}
            yield {"at_s": ZERO_S + at_s, "bytes": dict(carried), "busy_s": busy, "cpu": 0.6}

    def _reports(self) -> Iterator[dict[str, Any]]:
        for number, at_s in enumerate(_every(ROUND_S, self.seconds - ROUND_S)):
            metrics = {"loss": 0.1 + 2.2 * math.exp(-number / 300), "accuracy": 0.97 - 0.8 * math.exp(-number / 200)}
            epoch = int(at_s / PLAN_S)
            for member, parent in self._plan_parents[epoch % len(self._plan_parents)].items():
                yield {
                    "member": member,
                    "round": number,
                    "epoch": epoch,
                    "started_s": ZERO_S + at_s + 0.06,
                    "finished_s": ZERO_S + at_s + ROUND_S,
                    "compute_s": 0.021,
                    "paced_s": 0.039,
                    "sent_bytes": 606_000,
                    "received_bytes": 606_000,
                    "lost": 0,
                    "duplicated": 0,
                    "waited": {parent: 0.4},
                    "metrics": metrics,
                }

    def _decisions(self) -> Iterator[dict[str, Any]]:
        edges = {f"{child}->{parent}": RATE_BPS for child, parent in self._plan_parents[0].items()}
        for at_s in _every(DECISION_S, self.seconds):
            swaps = at_s > 0 and at_s % PLAN_S == 0
            yield {
                "at_s": ZERO_S + at_s,
                "policy": "mst",
                "adopted": swaps,
                "why": "saves 38% of a round, more than 10% wanted" if swaps else "the policy would change nothing",
                "epoch": int(at_s / PLAN_S) if swaps else None,
                "current_s": 0.9,
                "proposed_s": 0.6,
                "estimates": edges,
            }

    def _events(self) -> Iterator[dict[str, Any]]:
        for at_s in _every(PLAN_S / 2, self.seconds):
            yield {"at_s": ZERO_S + at_s, "kind": "change", "target": self.links[0]}

    @cached_property
    def _plan_parents(self) -> list[dict[str, str]]:
        """The parent of each member, in the trees to each of four roots; a root is its own parent."""
        roots = range(min(4, self.sites))
        trees = [dict(nx.bfs_predecessors(self.graph, root)) | {root: root} for root in roots]
        return [{self.members[a]: self.members[b] for a, b in sorted(tree.items())} for tree in trees]

    def _plan(self, epoch: int) -> Plan:
        tree = self._plan_parents[epoch % len(self._plan_parents)]
        parents = {child: parent for child, parent in tree.items() if child != parent}
        root = next(child for child, parent in tree.items() if child == parent)
        return Plan(epoch, self.members, (Tree(root, parents, parents),), policy="mst")


def _position(number: int, sites: int) -> list[float]:
    """Return a latitude and longitude on a spiral, where no two sites are near each other."""
    return [round(-50 + 110 * number / sites, 2), round(number * 137.5 % 340 - 170, 2)]


def _swap(epoch: int, at_s: float) -> dict[str, Any]:
    return {
        "kind": "plan",
        "epoch": epoch,
        "policy": "mst",
        "reason": "saves 38% of a round",
        "requested_s": max(at_s - 1, 0.0),
        "active_s": at_s,
        "pause_ms": 12.0,
        "lost_updates": 0,
        "duplicated_updates": 0,
    }


def _every(apart_s: float, until_s: float) -> Iterable[float]:
    return takewhile(lambda at_s: at_s < until_s, (number * apart_s for number in count()))


def _write_lines(file: Path, records: Iterable[Mapping[str, Any]]) -> None:
    encode = msgspec.json.encode
    with file.open("wb") as out:
        out.writelines(chain.from_iterable((encode(record), b"\n") for record in records))
