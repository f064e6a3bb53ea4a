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
    ("text", "name"),
    [
        ("diloco:every", "every"),
        ("diloco:every=often", "every"),
        ("diloco:every=0", "every"),
        ("diloco:outer.speed=1", "speed"),
        ("sgp", "sgp"),
    ],
)
def test_what_says_no_scheme(text: str, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        SchemeChoice.parse(text)
