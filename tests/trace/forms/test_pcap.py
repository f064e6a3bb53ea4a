from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.trace.forms.flow import Flow
from testbed.trace.forms.packets import Packet
from testbed.trace.forms.pcap import arrivals_of, read_capture
from testbed.trace.resample import resample
from testbed.trace.trace import TraceError
from tests.trace.forms.captures import BEGIN_NS, blocks, frame, ip

pytestmark = pytest.mark.pure

THERE, BACK = ip("10.0.0.1", "10.0.0.2"), ip("10.0.0.2", "10.0.0.1", (51000, 443))


def packet(ms: float, size: int, data: bytes = THERE) -> Packet:
    return Packet(BEGIN_NS + round(ms * 1e6), size, data)


def steady() -> list[Packet]:
    """Return the packets of a second of 12.112 Mbit/s one way, and of acknowledgements back."""
    return [one for ms in range(1001) for one in (packet(ms, 1514), packet(ms + 0.5, 66, BACK))]


def test_the_rate_of_one_flow_and_of_all() -> None:
    there = resample(arrivals_of(steady(), Flow.parse("10.0.0.1->*")).arrivals, 0.1).trace
    assert [row.rate_bps for row in there.rows][1:9] == pytest.approx([12.112e6] * 8)
    everything = resample(arrivals_of(steady()).arrivals, 0.1).trace
    assert everything.rows[3].rate_bps == pytest.approx(12.64e6)


def test_the_largest_flows_are_named() -> None:
    found = arrivals_of(steady())
    assert [(str(flow), round(share, 3)) for flow, share in found.largest] == [
        ("10.0.0.1:443->10.0.0.2:51000", 0.958),
        ("10.0.0.2:51000->10.0.0.1:443", 0.042),
    ]


def test_packets_out_of_order_count_at_their_time() -> None:
    shuffled = [packet(500, 1514), packet(0, 1514), packet(1000, 1514)]
    arrivals = arrivals_of(shuffled).arrivals
    assert [arrivals.by(time_s) for time_s in (0.0, 0.5, 0.6, 1.0)] == [0, 1514, 3028, 4542]


@pytest.mark.parametrize(
    ("packets", "wanted", "rule"),
    [
        ([], None, "no-time"),
        ([packet(0, 60)], None, "no-time"),
        ([packet(0, 60), packet(0, 60)], None, "no-time"),
        (steady(), "*->10.0.0.9", "no-packet"),
        ([packet(0, 60, b"")], "*->10.0.0.9", "no-packet"),
    ],
)
def test_a_capture_of_too_little_is_refused(packets: list[Packet], wanted: str | None, rule: str) -> None:
    with pytest.raises(TraceError) as caught:
        arrivals_of(packets, wanted and Flow.parse(wanted))
    assert caught.value.rule == rule


def test_a_file_is_read(tmp_path: Path) -> None:
    data = blocks([(BEGIN_NS + ms * 10**6, 1514, frame(THERE)) for ms in range(11)])
    (tmp_path / "a.pcapng").write_bytes(data)
    found = read_capture(tmp_path / "a.pcapng")
    assert found.packets == 11
    assert found.arrivals.duration_s == pytest.approx(0.01)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(TraceError) as caught:
        read_capture(tmp_path / "none.pcap")
    assert caught.value.rule == "missing"
    with pytest.raises(TraceError) as caught:
        read_capture(tmp_path)
    assert caught.value.rule == "unreadable"


@given(st.lists(st.tuples(st.integers(0, 10**10), st.integers(60, 70_000)), min_size=2, max_size=60))
def test_no_byte_is_lost(packets: list[tuple[int, int]]) -> None:
    times = [time_ns for time_ns, _ in packets]
    made = [Packet(BEGIN_NS + time_ns, size, THERE) for time_ns, size in packets]
    if min(times) == max(times):
        return
    arrivals = arrivals_of(made).arrivals
    assert arrivals.by(arrivals.duration_s) == sum(size for _, size in packets)
    assert arrivals.duration_s == pytest.approx((max(times) - min(times)) / 1e9)
    middle = (min(times) + max(times)) // 2
    before = sum(size for time_ns, size in packets if time_ns < middle)
    assert abs(arrivals.by((middle - min(times)) / 1e9) - before) <= sum(s for t, s in packets if abs(t - middle) < 2)
