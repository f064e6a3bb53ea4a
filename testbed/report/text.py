"""Figures in words: seconds, bytes and rates as people read them. None is an en dash: not known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from testbed.spec.units import count as count

UNKNOWN = "–"

#: The kinds of events that an experiment's file has; others happen to members.
IN_FILES = ("change", "down", "up", "swap", "kill", "graph")


def seconds(value: float | None) -> str:
    """`21 ms`, `0.83 s`, `74.1 s`, `3:20 min`."""
    if value is None:
        return UNKNOWN
    if value < 0.1:
        return f"{value * 1e3:.3g} ms"
    if value < 100:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes}:{rest:02d} min"


def milliseconds(value_s: float | None) -> str:
    """Seconds as `13.2 ms`."""
    return UNKNOWN if value_s is None else f"{value_s * 1e3:.3g} ms" if value_s < 1 else f"{value_s * 1e3:.0f} ms"


def size(count: float | None) -> str:
    """Bytes as `1.27 GB`, in powers of a thousand."""
    if count is None:
        return UNKNOWN
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def mbit(rate_bps: float) -> str:
    """Bit/s as `28.5`, in Mbit/s without the unit."""
    return f"{rate_bps / 1e6:.3g}"


def percent(share: float | None, digits: int = 0) -> str:
    """A share as `98 %`."""
    return UNKNOWN if share is None else f"{share * 100:.{digits}f} %"


def number(value: float | None, digits: int = 3) -> str:
    """`digits` significant digits."""
    return UNKNOWN if value is None else f"{value:.{digits}g}"


def times(value: float | None) -> str:
    """A ratio as `3.21 ×`."""
    return UNKNOWN if value is None else f"{value:.3g} ×"


def event_figures(event: Mapping[str, Any]) -> str:
    """By what an event happened, with its figures: `its trace: 29 to 5.12 Mbit/s`."""
    if event.get("after_bps") is not None:
        return f"its trace: {mbit(event['before_bps'])} to {mbit(event['after_bps'])} Mbit/s"
    changed = event.get("changed") or {}
    written: Mapping[str, Callable[[float], str]] = {
        "rate_bps": lambda value: f"{mbit(value)} Mbit/s",
        "delay_s": lambda value: f"delay {milliseconds(value)}",
        "jitter_s": lambda value: f"jitter {milliseconds(value)}",
        "loss": lambda value: f"loss {percent(value, 2)}",
    }
    values = [words(changed[name]) for name, words in written.items() if changed.get(name) is not None]
    by = "hand" if event.get("by") == "hand" else "the experiment" if event["kind"] in IN_FILES else UNKNOWN
    return f"{by}: {', '.join(values)}" if values else by


def spread(values: Sequence[float | None], words: Callable[[float], str]) -> str:
    """The median, and least to most where they read differently: `0.53 s (0.49 s to 0.56 s)`."""
    found = sorted(value for value in values if value is not None)
    if not found:
        return UNKNOWN
    low, middle, high = words(found[0]), words(median(found)), words(found[-1])
    return middle if low == high else f"{middle} ({low} to {high})"
