from __future__ import annotations

import struct
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.trace.forms.capture import Packet, capture_packets, read_packets
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


def refused(data: bytes) -> str:
    with pytest.raises(TraceError) as caught:
        read(data)
    return str(caught.value)


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
    ("data", "said"),
    [
        (b"", "is no capture in pcap or pcapng"),
        (b"PK\x03\x04 a zip", "is no capture in pcap or pcapng"),
        (WHOLE[:20], "ends within its header"),
        (WHOLE[:30], "packet 1: the file ends within its header"),
        (WHOLE[:-1], "packet 1: the file ends within it"),
        (WHOLE + WHOLE[24:-1], "packet 2: the file ends within it"),
        (classic([], link_type=113), "has the link type 113, and neither Ethernet (1) nor raw IP (101)"),
        (WHOLE[:32] + struct.pack("<I", 2**31) + WHOLE[36:], "packet 1: has 2147483648 bytes"),
        (classic([(BEGIN_NS, 2**21, CUT)]), "packet 1: has 2097152 bytes on the wire, over 1048576"),
        (NG[:-3], "the file ends within a block"),
        (NG[:40], "after packet 0"),
        (section()[:8] + bytes(20), "a section without byte order"),
        (section() + interface(113), "has the link type 113"),
        (section() + block(1, bytes(4)), "an interface without link type"),
        (section() + packet_block(0, 60, b""), "packet 1: is of interface 0, which the file does not describe"),
        (section() + interface() + block(3, bytes(20)), "packet 1: has no time"),
        (section() + interface() + block(6, bytes(8)), "packet 1: its block is too short"),
        (section() + struct.pack("<II", 1, 4), "a block of 4 bytes"),
        (section() + struct.pack("<II", 1, 2**31), "a block of 2147483648 bytes"),
        (section() + interface() + block(6, struct.pack("<IIIII", 0, 0, 0, 99, 99)), "99 bytes in a block of 20"),
        (section() + interface(1, option(9, b"\x00")) + packet_block(2**40, 60, b""), "not between 1970 and 2262"),
        (section() + b"\x01", "ends within a block's header"),
    ],
)
def test_what_breaks_a_capture_is_said(data: bytes, said: str) -> None:
    assert said in refused(data)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="there is no such capture"):
        list(capture_packets(tmp_path / "none.pcap"))
    with pytest.raises(TraceError, match="cannot be read"):
        list(capture_packets(tmp_path))


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
