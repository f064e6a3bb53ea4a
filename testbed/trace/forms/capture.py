"""Captures of packets, pcap and pcapng: what was sent when, in bytes of frames.

Read here rather than by a library: those in pure Python hand out the captured bytes alone, without the length that the
packet had on the wire, and captures are mostly cut (`tcpdump -s 96`); dpkt's last release is of 2022.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from testbed.trace.text import kind_of, open_bytes
from testbed.trace.trace import TraceError

#: libpcap's link types: Ethernet; raw IP, as it is numbered in files, and by BSDs.
ETHERNET, RAW = 1, (101, 12, 14)
#: How many bytes a link's rate counts before IP.
ETHERNET_HEADER_BYTES = 14

#: Of classic files: the first bytes, the byte order, and ticks a second.
MAGICS = {
    b"\xd4\xc3\xb2\xa1": ("<", 10**6),
    b"\xa1\xb2\xc3\xd4": (">", 10**6),
    b"\x4d\x3c\xb2\xa1": ("<", 10**9),
    b"\xa1\xb2\x3c\x4d": (">", 10**9),
}
#: Of pcapng: blocks' types, and the options of an interface that say what its clock counts.
SECTION, INTERFACE, OLD_PACKET, SIMPLE_PACKET, PACKET = 0x0A0D0D0A, 1, 2, 3, 6
SECTION_MAGIC = b"\x0a\x0d\x0d\x0a"
ORDERS = {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}
RESOLUTION, OFFSET = 9, 14

#: libpcap's own limit, of a packet; a block has options beside it.
MOST_PACKET_BYTES = 262_144
MOST_BLOCK_BYTES = 16 * 2**20
#: On the wire: a host's own super-packets have half of it.
MOST_FRAME_BYTES = 2**20
#: The year 2262.
MOST_NS = 2**63

#: Tags of VLANs, and what they hold in the end.
VLAN_TYPES = (b"\x81\x00", b"\x88\xa8", b"\x91\x00")
IP_TYPES = (b"\x08\x00", b"\x86\xdd")

#: What a capture that was stopped by force needs.
CUT = "mend it with `editcap`, or stop tcpdump with Ctrl-C"


@dataclass(frozen=True, slots=True)
class Packet:
    """When it was captured, in ns since 1970; its bytes on the wire, counted as an Ethernet frame; and what was kept of
    it, from its IP header on, empty where it has none."""

    time_ns: int
    frame_bytes: int
    ip: bytes


def read_packets(file: BinaryIO) -> Iterator[Packet]:
    """The packets in a capture. TraceError says which one, from 1, is none, and when the file is no capture."""
    magic = file.read(4)
    if magic in MAGICS:
        return _classic(file, *MAGICS[magic])
    if magic == SECTION_MAGIC:
        return _blocks(file)
    kind = kind_of(magic + file.read(16))
    found = f"it is {kind}" if kind else "write one with `tcpdump -w FILE`"
    raise TraceError(f"is no capture in pcap or pcapng; {found}", rule="no-capture")


def capture_packets(path: Path) -> Iterator[Packet]:
    """The packets in the capture of that name; TraceError where it cannot be read."""
    try:
        with open_bytes(path) as file:
            yield from read_packets(file)
    except FileNotFoundError:
        raise TraceError("there is no such capture; check the path", rule="missing") from None
    except (OSError, ValueError) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(f"cannot be read: {error}", rule="unreadable") from None


def _classic(file: BinaryIO, order: str, ticks: int) -> Iterator[Packet]:
    header = file.read(20)
    if len(header) < 20:
        raise TraceError("ends within its header; capture again", rule="cut", field="file")
    link_type = struct.unpack(f"{order}16xI", header)[0] & 0xFFFF  # above are bits about frame check sequences
    _check_link_type(link_type)
    record = struct.Struct(f"{order}IIII")
    number = 0
    while head := file.read(record.size):
        number += 1
        if len(head) < record.size:
            raise TraceError(
                f"packet {number}: the file ends within its header; {CUT}", line=number, rule="cut", field="header"
            )
        seconds, fraction, kept, length = record.unpack(head)
        if fraction >= ticks:
            rule = f"packet {number}: its time has {fraction} of {ticks} parts of a second"
            text = f"{rule}, so the file's clock is not what its header says; capture again"
            raise TraceError(text, line=number, rule="range", field="time")
        data = _kept(file, number, kept)
        yield _packet(number, seconds * 10**9 + fraction * 10**9 // ticks, length, data, link_type)


@dataclass(frozen=True, slots=True)
class _Interface:
    link_type: int
    ticks: int = 10**6
    offset_s: int = 0


def _blocks(file: BinaryIO) -> Iterator[Packet]:
    order, interfaces, number = "<", list[_Interface](), 0
    head = SECTION_MAGIC + file.read(4)
    while head:
        if len(head) < 8:
            raise TraceError(
                f"ends within a block's header, after packet {number}; {CUT}",
                rule="cut",
                field="block-header",
                line=number,
            )
        if head[:4] == SECTION_MAGIC:
            magic = file.read(4)
            if magic not in ORDERS:
                raise TraceError(
                    f"after packet {number}: a section without byte order; capture again", rule="section", line=number
                )
            order, interfaces = ORDERS[magic], []
            _body(file, struct.unpack(f"{order}4xI", head)[0] - 4, number)
        else:
            kind, size = struct.unpack(f"{order}II", head)
            body = _body(file, size, number)
            if kind == INTERFACE:
                interfaces.append(_interface(body, order, number))
            elif kind in (PACKET, OLD_PACKET, SIMPLE_PACKET):
                number += 1
                yield _block_packet(kind, body, order, interfaces, number)
        head = file.read(8)


def _body(file: BinaryIO, size: int, number: int) -> bytes:
    """Of a block of which the first 8 bytes were read: without the length that it ends with."""
    if not 12 <= size <= MOST_BLOCK_BYTES:
        raise TraceError(
            f"after packet {number}: a block of {size} bytes; capture again", rule="block-size", given=size, line=number
        )
    body = file.read(size - 8)
    if len(body) < size - 8:
        raise TraceError(
            f"after packet {number}: the file ends within a block; {CUT}", rule="cut", field="block", line=number
        )
    return body[:-4]


def _interface(body: bytes, order: str, number: int) -> _Interface:
    if len(body) < 8:
        raise TraceError(
            f"after packet {number}: an interface without link type; capture again", rule="link-type", line=number
        )
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


def _block_packet(kind: int, body: bytes, order: str, interfaces: list[_Interface], number: int) -> Packet:
    if kind == SIMPLE_PACKET:
        raise TraceError(
            f"packet {number}: has no time (a simple packet block); capture with `tcpdump -w FILE`",
            line=number,
            rule="no-time",
        )
    if len(body) < 20:
        raise TraceError(f"packet {number}: its block is too short; capture again", line=number, rule="block-short")
    which, high, low, kept, length = struct.unpack(f"{order}{'Hxx' if kind == OLD_PACKET else 'I'}IIII", body[:20])
    if which >= len(interfaces):
        raise TraceError(
            f"packet {number}: is of interface {which}, which the file does not describe; capture again",
            line=number,
            rule="unknown-interface",
            given=which,
        )
    if kept > len(body) - 20:
        raise TraceError(
            f"packet {number}: {kept} bytes in a block of {len(body)}; capture again",
            line=number,
            rule="block-bytes",
            given=kept,
        )
    interface = interfaces[which]
    time_ns = interface.offset_s * 10**9 + (high << 32 | low) * 10**9 // interface.ticks
    return _packet(number, time_ns, length, body[20 : 20 + kept], interface.link_type)


def _check_link_type(link_type: int) -> None:
    if link_type != ETHERNET and link_type not in RAW:
        rule = f"has the link type {link_type}, and neither Ethernet (1) nor raw IP (101)"
        raise TraceError(f"{rule}; capture on one interface, not on `any`", rule="link-type", given=link_type)


def _kept(file: BinaryIO, number: int, kept: int) -> bytes:
    if kept > MOST_PACKET_BYTES:
        raise TraceError(
            f"packet {number}: has {kept} bytes, over {MOST_PACKET_BYTES}; capture again",
            line=number,
            rule="too-large",
            given=kept,
        )
    data = file.read(kept)
    if len(data) < kept:
        raise TraceError(f"packet {number}: the file ends within it; {CUT}", line=number, rule="cut", field="packet")
    return data


def _packet(number: int, time_ns: int, length: int, data: bytes, link_type: int) -> Packet:
    if length > MOST_FRAME_BYTES:
        raise TraceError(
            f"packet {number}: has {length} bytes on the wire, over {MOST_FRAME_BYTES}; capture again",
            line=number,
            rule="too-large",
            given=length,
        )
    if not 0 <= time_ns < MOST_NS:
        raise TraceError(
            f"packet {number}: its time is not between 1970 and 2262; capture again",
            line=number,
            rule="time",
            given=time_ns,
        )
    if link_type == ETHERNET:
        return Packet(time_ns, length, _in_ethernet(data))
    return Packet(time_ns, length + ETHERNET_HEADER_BYTES, data)


def _in_ethernet(data: bytes) -> bytes:
    place = 12
    while data[place : place + 2] in VLAN_TYPES:
        place += 4
    return data[place + 2 :] if data[place : place + 2] in IP_TYPES else b""
