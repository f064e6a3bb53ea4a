"""Every policy's plan all-reduces: played through the sync library's own sums, chunk by chunk, in any order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testbed.planning import View, make_policy, policy_names
from tests.planning.networks import views
from tests.sync.allreduce.test_reduction import Wire

pytestmark = pytest.mark.pure

#: Each policy, and its variants that make other kinds of plans.
ASKED = [
    *((name, {}) for name in policy_names()),
    ("star", {"keys": "alexnet"}),
    ("star", {"keys": "one", "placement": "worst"}),
    ("star", {"servers": "all", "keys": "alexnet"}),
    ("ring", {"order": "naive"}),
    ("mlnet", {"arity": 3}),
    ("packing", {"knowledge": "measured"}),
    ("hips", {"period": 4}),
]

ELEMENTS = 700


@pytest.mark.parametrize(("name", "options"), ASKED, ids=str)
@settings(max_examples=8)
@given(view=views(max_sites=4, max_per_site=3), seed=st.integers(0, 2**32))
def test_a_plan_gives_everybody_the_mean(name: str, options: dict[str, object], view: View, seed: int) -> None:
    plan = make_policy(name, options).plan(view)
    wire = Wire(plan, ELEMENTS, random.Random(seed))
    wire.run()
    total = sum(wire.weights.values())
    expected = sum(wire.contributed[m].double() * wire.weights[m] for m in wire.members) / total
    for member, state in wire.members.items():
        assert (wire.values[member] - expected).abs().max() <= 1e-5
        assert not state.missing() and not state.outcome.lost and not state.duplicated
