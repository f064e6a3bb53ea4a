"""The event player: which events happen when. A recorder stands in for the network and the controller."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed.emulation.network.routing import Routes
from testbed.emulation.network.swap import NetworkSwap
from testbed.link import LinkState
from testbed.run.changes import Changes
from testbed.run.errors import RunFailed
from testbed.run.event_player import EventPlayer
from testbed.run.view import declared_states
from testbed.spec.event import LinkChange
from testbed.spec.experiment import Experiment
from testbed.spec.topology import Link, Topology
from tests.spec.files import EXPERIMENT, TOPOLOGY, spoilt, write


class Recorder:
    """A testbed with its network, links and replay, and a controller, all in one list of what was asked."""

    def __init__(self, topology: Topology) -> None:
        self.said: list[Any] = []
        self.topology = topology
        self.routes = Routes.over(topology)
        self.down: set[str] = set()
        self.network = self.replay = self.links_in_force = self
        self.told: list[tuple[str, str]] = []
        self.swaps: list[dict[str, Any]] = []
        self.informed: list[tuple[Any, Any]] = []

    def change(self, change: LinkChange) -> LinkChange:
        self.said.append(("change", change.link, change.rate))
        return change

    def take(self, a: str, b: str, up: bool) -> None:
        self.said.append(("up" if up else "down", a, b))
        (self.down.difference_update if up else self.down.update)({f"{a}->{b}", f"{b}->{a}"})
        self.routes = Routes.over(self.topology, self.down)

    def swap(self, topology: Topology, before_routes: Callable[[set[str]], None]) -> NetworkSwap:
        before_routes({"x->y"})
        self.said.append(("swap", topology.name))
        self.topology = topology
        return NetworkSwap(("x->y",), (), (), 0.25)

    def states(self) -> dict[str, LinkState]:
        """Every link at a rate of which no file says anything."""
        return {name: replace(state, rate_bps=7e6) for name, state in declared_states(self.topology).items()}

    def follow(self, links: Iterable[Link]) -> None:
        self.said.append(("follow", len(list(links))))

    def change_network(self, links: Any, routes: Any) -> None:
        self.said.append("inform")
        self.informed.append((links, routes))

    def kill(self, worker: str) -> None:
        self.said.append(("kill", worker))

    def tell(self, kind: str, target: str, by: str, *, changed: Any = None) -> None:
        assert by == "file" and (changed is not None) == (kind == "change")
        self.told.append((kind, target))


def script(folder: Path, *events: dict[str, Any], **settings: Any) -> tuple[EventPlayer, Recorder]:
    other = spoilt(TOPOLOGY, "name", to="other")
    (folder / "other.yaml").write_text(yaml.safe_dump(other))
    experiment = Experiment.load(write(folder, experiment=EXPERIMENT | {**settings, "events": list(events)}))
    recorder = Recorder(experiment.topology)
    changes = Changes(
        experiment,
        recorder,  # type: ignore[arg-type]
        recorder,  # type: ignore[arg-type]
        recorder,  # type: ignore[arg-type]
        recorder.tell,
        lambda added: recorder.said.append(("measure", *added)),
    )
    recorder.swaps = changes.swaps
    return EventPlayer(experiment, changes), recorder


DOWN = {"down": ["paris", "tokyo"]}
UP = {"up": ["paris", "tokyo"]}


@pytest.mark.pure
def test_an_event_happens_once_at_its_time_or_round(tmp_path: Path) -> None:
    played, recorder = script(tmp_path, {"at": "2s", **DOWN}, {"round": 3, **UP})
    played.play(1.9, 2)
    assert recorder.said == []
    played.play(2.0, 2)
    assert recorder.said == [("down", "paris", "tokyo"), "inform"]
    played.play(3.0, 3)
    played.play(4.0, 4)
    assert recorder.said[2:] == [("up", "paris", "tokyo"), "inform"]
    assert recorder.told == [("down", "paris-tokyo"), ("up", "paris-tokyo")]


@pytest.mark.pure
def test_events_missed_meanwhile_come_in_the_order_of_their_times(tmp_path: Path) -> None:
    played, recorder = script(tmp_path, {"at": "3s", **UP}, {"at": "2s", **DOWN})
    played.play(10.0, 0)
    assert recorder.told == [("down", "paris-tokyo"), ("up", "paris-tokyo")]


@pytest.mark.pure
def test_the_controller_is_told_what_is_there_but_not_what_only_traces_and_changes_do(tmp_path: Path) -> None:
    change = {"link": "paris->dallas", "rate": "1mbit"}
    played, recorder = script(tmp_path, {"at": "1s", "change": change}, {"at": "2s", **DOWN})
    played.play(1.0, 0)
    assert recorder.said == [("change", "paris->dallas", 1e6)]
    played.play(2.0, 0)
    links, routes = recorder.informed[0]
    assert "paris->tokyo" not in links
    assert links["paris->dallas"].rate_bps == 80e6
    assert ("paris-w0", "tokyo-w0") not in routes
    assert ("paris-w0", "dallas-w0") in routes


@pytest.mark.pure
def test_an_oracle_is_told_each_period_what_links_truly_carry(tmp_path: Path) -> None:
    played, recorder = script(tmp_path, {"at": "5s", **DOWN}, controller={"knowledge": "oracle", "period": "2s"})
    for second in range(8):
        played.play(float(second), 0)
    assert recorder.said == ["inform", "inform", ("down", "paris", "tokyo"), "inform", "inform"]  # 2, 4, 5, 6 s
    truth = [
        {name: link.rate_bps for name, link in links.items() if "-w" not in name} for links, _ in recorder.informed
    ]
    assert all(set(rates.values()) == {7e6} for rates in truth)
    assert "paris->tokyo" in truth[1]
    assert "paris->tokyo" not in truth[2]


@pytest.mark.pure
def test_a_rate_to_change_to_is_scaled_as_all_rates_are(tmp_path: Path) -> None:
    change = {"link": "paris->dallas", "rate": "10mbit", "delay": "20ms"}
    played, recorder = script(tmp_path, {"at": "1s", "change": change}, scale=0.2)
    played.play(1.0, 0)
    assert recorder.said == [("change", "paris->dallas", 2e6)]


@pytest.mark.local
def test_a_swap_is_followed_by_the_clock_and_recorded(tmp_path: Path) -> None:
    played, recorder = script(tmp_path, {"round": 1, "swap": "other.yaml"})
    played.play(0.5, 1)
    assert recorder.said == [("measure", "x->y"), ("swap", "other"), ("follow", 4), "inform"]
    assert recorder.told == [("swap", "other")]
    (swap,) = recorder.swaps
    assert swap["active_s"] - swap["requested_s"] == 0.25
    assert (swap["kind"], swap["target"], swap["file"]) == ("network", "other", "other.yaml")
    assert (swap["added"], swap["removed"], swap["changed"]) == (("x->y",), (), ())


@pytest.mark.pure
def test_what_has_not_happened_is_named(tmp_path: Path) -> None:
    change = {"link": "paris->dallas", "rate": "1mbit"}
    played, _ = script(tmp_path, {"at": "9s", **DOWN}, {"round": 3, "change": change}, {"at": "1s", **UP})
    played.play(2.0, 1)
    assert played.waiting == ["down paris-tokyo at 9 s", "change of paris->dallas in round 3"]


@pytest.mark.pure
def test_an_event_that_cannot_happen_ends_the_run_in_words(tmp_path: Path) -> None:
    played, recorder = script(tmp_path, {"at": "1s", "change": {"link": "paris->dallas", "rate": "1mbit"}})

    def refuse(_: LinkChange) -> None:
        raise KeyError("no link paris->dallas is up")

    recorder.change = refuse  # type: ignore[method-assign]
    with pytest.raises(RunFailed) as caught:
        played.play(2.0, 0)
    assert caught.value.rule == "event"
