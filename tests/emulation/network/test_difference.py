"""The changes that a swap would make, by name."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.emulation.network.difference import Difference, Names
from testbed.spec.topology import Topology
from tests.spec.files import TOPOLOGY, spoilt

pytestmark = pytest.mark.pure

TABLES = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 2))


@given(TABLES, TABLES)
def test_names_lead_from_the_one_to_the_other(old: dict[str, int], new: dict[str, int]) -> None:
    names = Names.between(old, new)
    made = {name: value for name, value in old.items() if name not in names.removed}
    made |= {name: new[name] for name in (*names.added, *names.changed)}
    assert made == new
    assert len({*names.added, *names.removed, *names.changed}) == sum(
        map(len, (names.added, names.removed, names.changed))
    )
    assert bool(names) == (old != new)


def topology(value: dict[str, Any]) -> Topology:
    return Topology.from_value(copy.deepcopy(value), Path("three.yaml"))


NOTHING = Difference(Names(), Names(), Names(), lan=False)


def difference(value: dict[str, Any]) -> Difference:
    return Difference.between(topology(TOPOLOGY), topology(value))


def test_the_same_network_differs_in_nothing() -> None:
    assert difference(TOPOLOGY) == NOTHING
    assert difference(TOPOLOGY | {"name": "other"}) == NOTHING
    assert difference(spoilt(TOPOLOGY, "sites", "paris", "speed", to=0.5)) == NOTHING


def test_a_site_comes_with_its_workers_and_links() -> None:
    value = spoilt(TOPOLOGY, "sites", "lima", to={"workers": 2})
    value = spoilt(value, "links", 2, to={"between": ["lima", "paris"], "rate": "1mbit", "delay": "1ms"})
    found = difference(value)
    assert found.sites == Names(added=("lima",))
    assert found.workers == Names(added=("lima-w0", "lima-w1"))
    assert found.links == Names(added=("lima->paris", "paris->lima"))
    back = Difference.between(topology(value), topology(TOPOLOGY))
    assert (back.sites.removed, back.workers.removed) == (("lima",), ("lima-w0", "lima-w1"))


def test_what_stays_may_change() -> None:
    assert difference(spoilt(TOPOLOGY, "sites", "paris", "workers", to=1)).workers == Names(removed=("paris-w1",))
    assert difference(spoilt(TOPOLOGY, "sites", "tokyo", "cpus", to=0.5)).workers == Names(changed=("tokyo-w0",))
    found = difference(spoilt(TOPOLOGY, "links", 0, "forward", to={"rate": "1mbit"}))
    assert found.links == Names(changed=("paris->tokyo",))
    assert difference(TOPOLOGY | {"lan": {"rate": "100mbit"}}) == Difference(Names(), Names(), Names(), lan=True)
