"""The simulated network, against what traces say of themselves."""

from __future__ import annotations

from itertools import islice
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from testbed.emulation.network.routing import Routes
from testbed.link import LinkState, link_ends
from testbed.simulation.network import SAME_S, SimulatedNetwork, TraceTable
from testbed.spec.event import Event, LinkChange
from testbed.spec.topology import Link
from testbed.trace.trace import Row, Trace
from tests.simulation.experiments import LINKS, load

pytestmark = pytest.mark.pure

STEPS = st.lists(st.integers(1, 40), min_size=1, max_size=6)


@example([18, 1, 1], "loop", 18)  # a row that begins 2e-16 s after the replay does
@given(STEPS, st.sampled_from(["loop", "hold", "stop"]), st.integers(0, 30))
def test_the_next_row_is_the_trace_s_next_change(steps: list[int], end: str, offset: int) -> None:
    times = [sum(steps[:n]) / 10 for n in range(len(steps))]
    rows = tuple(Row(at_s, 1e6 + n) for n, at_s in enumerate(times))
    trace = Trace(rows, end)  # type: ignore[arg-type]
    trace = trace.begun(min(offset / 10, trace.duration_s * 0.9))
    changes = [at_s for at_s, _ in islice(trace.changes(), 12)]
    table = TraceTable({"a->b": Link("a", "b", LinkState(1e6, 0.0), trace)})
    at_s = 0.0
    for expected in (change_s for change_s in changes if change_s > SAME_S):
        at_s = table.next_s(at_s)
        assert at_s == pytest.approx(expected)
    if trace.end != "loop":
        assert table.next_s(at_s) == inf


OWN = st.none() | st.floats(0.01, 0.9)
ROWS = st.lists(st.tuples(st.integers(1, 40), OWN, OWN, OWN), min_size=1, max_size=5)


@given(
    st.lists(st.tuples(ROWS, st.sampled_from(["loop", "hold", "stop"]), st.integers(0, 30)), max_size=4),
    st.integers(0, 500),
)
def test_a_table_of_traces_says_what_each_says_itself(traces: list[Any], tenths: int) -> None:
    links = {"z->z": Link("z", "z", LinkState(7e6, 0.03, loss=0.1))}
    for number, (given_rows, end, offset) in enumerate(traces):
        ends = np.cumsum([steps for steps, *_ in given_rows])
        times = [0.0, *(ends[:-1] / 10).tolist()]
        rows = [
            Row(at_s, rate and rate * 1e8, delay, None, loss)
            for at_s, (_, rate, delay, loss) in zip(times, given_rows, strict=True)
        ]
        trace = Trace(tuple(rows), end)
        trace = trace.begun(min(offset / 10, trace.duration_s * 0.9))
        for name in (f"{number}->z", f"z->{number}"):  # which share the rows
            links[name] = Link(*link_ends(name), LinkState(5e6, 0.01), trace)
    at_s = tenths / 10 + 0.05
    rates, delays, losses = TraceTable(links).values(at_s)
    states = [link.at(at_s) for link in links.values()]
    assert rates.tolist() == [state.rate_bps * state.up for state in states]
    assert delays.tolist() == [state.delay_s for state in states]
    assert losses.tolist() == [state.loss for state in states]


def test_events_change_links_over_traces_and_routes(tmp_path: Path) -> None:
    events = [
        {"at": "2s", "change": {"link": "a->b", "rate": "3mbit"}},
        {"at": "3s", "down": ["a", "b"]},
        {"at": "5s", "up": ["a", "b"]},
    ]
    (tmp_path / "t.csv").write_text("time_s,rate_mbps,delay_ms\n0,10,10\n4,20,15\n")
    links = [{**LINKS[0], "forward": {"trace": {"file": "t.csv", "end": "hold"}}}, *LINKS[1:]]
    experiment = load(tmp_path, links, events=events)
    network = SimulatedNetwork(experiment, Routes.over(experiment.topology))
    states = network.between(0.0, 100.0)
    assert [state.at_s for state in states] == [0.0, 2.0, 3.0, 4.0, 5.0]
    assert [state.states["a->b"].rate_bps for state in states] == [10e6, 3e6, 3e6, 3e6, 3e6]
    assert [state.states["a->b"].up for state in states] == [True, True, False, False, True]
    assert states[3].states["a->b"].delay_s == 0.015
    assert states[2].routes.links("a", "b") == ("a->c", "c->b") and states[4].routes.links("a", "b") == ("a->b",)
    assert network.at(2.5) is states[1]


def test_an_event_that_is_scheduled_late_replaces_the_states_computed_before(tmp_path: Path) -> None:
    experiment = load(tmp_path)
    network = SimulatedNetwork(experiment, Routes.over(experiment.topology))
    assert network.between(0.0, 9.0) == [network.at(0.0)]
    network.schedule(4.0, Event(round=1, change=LinkChange.model_validate({"link": "b->c", "rate": "1mbit"})))
    assert [state.states["b->c"].rate_bps for state in network.between(0.0, 9.0)] == [12e6, 1e6]
    assert network.next_change_s(network.at(0.0)) == 4.0 and network.next_change_s(network.at(5.0)) == inf


def test_states_are_there_until_they_are_forgotten(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("time_s,rate_mbps\n0,10\n0.001,20\n")
    links = [{**LINKS[0], "forward": {"trace": {"file": "t.csv"}}}, *LINKS[1:]]
    experiment = load(tmp_path, links)
    network = SimulatedNetwork(experiment, Routes.over(experiment.topology))
    for at_s in (2.2005, 2.3005, 1.0005):
        assert network.at(at_s).at_s == pytest.approx(at_s - 0.0005)
    network.forget(2.2005)
    assert next(network.since(0.0)).at_s == pytest.approx(2.2)
    assert network.at(2.2005).at_s == pytest.approx(2.2) and network.at(2.3005).at_s == pytest.approx(2.3)
