"""Traffic control over a netlink socket that lives in another network namespace.

Only what shaping says to the kernel: four kinds of qdisc or class, and their statistics. Requests are bytes,
so a batch of changes is one system call each way; through a general netlink library one change takes 0.5 ms
of interpreter time, which for three changes on each of 26 links is 39 ms of every tick of 100.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from testbed.emulation.namespace import inside
from testbed.link import MTU_FRAME_BYTES, GilbertElliott

ROOT = 0xFFFFFFFF
#: The kernel's unit for times in qdisc parameters (PSCHED_SHIFT is 6).
TICK_S = 64e-9

_RTM_NEWQDISC, _RTM_GETQDISC, _RTM_NEWTCLASS, _RTM_GETLINK = 36, 38, 40, 18
_NLM_F_REQUEST, _NLM_F_ACK, _NLM_F_DUMP = 0x1, 0x4, 0x300
_NLM_F_REPLACE, _NLM_F_CREATE = 0x100, 0x400
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_NETLINK_ROUTE = 0
_TCA_KIND, _TCA_OPTIONS, _TCA_STATS2 = 1, 2, 7
_STATS_BASIC, _STATS_QUEUE = 1, 3
_NETEM_LOSS, _NETEM_RATE, _NETEM_LATENCY64, _NETEM_JITTER64 = 5, 6, 10, 11
_NETEM_LOSS_GE, _NLA_F_NESTED = 2, 0x8000
_HTB_PARMS, _HTB_INIT, _HTB_RATE64, _HTB_CEIL64 = 1, 2, 6, 7
_IFLA_IFNAME = 3
_ETHERNET_LINK_LAYER = 1
_MAX_U32 = 0xFFFFFFFF

_HEADER = struct.Struct("=IHHII")
_TCMSG = struct.Struct("=BxxxiIII")
_IFINFO = struct.Struct("=BxHiII")


def handle(major: int, minor: int = 0) -> int:
    """`major:minor` as one number."""
    return major << 16 | minor


def _attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + b"\0" * (-len(data) % 4)


def _attributes(data: bytes) -> dict[int, bytes]:
    found, at = {}, 0
    while at + 4 <= len(data):
        size, kind = struct.unpack_from("=HH", data, at)
        found[kind & 0x3FFF] = data[at + 4 : at + size]
        at += max(size + -size % 4, 4)
    return found


@dataclass(frozen=True, slots=True)
class Request:
    """One change: its message type, flags beside the usual ones, and its body."""

    message: int
    flags: int
    body: bytes


def _qdisc(kind: str, index: int, own: int, parent: int, options: bytes, create: bool) -> Request:
    """With `create` it is grafted in the place of whatever is there; else an existing one is changed."""
    body = _TCMSG.pack(socket.AF_UNSPEC, index, own, parent, 0)
    body += _attribute(_TCA_KIND, kind.encode() + b"\0") + _attribute(_TCA_OPTIONS, options)
    return Request(_RTM_NEWQDISC, _NLM_F_CREATE | _NLM_F_REPLACE if create else 0, body)


def netem(
    index: int,
    own: int,
    *,
    delay_s: float,
    jitter_s: float,
    reorder: bool = False,
    loss: float | GilbertElliott,
    limit_packets: int,
    create: bool = False,
) -> Request:
    """Delay and loss at the root of an interface.

    netem reorders packets under jitter unless it also has a rate, in which case it never lets one overtake
    another: so with jitter it is given the highest rate its field holds, 34 Gbit/s, which adds 0.4 µs to a
    full frame, unless `reorder` asks for what it does without. Of a chain it takes the loss of the good state and,
    of the bad one, what is not lost.
    """
    random = 0.0 if isinstance(loss, GilbertElliott) else loss
    options = struct.pack("=6I", 0, min(limit_packets, _MAX_U32), _share(random), 0, 0, 0)
    in_order = jitter_s > 0 and not reorder
    options += _attribute(_NETEM_RATE, struct.pack("=IiIi", _MAX_U32 if in_order else 0, 0, 0, 0))
    if isinstance(loss, GilbertElliott):
        chain = struct.pack("=4I", *map(_share, (loss.p, loss.r, 1 - loss.bad, loss.good)))
        options += _attribute(_NETEM_LOSS | _NLA_F_NESTED, _attribute(_NETEM_LOSS_GE, chain))
    options += _attribute(_NETEM_LATENCY64, struct.pack("=q", round(delay_s * 1e9)))
    options += _attribute(_NETEM_JITTER64, struct.pack("=q", round(jitter_s * 1e9)))
    return _qdisc("netem", index, own, ROOT, options, create)


def _share(probability: float) -> int:
    """A probability as the kernel holds it."""
    return round(probability * _MAX_U32)


def htb(index: int, own: int, parent: int, default_class: int) -> Request:
    """A classful rate limiter; unclassified packets go to the default class."""
    options = _attribute(_HTB_INIT, struct.pack("=5I", 3, 10, default_class, 0, 0))
    return _qdisc("htb", index, own, parent, options, create=True)


def htb_class(
    index: int, own: int, parent: int, rate_bps: float, burst_bytes: float, *, create: bool = False
) -> Request:
    """A class with the same rate and ceiling.

    `quantum` only matters between siblings, but unset the kernel derives one from the rate, and complains
    above 16 Mbit/s that it is big.
    """
    rate = max(int(rate_bps / 8), 1)
    spec = struct.pack("=BBHhHI", 0, _ETHERNET_LINK_LAYER, 0, 0, 0, min(rate, _MAX_U32))
    ticks = min(round(burst_bytes / rate / TICK_S), _MAX_U32)
    options = _attribute(_HTB_PARMS, spec + spec + struct.pack("=5I", ticks, ticks, MTU_FRAME_BYTES, 0, 0))
    if rate > _MAX_U32:
        wide = struct.pack("=Q", rate)
        options += _attribute(_HTB_RATE64, wide) + _attribute(_HTB_CEIL64, wide)
    body = _TCMSG.pack(socket.AF_UNSPEC, index, own, parent, 0)
    body += _attribute(_TCA_KIND, b"htb\0") + _attribute(_TCA_OPTIONS, options)
    return Request(_RTM_NEWTCLASS, _NLM_F_CREATE if create else 0, body)


def bfifo(index: int, own: int, parent: int, limit_bytes: int, *, create: bool = False) -> Request:
    """A queue limited in bytes."""
    return _qdisc("bfifo", index, own, parent, struct.pack("=I", min(limit_bytes, _MAX_U32)), create)


@dataclass(frozen=True, slots=True)
class Statistics:
    """What a qdisc has sent, dropped and holds; drops count a super-packet once, packets as its frames."""

    bytes: int = 0
    packets: int = 0
    drops: int = 0
    backlog_bytes: int = 0


def _statistics(attribute: bytes) -> Statistics:
    nested = _attributes(attribute)
    size, packets = struct.unpack_from("=QI", nested[_STATS_BASIC])
    _, backlog, drops, _, _ = struct.unpack_from("=5I", nested[_STATS_QUEUE])
    return Statistics(size, packets, drops, backlog)


class TrafficControl:
    """A routing-netlink socket in a namespace. OSError: what the kernel answered."""

    def __init__(self, netns: Path) -> None:
        self._socket = inside(netns, _routing_socket)
        self._sequence = count(1)

    def close(self) -> None:
        """Let the namespace go: an open socket keeps it alive."""
        self._socket.close()

    def apply(self, requests: Sequence[Request]) -> None:
        """Send all requests at once and read an answer to each; then raise the first refusal, if any."""
        messages, waiting = [], set()
        for request in requests:
            sequence = next(self._sequence)
            waiting.add(sequence)
            flags = _NLM_F_REQUEST | _NLM_F_ACK | request.flags
            size = _HEADER.size + len(request.body)
            messages.append(_HEADER.pack(size, request.message, flags, sequence, 0) + request.body)
        if not messages:
            return
        self._socket.send(b"".join(messages))
        refusal = 0
        while waiting:
            for message, sequence, body in self._receive():
                if message == _NLMSG_ERROR and sequence in waiting:
                    waiting.remove(sequence)
                    refusal = refusal or -struct.unpack_from("=i", body)[0]
        if refusal:
            raise OSError(refusal, os.strerror(refusal))

    def interfaces(self) -> dict[str, int]:
        """Index of every interface in the namespace."""
        found = {}
        for body in self._dump(_RTM_GETLINK, _IFINFO.pack(0, 0, 0, 0, 0)):
            name = _attributes(body[_IFINFO.size :])[_IFLA_IFNAME].rstrip(b"\0").decode()
            found[name] = _IFINFO.unpack_from(body)[2]
        return found

    def qdiscs(self) -> dict[tuple[int, int], tuple[int, Statistics]]:
        """Parent and statistics of every qdisc, by interface index and handle."""
        found = {}
        for body in self._dump(_RTM_GETQDISC, _TCMSG.pack(0, 0, 0, 0, 0)):
            _, index, own, parent, _ = _TCMSG.unpack_from(body)
            attributes = _attributes(body[_TCMSG.size :])
            found[index, own] = (parent, _statistics(attributes[_TCA_STATS2]))
        return found

    def _dump(self, message: int, body: bytes) -> Iterator[bytes]:
        asked = next(self._sequence)
        size = _HEADER.size + len(body)
        self._socket.send(_HEADER.pack(size, message, _NLM_F_REQUEST | _NLM_F_DUMP, asked, 0) + body)
        while True:
            for kind, sequence, answer in self._receive():
                if sequence != asked:
                    continue
                if kind == _NLMSG_DONE:
                    return
                if kind == _NLMSG_ERROR:
                    refusal = -struct.unpack_from("=i", answer)[0]
                    raise OSError(refusal, os.strerror(refusal))
                yield answer

    def _receive(self) -> list[tuple[int, int, bytes]]:
        """Type, sequence and body of the messages in the next datagram."""
        data, at, messages = self._socket.recv(1 << 17), 0, []
        while at + _HEADER.size <= len(data):
            size, kind, _, sequence, _ = _HEADER.unpack_from(data, at)
            messages.append((kind, sequence, data[at + _HEADER.size : at + size]))
            at += size + -size % 4
        return messages


def _routing_socket() -> socket.socket:
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_ROUTE)
    opened.bind((0, 0))
    return opened
