"""Messages share the simulated network's links fairly, keep their order, and are left out when stale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from testbed.emulation.network.routing import Routes
from testbed.planning.constraints import GOODPUT
from testbed.planning.events import max_min
from testbed.simulation.event_queue import EventQueue, SimulatedClocks
from testbed.simulation.message_network import MessageNetwork, QueuedMessage
from testbed.simulation.network import SimulatedNetwork
from testbed.sync.gossip.message import Message
from testbed.sync.gossip.message_codec import Done
from tests.simulation.experiments import LINKS, load

pytestmark = pytest.mark.pure

NAMES = ("l0", "l1", "l2", "l3")

#: A third of the smallest positive number is 0.
SMALLEST = 5e-324


@given(
    st.dictionaries(
        st.tuples(st.sampled_from("abc"), st.sampled_from("xyz")),
        st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True),
        min_size=1,
    ),
    st.fixed_dictionaries({name: st.floats(0.0, 100.0) for name in NAMES}),
)
@example({pair: ["l0"] for pair in (("a", "x"), ("b", "x"), ("c", "x"))}, dict.fromkeys(NAMES, SMALLEST))
def test_shares_are_max_min_fair(drawn: Mapping[tuple[str, str], Sequence[str]], capacity: Mapping[str, float]) -> None:
    """Each pair has a full link on which no pair gets more."""
    rates = max_min(drawn, capacity)
    loads = {name: sum(rates[pair] for pair, names in drawn.items() if name in names) for name in NAMES}
    assert all(load <= capacity[name] + 1e-6 for name, load in loads.items())
    for pair, names in drawn.items():
        assert any(
            loads[name] >= capacity[name] - 1e-6
            and rates[pair] >= max(rates[other] for other, its in drawn.items() if name in its) - 1e-6
            for name in names
        )


class Sent:
    """A message network, and when each message came."""

    def __init__(self, folder: Path, stale: Sequence[str] = (), **values: Any) -> None:
        experiment = load(folder, **values)
        self.queue = EventQueue(SimulatedClocks(0.0))
        self.came: dict[str, float] = {}
        self.names: dict[int, str] = {}
        network = SimulatedNetwork(experiment, Routes.over(experiment.topology))
        workers = {worker.site: worker.name for worker in experiment.topology.workers}
        self.pair = workers["a"], workers["b"]
        self.network = MessageNetwork(
            self.queue, network, lambda _, to, message, later: self.names[id(message)] in stale, lambda *_: None
        )

    def model(self, name: str, size: float, back: bool = False) -> None:
        message: Message = Done()
        self.names[id(message)] = name
        self._kept = [*getattr(self, "_kept", []), message]
        pair = (self.pair[1], self.pair[0]) if back else self.pair
        self.network.send(pair, QueuedMessage(message, size, lambda: self.arrive(name)))

    def arrive(self, name: str) -> None:
        self.came[name] = self.queue.clocks.now_s


RATE = 12e6 * GOODPUT / 8


def test_models_of_a_pair_go_one_after_the_other_and_small_ones_overtake_them(tmp_path: Path) -> None:
    sent = Sent(tmp_path)
    for name in ("first", "second"):
        sent.model(name, RATE)
    sent.model("back", RATE, back=True)
    sent.network.send_small(sent.pair, lambda: sent.arrive("small"))
    sent.queue.run_until(10.0)
    assert sent.came == pytest.approx({"small": 0.01, "first": 1.01, "back": 1.01, "second": 2.01}, rel=1e-6)


def test_a_model_that_has_become_stale_while_it_waited_is_left_out(tmp_path: Path) -> None:
    sent = Sent(tmp_path, stale=["third"])
    for name in ("first", "second", "third", "fourth"):
        sent.model(name, RATE)
    sent.queue.run_until(10.0)
    assert list(sent.came) == ["first", "second", "fourth"]
    assert sent.came["fourth"] == pytest.approx(3.01)


def test_a_link_that_falls_and_goes_down_slows_what_is_on_it(tmp_path: Path) -> None:
    events = [
        {"at": "0.5s", "change": {"link": "a->b", "rate": "6mbit"}},
        {"at": "1s", "down": ["a", "b"]},
        {"at": "1s", "down": ["a", "c"]},
        {"at": "3s", "up": ["a", "b"]},
    ]
    sent = Sent(tmp_path, events=events)
    sent.model("first", RATE)
    sent.queue.run_until(10.0)
    assert sent.came == pytest.approx({"first": 3.51})  # half in 0.5 s, a quarter in another, the rest from 3 s on


def test_models_over_a_fast_link_leave_also_late_in_a_simulation(tmp_path: Path) -> None:
    """At 20,000 s the clock's steps are 3.6e-12 s, in which 10 Gbit/s carry 0.005 bytes."""
    links = [{**link, "rate": "10gbit"} for link in LINKS]
    sent = Sent(tmp_path, links=links, lan_rate="10gbit")
    sent.queue.clocks.now_s = 20_000.0
    for number in range(100):
        sent.model(str(number), 1e6 + 7 * number)
    for _ in range(1_000):
        if len(sent.came) < 100:
            sent.queue.run_next()
    assert len(sent.came) == 100


def test_a_small_message_waits_for_the_end_of_an_outage(tmp_path: Path) -> None:
    events = [
        {"at": "0.1s", "change": {"link": "a->b", "loss": "100%"}},
        {"at": "1s", "change": {"link": "a->b", "loss": "0%"}},
    ]
    sent = Sent(tmp_path, events=events)
    sent.queue.clocks.now_s = 0.5
    sent.network.send_small(sent.pair, lambda: sent.arrive("there"))
    sent.network.send_small(sent.pair[::-1], lambda: sent.arrive("back"))
    sent.queue.run_until(10.0)
    assert sent.came == pytest.approx({"back": 0.51, "there": 1.11})  # TCP tries again each 0.2 s
