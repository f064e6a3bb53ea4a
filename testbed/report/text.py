"""Figures as text: seconds, bytes, rates and shares with their units. None, an unknown figure, is an en dash."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from testbed.spec.units import count as count

UNKNOWN = "–"

#: The kinds of events in an experiment's file; others happen to members.
IN_FILES = ("change", "down", "up", "swap", "kill", "graph")


def seconds(value: float | None) -> str:
    """Return seconds as `21 ms`, `0.83 s`, `74.1 s` or `3:20 min`."""
    if value is None:
        return UNKNOWN
    if value < 0.1:
        return f"{value * 1e3:.3g} ms"
    if value < 100:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes}:{rest:02d} min"


def milliseconds(value_s: float | None) -> str:
    """Return seconds as `13.2 ms`."""
    return UNKNOWN if value_s is None else f"{number(value_s * 1e3)} ms"


def size(count: float | None) -> str:
    """Return bytes as `1.27 GB`, in powers of a thousand."""
    if count is None:
        return UNKNOWN
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def mbit(rate_bps: float) -> str:
    """Return bit/s as `28.5`: Mbit/s without the unit."""
    return number(rate_bps / 1e6)


def percent(share: float | None, digits: int = 0) -> str:
    """Return a share as `98 %`."""
    return UNKNOWN if share is None else f"{share * 100:.{digits}f} %"


def number(value: float | None, digits: int = 3) -> str:
    """Return a number with `digits` significant digits, and a whole one below ten million without an exponent."""
    if value is None:
        return UNKNOWN
    short = f"{value:.{digits}g}"
    return f"{value:.0f}" if "e+" in short and abs(value) < 1e7 else short


def times(value: float | None) -> str:
    """Return a ratio as `3.21 ×`."""
    return UNKNOWN if value is None else f"{number(value)} ×"


def saving(share: float) -> str:
    """Return the share of a time that was saved as `12 % shorter`, or `12 % longer` for a negative one."""
    return f"{percent(abs(share))} {'shorter' if share >= 0 else 'longer'}"


def event_cause(event: Mapping[str, Any]) -> str:
    """Return the cause of an event with its figures: `trace: 29 to 5.12 Mbit/s`."""
    if event.get("after_bps") is not None:
        return f"trace: {mbit(event['before_bps'])} to {mbit(event['after_bps'])} Mbit/s"
    changed = event.get("changed") or {}
    written: Mapping[str, Callable[[float], str]] = {
        "rate_bps": lambda value: f"{mbit(value)} Mbit/s",
        "delay_s": lambda value: f"delay {milliseconds(value)}",
        "jitter_s": lambda value: f"jitter {milliseconds(value)}",
        "loss": lambda value: f"loss {percent(value, 2)}",
    }
    values = [words(changed[name]) for name, words in written.items() if changed.get(name) is not None]
    by = "hand" if event.get("by") == "hand" else "experiment" if event["kind"] in IN_FILES else UNKNOWN
    return f"{by}: {', '.join(values)}" if values else by


def spread(values: Sequence[float | None], words: Callable[[float], str]) -> str:
    """Return the median of the known values, with their range unless it reads the same: `0.53 s (0.49 s to 0.56 s)`."""
    found = sorted(value for value in values if value is not None)
    if not found:
        return UNKNOWN
    low, middle, high = words(found[0]), words(median(found)), words(found[-1])
    return middle if low == high else f"{middle} ({low} to {high})"
