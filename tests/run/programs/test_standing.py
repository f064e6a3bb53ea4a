"""The records of a network while programs run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import yaml

from testbed.api.client import ApiClient
from testbed.run.errors import RunFailed
from testbed.run.programs import standing
from testbed.spec.errors import SpecError
from testbed.spec.topology import Topology
from tests.api.network import answering
from tests.spec.files import TOPOLOGY
from tests.waiting import until

pytestmark = pytest.mark.local


def link(replayed: bool = False, rate_bps: float | None = None, up: bool = True) -> dict[str, Any]:
    return {"replayed": replayed, "up": up, "changed": {"rate_bps": rate_bps, "delay_s": None}}


@pytest.mark.parametrize(
    ("paused", "links", "changed"),
    [
        (False, {"a->b": link(replayed=True), "b->a": link()}, []),
        (True, {"a->b": link(replayed=True), "b->a": link()}, ["the replay was paused before the command began"]),
        (True, {"a->b": link(), "b->a": link()}, []),
        (
            False,
            {"a->b": link(rate_bps=5e6), "b->a": link(up=False)},
            ["a->b before the command began", "b->a before the command began"],
        ),
    ],
)
def test_what_people_changed_before_a_launch_and_left_so_is_told(
    paused: bool, links: dict[str, Any], changed: list[str]
) -> None:
    assert standing._changed_before({"replay": {"paused": paused}, "links": links}) == changed


def test_only_links_with_a_trace_are_replayed_late() -> None:
    links = {"a->b": link(replayed=True), "b->a": link()}
    assert standing._lateness(links, 7.5) == {"a->b": [0.0075]}
    assert standing._lateness(links, None) == {"a->b": []}, "no row has changed a link yet"


@pytest.fixture
def topology(tmp_path: Path) -> Topology:
    (tmp_path / "three.yaml").write_text(yaml.safe_dump(TOPOLOGY))
    return Topology.load(tmp_path / "three.yaml")


@pytest.mark.parametrize(
    ("field", "changed"),
    [
        ("sites", {"sites": {**TOPOLOGY["sites"], "tokyo": {"workers": 2}}}),
        ("sites", {"sites": {"paris": {"workers": 2}, "tokyo": {"workers": 1}}, "links": TOPOLOGY["links"][:1]}),
        ("links", {"links": [*TOPOLOGY["links"], {"between": ["tokyo", "dallas"], "rate": "9mbit", "delay": "9ms"}]}),
    ],
)
def test_a_file_that_has_changed_since_its_network_came_up_is_refused(
    field: str, changed: dict[str, Any], topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = {worker.name: {"kind": "worker", "site": worker.site} for worker in topology.with_worker("dallas").workers}
    status = {"file": str(topology.file), "hosts": hosts, "links": dict.fromkeys(topology.links)}
    monkeypatch.setattr(standing, "client", lambda name: MagicMock(status=lambda: status))
    train = {"command": ["python", "train.py"]}
    experiment = standing.standing_experiment("three", train)
    assert {worker.name for worker in experiment.topology.workers} == set(hosts), "one was added since"
    topology.file.write_text(yaml.safe_dump({**TOPOLOGY, **changed}))
    with pytest.raises(SpecError) as refused:
        standing.standing_experiment("three", train)
    assert (refused.value.file, refused.value.fields) == (topology.file, (field,))


def test_what_people_do_meanwhile_is_recorded_once_and_what_they_did_before_is_not(
    topology: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records: dict[str, list[Mapping[str, Any]]] = {}
    with answering(topology, tmp_path / "api.sock"):
        network = ApiClient(tmp_path / "api.sock", "the network")
        monkeypatch.setattr(standing, "client", lambda name: network)
        network.change_link("paris->tokyo", {"rate": "5mbit"})
        recording = standing.Recorder("three", lambda file, record: records.setdefault(file, []).append(record))
        recording.start()
        network.change_link("tokyo->paris", {"rate": "6mbit"})
        until(lambda: "events.jsonl" in records)
        network.change_link("paris->tokyo", {"delay": "7ms"})
        recording.stop()
        recording.check()
        recording.tell("launch ended", "three-1")
        assert [(event["kind"], event["target"], event["by"]) for event in network.events()][-1:] == [
            ("launch ended", "three-1", None)
        ]
    recording.tell("launch ended", "three-1")  # the network is gone, which no launch fails of
    told = [(event["kind"], event["target"], event["by"]) for event in records["events.jsonl"]]
    assert told == [("change", "tokyo->paris", "hand"), ("change", "paris->tokyo", "hand")]


def test_an_event_is_recorded_once_also_where_the_clock_was_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def event(at_s: float, target: str) -> dict[str, Any]:
        return {"at_s": at_s, "kind": "change", "target": target, "by": "hand"}

    records: dict[str, list[Mapping[str, Any]]] = {}
    events = [event(7000.0, "before the launch")]
    status = {"failure": None, "links": {}, "hosts": {}, "replay": {"late_ms_p99": None}}
    network = MagicMock(
        events=lambda: list(events), status=lambda: status, history=lambda _: {"count": 0, "states": []}
    )
    monkeypatch.setattr(standing, "client", lambda name: network)
    monkeypatch.setattr(standing, "arrived", lambda status: {})
    recording = standing.Recorder("three", lambda file, record: records.setdefault(file, []).append(record))
    recording._new_events()
    for at_s, target in ((7001.0, "a->b"), (3401.0, "b->a"), (3401.0, "a->b")):
        events.append(event(at_s, target))
        recording._record()
    recording._record()
    del events[:3]  # the network keeps its newest events alone
    events.append(event(3402.0, "b->a"))
    recording._record()
    told = [(event["at_s"], event["target"]) for event in records["events.jsonl"]]
    assert told == [(7001.0, "a->b"), (3401.0, "b->a"), (3401.0, "a->b"), (3402.0, "b->a")]


def test_the_greatest_lateness_of_a_launch_counts_and_none_from_before(monkeypatch: pytest.MonkeyPatch) -> None:
    late_ms: list[float | None] = [9.0, None, 7.0, 0.2, 0.3]
    now_s = [0.0]

    def status() -> dict[str, Any]:
        return {"failure": None, "links": {}, "hosts": {}, "replay": {"late_ms_p99": late_ms.pop(0)}}

    network = MagicMock(events=list, status=status, history=lambda _: {"count": 0, "states": []})
    monkeypatch.setattr(standing, "client", lambda name: network)
    monkeypatch.setattr(standing, "arrived", lambda status: {})
    monkeypatch.setattr(standing.time, "monotonic", lambda: now_s[0])
    recording = standing.Recorder("three", lambda file, record: None)
    found = []
    for now_s[0], last in ((0.0, False), (60.0, False), (61.0, False), (62.0, False), (63.0, True)):
        recording._record(last)
        found.append(recording.late_ms)
    assert found == [None, None, 7.0, 7.0, 7.0]


def test_changes_that_come_more_often_than_they_are_kept_end_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    status = {"failure": None, "links": {}, "hosts": {}, "replay": {"late_ms_p99": None}}
    counts = iter((0, 9))
    network = MagicMock(events=list, status=lambda: status, history=lambda _: {"count": next(counts), "states": []})
    monkeypatch.setattr(standing, "client", lambda name: network)
    monkeypatch.setattr(standing, "arrived", lambda status: {})
    recording = standing.Recorder("three", lambda file, record: None)
    recording._record()
    with pytest.raises(RunFailed, match="longer steps"):
        recording._record()


def test_a_link_that_leaves_the_network_is_recorded_as_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    records: dict[str, list[Mapping[str, Any]]] = {}
    status: dict[str, Any] = {"failure": None, "links": {"a->b": {}}, "hosts": {}, "replay": {"late_ms_p99": None}}
    network = MagicMock(events=list, status=lambda: status, history=lambda _: {"count": 0, "states": []})
    monkeypatch.setattr(standing, "client", lambda name: network)
    monkeypatch.setattr(standing, "arrived", lambda status: {})
    recording = standing.Recorder("three", lambda file, record: records.setdefault(file, []).append(record))
    recording._record()
    status["links"] = {}
    for _ in range(2):
        recording._record()
    (last,) = records["links.jsonl"]
    assert (last["link"], last["removed"]) == ("a->b", True)


def test_a_network_that_goes_ends_the_recording(
    topology: Topology, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with answering(topology, tmp_path / "api.sock"):
        network = ApiClient(tmp_path / "api.sock", "the network")
        monkeypatch.setattr(standing, "client", lambda name: network)
        recording = standing.Recorder("three", lambda file, record: None)
        recording.start()
    recording.stop()
    with pytest.raises(RunFailed):
        recording.check()
