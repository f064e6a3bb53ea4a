from __future__ import annotations

import math

import pytest

from testbed.trace.quantity import (
    LENGTHS_KM,
    TIMES_MS,
    QuantityError,
    degrees,
    doubtful_round_trips,
    in_units,
    is_unknown,
    rate_bps,
)

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("value", "milliseconds"),
    [
        ("110 ms", 110),
        ("110ms", 110),
        ("0.11 s", 110),
        ("110000 us", 110),
        ("110000 µs", 110),  # the micro sign
        ("110000 μs", 110),  # the Greek letter
        ("1.1e8 ns", 110),
        ("110 MS", 110),
        (" 110 msec ", 110),
        ("2 min", 120_000),
    ],
)
def test_times_have_units(value: str, milliseconds: float) -> None:
    assert in_units(value, TIMES_MS) == (pytest.approx(milliseconds), True)


@pytest.mark.parametrize("value", [110, 110.0, "110", " 1.1e2"])
def test_a_number_alone_has_no_unit(value: object) -> None:
    assert in_units(value, TIMES_MS) == (110, False)
    assert rate_bps(value) == (110, False)


@pytest.mark.parametrize(
    ("value", "bps"),
    [
        ("10 Gbit", 1e10),
        ("10Gbit/s", 1e10),
        ("10 Gbps", 1e10),
        ("10 Gb/s", 1e10),
        ("10G", 1e10),
        ("10000 mbit", 1e10),
        ("100 kbit", 1e5),
        ("100 bit/s", 100),
        ("100 bps", 100),
        ("1.25 GB/s", 1e10),
        ("1.25 GBps", 1e10),
        ("100 MB/s", 8e8),
        ("1 Mibit", 2**20),
        ("1 MiB", 8 * 2**20),
        ("2 megabytes", None),
        ("2 bananas", None),
        ("10 G G", None),
    ],
)
def test_rates_count_bits_or_bytes(value: str, bps: float | None) -> None:
    if bps is None:
        with pytest.raises(QuantityError, match="unknown unit"):
            rate_bps(value)
    else:
        assert rate_bps(value) == (pytest.approx(bps), True)


def test_lengths() -> None:
    found = [in_units(value, LENGTHS_KM)[0] for value in ("344 km", "344000 m", "213.75 mi", "213.75 miles")]
    assert found == pytest.approx([344] * 4, rel=1e-3)


@pytest.mark.parametrize("value", [True, None, [1], "fast", "1,5 ms", "12 34", math.inf, "1e999", "0x10 ms", "ms"])
def test_what_is_no_quantity_is_refused(value: object) -> None:
    with pytest.raises(QuantityError):
        in_units(value, TIMES_MS)


@pytest.mark.parametrize(
    ("value", "directions", "angle"),
    [
        (-12.0, "NS", -12),
        ("12.0 S", "NS", -12),
        ("12.0S", "NS", -12),
        ("s 12", "NS", -12),
        ("12 N", "NS", 12),
        ("-12.0", "NS", -12),
        ("33° 51' 30\" S", "NS", -33.858333),
        ("151°12.5'E", "EW", 151.208333),
        ("12.0 W", "EW", -12),
    ],
)
def test_angles(value: object, directions: str, angle: float) -> None:
    assert degrees(value, directions) == pytest.approx(angle)


@pytest.mark.parametrize("value", ["12.0 E", "-12.0 S", "N 12 S", "12,5 S", "south", "12.0 O", True, ""])
def test_what_is_no_latitude_is_refused(value: object) -> None:
    with pytest.raises(QuantityError):
        degrees(value, "NS")


def test_what_says_that_nothing_is_known() -> None:
    assert all(is_unknown(value) for value in (None, "", " - ", "?", "N/A", "NaN", "None", "unknown", math.nan))
    assert not any(is_unknown(value) for value in (0, "0", "fast", -1, "no"))


@pytest.mark.parametrize(
    ("trips", "doubt"),
    [
        ([], None),
        ([0.0], None),
        ([42.1, 220.0], None),
        ([0.5, 42.0, 220.0], None),
        ([1999.0], None),
        ([0.042, 0.22], "seconds"),
        ([0.042, 0.22, 1.2], "seconds"),
        ([42_100.0, 220_000.0], "microseconds"),
    ],
)
def test_round_trips_are_doubted_by_their_middle(trips: list[float], doubt: str | None) -> None:
    found = doubtful_round_trips(trips)
    assert found is None if doubt is None else doubt in str(found)
