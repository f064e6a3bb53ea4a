from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.trace.forms.packets import Packet
from testbed.trace.forms.pcap import Flow, arrivals_of, read_capture
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


def flow(packet: bytes) -> str:
    return str(Flow.of_packet(packet))


def test_a_packet_s_flow() -> None:
    assert flow(ip("10.0.0.1", "10.0.0.2")) == "10.0.0.1:443->10.0.0.2:51000"
    assert flow(ip("2001:db8::1", "2001:db8::2", protocol=17)) == "[2001:db8::1]:443->[2001:db8::2]:51000"
    assert flow(ip("10.0.0.1", "10.0.0.2", protocol=1)) == "10.0.0.1->10.0.0.2"
    assert flow(ip("10.0.0.1", "10.0.0.2", fragment=100)) == "10.0.0.1->10.0.0.2", "a later fragment has no ports"
    assert flow(ip("10.0.0.1", "10.0.0.2")[:22]) == "10.0.0.1->10.0.0.2", "its ports are cut off"
    assert (
        flow(ip("10.0.0.1", "10.0.0.2")[:19]) == flow(b"") == flow(b"\x60" + bytes(38)) == flow(b"\x00" * 40) == "None"
    )


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("10.0.0.1:443->10.0.0.2:51000", True),
        ("10.0.0.1 -> 10.0.0.2", True),
        ("*->10.0.0.2", True),
        ("*:443->*", True),
        ("10.0.0.2->10.0.0.1", False),
        ("*:444->*", False),
        ("[2001:db8::1]:443->*", False),
    ],
)
def test_what_a_flow_matches(text: str, matches: bool) -> None:
    found = Flow.of_packet(ip("10.0.0.1", "10.0.0.2"))
    assert found is not None
    assert Flow.parse(text).matches(found) is matches


@pytest.mark.parametrize(
    "text", ["", "10.0.0.1", "10.0.0.1->", "a->b", "10.0.0.1:x->*", "*:0->*", "*:70000->*", "1.2.3->*"]
)
def test_what_is_no_flow_is_said(text: str) -> None:
    with pytest.raises(TraceError) as caught:
        Flow.parse(text)
    assert caught.value.rule == "flow"


@given(st.ip_addresses(), st.none() | st.integers(1, 65_535), st.ip_addresses(), st.none() | st.integers(1, 65_535))
def test_a_flow_is_written_as_it_is_read(a: object, port: int | None, b: object, other: int | None) -> None:
    def end(address: object, port: int | None) -> str:
        shown = f"[{address}]" if ":" in str(address) and port else str(address)
        return f"{shown}:{port}" if port else shown

    text = f"{end(a, port)}->{end(b, other)}"
    assert str(Flow.parse(text)) == text


@given(st.binary(max_size=60))
def test_any_bytes_have_a_flow_or_none(packet: bytes) -> None:
    found = Flow.of_packet(packet)
    assert found is None or found.matches(found)
