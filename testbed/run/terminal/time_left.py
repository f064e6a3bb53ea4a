"""How long what is left of many like things takes, by how long those that are done took. Pure."""

from __future__ import annotations


def time_left(elapsed_s: float, done: int, total: int) -> float | None:
    """Seconds that `total` things still take of which `done` took `elapsed_s`; None before the first is done, and after
    the last."""
    return elapsed_s / done * (total - done) if 0 < done < total else None


def in_words(seconds: float | None) -> str:
    """`about 40 s left`, `about 12 min left`, `about 2 h 10 min left`: no finer than it is known. Empty for None."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f"about {max(1, round(seconds, -1 if seconds > 20 else 0)):.0f} s left"
    minutes = round(seconds / 60)
    if minutes <= 90:
        return f"about {minutes} min left"
    hours, rest = divmod(round(minutes, -1), 60)
    return f"about {hours} h {rest} min left" if rest else f"about {hours} h left"
