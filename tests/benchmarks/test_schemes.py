"""The schemes that the benchmark of schemes is asked for."""

from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from benchmarks.schemes import OPTIMIZER, SCHEMES, choice_of, schemes_in

pytestmark = pytest.mark.pure


def test_schemes_have_options_and_an_optimizer() -> None:
    assert schemes_in(SCHEMES) == SCHEMES.split(",")
    choice, optimizer = choice_of("sparseloco:every=15+top_k=32@muon")
    assert (choice.scheme.name, choice.options.every, optimizer) == ("sparseloco", 15, "muon")
    assert choice_of("diloco")[1] == OPTIMIZER


@pytest.mark.parametrize("text", ["diloco,teleport", "diloco:often=30", "diloco:every", ""])
def test_a_scheme_that_does_not_exist_or_take_its_options_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError):
        schemes_in(text)
