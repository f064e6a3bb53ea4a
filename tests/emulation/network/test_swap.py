"""The steps of a swap, over a network that records its calls. Swaps of real networks are in test_network."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from testbed.emulation.network.share import WHOLE
from testbed.emulation.network.swap import SwapTransaction
from testbed.spec.topology import Topology

pytestmark = pytest.mark.pure


def topology(*sites: str) -> Topology:
    """Return a network with a worker at each site, whose sites are in a row."""
    links = [{"between": [*pair], "rate": "1mbit", "delay": "1ms"} for pair in pairwise(sites)]
    value = {"name": "row", "sites": {site: {"workers": 1} for site in sites}, "links": links}
    return Topology.from_value(value, Path("row.yaml"))


def test_what_an_earlier_swap_failed_to_remove_is_removed_before_it_is_built() -> None:
    old, new = topology("quito", "lima"), topology("quito", "lima", "cuzco")
    there = {name: MagicMock() for name in ("quito-r", "lima-r", "cuzco-r", "quito-w0", "lima-w0", "cuzco-w0")}
    network = MagicMock(topology=old, share=WHOLE, nameToNode=there)
    network.leave.side_effect = lambda names: [there.pop(name, None) for name in names]
    holder = MagicMock()
    SwapTransaction(network, new, {"cuzco-w0": holder}).build()
    network.remove_pair.assert_called_once_with(frozenset({"lima", "cuzco"}))
    network.delHost.assert_called_once()
    calls = [name for name, *_ in network.mock_calls]
    assert max(calls.index("remove_pair"), calls.index("delHost")) < calls.index("add_site") < calls.index("add")
    assert network.add.call_args.args == (new, {"cuzco-w0": holder}, {frozenset({"lima", "cuzco"})})
