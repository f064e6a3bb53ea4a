"""Changes of a network over several hosts, over recorders in the hosts' place."""

from __future__ import annotations

from ipaddress import IPv4Address
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.emulation.daemon.handlers import change_links
from testbed.emulation.shaping import ShapingError
from testbed.link import LinkState
from testbed.scaleout.split.cut_links import HostsNetwork
from testbed.scaleout.split.host import PartFacts
from testbed.scaleout.split.plan import SiteAssignment, SplitPlan
from testbed.scaleout.split.testbed import SplitLinks, SplitNetwork
from testbed.scaleout.split.verdict import HostSamples
from testbed.spec.errors import SpecError
from testbed.spec.event import LinkChange
from testbed.spec.topology import Link, Topology
from tests.emulation.recorder import Recorder

STATE = LinkState(rate_bps=20e6, delay_s=0.02)
HOST_OF = {"lima": "north", "quito": "south"}


class Hosts:
    """Two hosts that are 4 ms apart one way. `made` has the changes that each carried out."""

    hosts = dict.fromkeys(HOST_OF.values())

    def __init__(self) -> None:
        self.made: list[str] = []

    def call(self, host: str, method: str, *arguments: Any) -> LinkState:
        if method == "part.change":
            self.made.append(host)
        return STATE


def split_of(topology: Topology) -> SplitPlan:
    """Return the plan of a network over the two hosts."""
    pair = frozenset(HOST_OF.values())
    addresses = {host: IPv4Address(f"10.0.0.{n}") for n, host in enumerate(HOST_OF.values(), 1)}
    return SplitPlan((topology,), SiteAssignment(HOST_OF, 0.0), HostsNetwork({pair: 0.008}, {pair: 1500}), addresses)


def network_of(*transit: str, delay: str = "20ms") -> Topology:
    """Return a ring of the sites with workers and those without."""
    sites = {site: {"workers": int(site in HOST_OF)} for site in (*HOST_OF, *transit)}
    pairs = zip(sites, [*list(sites)[1:], next(iter(sites))], strict=True) if transit else [tuple(sites)]
    links = [{"between": list(pair), "rate": "20mbit", "delay": delay} for pair in pairs]
    return Topology.from_value({"name": "net", "sites": sites, "links": links}, Path("net.yaml"))


def delayed(link: str, delay: str) -> LinkChange:
    return LinkChange.model_validate({"link": link, "delay": delay})


@pytest.mark.local
def test_of_several_changes_all_are_made_or_none() -> None:
    hosts: Any = Hosts()
    links = SplitLinks(Recorder(), hosts, split_of(network_of()))
    for ends in (("lima", "quito"), ("quito", "lima")):
        links.add(Link(*ends, STATE))
    network: Any = SimpleNamespace(links_in_force=links)
    told: list[str] = []

    def tell(kind: str, target: str, *, changed: Any = None) -> None:
        told.append(target)

    with pytest.raises(ShapingError) as caught:
        change_links(network, [delayed("lima->quito", "10ms"), delayed("quito->lima", "1ms")], [], tell)
    assert (caught.value.rule, caught.value.link) == ("below-floor", "quito->lima")
    with pytest.raises(KeyError, match="quito->cuzco"):
        change_links(network, [delayed("lima->quito", "10ms"), delayed("quito->cuzco", "10ms")], [], tell)
    assert (hosts.made, told, {state.delay_s for state in links.states().values()}) == ([], [], {0.02})
    change_links(network, [delayed("lima->quito", "10ms"), delayed("quito->lima", "5ms")], [], tell)
    assert (hosts.made, told) == (["north", "south"], ["lima->quito", "quito->lima"])


@pytest.mark.local
def test_a_swap_to_a_site_that_no_host_has_is_refused() -> None:
    network: Any = SimpleNamespace(topology=network_of(), share=SimpleNamespace(host_of=HOST_OF))
    with pytest.raises(SpecError) as caught:
        SplitNetwork.swap(network, network_of("cuzco"))
    assert caught.value.fields == ("sites.cuzco",)


@pytest.mark.local
def test_values_below_a_link_s_floor_are_refused_before_they_are_in_force() -> None:
    plan = split_of(network_of())
    links = SplitLinks(Recorder(), Hosts(), plan)  # type: ignore[arg-type]
    links.check_values(delayed("lima->quito", "4ms"))  # though the link is not there yet
    with pytest.raises(ShapingError) as caught:
        links.check_values(delayed("lima->quito", "3ms"))
    assert (caught.value.rule, caught.value.link) == ("below-floor", "lima->quito")
    parts = {host: PartFacts(host, (), "netem", False, "bridge", "", 1450) for host in HOST_OF.values()}
    network = SplitNetwork("run", plan, Hosts(), HostSamples(Hosts(), {}, lambda *_: None), parts)  # type: ignore[arg-type]
    network.check_links(network_of())
    with pytest.raises(ShapingError) as caught:
        network.check_links(network_of(delay="3ms"))
    assert caught.value.rule == "below-floor"
