"""A path to shape."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.emulation.shaping.path import Path, built_path


@pytest.fixture(scope="module")
def path() -> Iterator[Path]:
    with built_path() as path:
        yield path
