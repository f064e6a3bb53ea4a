"""Captures of packets, pcap and pcapng: what was sent when, in bytes of frames.

Read here rather than by a library: those in pure Python hand out the captured bytes alone, without the length that the
packet had on the wire, and captures are mostly cut (`tcpdump -s 96`); dpkt's last release is of 2022.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from testbed.trace.text import kind_of
from testbed.trace.trace import TraceError

#: libpcap's link types: Ethernet; raw IP, as files number it and as BSDs do.
ETHERNET, RAW = 1, (101, 12, 14)
#: The bytes before IP that a link's rate counts.
ETHERNET_HEADER_BYTES = 14

#: The first bytes of a classic file → its byte order, and ticks a second.
MAGICS = {
    b"\xd4\xc3\xb2\xa1": ("<", 10**6),
    b"\xa1\xb2\xc3\xd4": (">", 10**6),
    b"\x4d\x3c\xb2\xa1": ("<", 10**9),
    b"\xa1\xb2\x3c\x4d": (">", 10**9),
}
#: The first bytes of a pcapng section, and the types of the blocks in it.
SECTION_MAGIC = b"\x0a\x0d\x0d\x0a"
INTERFACE, OLD_PACKET, SIMPLE_PACKET, PACKET = 1, 2, 3, 6
ORDERS = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}
#: The options of an interface that describe its clock.
RESOLUTION, OFFSET = 9, 14

#: libpcap's own limit for a packet; a block has options beside the packet.
MOST_PACKET_BYTES = 262_144
MOST_BLOCK_BYTES = 16 * 2**20
#: The most bytes on the wire: a host's own super-packets have half of that.
MOST_FRAME_BYTES = 2**20
#: The year 2262.
MOST_NS = 2**63

#: Tags of VLANs, and the types of frames that hold IP.
VLAN_TYPES = (b"\x81\x00", b"\x88\xa8", b"\x91\x00")
IP_TYPES = (b"\x08\x00", b"\x86\xdd")

#: The remedies for a capture that was stopped by force, and for one that is broken in another way.
REPAIR = "repair it with `editcap`, or stop tcpdump with Ctrl-C"
AGAIN = "capture again"


@dataclass(frozen=True, slots=True)
class Packet:
    """A captured packet."""

    #: When it was captured, in ns since 1970.
    time_ns: int
    #: Its bytes on the wire, as an Ethernet frame.
    frame_bytes: int
    #: The bytes that were kept, from the IP header on; empty where the packet is not IP.
    ip: bytes


def read_packets(file: BinaryIO) -> Iterator[Packet]:
    """Yield the packets in a capture. Raises TraceError for a broken packet, numbered from 1, or another file."""
    magic = file.read(4)
    if magic in MAGICS:
        return _classic(file, *MAGICS[magic])
    if magic == SECTION_MAGIC:
        return _blocks(file)
    kind = kind_of(magic + file.read(16))
    found = f"it is {kind}" if kind else "write one with `tcpdump -w FILE`"
    raise TraceError(f"the file is not a capture in pcap or pcapng; {found}", rule="no-capture")


def _classic(file: BinaryIO, order: str, ticks: int) -> Iterator[Packet]:
    header = file.read(20)
    if len(header) < 20:
        raise TraceError(f"the file ends within its header; {AGAIN}", rule="cut", field="file")
    link_type = struct.unpack(f"{order}16xI", header)[0] & 0xFFFF  # above are bits about frame check sequences
    _check_link_type(link_type)
    record = struct.Struct(f"{order}IIII")
    number = 0
    while head := file.read(record.size):
        number += 1
        try:
            packet = _classic_packet(file, head, record, ticks, link_type)
        except TraceError as error:
            raise error.at_line(number, "packet") from None
        yield packet


def _classic_packet(file: BinaryIO, head: bytes, record: struct.Struct, ticks: int, link_type: int) -> Packet:
    if len(head) < record.size:
        raise TraceError(f"the file ends within its header; {REPAIR}", rule="cut", field="header")
    seconds, fraction, kept, length = record.unpack(head)
    if fraction >= ticks:
        text = f"its time has {fraction} of {ticks} parts of a second, so the file's header is wrong; {AGAIN}"
        raise TraceError(text, rule="range", field="time")
    if kept > MOST_PACKET_BYTES:
        raise TraceError(f"its {kept} bytes are over {MOST_PACKET_BYTES}; {AGAIN}", rule="too-large", given=kept)
    data = file.read(kept)
    if len(data) < kept:
        raise TraceError(f"the file ends within it; {REPAIR}", rule="cut", field="packet")
    return _packet(seconds * 10**9 + fraction * 10**9 // ticks, length, data, link_type)


@dataclass(frozen=True, slots=True)
class _Interface:
    link_type: int
    ticks: int = 10**6
    offset_s: int = 0


def _blocks(file: BinaryIO) -> Iterator[Packet]:
    order, interfaces, number = "<", list[_Interface](), 0
    head = SECTION_MAGIC + file.read(4)
    while head:
        packet: Packet | None = None
        place = "after packet"
        try:
            if len(head) < 8:
                raise TraceError(f"the file ends within a block's header; {REPAIR}", rule="cut", field="block-header")
            if head[:4] == SECTION_MAGIC:
                magic = file.read(4)
                if magic not in ORDERS:
                    raise TraceError(f"a section has no byte order; {AGAIN}", rule="section")
                order, interfaces = ORDERS[magic], []
                _body(file, struct.unpack(f"{order}4xI", head)[0] - 4)
            else:
                kind, size = struct.unpack(f"{order}II", head)
                body = _body(file, size)
                if kind == INTERFACE:
                    interfaces.append(_interface(body, order))
                elif kind in (PACKET, OLD_PACKET, SIMPLE_PACKET):
                    number, place = number + 1, "packet"
                    packet = _block_packet(kind, body, order, interfaces)
        except TraceError as error:
            raise error.at_line(number, place) from None
        if packet is not None:
            yield packet
        head = file.read(8)


def _body(file: BinaryIO, size: int) -> bytes:
    """Return the rest of a block of which 8 bytes were read, without the length at its end."""
    if not 12 <= size <= MOST_BLOCK_BYTES:
        raise TraceError(f"a block has {size} bytes; {AGAIN}", rule="block-size", given=size)
    body = file.read(size - 8)
    if len(body) < size - 8:
        raise TraceError(f"the file ends within a block; {REPAIR}", rule="cut", field="block")
    return body[:-4]


def _interface(body: bytes, order: str) -> _Interface:
    if len(body) < 8:
        raise TraceError(f"the description of an interface lacks its link type; {AGAIN}", rule="link-type")
    link_type = struct.unpack(f"{order}H", body[:2])[0]
    _check_link_type(link_type)
    ticks, offset_s = 10**6, 0
    for code, value in _options(body[8:], order):
        if code == RESOLUTION and len(value) == 1:
            ticks = 2 ** (value[0] & 0x7F) if value[0] & 0x80 else 10 ** value[0]
        elif code == OFFSET and len(value) == 8:
            offset_s = struct.unpack(f"{order}q", value)[0]
    return _Interface(link_type, ticks, offset_s)


def _options(data: bytes, order: str) -> Iterator[tuple[int, bytes]]:
    while len(data) >= 4:
        code, length = struct.unpack(f"{order}HH", data[:4])
        if code == 0:
            return
        yield code, data[4 : 4 + length]
        data = data[4 + (length + 3) // 4 * 4 :]


def _block_packet(kind: int, body: bytes, order: str, interfaces: list[_Interface]) -> Packet:
    if kind == SIMPLE_PACKET:
        raise TraceError("a simple packet block has no time; capture with `tcpdump -w FILE`", rule="no-time")
    if len(body) < 20:
        raise TraceError(f"its block is too short; {AGAIN}", rule="block-short")
    which, high, low, kept, length = struct.unpack(f"{order}{'Hxx' if kind == OLD_PACKET else 'I'}IIII", body[:20])
    if which >= len(interfaces):
        text = f"the file does not describe its interface {which}; {AGAIN}"
        raise TraceError(text, rule="unknown-interface", given=which)
    if kept > len(body) - 20:
        raise TraceError(f"it has {kept} bytes in a block of {len(body)}; {AGAIN}", rule="block-bytes", given=kept)
    interface = interfaces[which]
    time_ns = interface.offset_s * 10**9 + (high << 32 | low) * 10**9 // interface.ticks
    return _packet(time_ns, length, body[20 : 20 + kept], interface.link_type)


def _check_link_type(link_type: int) -> None:
    if link_type != ETHERNET and link_type not in RAW:
        text = (
            f"the link type is {link_type}, neither Ethernet (1) nor raw IP (101); capture on one interface, not `any`"
        )
        raise TraceError(text, rule="link-type", given=link_type)


def _packet(time_ns: int, length: int, data: bytes, link_type: int) -> Packet:
    if length > MOST_FRAME_BYTES:
        text = f"it has {length} bytes on the wire, over {MOST_FRAME_BYTES}; {AGAIN}"
        raise TraceError(text, rule="too-large", given=length)
    if not 0 <= time_ns < MOST_NS:
        raise TraceError(f"the time stamp is not between the years 1970 and 2262; {AGAIN}", rule="time", given=time_ns)
    if link_type == ETHERNET:
        return Packet(time_ns, length, _in_ethernet(data))
    return Packet(time_ns, length + ETHERNET_HEADER_BYTES, data)


def _in_ethernet(data: bytes) -> bytes:
    place = 12
    while data[place : place + 2] in VLAN_TYPES:
        place += 4
    return data[place + 2 :] if data[place : place + 2] in IP_TYPES else b""
