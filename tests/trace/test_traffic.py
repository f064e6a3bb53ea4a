from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import pairwise, takewhile

import pytest

from testbed.link import LinkState, Opportunities
from testbed.trace.resample import LEAST_BPS
from testbed.trace.trace import End, Row, Trace, TraceError
from testbed.trace.traffic import LASTS_S, MOST_SHARE, Change, OnOff, PoissonFlows, Volume, left_by

pytestmark = pytest.mark.pure

#: The time over which shares are compared with their expectation, and the tolerance: of 10,000 busy times, or flows,
#: the mean is off by 1 to 2 % in one standard deviation.
LONG_S = 30_000.0
SCATTER = 0.06


def mean(changes: Iterable[Change], of: int = 1) -> float:
    """Return the mean over time of a power of the rate, up to LONG_S."""
    found = [*takewhile(lambda change: change[0] < LONG_S, changes), (LONG_S, 0.0)]
    return sum((stop - start) * rate**of for (start, rate), (stop, _) in pairwise(found)) / LONG_S


def traced(*rates: float, end: End = "loop", offset_s: float = 0.0) -> Trace:
    """Return a trace of a row each two seconds."""
    return Trace(tuple(Row(2.0 * number, rate) for number, rate in enumerate(rates)), end, offset_s)


def drawn(seed: int = 1) -> random.Random:
    return random.Random(seed)


def test_a_source_is_busy_for_its_share_of_the_time() -> None:
    source = OnOff(10e6, 1.0, 2.0)
    assert mean(source.changes(drawn())) == pytest.approx(10e6 / 3, rel=SCATTER)
    begins = [next(source.changes(drawn(seed)))[1] for seed in range(2000)]
    assert set(begins) == {0.0, 10e6}
    assert begins.count(10e6) / 2000 == pytest.approx(1 / 3, abs=0.05)


def test_flows_are_as_many_as_their_rate_and_length_say() -> None:
    """A Poisson number, whose variance is its mean."""
    flows = PoissonFlows(2e6, 1e6, 1.6)  # four seconds each
    number = mean(flows.changes(drawn())) / 2e6
    assert number == pytest.approx(2.5, rel=SCATTER)
    assert mean(flows.changes(drawn()), 2) / 4e12 - number**2 == pytest.approx(2.5, rel=2 * SCATTER)
    begins = [next(flows.changes(drawn(seed)))[1] / 2e6 for seed in range(2000)]
    assert sum(begins) / 2000 == pytest.approx(2.5, rel=SCATTER)


@pytest.mark.parametrize("traffic", [OnOff(10e6, 0.5, 0.5), PoissonFlows(1e6, 1e5, 0.5)])
def test_the_same_random_numbers_draw_the_same_traffic(traffic: OnOff | PoissonFlows) -> None:
    first, again, other = (left_by([(traffic, drawn(seed))], 50e6, None) for seed in (1, 1, 2))
    assert first == again != other
    assert first.end == "loop"
    assert first.duration_s == pytest.approx(LASTS_S)


@pytest.mark.parametrize(
    ("own", "volume"),
    [
        (traced(40e6, 20e6, 30e6), traced(5e6, 1e6)),
        (traced(40e6, 20e6, 30e6, offset_s=3.0), traced(5e6, 1e6, offset_s=1.0)),
        (traced(40e6, 20e6, end="hold"), traced(5e6, 1e6)),
        (traced(40e6, 20e6, 30e6, end="stop", offset_s=1.0), traced(5e6, 1e6)),
        (traced(40e6, 20e6), traced(5e6, 1e6, 9e6, end="stop")),
        (None, traced(5e6, 1e6, 9e6)),
    ],
)
def test_what_traffic_leaves_is_the_difference_at_each_moment(own: Trace | None, volume: Trace) -> None:
    left = left_by([(Volume(volume), drawn())], 50e6, own)
    for moment in (0.5 + 0.5 * number for number in range(300)):
        row, taken = own.at(moment) if own else Row(0.0, 50e6), volume.at(moment)
        found = left.at(moment)
        if row is None:
            assert found is None
        else:
            assert row.rate_bps and found
            assert found.rate_bps == pytest.approx(row.rate_bps - (taken.rate_bps or 0 if taken else 0))
    assert left.end == ("loop" if own is None else own.end)


def test_traffic_goes_on_in_whole_laps_of_the_longest_trace() -> None:
    own, volume = traced(*range(10_000_000, 10_000_350)), traced(5e6, 1e6)
    left = left_by([(Volume(volume), drawn())], 50e6, own)
    assert left.duration_s == pytest.approx(700)
    assert left_by([(Volume(volume), drawn())], 50e6, None).duration_s == pytest.approx(600)
    assert left_by([(Volume(traced(*range(1000, 1007))), drawn())], 50e6, None).duration_s == pytest.approx(602)


def test_laps_that_end_at_a_whole_millisecond_but_for_rounding_end_there() -> None:
    volume = Trace(tuple(Row(number / 10, 1e6 * (1 + number % 7)) for number in range(378)))
    assert volume.duration_s > 37.8  # by the last digit, so that sixteen laps end after 604.8 s
    assert left_by([(Volume(volume), drawn())], 50e6, None).duration_s == pytest.approx(604.8)


def test_traffic_always_leaves_something() -> None:
    two = [(Volume(traced(30e6)), drawn()), (Volume(traced(80e6)), drawn())]
    for capacity in (50e6, 1e6, 40e3):
        row = left_by(two, capacity, None).at(1.0)
        assert row
        assert row.rate_bps == pytest.approx(max(capacity * (1 - MOST_SHARE), min(capacity, LEAST_BPS)))


def test_the_other_values_of_a_trace_stay() -> None:
    own = Trace((Row(0.0, None, 0.02), Row(1.0, 30e6, None, 0.001, 0.1)), opportunities=Opportunities((1, 2)))
    left = left_by([(Volume(traced(10e6)), drawn())], 50e6, own)
    first, second = left.at(0.0), left.at(1.0)
    assert first and second
    state = LinkState(50e6, 0.01)
    assert first.over(state) == LinkState(40e6, 0.02)
    assert second.over(state) == LinkState(20e6, 0.01, 0.001, 0.1)
    assert left.opportunities is None


def test_what_would_take_too_long_to_draw_is_refused() -> None:
    with pytest.raises(TraceError, match="160,000,000 flows"):
        PoissonFlows(1e3, 1e9, 0.05)
    source = OnOff(1e6, 0.5, 0.5)
    steps = len(left_by([(source, drawn())], 50e6, None).rows)
    assert left_by([(source, drawn())], 50e6, None, steps)
    with pytest.raises(TraceError, match="longer times"):
        left_by([(source, drawn())], 50e6, None, steps // 2)
    with pytest.raises(TraceError, match="longer times"):  # nor is it drawn where each row would say the same
        left_by([(source, drawn()), (Volume(traced(50e6)), drawn())], 50e6, None, steps // 2)


def test_recorded_traffic_takes_nothing_where_its_trace_carries_nothing() -> None:
    volume = Volume(Trace((Row(0.0, 40e6, loss=0.0), Row(10.0, 40e6, loss=1.0), Row(20.0, 40e6, loss=0.5))))
    left = left_by([(volume, drawn())], 50e6, None)
    assert [row and row.rate_bps for row in map(left.at, (5.0, 15.0, 25.0))] == [10e6, 50e6, 10e6]


def test_recorded_traffic_has_rates() -> None:
    with pytest.raises(TraceError, match="no rates"):
        Volume(Trace((Row(0.0, delay_s=0.02),)))
