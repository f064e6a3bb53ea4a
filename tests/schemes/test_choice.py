"""A scheme as a text: what can be said is read as it was meant, and what can't is refused by name."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.schemes.choice import SchemeChoice

pytestmark = pytest.mark.pure


@given(st.integers(1, 10_000), st.floats(0.0, 0.99), st.booleans())
def test_a_text_says_what_its_options_are(every: int, momentum: float, normalise: bool) -> None:
    text = f"hybrid:every={every},outer.momentum={momentum},normalise={str(normalise).lower()}"
    wanted = {"every": every, "outer": {"momentum": momentum}, "normalise": normalise}
    assert SchemeChoice.parse(text) == SchemeChoice.of("hybrid", wanted)


def test_a_name_alone_takes_what_its_options_are_by_default() -> None:
    assert str(SchemeChoice.parse("local_sgd")) == "local_sgd (every=8)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("diloco:every", "every: an option has a value; write instead: every=VALUE"),
        ("diloco:every=often", "every: is 'often'; write instead: a whole number"),
        ("diloco:every=0", "every: is 0; write instead: at least 1"),
        ("diloco:outer.speed=1", "no options of diloco: .*speed"),
        ("sgp", "sgp: its members gossip"),
    ],
)
def test_what_says_no_scheme(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SchemeChoice.parse(text)
