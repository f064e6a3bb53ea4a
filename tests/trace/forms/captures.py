"""Captures, as tcpdump and dumpcap write them: classic files and blocks, with frames of Ethernet and of raw IP."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from ipaddress import ip_address

#: A packet: nanoseconds since 1970, its frame's bytes on the wire, and the bytes that were kept.
Kept = tuple[int, int, bytes]

BEGIN_NS = 1_700_000_000 * 10**9


def ip(source: str, target: str, ports: tuple[int, int] = (443, 51000), protocol: int = 6, fragment: int = 0) -> bytes:
    """Return an IP header, and the first bytes behind it."""
    a, b = ip_address(source), ip_address(target)
    behind = struct.pack(">HH", *ports) + bytes(16)
    if a.version == 4:
        head = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 40, 0, fragment, 64, protocol, 0, a.packed, b.packed)
    else:
        head = struct.pack(">IHBB16s16s", 6 << 28, 20, protocol, 64, a.packed, b.packed)
    return head + behind


def frame(packet: bytes, *tags: bytes) -> bytes:
    """Return an Ethernet frame of a packet, with tags of VLANs."""
    kind = b"\x08\x00" if packet[0] >> 4 == 4 else b"\x86\xdd"
    return bytes(12) + b"".join(tag + b"\x00\x07" for tag in tags) + kind + packet


def classic(packets: Iterable[Kept], order: str = "<", nano: bool = False, link_type: int = 1) -> bytes:
    """Return a pcap file."""
    magic = 0xA1B23C4D if nano else 0xA1B2C3D4
    tick = 1 if nano else 1000
    data = struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, 262_144, link_type)
    for time_ns, length, kept in packets:
        seconds, rest = divmod(time_ns, 10**9)
        data += struct.pack(f"{order}IIII", seconds, rest // tick, len(kept), length) + kept
    return data


def block(kind: int, body: bytes, order: str = "<") -> bytes:
    """Return a block of pcapng, filled up to four bytes."""
    body += bytes(-len(body) % 4)
    size = struct.pack(f"{order}I", len(body) + 12)
    return struct.pack(f"{order}I", kind) + size + body + size


def section(order: str = "<") -> bytes:
    """Return the block with which a section of pcapng begins."""
    return block(0x0A0D0D0A, struct.pack(f"{order}IHHq", 0x1A2B3C4D, 1, 0, -1), order)


def interface(link_type: int = 1, options: bytes = b"", order: str = "<") -> bytes:
    """Return an interface of packets."""
    return block(1, struct.pack(f"{order}HHI", link_type, 0, 262_144) + options, order)


def option(code: int, value: bytes, order: str = "<") -> bytes:
    """Return an option of an interface."""
    return struct.pack(f"{order}HH", code, len(value)) + value + bytes(-len(value) % 4)


def packet_block(ticks: int, length: int, kept: bytes, of: int = 0, order: str = "<", kind: int = 6) -> bytes:
    """Return a packet at `ticks` of its interface's clock; the kind 2 is obsolete."""
    which = struct.pack(f"{order}HH", of, 0) if kind == 2 else struct.pack(f"{order}I", of)
    head = which + struct.pack(f"{order}IIII", ticks >> 32, ticks & 0xFFFFFFFF, len(kept), length)
    return block(kind, head + kept, order)


def blocks(packets: Iterable[Kept], order: str = "<", link_type: int = 1) -> bytes:
    """Return a pcapng file, with a clock of nanoseconds."""
    data = section(order) + interface(link_type, option(9, b"\x09", order), order)
    return data + b"".join(packet_block(time_ns, length, kept, order=order) for time_ns, length, kept in packets)
