from __future__ import annotations

import struct
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.trace.forms.packets import Packet, read_packets
from testbed.trace.trace import TraceError
from tests.trace.forms.captures import (
    BEGIN_NS,
    Kept,
    block,
    blocks,
    classic,
    frame,
    interface,
    ip,
    option,
    packet_block,
    section,
)

pytestmark = pytest.mark.pure

PACKET = ip("10.0.0.1", "10.0.0.2")
CUT = frame(PACKET)[:30]


def read(data: bytes) -> list[Packet]:
    return list(read_packets(BytesIO(data)))


def refused(data: bytes) -> TraceError:
    with pytest.raises(TraceError) as caught:
        read(data)
    return caught.value


@pytest.mark.parametrize("order", "<>")
def test_a_cut_packet_counts_with_its_length_on_the_wire(order: str) -> None:
    kept = [(BEGIN_NS, 1514, CUT), (BEGIN_NS + 1_234_000, 66, frame(PACKET))]
    wanted = [Packet(BEGIN_NS, 1514, PACKET[:16]), Packet(BEGIN_NS + 1_234_000, 66, PACKET)]
    assert read(classic(kept, order)) == read(classic(kept, order, nano=True)) == read(blocks(kept, order)) == wanted


def test_raw_ip_counts_as_if_it_were_in_ethernet() -> None:
    for link_type in (101, 12, 14):
        assert read(classic([(BEGIN_NS, 1500, PACKET)], link_type=link_type)) == [Packet(BEGIN_NS, 1514, PACKET)]
    assert read(blocks([(BEGIN_NS, 1500, PACKET)], link_type=101)) == [Packet(BEGIN_NS, 1514, PACKET)]


def test_vlans_are_looked_into_and_what_is_no_ip_has_none() -> None:
    arp = bytes(12) + b"\x08\x06" + bytes(28)
    frames = [frame(PACKET, b"\x81\x00"), frame(PACKET, b"\x88\xa8", b"\x81\x00"), arp, b"", frame(PACKET)[:13]]
    found = [packet.ip for packet in read(classic([(BEGIN_NS, 60, kept) for kept in frames]))]
    assert found == [PACKET, PACKET, b"", b"", b""]


def test_each_interface_has_its_own_clock_and_link_type() -> None:
    """By default it counts microseconds; by its options powers of ten or of two, from a moment of its own."""
    two = interface(101, option(2, b"eth0") + option(9, b"\x8a") + option(14, struct.pack("<q", 1_700_000_000)))
    data = section() + interface() + two
    data += packet_block(BEGIN_NS // 1000, 60, frame(PACKET)) + packet_block(512, 40, PACKET, of=1, kind=2)
    data += block(5, bytes(12)) + section(">") + interface(order=">") + packet_block(7, 60, b"", order=">")
    assert read(data) == [
        Packet(BEGIN_NS, 60, PACKET),
        Packet(BEGIN_NS + 500_000_000, 54, PACKET),
        Packet(7000, 60, b""),
    ]


WHOLE = classic([(BEGIN_NS, 66, frame(PACKET))])
NG = blocks([(BEGIN_NS, 66, frame(PACKET))])


@pytest.mark.parametrize(
    ("data", "broken"),
    [
        (b"", ("no-capture", None)),
        (b"PK\x03\x04 a zip", ("no-capture", None)),
        (WHOLE[:20], ("cut", None)),
        (WHOLE[:30], ("cut", 1)),
        (WHOLE[:-1], ("cut", 1)),
        (WHOLE + WHOLE[24:-1], ("cut", 2)),
        (classic([], link_type=113), ("link-type", None)),
        (WHOLE[:32] + struct.pack("<I", 2**31) + WHOLE[36:], ("too-large", 1)),
        (classic([(BEGIN_NS, 2**21, CUT)]), ("too-large", 1)),
        (NG[:-3], ("cut", 0)),
        (NG[:40], ("cut", 0)),
        (section()[:8] + bytes(20), ("section", 0)),
        (section() + interface(113), ("link-type", 0)),
        (section() + block(1, bytes(4)), ("link-type", 0)),
        (section() + packet_block(0, 60, b""), ("unknown-interface", 1)),
        (section() + interface() + block(3, bytes(20)), ("no-time", 1)),
        (section() + interface() + block(6, bytes(8)), ("block-short", 1)),
        (section() + struct.pack("<II", 1, 4), ("block-size", 0)),
        (section() + struct.pack("<II", 1, 2**31), ("block-size", 0)),
        (section() + interface() + block(6, struct.pack("<IIIII", 0, 0, 0, 99, 99)), ("block-bytes", 1)),
        (section() + interface(1, option(9, b"\x00")) + packet_block(2**40, 60, b""), ("time", 1)),
        (section() + b"\x01", ("cut", 0)),
    ],
)
def test_what_breaks_a_capture_is_said(data: bytes, broken: tuple[str, int | None]) -> None:
    error = refused(data)
    assert (error.rule, error.line) == broken


@st.composite
def kept(draw: st.DrawFn) -> Kept:
    data = draw(st.binary(max_size=80))
    return draw(st.integers(0, 2**32 * 10**9 - 1)) // 1000 * 1000, draw(st.integers(len(data), 70_000)), data


@given(st.lists(kept(), max_size=5), st.sampled_from("<>"))
def test_each_form_says_the_same(packets: list[Kept], order: str) -> None:
    found = [(packet.time_ns, packet.frame_bytes) for packet in read(classic(packets, order))]
    assert found == [(time_ns, length) for time_ns, length, _ in packets]
    assert read(classic(packets, order, nano=True)) == read(blocks(packets, order)) == read(classic(packets, order))


@given(st.sampled_from([WHOLE, NG]), st.data())
def test_a_file_that_is_cut_or_changed_is_read_or_refused(data: bytes, draw: st.DataObject) -> None:
    place = draw.draw(st.integers(0, len(data)))
    data = data[:place] + draw.draw(st.binary(max_size=6)) + data[place + draw.draw(st.integers(0, 6)) :]
    try:
        read(data)
    except TraceError as error:
        assert str(error)
