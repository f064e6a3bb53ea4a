"""Classes, functions and modules stay small enough to read, and a class's name means one thing."""

from __future__ import annotations

import pytest

from tests.sizes import EXCEPTIONS, doubled, too_large

pytestmark = pytest.mark.unit


def test_nothing_is_larger_than_it_may_be_but_three_exceptions() -> None:
    assert not [str(size) for size in too_large()]
    assert len(EXCEPTIONS) <= 3


def test_a_class_name_has_one_meaning() -> None:
    assert not doubled()
