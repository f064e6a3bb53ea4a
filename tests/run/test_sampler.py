"""The samples of a network over time, also on a host that holds the sampler up."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from testbed.emulation.network.network import Network
from testbed.emulation.network.share import WHOLE
from testbed.run import sampler as module
from testbed.run.sampler import Sampler

pytestmark = pytest.mark.pure


class Clock:
    """Time that passes while somebody waits for `is_set`, which is so at `end_s`; in a busy host, more than asked."""

    def __init__(self, end_s: float) -> None:
        self.now_s, self._end_s = 0.0, end_s

    def monotonic(self) -> float:
        return self.now_s

    time = monotonic

    def wait(self, seconds: float) -> None:
        held_up_s = 40.0 if self.now_s <= 30.0 < self.now_s + seconds else 0.0
        self.now_s += max(seconds, 1e-3) + held_up_s

    def is_set(self) -> bool:
        return self.now_s >= self._end_s


def test_a_second_that_was_missed_is_not_sampled_later(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, taken = Clock(100.0), list[Mapping[str, Any]]()
    shaper = SimpleNamespace(counters=dict)
    links = SimpleNamespace(states=dict)
    network = SimpleNamespace(shaper=shaper, links_in_force=links, arrived_bytes=dict, share=WHOLE)
    monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(module, "CpuMeter", lambda: SimpleNamespace(read=lambda: 0.5))
    sampler = Sampler(cast(Network, network), taken.append)
    monkeypatch.setattr(sampler, "_stopped", clock)
    sampler._run()
    assert sampler.failure is None
    moments = [sample["clock_s"] for sample in taken[:-1]]
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    assert min(gaps) >= 0.85
    assert sorted(gaps)[-2:] == [pytest.approx(1.0, abs=0.1), pytest.approx(41.0, abs=0.2)]
