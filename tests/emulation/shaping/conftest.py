"""A path to shape."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.emulation.shaping.path import Path


@pytest.fixture(scope="module")
def path() -> Iterator[Path]:
    path = Path()
    try:
        path.build()
        yield path
    finally:
        path.remove()
