"""A member's role in the trees of a plan."""

from __future__ import annotations

import pytest

from testbed.plan import Plan
from testbed.sync.allreduce.role import role_in
from tests.sync.plans import names, star

pytestmark = pytest.mark.pure


def test_means_have_the_codec_that_takes_the_fewest_bytes_for_a_chunk() -> None:
    """A value that `topk` keeps takes 6 bytes in a chunk of 65,536 elements, and 8 in one of more elements."""
    members = names(3)
    codecs = {"m0->m1": "bins2", "m0->m2": "topk:0.04"}
    plan = Plan(0, members, (star(members, "m0"),), 4 * 65_536, link_codecs=codecs)
    (role,) = role_in(plan, plan.whole, "m1").trees
    assert role.mean_codec.name == "topk"
