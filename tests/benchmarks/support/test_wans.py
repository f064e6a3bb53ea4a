"""The networks that re-planning is judged on have their stated properties, the same each time."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from benchmarks.support.wans import (
    CLASSES,
    FAMILY,
    LEAST_BYTES,
    MOST_BYTES,
    MOST_RTT_S,
    Kind,
    Wan,
    first_plan_bytes,
)
from testbed.emulation.network.routing import Routes
from testbed.link import link_ends
from testbed.spec.topology import Topology
from testbed.trace.trace import LEAST_RATE_BPS

pytestmark = pytest.mark.pure

Family = Callable[..., tuple[Path, dict[str, Any]]]


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Family:
    """Return a function that makes the files of a network of a seed, once, and returns them with its experiment.

    Finding the size of a network's model takes half a second for five sites.
    """

    @cache
    def written(kind: Kind, sites: int, seed: int) -> tuple[Path, dict[str, Any]]:
        folder = tmp_path_factory.mktemp(f"{kind}-{sites}-")
        return folder, Wan(kind, sites, seed).write(folder)

    return lambda kind, sites, seed=1: written(kind, sites, seed)


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
    Wan("redraw", 4, 1).write(tmp_path)
    one, other = (files(family("redraw", 4, seed)[0]) for seed in (1, 2))
    assert files(tmp_path) == one != other


def test_a_drop_falls_and_comes_back(family: Family) -> None:
    folder, _ = family("drop", 5)
    links = Topology.load(folder / "topology.yaml").links.values()
    rates = [[link.at(at_s).rate_bps for at_s in (10.0, 30.0, 50.0)] for link in links]
    fallen = [before / during for before, during, _ in rates if during < before / 4]
    assert len(fallen) == 2, "a pair"
    assert all(after > during * 4 for before, during, after in rates if during < before / 4)


@pytest.mark.parametrize("kind", ["regions", "cloud"])
def test_each_seed_of_a_class_is_another_graph_and_the_same_each_time(
    kind: Kind, tmp_path: Path, family: Family
) -> None:
    graphs = set()
    for seed in (1, 2, 3):
        folder, _ = family(kind, 6, seed)
        topology = Topology.load(folder / "topology.yaml")
        graphs.add(frozenset(topology.links))
        assert len(list(Routes.over(topology).pairs)) == len(topology.sites) * (len(topology.sites) - 1)
    assert len(graphs) == 3
    Wan(kind, 6, 1).write(tmp_path)
    assert files(tmp_path) == files(family(kind, 6)[0])


def test_a_run_on_a_class_lasts_three_minutes_and_its_traces_last_longer(family: Family) -> None:
    assert {Wan(kind, sites, 1).window_s for kind, sites in FAMILY} == {65.0}
    for kind, sites in CLASSES:
        assert Wan(kind, sites, 1).window_s == 180.0
        folder, _ = family(kind, sites)
        traces = [link.trace for link in Topology.load(folder / "topology.yaml").links.values() if link.trace]
        assert max(trace.rows[-1].time_s for trace in traces) > 180.0
        assert all(trace.end == "hold" for trace in traces)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_in_regions_the_pair_falls_that_the_first_plan_sends_most_over(seed: int, family: Family) -> None:
    folder, experiment = family("regions", 6, seed)
    topology = Topology.load(folder / "topology.yaml")
    assert 4 * experiment["train"]["parameters"] == 1_600_000
    changing = {name: link.trace for name, link in topology.links.items() if link.trace}
    falling = {name for name, trace in changing.items() if len(trace.rows) == 3}
    flapping = changing.keys() - falling
    assert len(falling) == len(flapping) == 2, "a pair each"
    for name in falling:
        before, fallen, after = changing[name].rows
        assert (fallen.time_s, after.time_s) == (41.0, 120.0)
        assert (
            fallen.rate_bps == pytest.approx((before.rate_bps or 0) / 8, rel=1e-5) and after.rate_bps == before.rate_bps
        )
    for name in flapping:
        assert [row.rate_bps for row in changing[name].rows[:4]] == [24e6, 8e6, 24e6, 8e6]
    assert all(9e6 <= link.at(0.0).rate_bps <= 28e6 for link in topology.links.values())
    assert all(0.065 <= 2 * link.state.delay_s <= 0.216 for link in topology.links.values())
    sent = first_plan_bytes(folder / "topology.yaml", 1_600_000)
    pairs = {frozenset(link_ends(name)) for name in topology.links.keys() - flapping}
    loads = {pair: sum(sent.get(name, 0.0) for name in topology.links if {*link_ends(name)} == pair) for pair in pairs}
    (fallen_pair,) = {frozenset(link_ends(name)) for name in falling}
    assert loads[fallen_pair] == max(loads.values()) > 0


def test_in_clouds_all_that_a_site_sends_passes_its_egress(family: Family) -> None:
    folder, _ = family("cloud", 6)
    topology = Topology.load(folder / "topology.yaml")
    routes = Routes.over(topology)
    sites = [site for site, its in topology.sites.items() if its.workers]
    assert len(sites) == 6 and len(topology.sites) == 12, "a hub without workers each"
    for a in sites:
        (egress,) = {routes.links(a, b)[0] for b in sites if b != a}
        cap_bps = topology.links[egress].at(0.0).rate_bps
        assert all(egress not in routes.links(b, c) for b in sites for c in sites if a != b != c)
        between = [link for name, link in topology.links.items() if link_ends(name)[0] == f"{a}-hub"]
        assert sum(link.at(0.0).rate_bps for link in between) > 2 * cap_bps, "the cap is no matter of slow links"


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_clouds_are_steady_but_for_rare_excursions(seed: int, family: Family) -> None:
    folder, _ = family("cloud", 6, seed)
    links = Topology.load(folder / "topology.yaml").links.values()
    low, looked = 0, 0
    for link in links:
        rates = [link.at(float(second)).rate_bps for second in range(180)]
        usual = median(rates)
        low += sum(rate < 0.7 * usual for rate in rates)
        looked += len(rates)
        assert sum(0.7 <= rate / usual <= 1.3 for rate in rates) > 90
    assert 0 < low < 0.15 * looked
