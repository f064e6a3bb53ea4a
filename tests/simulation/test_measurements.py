"""Members measure trains of chunks, and probes find of unused paths what real probes find."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from testbed.controller.knowledge.network_monitor import FASTER, probe_of
from testbed.emulation.network.routing import Routes
from testbed.link import MTU_FRAME_BYTES, TCP_PAYLOAD_BYTES
from testbed.plan import Plan, Route, Tree
from testbed.planning.constraints import GOODPUT
from testbed.protocol import Train
from testbed.simulation.event_queue import SimulatedClocks
from testbed.simulation.measurements import MemberMeasurements, ProbeModel, trains
from testbed.simulation.members import NO_STEPS, FinishedRound
from testbed.simulation.network import SimulatedNetwork
from testbed.simulation.recorder import LinkTraffic
from testbed.simulation.round_model import ChunkModel, Payload, SimulatedRound, Transfer
from tests.simulation.experiments import LINKS, load

pytestmark = pytest.mark.pure

ZERO_S = 1000


def model(folder: Path, mbps: float, loss_pct: float = 0.0) -> ProbeModel:
    """Return probes from a over b to c. Links have `mbps` and 40 ms one way; that from a to b loses packets."""
    links = [{"between": pair, "rate": f"{mbps}mbit", "rtt": "80ms"} for pair in (["a", "b"], ["b", "c"])]
    (folder / "loss.csv").write_text(f"time_s,loss_pct\n0,{loss_pct}\n")
    experiment = load(folder, [{**links[0], "forward": {"trace": {"file": "loss.csv"}}}, links[1]])
    return ProbeModel(SimulatedNetwork(experiment, Routes.over(experiment.topology)), SimulatedClocks(ZERO_S))


def probe_train(probes: ProbeModel, believed_mbps: float, now_s: float = 2.0) -> tuple[float, Train]:
    """Return a train of a probe from a to b that leaves at `now_s`."""
    found = probes.train("a-w0", probe_of("b-w0", believed_mbps * 1e6), now_s)
    assert found is not None
    return found


@pytest.mark.parametrize("mbps", [1, 5, 20, 40])
def test_a_train_comes_at_the_path_s_rate(mbps: float, tmp_path: Path) -> None:
    over_s, train = probe_train(model(tmp_path, mbps), mbps)
    assert 8 * train.bytes / train.seconds == pytest.approx(mbps * 1e6 * GOODPUT, rel=0.01)
    assert train.allowed_bytes_s * 8 == pytest.approx(FASTER * 1e6 * mbps, rel=0.01)
    assert over_s == pytest.approx(train.began_s + train.seconds - ZERO_S, abs=1e-4)
    assert train.began_s == pytest.approx(ZERO_S + 2.04, abs=1e-4)


def test_where_the_path_carries_more_a_train_comes_as_fast_as_it_left(tmp_path: Path) -> None:
    _, train = probe_train(model(tmp_path, 40), 2)
    assert train.bytes / train.seconds == pytest.approx(train.allowed_bytes_s, rel=0.01)


def test_a_train_passes_without_the_packets_that_a_link_loses(tmp_path: Path) -> None:
    _, train = probe_train(model(tmp_path, 20, loss_pct=25), 20)
    assert 8 * train.bytes / train.seconds == pytest.approx(0.75 * 20e6 * GOODPUT, rel=0.01)
    assert model(tmp_path, 20, loss_pct=100).train("a-w0", probe_of("b-w0", 20e6), 2.0) is None


@pytest.mark.parametrize("part", [0.0, 0.3, 0.8])
def test_a_train_gets_what_the_round_leaves_while_it_passes(part: float, tmp_path: Path) -> None:
    """Both together pass at the link's rate, also where the round sends to another member over the shared link."""
    probes, whole = model(tmp_path, 20), 20e6 * GOODPUT / 8
    probes.add_round(a_round(probes, began_s=1.0, ended_s=3.0, bytes_s=part * whole))
    _, train = probe_train(probes, 20)
    assert train.bytes / train.seconds == pytest.approx((1 - part) * whole, rel=0.01)


def test_a_round_that_is_over_or_comes_later_leaves_a_train_the_whole_link(tmp_path: Path) -> None:
    probes, whole = model(tmp_path, 20), 20e6 * GOODPUT / 8
    probes.add_round(a_round(probes, began_s=1.0, ended_s=1.9, bytes_s=whole))
    probes.add_round(a_round(probes, began_s=2.1, ended_s=3.0, bytes_s=whole))
    _, train = probe_train(probes, 20)
    assert train.bytes / train.seconds == pytest.approx(whole, rel=0.01)


def a_round(probes: ProbeModel, began_s: float, ended_s: float, bytes_s: float) -> SimulatedRound:
    """Return a round in which a sends to c, over b, between two moments."""
    delay_s = 0.08
    sent = Transfer(began_s, ended_s, began_s + delay_s, ended_s + delay_s, bytes_s * (ended_s - began_s))
    return SimulatedRound({}, {}, {("a-w0", "c-w0"): [sent]}, probes.network.at(0.0))


def test_a_train_says_the_least_and_the_most_that_tcp_let_go() -> None:
    """Without both figures a rate that BBR held back would pass for the link's."""
    paces = (2e6, 1e6, 3e6)
    sent = [
        Transfer(n * 0.02, (n + 1) * 0.02, 1 + n * 0.02, 1.02 + n * 0.02, 20_000, pace) for n, pace in enumerate(paces)
    ]
    ((over_s, train),) = trains(sent, 1000.0)
    assert over_s == pytest.approx(1.06)
    assert train.bytes / train.seconds == pytest.approx(1e6)
    assert (train.allowed_bytes_s, train.burst_bytes_s) == (1_000_000, 3_000_000)


def test_chunks_on_auxiliary_routes_count_at_both_ends_and_on_each_link(tmp_path: Path) -> None:
    """A tenth of the rate from a to b sends chunks over c, which forwards them and counts none as its own."""
    experiment = load(tmp_path, [{**LINKS[0], "forward": {"rate": "1.2mbit"}}, *LINKS[1:]])
    names, edges = tuple(worker.name for worker in experiment.topology.workers), {"b-w0": "a-w0", "c-w0": "a-w0"}
    plan = Plan(0, names, (Tree("a-w0", edges, edges),), 8192, auxiliary=(Route("a-w0", "b-w0", ("c-w0",)),))
    rounds = ChunkModel(SimulatedNetwork(experiment, Routes.over(experiment.topology)), 60.0)
    done = rounds.simulate(plan, 1, dict.fromkeys(names, 0.0), Payload(600_000))
    clocks, samples = SimulatedClocks(ZERO_S), list[Mapping[str, Any]]()
    reports = {
        name: MemberMeasurements(name, clocks, measure=False).report(FinishedRound(1, plan, done), NO_STEPS, False)
        for name in names
    }
    assert [report.sent_bytes for report in reports.values()] == [1_200_000, 600_000, 600_000]
    assert [report.received_bytes for report in reports.values()] == [1_200_000, 600_000, 600_000]
    traffic = LinkTraffic(clocks, samples.append)
    traffic.add_round(done)
    traffic.sample()
    carried = {link: size * TCP_PAYLOAD_BYTES / MTU_FRAME_BYTES for link, size in samples[-1]["bytes"].items()}
    assert carried["a->b"] + carried["c->b"] == pytest.approx(600_000, abs=2)
    assert carried["a->c"] == pytest.approx(600_000 + carried["c->b"], abs=2)
    assert carried["c->b"] > 200_000
