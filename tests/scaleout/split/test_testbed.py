"""Changes of a network over several hosts, over recorders in the hosts' place."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from testbed.emulation.daemon.handlers import change_links
from testbed.emulation.shaping import ShapingError
from testbed.link import LinkState
from testbed.scaleout.split.host import HostPart
from testbed.scaleout.split.testbed import SplitLinks
from testbed.spec.event import LinkChange
from testbed.spec.topology import Link
from tests.emulation.recorder import Recorder

STATE = LinkState(rate_bps=20e6, delay_s=0.02)
HOST_OF = {"lima": "north", "quito": "south"}


class Hosts:
    """Two hosts that are 4 ms apart one way. `made` has the changes that each carried out."""

    hosts = dict.fromkeys(HOST_OF.values())

    def __init__(self) -> None:
        self.made: list[str] = []

    def call(self, host: str, method: str, *arguments: Any) -> LinkState:
        if method == "part.check":
            part: Any = SimpleNamespace(request=SimpleNamespace(floor_s=lambda _: 0.004))
            HostPart.check(part, *arguments)
        elif method == "part.change":
            self.made.append(host)
        return STATE


def delayed(link: str, delay: str) -> LinkChange:
    return LinkChange.model_validate({"link": link, "delay": delay})


@pytest.mark.local
def test_of_several_changes_all_are_made_or_none() -> None:
    hosts: Any = Hosts()
    links = SplitLinks(Recorder(), hosts, HOST_OF)
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
