"""Sets of elements as runs: what they hold is what sets of numbers would."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.sync.allreduce import spans
from testbed.sync.allreduce.spans import Span, Spans

pytestmark = pytest.mark.pure

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted).map(tuple).filter(lambda s: s[0] < s[1]))


def elements(of: Iterable[Span]) -> set[int]:
    return {each for start, stop in of for each in range(start, stop)}


def apart(of: Spans) -> bool:
    return all(start < stop for start, stop in of) and all(before < after for (_, before), (after, _) in pairwise(of))


@given(SPANS, SPANS)
def test_union_difference_and_intersection_are_those_of_sets(some: list[Span], others: list[Span]) -> None:
    for found, expected in (
        (spans.union([*some, *others]), elements(some) | elements(others)),
        (spans.minus(some, others), elements(some) - elements(others)),
        (spans.both(some, others), elements(some) & elements(others)),
    ):
        assert elements(found) == expected and apart(found) and spans.count(found) == len(expected)


@given(SPANS, SPANS)
def test_packed_elements_return_to_their_places(some: list[Span], others: list[Span]) -> None:
    left = spans.union(some)
    packed = [element for start, stop in left for element in range(start, stop)]
    wanted = spans.both(others, [(0, len(packed))]) if packed else ()
    found = [
        (packed[at], element)
        for (low, high), (start, stop) in spans.unpack(left, wanted)
        for at, element in zip(range(low, high), range(start, stop), strict=True)
    ]
    assert all(before == after for before, after in found) and len(found) == spans.count(wanted)
