"""Classes, functions and modules stay small enough to read, and a class's name means one thing."""

from __future__ import annotations

import pytest

from tests.sizes import doubled, listed, too_large

pytestmark = pytest.mark.unit

REMEDY = "mend it; where something shrank, `python -m tests.sizes --write`"


def test_nothing_is_larger_than_it_may_be_but_what_is_known() -> None:
    assert {f"{size.place}: {size.kind}": size.count for size in too_large()} == listed()[0], REMEDY


def test_a_class_name_has_one_meaning_but_where_it_is_known_to_have_more() -> None:
    assert doubled() == listed()[1], REMEDY
