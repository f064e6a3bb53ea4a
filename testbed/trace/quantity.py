"""Quantities as other programs write them: `110 ms`, `10 Gbit/s`, `344.0 km`, `12.0 S`.

The project's own files have one spelling for each unit (`testbed.spec.units`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from statistics import median

#: Units of time in ms, of length in km. `µ` is two characters of Unicode: the micro sign and the Greek letter.
TIMES_MS: Mapping[str, float] = {
    **dict.fromkeys(("ns", "nsec", "nanoseconds"), 1e-6),
    **dict.fromkeys(("us", "usec", "\u00b5s", "\u03bcs", "microseconds"), 1e-3),
    **dict.fromkeys(("ms", "msec", "milliseconds", "мс", "毫秒", "ミリ秒"), 1.0),
    **dict.fromkeys(("s", "sec", "seconds", "second"), 1e3),
    "min": 6e4,
}
LENGTHS_KM: Mapping[str, float] = {
    **dict.fromkeys(("m", "meters", "metres"), 1e-3),
    **dict.fromkeys(("km", "kilometers", "kilometres"), 1.0),
    **dict.fromkeys(("mi", "miles"), 1.609344),
}
PERCENT: Mapping[str, float] = {"%": 0.01, "percent": 0.01}

NUMBER = re.compile(r"\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*(\S(?:.*\S)?)?\s*")

#: A rate's unit: a prefix, then bits, or bytes where the B is a capital or the word is whole.
RATE_UNIT = re.compile(r"([kKmMgGtT]?)(i?)(bits?|b|[bB]ytes?|B|)(?:ps|/s|/sec|ps/s)?")
PREFIXES = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}

#: Words by which files say that a value is not known.
UNKNOWN = frozenset({"", "-", "--", "?", "na", "n/a", "nan", "none", "null", "unknown"})

#: The limits of a median round trip between sites, in ms: a median outside them is in another unit. Light in fibre
#: takes 200 ms around half the Earth and back, and a geostationary satellite's round trip is 0.6 s. In 1 ms light goes
#: 100 km and back: a shorter round trip is within one town.
LEAST_ROUND_TRIP_MS, MOST_ROUND_TRIP_MS = 1.0, 2000.0

DEGREES = re.compile(
    r"\s*([NSEWnsew]?)\s*([-+]?\d+(?:\.\d+)?)\s*(?:°|deg|º)?"
    r"\s*(?:(\d+(?:\.\d+)?)\s*['′’])?\s*(?:(\d+(?:\.\d+)?)\s*(?:\"|″|”|''))?\s*([NSEWnsew]?)\s*"
)


class QuantityError(ValueError):
    """A value is not a quantity of the kind asked for; the text is a predicate, such as `has the unknown unit 'x'`."""


def is_unknown(value: object) -> bool:
    """Return whether a value says that nothing is known, as `""`, `-`, `n/a` and NaN do."""
    if isinstance(value, float):
        return math.isnan(value)
    return value is None or (isinstance(value, str) and value.strip().lower() in UNKNOWN)


def split_quantity(value: object) -> tuple[float, str | None]:
    """Return the number, and the unit after it or None. Raises QuantityError where the value is no number."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise QuantityError("is not a number")
    match = NUMBER.fullmatch(str(value))
    number = float(match[1]) if match else math.inf
    if match is None or not math.isfinite(number):
        raise QuantityError("is not a number with a unit")
    return number, match[2]


def in_units(value: object, units: Mapping[str, float]) -> tuple[float, bool]:
    """Return the value in the unit that counts 1, and True if the value has a unit of its own.

    Raises QuantityError where the value is no number, or has another unit.
    """
    number, unit = split_quantity(value)
    if unit is None:
        return number, False
    factor = units.get(unit, units.get(unit.lower()))
    if factor is None:
        raise QuantityError(f"has the unknown unit {unit!r}")
    return number * factor, True


def rate_bps(value: object) -> tuple[float, bool]:
    """Return a rate in bit/s, and True if the value has a unit. Raises QuantityError where the value is no rate.

    `b` and `bit` are bits, `B` and `byte` bytes. A prefix alone (`10G`) counts bits. `Ki`, `Mi` and so on count 1024.
    """
    number, unit = split_quantity(value)
    if unit is None:
        return number, False
    match = RATE_UNIT.fullmatch(unit)
    if match is None or not (match[1] or match[3]):
        raise QuantityError(f"has the unknown unit {unit!r}")
    bits = 8 if match[3] == "B" or match[3].lower().startswith("byte") else 1
    return number * bits * (1024.0 if match[2] else 1000.0) ** PREFIXES[match[1].lower()], True


def degrees(value: object, directions: str) -> float:
    """Return an angle in degrees; `directions` are the letters of its positive and its negative side, such as `NS`.

    Raises QuantityError where the value is no angle, or an angle of the other axis.
    """
    if not isinstance(value, str):
        return split_quantity(value)[0]
    match = DEGREES.fullmatch(value)
    if match is None or (match[1] and match[5]):
        raise QuantityError("is not a number of degrees")
    letter = (match[1] or match[5]).upper()
    if letter and letter not in directions:
        raise QuantityError(f"has the direction {letter}, not {directions[0]} or {directions[1]}")
    if letter and match[2].startswith(("-", "+")):
        raise QuantityError("has both a sign and a direction")
    size = abs(float(match[2])) + float(match[3] or 0) / 60 + float(match[4] or 0) / 3600
    return -size if letter == directions[1] or match[2].startswith("-") else size


def doubtful_round_trips(milliseconds: Iterable[float]) -> str | None:
    """Return why round trips without a unit can't be in ms, or None where they can. Zeros are passed over."""
    positive = [each for each in milliseconds if each > 0]
    middle = median(positive) if positive else LEAST_ROUND_TRIP_MS
    if middle < LEAST_ROUND_TRIP_MS:
        return f"half of the round trips are below {middle:g}: in ms that is within one town, in seconds a WAN"
    if middle > MOST_ROUND_TRIP_MS:
        return f"half of the round trips are above {middle:g}: in ms no network is so slow, in microseconds a WAN is"
    return None
