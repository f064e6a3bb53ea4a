"""Growth is told from noise, and a process's resources are counted."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest
from scipy.signal import lfilter

from tests.soak.held import read_resources
from tests.soak.slope import slope

pytestmark = pytest.mark.pure

HOURS = 2.0


def lives(an_hour: float, seed: int, memory: float = 0.0) -> Iterator[list[tuple[float, float]]]:
    """Yield three lives of forty minutes, sampled every 5 s, each with a level of its own and autocorrelated noise."""
    draw = np.random.default_rng(seed)
    for _ in range(3):
        at_s = np.arange(0, HOURS / 3 * 3600, 5.0)
        noise = lfilter([np.sqrt(1 - memory**2)], [1, -memory], draw.normal(size=len(at_s)))
        yield list(zip(at_s, draw.uniform(50, 100) + an_hour * at_s / 3600 + noise, strict=True))


@pytest.mark.parametrize("memory", [0.0, 0.9, 0.99])
def test_what_does_not_grow_is_said_to_in_one_of_twenty_at_most(memory: float) -> None:
    """The interval is of 95 %; with noise that is correlated over minutes, some more may be outside."""
    found = [slope(list(lives(0.0, seed, memory))) for seed in range(40)]
    assert sum(each is None or each.differs for each in found) <= 6


def test_what_grows_is_found_and_by_how_much() -> None:
    found = [slope(list(lives(2.0, seed))) for seed in range(20)]
    assert all(each is not None and each.differs for each in found)
    assert np.mean([each.an_hour for each in found if each]) == pytest.approx(2.0, rel=0.05)


def test_too_few_samples_have_no_slope() -> None:
    assert slope([]) is None
    assert slope([[(0.0, 1.0), (1.0, 2.0)]]) is None


def test_what_a_process_holds_is_counted() -> None:
    before = read_resources(os.getpid())
    kept, ends = bytearray(64 << 20), os.pipe()
    kept[::4096] = bytes(len(kept[::4096]))
    now = read_resources(os.getpid())
    for end in ends:
        os.close(end)
    assert now.anonymous_bytes - before.anonymous_bytes >= 60 << 20
    assert now.descriptors == before.descriptors + 2
