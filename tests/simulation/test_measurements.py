"""Members measure trains of chunks, and probes find of unused paths what real probes find."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.controller.knowledge.probing import probe_of
from testbed.emulation.network.routing import Routes
from testbed.planning.constraints import GOODPUT
from testbed.protocol import PROBE_TRAINS, Train
from testbed.simulation.event_queue import SimulatedClocks
from testbed.simulation.measurements import ProbeModel, trains
from testbed.simulation.network import SimulatedNetwork
from testbed.simulation.round_model import Transfer
from tests.simulation.experiments import load

pytestmark = pytest.mark.pure

ZERO_S = 1000


def probe_trains(folder: Path, mbps: float, believed_mbps: float) -> list[tuple[float, Train]]:
    """Return the trains of a probe that leaves after 2 s, over a path of `mbps` and 40 ms one way."""
    links = [{"between": pair, "rate": f"{mbps}mbit", "rtt": "80ms"} for pair in (["a", "b"], ["b", "c"])]
    experiment = load(folder, links)
    network = SimulatedNetwork(experiment, Routes.over(experiment.topology))
    probes = ProbeModel(network, SimulatedClocks(ZERO_S))
    return list(probes.trains("a-w0", probe_of("b-w0", believed_mbps * 1e6), 2.0))


@pytest.mark.parametrize("mbps", [1, 5, 20, 40])
def test_trains_come_at_the_path_s_rate(mbps: float, tmp_path: Path) -> None:
    found = probe_trains(tmp_path, mbps, mbps)
    assert len(found) == PROBE_TRAINS
    for over_s, train in found:
        assert 8 * train.bytes / train.seconds == pytest.approx(mbps * 1e6 * GOODPUT, rel=0.01)
        assert train.allowed_bytes_s * 8 == pytest.approx(3e6 * mbps, rel=0.01)
        assert over_s == pytest.approx(train.began_s + train.seconds - ZERO_S, abs=1e-4)
    assert found[0][1].began_s == pytest.approx(ZERO_S + 2.04, abs=1e-4)


def test_where_the_path_carries_more_they_come_as_fast_as_they_left(tmp_path: Path) -> None:
    for _, train in probe_trains(tmp_path, 40, 2):
        assert train.bytes / train.seconds == pytest.approx(train.allowed_bytes_s, rel=0.01)


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
