"""The trains that simulated members see."""

from __future__ import annotations

import pytest

from testbed.simulation.round_model import Transfer
from testbed.simulation.trains import trains

pytestmark = pytest.mark.pure


def test_a_train_says_the_least_and_the_most_that_tcp_let_go() -> None:
    """Otherwise what BBR held back would pass for what the link carries."""
    paces = (2e6, 1e6, 3e6)
    sent = [
        Transfer(n * 0.02, (n + 1) * 0.02, 1 + n * 0.02, 1.02 + n * 0.02, 20_000, pace) for n, pace in enumerate(paces)
    ]
    ((over_s, train),) = trains(sent, 1000.0)
    assert over_s == pytest.approx(1.06)
    assert train.bytes / train.seconds == pytest.approx(1e6)
    assert (train.allowed_bytes_s, train.burst_bytes_s) == (1_000_000, 3_000_000)
