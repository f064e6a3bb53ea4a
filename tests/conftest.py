"""What holds for every test: it says what it needs, and is skipped only where there is no root for what needs it."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# Tests compute on one thread, as workers do: others run beside them, and a second one of PyTorch's waits by spinning.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No example is held to a time: a busy host takes ten times as long as an idle one.
settings.register_profile("testbed", deadline=None)
settings.load_profile("testbed")


MARKS = ("unit", "privileged", "guest")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not any(item.get_closest_marker(mark) for mark in MARKS):
            raise pytest.UsageError(f"{item.nodeid} runs in no lane: it bears none of the marks {', '.join(MARKS)}")
    if os.geteuid() == 0:
        return
    for item in items:
        for mark in ("privileged", "guest"):
            if item.get_closest_marker(mark):
                item.add_marker(pytest.mark.skip(reason=f"{mark}: needs root; run it with sudo"))
