from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from testbed.link import GilbertElliott, Queue
from testbed.spec import units

pytestmark = pytest.mark.pure

KINDS = {
    name: TypeAdapter(getattr(units, name))
    for name in ("Rate", "CardRate", "Delay", "Duration", "Size", "Loss", "BurstyLoss", "QueueLimit")
}


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("Rate", "50mbit", 50e6),
        ("Rate", " 1.5 gbit ", 1.5e9),
        ("Rate", "64kbit", 64e3),
        ("Rate", "1e8bit", 1e8),
        ("Delay", "110ms", 0.110),
        ("Delay", "250us", 250e-6),
        ("Delay", "0s", 0.0),
        ("Duration", "2min", 120.0),
        ("Size", "1GB", 1e9),
        ("Size", "1GiB", 2**30),
        ("Loss", "0.1%", 0.001),
        ("Loss", "100%", 1.0),
        ("BurstyLoss", "0.1%", 0.001),
        ("BurstyLoss", {"p": "1%", "r": "30%"}, GilbertElliott(0.01, 0.3)),
        ("BurstyLoss", {"p": "2%", "r": "30%", "bad": "80%", "good": "1%"}, GilbertElliott(0.02, 0.3, 0.8, 0.01)),
        ("QueueLimit", "1bdp", Queue(1.0, "bdp")),
        ("QueueLimit", "200packets", Queue(200.0, "packets")),
        ("QueueLimit", "256KB", Queue(256e3, "bytes")),
        ("QueueLimit", "1B", Queue(1.0, "bytes")),
        ("QueueLimit", "1packets", Queue(1.0, "packets")),
    ],
)
def test_a_quantity_is_read_in_its_unit(kind: str, text: str, value: object) -> None:
    assert KINDS[kind].validate_python(text) == (pytest.approx(value) if isinstance(value, float) else value)


@pytest.mark.parametrize(("one", "same"), [("100us", "0.1ms"), ("50000us", "50ms"), ("35000us", "0.035s")])
def test_equal_times_in_two_units_are_the_same_number(one: str, same: str) -> None:
    assert KINDS["Delay"].validate_python(one) == KINDS["Delay"].validate_python(same)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("Rate", "-50mbit"),
        ("Rate", "0mbit"),
        ("Rate", "50"),
        ("Rate", 50),
        ("Rate", "50 MBit"),  # a unit is written one way: MB and Mb are too near each other
        ("Rate", "1e400mbit"),
        ("Rate", "200gbit"),
        ("Rate", "nan"),
        ("Rate", True),
        ("Rate", None),
        ("Rate", ["50mbit"]),
        ("CardRate", "40gbit"),
        ("Delay", "-1ms"),
        ("Delay", "2min"),
        ("Loss", "0.1"),
        ("Loss", "101%"),
        ("Loss", "-1%"),
        ("BurstyLoss", "0.1"),
        ("BurstyLoss", ["1%", "30%"]),
        ("BurstyLoss", {}),
        ("BurstyLoss", {"p": "1%"}),
        ("BurstyLoss", {"p": "1%", "r": "0%"}),
        ("BurstyLoss", {"p": "1%", "r": 0.3}),
        ("BurstyLoss", {"p": "1%", "r": "30%", "h": "1%"}),
        ("BurstyLoss", {"p": "1%", "r": "30%", "bad": "1%", "good": "1%"}),
        ("QueueLimit", "0bdp"),
        ("QueueLimit", "1e300bdp"),
        ("QueueLimit", "5"),
        ("QueueLimit", "0.5B"),
        ("QueueLimit", "0.0005KB"),
        ("QueueLimit", "0.5packets"),
        ("Size", "1mb"),
    ],
)
def test_what_is_no_quantity_is_refused_with_a_remedy(kind: str, text: object) -> None:
    with pytest.raises(ValidationError) as caught:
        KINDS[kind].validate_python(text)
    rule, bar, remedy = caught.value.errors()[0]["msg"].partition(" | ")
    assert rule
    assert bar
    assert remedy


@given(st.floats(min_value=64e3, max_value=100e9), st.sampled_from(sorted(units.RATES)))
def test_a_rate_means_the_same_in_every_unit(rate: float, unit: str) -> None:
    text = f"{rate / units.RATES[unit]:.12f}{unit}"
    try:
        assert KINDS["Rate"].validate_python(text) == pytest.approx(rate, rel=1e-6)
    except ValidationError:
        assert not 64e3 * 1.001 <= rate <= 100e9 * 0.999  # cut off at an end by rounding


CHAINS = st.dictionaries(st.sampled_from(["p", "r", "bad", "good", "h"]), st.sampled_from(["1%", "30%", "101%", 3]))
ANYTHING: st.SearchStrategy[Any] = (
    CHAINS | st.text() | st.floats() | st.integers() | st.booleans() | st.none() | st.binary() | st.lists(st.integers())
)


@given(ANYTHING | st.from_regex(units.NUMBER), st.sampled_from(sorted(KINDS)))
def test_nothing_but_a_validation_error_comes_out(value: object, kind: str) -> None:
    try:
        found = KINDS[kind].validate_python(value)
    except ValidationError:
        return
    assert isinstance(found, Queue | GilbertElliott) or 0 <= found < float("inf")
