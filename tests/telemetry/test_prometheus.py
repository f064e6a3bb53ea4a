"""Metrics by Prometheus's conventions, and a dashboard that queries no other metrics."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as parsed

from testbed.telemetry.prometheus import metrics

pytestmark = pytest.mark.pure

DASHBOARD = Path(__file__).parents[2] / "examples/grafana-dashboard.json"

SWAP = {"active_s": 12.0, "lost_updates": 1, "duplicated_updates": 2}
RUN: dict[str, Any] = {
    "state": "running",
    "members": ["paris-w0", "tokyo-w0"],
    "joined": ["paris-w0"],
    "membership_events": [{"kind": "left"}, {"kind": "came"}, {"kind": "left"}],
    "rounds": 180,
    "round": 12,
    "round_seconds": 0.53,
    "epoch": 2,
    "policy": "netstorm",
    "swaps": [SWAP, SWAP, {**SWAP, "active_s": None}],
    "metrics": {"loss": 0.25, "accuracy": None},
    "estimates": {"paris->tokyo": {"rate_bps": 8e6, "low_bps": 7e6, "high_bps": 9e6, "age_s": 1.5}},
}
LINK = {"rate_bps": 50e6, "delay_s": 0.11, "jitter_s": 0.0, "loss": 0.01, "up": True, "backlog_bytes": 3000}
COUNTED = {"bytes": 1e6, "packets": 700, "dropped_queue": 4, "dropped_loss": 5}
NETWORK: dict[str, Any] = {
    "failure": None,
    "replay": {"late_ms_p99": 0.8},
    "hosts": {"paris-w0": {"kind": "worker", "site": "paris", "running": True}},
    "links": {"paris->tokyo": {**LINK, **COUNTED}, "tokyo->paris": {**LINK, **COUNTED, "up": False}},
}
PARIS = {"link": "paris->tokyo", "source": "paris", "target": "tokyo"}


def samples(run: Any = RUN, network: Any = NETWORK) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = parsed(metrics(run, network).decode())
    return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("testbed_run_state", {"state": "running"}, 1),
        ("testbed_run_state", {"state": "failed"}, 0),
        ("testbed_rounds_total", {}, 12),
        ("testbed_round_duration_seconds", {}, 0.53),
        ("testbed_plan_info", {"policy": "netstorm"}, 1),
        ("testbed_plan_swaps_total", {}, 2),
        ("testbed_duplicated_updates_total", {}, 4),
        ("testbed_member_joined", {"member": "tokyo-w0"}, 0),
        ("testbed_membership_events_total", {"kind": "left"}, 2),
        ("testbed_training_metric", {"metric": "loss"}, 0.25),
        ("testbed_link_estimated_rate_bytes_per_second", PARIS, 1e6),
        ("testbed_link_rate_bytes_per_second", PARIS, 50e6 / 8),
        ("testbed_link_carried_bytes_total", PARIS, 1e6),
        ("testbed_link_dropped_packets_total", {**PARIS, "reason": "loss"}, 5),
        ("testbed_replay_lateness_seconds", {}, 0.8e-3),
        ("testbed_network_failed", {}, 0),
    ],
)
def test_a_figure_is_there_in_base_units(name: str, labels: dict[str, str], value: float) -> None:
    assert samples()[name, frozenset(labels.items())] == pytest.approx(value)


def test_what_is_not_known_has_no_sample() -> None:
    assert ("testbed_training_metric", frozenset({("metric", "accuracy")})) not in samples()
    unknown = {"rounds": None, "round": None, "round_seconds": None, "policy": None, "estimates": {}}
    began = samples({**RUN, **unknown}, None)
    names = {name for name, _ in began}
    absent = {"testbed_run_rounds", "testbed_round_duration_seconds", "testbed_plan_info", "testbed_link_up"}
    assert not names & absent
    assert began["testbed_rounds_total", frozenset()] == 0


def test_an_edge_without_a_known_route_has_its_ends_too() -> None:
    """As all edges between members of a standalone controller."""
    found = samples({**RUN, "estimates": {"w0=>w1": RUN["estimates"]["paris->tokyo"]}}, None)
    labels = {"link": "w0=>w1", "source": "w0", "target": "w1"}
    assert found["testbed_link_estimated_rate_bytes_per_second", frozenset(labels.items())] == 1e6


def test_names_have_their_units_at_the_end() -> None:
    for family in parsed(metrics(RUN, NETWORK).decode()):
        assert family.documentation.endswith(".")
        assert family.name.startswith("testbed_")
        assert not re.search(r"_(ms|milliseconds|bps|bits|percent|kb|mb)(_|$)", family.name)


def test_the_dashboard_asks_for_metrics_that_there_are() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    asked = {name for panel in dashboard["panels"] for t in panel["targets"] for name in names_in(t["expr"])}
    assert asked
    assert asked <= {name for name, _ in samples()}


def test_the_dashboard_joins_metrics_of_one_network_alone() -> None:
    """Prometheus refuses to join series of two networks with links of the same names."""
    expressions = [t["expr"] for panel in json.loads(DASHBOARD.read_text())["panels"] for t in panel["targets"]]
    joined = [labels for expression in expressions for labels in re.findall(r"\bon\s*\(([^)]*)\)", expression)]
    assert joined and all({"job", "instance"} <= set(re.split(r"[\s,]+", labels)) for labels in joined)


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"testbed_\w+", expression))
