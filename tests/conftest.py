"""What holds for every test: those that need root say so where there is none; to root nothing is skipped."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# No example is held to a time: a busy host takes ten times as long as an idle one.
settings.register_profile("testbed", deadline=None)
settings.load_profile("testbed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.geteuid() == 0:
        return
    for item in items:
        for mark in ("privileged", "guest"):
            if item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=f"{mark}: needs root; run it with sudo"))
