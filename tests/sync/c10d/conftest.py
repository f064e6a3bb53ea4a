"""What the tests of this folder share: processes cost more than what is tried in them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.sync.c10d.ranks import Ranks


@pytest.fixture(scope="package")
def four() -> Iterator[Ranks]:
    with Ranks(4) as ranks:
        yield ranks
