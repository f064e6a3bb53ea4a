"""The networks that re-planning is judged on: they are what they claim to be, the same each time."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.replanning import Compared, claims
from benchmarks.support.wans import FAMILY, LEAST_BYTES, MOST_BYTES, MOST_RTT_S, Kind, Wan
from testbed.emulation.network.routing import Routes
from testbed.link import link_ends
from testbed.spec.topology import Topology
from testbed.trace.trace import LEAST_RATE_BPS

pytestmark = pytest.mark.pure

Family = Callable[[Kind, int], tuple[Path, dict[str, Any]]]


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Family:
    """Return a network's files and what its experiment says. Each network is made once, when a test first asks for it:
    finding the size of its model takes half a second for five sites."""

    @cache
    def written(kind: Kind, sites: int) -> tuple[Path, dict[str, Any]]:
        folder = tmp_path_factory.mktemp(f"{kind}-{sites}-")
        return folder, Wan(kind, sites, 1).write(folder)

    return written


def files(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in sorted(folder.iterdir())}


@pytest.mark.long
@pytest.mark.parametrize(("kind", "sites"), sorted(set(FAMILY)))
def test_each_network_can_be_built_and_its_links_carry_the_traffic_of_their_ends(
    kind: Kind, sites: int, family: Family
) -> None:
    folder, experiment = family(kind, sites)
    topology = Topology.load(folder / experiment["topology"])
    assert len(topology.sites) == sites
    assert LEAST_BYTES - 4 < 4 * experiment["train"]["parameters"] <= MOST_BYTES
    routes = Routes.over(topology)
    assert len(list(routes.pairs)) == sites * (sites - 1), "each site reaches each"
    for name, link in topology.links.items():
        assert routes.links(*link_ends(name)) == (name,)
        assert 2 * link.state.delay_s <= MOST_RTT_S
        rows = link.trace.rows if link.trace else ()
        assert all((row.rate_bps or 0) >= LEAST_RATE_BPS for row in rows)


@pytest.mark.long
def test_a_seed_makes_the_same_network_and_another_one_another(tmp_path: Path, family: Family) -> None:
    written = {}
    for seed in (1, 2):
        folder = tmp_path / str(seed)
        folder.mkdir()
        Wan("redraw", 4, seed).write(folder)
        written[seed] = files(folder)
    first, _ = family("redraw", 4)
    assert files(first) == written[1] != written[2]


def test_a_drop_falls_and_comes_back(family: Family) -> None:
    folder, _ = family("drop", 5)
    links = Topology.load(folder / "topology.yaml").links.values()
    rates = [[link.at(at_s).rate_bps for at_s in (10.0, 30.0, 50.0)] for link in links]
    fallen = [before / during for before, during, _ in rates if during < before / 4]
    assert len(fallen) == 2, "a pair"
    assert all(after > during * 4 for before, during, after in rates if during < before / 4)


def test_claims_are_of_the_networks_where_there_is_something_to_gain_and_of_the_others() -> None:
    def network(hold: int, follow: int, oracle: int) -> Compared:
        return Compared("any", 1, {"hold": hold, "follow": follow, "oracle": oracle}, 1)

    found = claims([network(50, 70, 80), network(50, 65, 65), network(50, 49, 40), network(50, 51, 55)])
    values = [value for value, _ in found.values()]
    assert values[0] == pytest.approx((1.4 * 1.3) ** 0.5)
    assert values[1] == pytest.approx((0.98 * 1.02) ** 0.5)
    assert values[2] == pytest.approx(0.98)
    assert values[3] == pytest.approx((70 / 80 + 1 + 0.98 + 51 / 55) / 4), "holding is the least an oracle does"
