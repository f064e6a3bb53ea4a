"""The claims on the shaping core."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from benchmarks.shaping import DELAY_S, Busy, missed

pytestmark = pytest.mark.pure

CASES = {name: Busy([1.0, 0.99], core=0.1, rtt_ms=[2e3 * DELAY_S]) for name in ("udp", "tcp", "fast")}


@pytest.mark.parametrize(
    ("load", "changed", "names"),
    [
        ("udp", {}, []),
        ("udp", {"shares": [1.0, 0.9]}, ["udp"]),
        ("tcp", {"core": 0.7}, ["tcp"]),
        ("fast", {"shares": [0.9]}, ["fast"]),
        ("tcp", {"rtt_ms": [2e3 * DELAY_S + 5]}, ["round trips"]),
    ],
)
def test_a_load_outside_its_claim_is_missed(load: str, changed: dict[str, Any], names: list[str]) -> None:
    cases = {**CASES, load: replace(CASES[load], **changed)}
    assert missed({name: {"core": found} for name, found in cases.items()}) == names
