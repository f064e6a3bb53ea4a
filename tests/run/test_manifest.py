from __future__ import annotations

from pathlib import Path

import pytest

from testbed.run.manifest import queue_facts, traffic_facts
from testbed.spec.topology import Topology
from tests.spec.files import TOPOLOGY

pytestmark = pytest.mark.pure


def test_what_traffic_leaves_of_links_is_said(tmp_path: Path) -> None:
    (tmp_path / "office.csv").write_text("time_s,rate_mbps\n0,10\n150,30\n")
    entry = {"link": "paris->tokyo", "trace": {"file": "office.csv"}}
    facts = traffic_facts(Topology.from_value({**TOPOLOGY, "traffic": [entry]}, tmp_path / "topology.yaml"))
    assert facts["traffic"]["left_mean_bps"] == {"paris->tokyo": pytest.approx(30e6)}
    assert "not packets" in facts["traffic"]["made_of"]
    (declared,) = facts["traffic"]["declared"]["paris->tokyo"]
    assert declared["trace"]["file"] == "office.csv"


def test_without_traffic_nothing_is_said() -> None:
    assert traffic_facts(Topology.from_value(TOPOLOGY, Path("topology.yaml"))) == {}


def test_the_disciplines_of_queues_are_named() -> None:
    assert queue_facts(Topology.from_value(TOPOLOGY, Path("topology.yaml"))) == {}
    first, *others = TOPOLOGY["links"]
    value = {**TOPOLOGY, "links": [{**first, "queue": {"limit": "1bdp", "discipline": "codel"}}, *others]}
    found = queue_facts(Topology.from_value(value, Path("topology.yaml")))["disciplines"]
    assert set(found) == {"paris->tokyo", "tokyo->paris"}
    assert found["paris->tokyo"] == {"name": "codel", "target_s": 0.005, "interval_s": 0.1}
