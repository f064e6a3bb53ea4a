"""Sets of elements, as sorted runs [start, stop) that neither touch nor overlap. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Span = tuple[int, int]
Spans = tuple[Span, ...]


def union(spans: Iterable[Span]) -> Spans:
    """Return the elements in any of the runs."""
    merged: list[Span] = []
    for start, stop in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], stop)
        else:
            merged.append((start, stop))
    return tuple(merged)


def minus(spans: Iterable[Span], others: Iterable[Span]) -> Spans:
    """Return the elements of `spans` that are not in `others`. One pass over both, as a member may hold 65,536 runs."""
    left: list[Span] = []
    out, first = union(others), 0
    for start, stop in union(spans):
        while first < len(out) and out[first][1] <= start:
            first += 1
        at = first
        while at < len(out) and out[at][0] < stop:
            low, high = out[at]
            if start < low:
                left.append((start, low))
            start = max(start, high)
            at += 1
        if start < stop:
            left.append((start, stop))
    return tuple(left)


def both(spans: Iterable[Span], others: Iterable[Span]) -> Spans:
    """Return the elements in both sets."""
    spans = tuple(spans)
    return minus(spans, minus(spans, others))


def count(spans: Iterable[Span]) -> int:
    """Return the number of elements."""
    return sum(stop - start for start, stop in spans)


def unpack(spans: Spans, packed: Iterable[Span]) -> Iterator[tuple[Span, Span]]:
    """Yield from where to where elements go when packed runs are put back to their places in the original tensor.

    Yields:
        Pairs of runs of equal length: positions in the packed tensor, and in the original.
    """
    for first, last in packed:
        at = 0
        for start, stop in spans:
            low, high = max(first, at), min(last, at + stop - start)
            if low < high:
                yield (low, high), (start + low - at, start + high - at)
            at += stop - start
