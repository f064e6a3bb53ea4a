"""Fixtures for the tests of this folder: they share processes, whose start takes longer than the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sync.c10d.ranks import Ranks


@pytest.fixture(scope="package")
def four() -> Iterator[Ranks]:
    with Ranks(4) as ranks:
        yield ranks
