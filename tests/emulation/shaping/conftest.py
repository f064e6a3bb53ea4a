"""A path to shape and a shaper of each backend: userspace on the host, netem where the kernel has it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from testbed.emulation.shaping import Shaper, open_shaper
from tests.emulation.shaping.path import Path


@pytest.fixture(scope="module")
def path() -> Iterator[Path]:
    path = Path()
    try:
        path.build()
        yield path
    finally:
        path.remove()


@pytest.fixture(
    params=[
        pytest.param("userspace", marks=pytest.mark.privileged),
        pytest.param("netem", marks=pytest.mark.guest),
    ]
)
def shaper(request: pytest.FixtureRequest) -> Iterator[Shaper]:
    with open_shaper(request.param) as shaper:
        yield shaper
