"""The catalog of schemes: the candidates that the traits allow, and that planning itself names no scheme."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import testbed.planning
from testbed.plan import SchemeTraits
from testbed.planning.conductor import Candidate, SchemeCatalog
from testbed.planning.policy import policy_names
from testbed.schemes import SCHEMES as ALL
from tests.planning.conductor.runs import FLAT, SCHEMES

pytestmark = pytest.mark.pure


def test_flat_all_reduce_comes_first_and_goes_with_every_codec() -> None:
    found = list(SCHEMES.candidates())
    assert found[0] == FLAT == Candidate("gradients") and len(set(found)) == len(found)
    assert [its.codec for its in found if its.scheme == FLAT.scheme] == ["fp32", "fp16", "int8", "bins4", "bins2"]


def test_a_scheme_with_a_codec_of_its_own_goes_with_that_alone() -> None:
    found = [its for its in SCHEMES.candidates("muon") if its.scheme in ("sparseloco", "muloco")]
    assert {(its.scheme, its.codec) for its in found} == {("sparseloco", "sparse"), ("muloco", "bins2")}
    assert "muloco" not in {its.scheme for its in SCHEMES.candidates("adam")}


def test_a_scheme_brings_its_own_traits() -> None:
    own = SchemeTraits(steps=(3,), worth=(0.0, 0.1))
    catalog = SchemeCatalog({"flat": SchemeTraits(steps=(1,)), "own": own})
    assert catalog.flat == Candidate("flat")
    assert {its.scheme for its in catalog.candidates() if its.steps == 3} == {"own"}
    assert catalog.worths("adam") == {"own": (0.0, 0.1)}


@pytest.mark.parametrize("flat", [0, 2])
def test_exactly_one_scheme_is_the_one_that_others_are_measured_against(flat: int) -> None:
    with pytest.raises(ValueError, match="worth"):
        SchemeCatalog({str(number): SchemeTraits(steps=(1,)) for number in range(flat)})


def test_planning_names_no_scheme() -> None:
    names = ALL.keys() - {*policy_names()}
    found = {
        (str(module), node.value)
        for module in Path(testbed.planning.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in names
    }
    assert found == set()
